"""Run by scripts/test-exports: exports of one artifact, loaded by programs that were not written here."""

import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import urllib.request

import numpy as np
import pytest

QUATRAIN = os.environ["QUATRAIN"]
ARTIFACT = pathlib.Path(os.environ["QUATRAIN_ARTIFACT"])
TEXT = ("The keeper of the lighthouse climbed the stairs every evening, trimmed the lamp and wrote in his book which "
        "ships had passed, how the wind stood and whether the sea was calm or rough.")


def ids_of_text():
    """Of the model's own tokenizer; arbitrary ones where it has none."""
    command = [QUATRAIN, "tokenize", ARTIFACT, "--text", TEXT, "--json"]
    out = subprocess.run(command, capture_output=True)
    if out.returncode != 0:
        return [(7 * i * i + 13 * i + 5) % 60 + 20 for i in range(48)]
    return json.loads(out.stdout)["ids"]


IDS = ids_of_text()


def convert(source, out, to, *flags):
    subprocess.run([QUATRAIN, "convert", source, "--to", to, "-o", out, *flags], check=True, capture_output=True)
    return out


def logits(model, folder):
    out = folder / "logits.npy"
    subprocess.run([QUATRAIN, "logits", model, "--ids", ",".join(map(str, IDS)), "-o", out], check=True,
                   capture_output=True)
    return np.load(out)


def loss(values):
    """Mean -log p of each id after those before it; there is a row for each id, or for the first of them."""
    values = values.astype(np.float64)[:-1]
    top = values.max(-1, keepdims=True)
    log_sum = np.log(np.exp(values - top).sum(-1)) + top[:, 0]
    return float((log_sum - values[np.arange(len(values)), IDS[1 : len(values) + 1]]).mean())


def compare(name, theirs, ours, limit):
    difference = float(np.sqrt(((theirs - ours) ** 2).sum() / (ours**2).sum()))
    print(f"\n{name}: relative difference of logits {difference:.2e}; perplexity of {len(ours) - 1} tokens "
          f"{math.exp(loss(theirs)):.4f} there, {math.exp(loss(ours)):.4f} here")
    assert difference < limit
    return difference


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The artifact's weights in FP32, in the names of transformers."""
    return convert(ARTIFACT, tmp_path_factory.mktemp("plain") / "plain", "safetensors", "--dtype", "f32")


def tensors(folder):
    from safetensors import safe_open
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as source:
            for name in source.keys():
                found[name] = source.get_tensor(name)
    return found


