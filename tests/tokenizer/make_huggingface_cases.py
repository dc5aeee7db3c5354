"""Writes huggingface_cases.json: small tokenizers of every kind with the ids that Hugging Face's `tokenizers` gives.

    python3 -m venv venv && venv/bin/pip install tokenizers && venv/bin/python make_huggingface_cases.py SHARED

SHARED is the folder of large fixtures; the tokenizers built here come along in the file, those of SHARED by path.
Decoded texts are left out where Hugging Face does not give the text back (normalised or dropped characters).
"""
import gzip
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import AddedToken

PARTS = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "a", "Hello", " world", "'s", "'LL", "don't", "1", "23", "456789",
         ".", "...", ",", "!?", "(", "é", "e\u0301", "Ω", "日本語", "한국어", "ไทย", "हिन्दी", "🦙", "👩‍👩‍👧‍👦", "\u00a0",
         "\u2003", "½", "Ⅷ", "ﬁ", "ß", "_", "__init__", "<", ">", "</s>", "<0x0A>", "\u2581", "\u0085", "The quick",
         "<|special|>", "<plain>", "<strip>", "<word>", "<norm>", "the the", "<|endoftext|>", "<|im_start|>", "IN THE"]


def texts(seed, count):
    r = random.Random(seed)
    return ["".join(r.choice(PARTS) for _ in range(r.randrange(1, 18))) for _ in range(count)]


CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog's bark is worse than its bite; don't you think so?",
    "In 2024, 1234567 people said: \"Hello, world!\"  They were happy\n\nand\tdanced until 23:45.",
    "naïve café résumé über Straße; Ωmega alpha beta. 日本語 のテキスト 한국어 텍스트 हिन्दी पाठ ไทย",
    "def __init__(self, x=1):\n    self.x = x\n    return None\n\nfor i in range(10):\n    print(i, i ** 2)\n",
    "the the the in in in them then there these those that this thing things nothing something",
] * 4

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = [
    AddedToken("<|special|>", special=True, normalized=False),
    AddedToken("<plain>", special=False, normalized=False),
    AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("<word>", single_word=True, normalized=False),
    AddedToken("<norm>", normalized=True),
    AddedToken("the the", normalized=True),
]


def byte_bpe(pre, normalizer=None, post=None, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(ADDED)
    if post is not None:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def bos_eos(tokenizer):
    i = tokenizer.token_to_id("<|special|>")
    return processors.TemplateProcessing(single="<|special|> $A <|special|>", special_tokens=[("<|special|>", i)])


def sentencepiece_bpe(pre, normalizer, decoder):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(normalizer) if normalizer else None
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoder
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["\u2581" + line.replace(" ", "\u2581") for line in CORPUS], trainer)
    # The byte tokens are the model's, not added ones.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_tokens(ADDED)
    return tokenizer


def unigram(byte_fallback):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if byte_fallback:
        document = json.loads(tokenizer.to_str())
        document["model"]["byte_fallback"] = True
        document["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
        document["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]}
        tokenizer = Tokenizer.from_str(json.dumps(document))
    return tokenizer


LLAMA2_DECODER = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                    decoders.Strip(" ", 1, 0)])
BUILT = {
    "gpt2": lambda: byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": lambda: byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), post=bos_eos),
    "llama3": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True, post=bos_eos),
    "nfc": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(GPT2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        normalizer=normalizers.NFC()),
    "digits": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "punctuation": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]), normalizer=normalizers.Lowercase()),
    "removed": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex("[.!?]+"), "merged_with_previous"),
        pre_tokenizers.Split("(", "merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])),
    "whitespace": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "whitespace split": lambda: byte_bpe(pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[a-z]+"), "contiguous", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "llama2": lambda: sentencepiece_bpe(None, [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")], LLAMA2_DECODER),
    "mistral": lambda: sentencepiece_bpe(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None, LLAMA2_DECODER),
    "gemma": lambda: sentencepiece_bpe(pre_tokenizers.Split(" ", "merged_with_previous"), [normalizers.Replace(" ", "\u2581")],
                                       decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])),
    "metaspace split": lambda: sentencepiece_bpe(pre_tokenizers.Metaspace(), None, LLAMA2_DECODER),
    "unigram": lambda: unigram(False),
    "unigram bytes": lambda: unigram(True),
}
STORED = ["fixtures/smollm2/tokenizer.json", "data/tokenizers/phi-2/tokenizer.json.gz", "data/tokenizers/phi-3/tokenizer.json.gz",
          "data/tokenizers/torchtune/tiny_bpe_tokenizer.json", "data/tokenizers/torchtitan/tokenizer.json"]


def cases(tokenizer, seed, count):
    # Hugging Face's Unigram finds byte and control tokens by their spelling; SentencePiece, and Quatrain, do not.
    unigram = json.loads(tokenizer.to_str())["model"]["type"] == "Unigram"
    result = []
    for text in texts(seed, count):
        if unigram:
            text = text.replace("<0x0A>", "")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        entry = {"text": text, "ids": ids}
        whole = tokenizer.encode(text).ids
        if whole != ids:
            entry["sequence"] = whole
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if plain != ids:
            entry["plain"] = plain
        if tokenizer.decode(ids, skip_special_tokens=False) == text:
            entry["round_trip"] = True
        if unigram and "</s>" in text:
            continue
        result.append(entry)
    return result


def main():
    shared = pathlib.Path(sys.argv[1])
    out = {"tokenizers": tokenizers.__version__, "built": [], "stored": []}
    for seed, (name, build) in enumerate(BUILT.items()):
        tokenizer = build()
        out["built"].append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases(tokenizer, seed, 60)})
    for seed, path in enumerate(STORED):
        data = (shared / path).read_bytes()
        tokenizer = Tokenizer.from_str((gzip.decompress(data) if path.endswith(".gz") else data).decode())
        out["stored"].append({"path": path, "cases": cases(tokenizer, 100 + seed, 60)})
    target = pathlib.Path(__file__).with_name("huggingface_cases.json")
    target.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(target, target.stat().st_size, "bytes")


main()
