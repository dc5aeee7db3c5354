"""4-bit language models: load, generate, logits, perplexity, quantise, convert."""

import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

_Path = Union[str, "os.PathLike[str]"]
_Prompt = Union[str, Sequence[int]]

has_quantizer: bool

class Error(RuntimeError):
    """A failure with file, tensor or field, and what to do."""

class UsageError(Error):
    """A value that no call takes: an unknown protocol, format or recipe field."""

class Tokenizer:
    """A model's tokenizer."""

    @property
    def bos(self) -> int:
        """Id of the BOS token, -1 where there is none."""
    @property
    def eos(self) -> List[int]:
        """Ids that end a reply."""
    @property
    def chat_template(self) -> str:
        """The Jinja text; empty where none is."""
    def __len__(self) -> int: ...
    def encode(self, text: str, *, special: bool = ..., add_special: bool = ...) -> List[int]:
        """Ids of a text."""
    def decode(self, ids: Sequence[int], *, special: bool = ...) -> str:
        """Text of ids."""
    def apply_chat_template(
        self,
        messages: Sequence[Dict[str, Any]],
        *,
        add_generation_prompt: bool = ...,
        tools: Optional[Sequence[Dict[str, Any]]] = ...,
    ) -> str:
        """The prompt that the model's chat template makes of a conversation."""

class Stream(Iterator[str]):
    """Pieces of text as they are generated. Leaving it ends the generation."""

    def __iter__(self) -> "Stream": ...
    def __next__(self) -> str: ...
    def close(self) -> None:
        """Ends the generation before its time."""

class Model:
    """A loaded model; see load(). Several threads may use one."""

    @property
    def path(self) -> str: ...
    @property
    def context(self) -> int:
        """The longest sequence, in tokens."""
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; an Error where it brings none."""
    def generate(
        self,
        prompt: _Prompt,
        *,
        max_tokens: int = ...,
        stop: Sequence[str] = ...,
        temperature: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        min_p: float = ...,
        repetition_penalty: float = ...,
        seed: int = ...,
        ignore_eos: bool = ...,
    ) -> str:
        """Text that follows a prompt (a text or ids). temperature 0 is greedy."""
    def stream(
        self,
        prompt: _Prompt,
        *,
        max_tokens: int = ...,
        stop: Sequence[str] = ...,
        temperature: float = ...,
        top_k: int = ...,
        top_p: float = ...,
        min_p: float = ...,
        repetition_penalty: float = ...,
        seed: int = ...,
        ignore_eos: bool = ...,
    ) -> Stream:
        """As generate(), as an iterator over pieces of the text."""
    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after every one of the ids: [len(ids), vocabulary_size], not copied."""
    def perplexity(self, text: str, protocol: str = ..., *, windows: int = ...) -> Dict[str, Any]:
        """Perplexity of a text file or a shipped corpus under a named protocol."""

def load(path: _Path, *, threads: int = ..., context: int = ...) -> Model:
    """Loads a model directory (16-bit, packed or artifact), a GGUF or a llama2.c file."""

def quantize(
    model: _Path, recipe: str, output: _Path, *, overrides: Sequence[str] = ..., threads: int = ...
) -> Dict[str, Any]:
    """Quantises a model by a recipe's name or file. Needs a build with libtorch (has_quantizer)."""

def convert(model: _Path, output: _Path, *, to: str, dtype: str = ..., fold: bool = ...) -> None:
    """As `quatrain convert`."""