def test_gguf_package_reads_the_same_weights(tmp_path, plain):
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(convert(ARTIFACT, tmp_path / "model.gguf", "gguf"))
    names = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    weights, compared, types = tensors(plain), 0, set()
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "blk" or parts[2] not in names:
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expected = weights[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"].numpy()
        np.testing.assert_allclose(values, expected, rtol=2**-10, atol=0)
        types.add(tensor.tensor_type.name)
        compared += 1
    print(f"\ngguf {importlib.metadata.version('gguf')}: {compared} matrices equal, types {sorted(types)}")
    assert compared > 0


class LlamaCpp:
    """llama.cpp's own server in this process, from PyPI's xllamacpp."""

    def __init__(self, file):
        xllamacpp = pytest.importorskip("xllamacpp")
        options = xllamacpp.CommonParams()
        options.model.path = str(file)
        options.n_ctx, options.n_gpu_layers, options.verbosity, options.warmup = 512, 0, -1, False
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
        try:
            self.server = xllamacpp.Server(options)
        except RuntimeError as error:  # it refuses models without a vocabulary
            pytest.skip(f"llama.cpp does not load it: {error}")

    def post(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def log_probabilities(self, ids, vocabulary):
        """Of every token after each of the ids, [ids, vocabulary]."""
        rows = np.full((len(ids), vocabulary), np.nan, np.float32)
        for i in range(len(ids)):
            answer = self.post("/completion", {"prompt": ids[: i + 1], "n_predict": 1, "n_probs": vocabulary,
                                               "temperature": -1, "cache_prompt": True})
            for entry in answer["completion_probabilities"][0]["top_logprobs"]:
                rows[i, entry["id"]] = entry["logprob"]
        return rows


# llama.cpp rounds activations to 8 bits by blocks of 32 (half a step is 1/254 of a block's largest value), to FP16
# beside F16 weights (2^-11), and keeps keys and values in FP16.
@pytest.mark.parametrize("dtype, limit", [("", 0.03), ("q8_0", 0.03), ("q4_1", 0.03), ("f16", 0.005)])
def test_llama_cpp_computes_the_same(tmp_path, dtype, limit):
    file = convert(ARTIFACT, tmp_path / "model.gguf", "gguf", *(["--dtype", dtype] if dtype else []))
    ids = IDS[:16]  # every one is a request whose answer names the whole vocabulary
    ours = logits(file, tmp_path)[: len(ids)].astype(np.float64)
    ours -= ours.max(-1, keepdims=True)
    ours -= np.log(np.exp(ours).sum(-1, keepdims=True))
    model = LlamaCpp(file)
    theirs = model.log_probabilities(ids, ours.shape[1])
    compare(f"llama.cpp (xllamacpp {importlib.metadata.version('xllamacpp')}), {dtype or 'integers kept'}", theirs,
            ours, limit)

    text = "Größe 1234,  don't\n\tif (x != y) return 日本語;"
    out = subprocess.run([QUATRAIN, "tokenize", file, "--text", text, "--json"], check=True, capture_output=True).stdout
    assert model.post("/tokenize", {"content": text, "add_special": True})["tokens"] == json.loads(out)["ids"]
    if "chat_template" in (ARTIFACT / "tokenizer_config.json").read_text() or (ARTIFACT / "chat_template.jinja").exists():
        chat, messages = [{"role": "user", "content": "Hi"}], tmp_path / "chat.json"
        messages.write_text(json.dumps(chat))
        ours = subprocess.run([QUATRAIN, "template", ARTIFACT, "--generation-prompt", "--messages", messages], check=True,
                              capture_output=True, text=True).stdout
        assert model.post("/apply-template", {"messages": chat})["prompt"] == ours


def round_inputs(x, scheme):
    """8 bits by token, as the export's settings say; no code of theirs."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    if scheme["symmetric"]:
        step = high.maximum(-low) / 127.5
        return (x / step).round().clamp(-128, 127) * step
    step = (high - low) / 255
    zero = (-128 - low / step).clamp(-128, 127).round()
    return ((x / step + zero).round().clamp(-128, 127) - zero) * step


def test_compressed_tensors_in_transformers(tmp_path, plain):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    folder = convert(ARTIFACT, tmp_path / "ct", "compressed-tensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([IDS])

    def run(hook, pre=False):
        """Logits with a hook on every packed matrix."""
        add = "register_forward_pre_hook" if pre else "register_forward_hook"
        handles = [getattr(module, add)(hook(name)) for name, module in model.named_modules() if name in schemes]
        with torch.no_grad():
            result = model(ids).logits[0].float().numpy()
        for handle in handles:
            handle.remove()
        return result

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    print(f"\nformat {config['format']}, groups {list(config['config_groups'])}")
    linear = [name for name, module in model.named_modules()
              if isinstance(module, torch.nn.Linear) and name not in config["ignore"]]
    schemes = {name: group["input_activations"] for group in config["config_groups"].values()
               for target in group["targets"] for name in (linear if target == "Linear" else [target])}
    assert sorted(schemes) == sorted(linear)
    weights, worst = tensors(plain), {}

    def check(name):
        def hook(_, inputs, output):
            x = round_inputs(inputs[0], schemes[name]) if schemes[name] else inputs[0]
            expected = x @ weights[f"{name}.weight"].T
            worst[name] = float((output - expected).norm() / expected.norm())
        return hook

    theirs = run(check)
    print(f"products of {len(worst)} matrices differ by at most {max(worst.values()):.1e}")
    # A few inputs lie so near the middle of two codes that the order of operations decides.
    assert len(worst) == len(schemes) and max(worst.values()) < 5e-3
    limit = 1e-3
    if any(schemes.values()):
        # Where such codes flip, tokens of a small model come out elsewhere: the reader is as far from itself when its
        # inputs change by a millionth. Ours computes with 8-bit inputs, too, once imported.
        folder = convert(folder, tmp_path / "imported", "artifact")
        torch.manual_seed(0)
        shaken = run(lambda _: lambda _, inputs: (inputs[0] * (1 + 1e-6 * torch.randn_like(inputs[0])),), pre=True)
        limit = max(0.01, 2 * float(np.linalg.norm(shaken - theirs) / np.linalg.norm(theirs)))
        print(f"the reader itself with inputs changed by 1e-6: half of {limit:.1e}")
    compare(f"compressed-tensors {importlib.metadata.version('compressed-tensors')}, transformers "
            f"{transformers.__version__}", theirs, logits(folder, tmp_path), limit)


@pytest.mark.parametrize("version", ["gptq"])
def test_gptq_unpacked_by_auto_gptq(tmp_path, plain, version):
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("make_fixtures", pathlib.Path(__file__).parent / "make_fixtures.py")
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    try:
        QuantLinear = fixtures.part_of(("auto_gptq", "auto_gptq"), "nn_modules.qlinear.qlinear_cuda").QuantLinear
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no auto-gptq")
    folder = convert(ARTIFACT, tmp_path / "gptq", version)
    config = json.loads((folder / "quantize_config.json").read_text())
    packed, weights, compared = tensors(folder), tensors(plain), 0
    for name in packed:
        if not name.endswith(".qweight"):
            continue
        linear = name.removesuffix(".qweight")
        n, k = weights[linear + ".weight"].shape
        module = QuantLinear(config["bits"], config["group_size"], k, n, bias=False)
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            assert getattr(module, part).shape == packed[f"{linear}.{part}"].shape
            setattr(module, part, packed[f"{linear}.{part}"])
        unpacked = module.float()(torch.eye(k)).T.detach().numpy()
        np.testing.assert_allclose(unpacked, weights[linear + ".weight"].numpy(), rtol=2**-10, atol=0)
        compared += 1
    print(f"\nauto-gptq {importlib.metadata.version('auto-gptq')}: {compared} matrices equal")
    assert compared > 0
