"""Quatrain: 4-bit language models on CPUs and NVIDIA GPUs.

    import quatrain
    model = quatrain.load("out/artifact")
    print(model.generate("The capital of France is", max_tokens=8))
    for piece in model.stream([1, 2, 3]):
        print(piece, end="", flush=True)
    logits = model.logits([1, 2, 3])          # float32 array [3, vocabulary]
"""

import os as _os
import pathlib as _pathlib

# Recipes and corpora ship beside this file; a user's own setting stands.
_share = _pathlib.Path(__file__).parent / "share"
if _share.is_dir():
    _os.environ.setdefault("QUATRAIN_DATA", str(_share))

from ._quatrain import (  # noqa: E402
    Error,
    Model,
    Stream,
    Tokenizer,
    UsageError,
    convert,
    has_quantizer,
    load,
    quantize,
)

__version__ = "0.1.0"
__all__ = ["Error", "Model", "Stream", "Tokenizer", "UsageError", "convert", "has_quantizer", "load", "quantize"]
