"""Run by scripts/test-python on the installed package."""

import gc
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

import quatrain

DATA = pathlib.Path(__file__).parents[2] / "tests" / "formats" / "data"
MODEL = os.environ.get("QUATRAIN_MODEL", "")
IDS = [1, 7, 30, 64, 2]


@pytest.fixture(scope="module")
def tiny():
    return quatrain.load(DATA / "gptq-sym", threads=1)


@pytest.fixture(scope="module")
def real():
    if not os.path.exists(MODEL):
        pytest.skip("no model; scripts/fetch-model fetches one")
    return quatrain.load(MODEL)


def test_logits_are_an_array_of_their_own(tiny):
    logits = tiny.logits(IDS)
    assert logits.dtype == np.float32 and logits.shape == (len(IDS), tiny.vocabulary_size)
    assert not logits.flags.owndata and logits.base is not None  # a capsule owns the buffer
    assert logits.flags.c_contiguous and np.isfinite(logits).all()
    kept = logits[2].copy()
    row = logits[2]
    del logits
    gc.collect()
    assert (row == kept).all()  # a view keeps the buffer
    np.testing.assert_array_equal(tiny.logits(IDS[:3])[2], kept)  # causal
    np.testing.assert_array_equal(tiny.logits(np.array(IDS))[2], kept)


def test_errors_are_exceptions(tiny, tmp_path):
    with pytest.raises(quatrain.Error, match="no such model"):
        quatrain.load(tmp_path / "nothing")
    with pytest.raises(quatrain.Error, match="token 1000"):
        tiny.logits([1000])
    with pytest.raises(quatrain.Error):
        tiny.logits([])
    with pytest.raises(quatrain.Error, match="context"):
        tiny.logits([1] * (tiny.context + 1))
    with pytest.raises(quatrain.Error, match="no tokenizer"):
        tiny.tokenizer
    with pytest.raises(quatrain.UsageError, match="exl2"):
        quatrain.convert(DATA / "awq", tmp_path / "x", to="exl2")
    with pytest.raises(TypeError):
        tiny.logits("text")
    assert issubclass(quatrain.UsageError, quatrain.Error) and issubclass(quatrain.Error, RuntimeError)


def test_convert(tmp_path, tiny):
    quatrain.convert(DATA / "gptq-sym", tmp_path / "artifact", to="artifact")
    converted = quatrain.load(str(tmp_path / "artifact"), threads=1)
    np.testing.assert_array_equal(converted.logits(IDS), tiny.logits(IDS))


def test_quantize_says_when_it_is_missing(tmp_path):
    if quatrain.has_quantizer:
        report = quatrain.quantize(DATA / "gptq-sym", "rtn-g64", tmp_path / "a")
        assert report["recipe"] == "rtn-g64"
        assert quatrain.load(tmp_path / "a").logits(IDS).shape[0] == len(IDS)
    else:
        with pytest.raises(quatrain.Error, match="libtorch"):
            quatrain.quantize(DATA / "gptq-sym", "rtn-g64", tmp_path / "a")


def test_type_hints_and_docstrings():
    folder = pathlib.Path(quatrain.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_quatrain.pyi").exists()
    for name in quatrain.__all__:
        assert name in dir(quatrain)
    for method in ("generate", "stream", "logits", "perplexity"):
        assert getattr(quatrain.Model, method).__doc__
        assert f"def {method}(" in (folder / "_quatrain.pyi").read_text()


def test_stream_is_generate_in_pieces(real):
    prompt = "The capital of France is"
    text = real.generate(prompt, max_tokens=12)
    pieces = list(real.stream(prompt, max_tokens=12))
    assert "".join(pieces) == text and len(pieces) > 1
    ids = real.tokenizer.encode(prompt, add_special=True)
    assert real.generate(ids, max_tokens=12) == text
    assert real.generate(prompt, max_tokens=12, stop=[text[3:6]]) == text[:3]
    sampled = [real.generate(prompt, max_tokens=8, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_greedy_follows_the_logits(real):
    ids = real.tokenizer.encode("Once upon a time", add_special=True)
    best = int(real.logits(ids)[-1].argmax())
    assert real.generate(ids, max_tokens=1) == real.tokenizer.decode([best])


def test_chat_template(real):
    prompt = real.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert "Hi" in prompt and prompt.endswith("assistant\n")


def test_perplexity(real):
    result = real.perplexity("wikitext2-test", "token-ppl@256", windows=2)
    assert result["protocol"] == "token-ppl@256" and result["windows"] == 2 and 2 < result["value"] < 200
    with pytest.raises(quatrain.UsageError):
        real.perplexity("wikitext2-test", "ppl")


def test_two_threads_get_what_one_gets(real):
    prompts = ["The capital of France is", "Water boils at"]
    alone = [real.generate(prompt, max_tokens=10) for prompt in prompts]
    together = [None, None]

    def work(i):
        together[i] = real.generate(prompts[i], max_tokens=10)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    ticks = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ticks += 1  # this thread runs while they compute: the GIL is free
        time.sleep(0.001)
    assert together == alone and ticks > 5


def test_keyboard_interrupt(real):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        real.generate("Count:", max_tokens=100_000, ignore_eos=True)
    timer.join()
    assert real.generate("Water", max_tokens=2)  # the model is as before


def test_a_stream_that_is_left_ends(real):
    stream = real.stream("Count:", max_tokens=100_000, ignore_eos=True)
    assert next(stream)
    stream.close()
    assert list(stream) == []
    del stream
    gc.collect()
    assert real.generate("Water", max_tokens=2)
