"""Writes the fixtures under data/: a tiny Llama, packed by the programs whose formats are read.

Each folder holds config.json and model.safetensors (or model.gguf) as those programs' own packing code makes them, and
expected.safetensors: the weights that their own code unpacks, in FP32. Needs torch, safetensors, numpy and

    auto-gptq==0.7.1  gptqmodel==7.7.0  autoawq==0.2.9  compressed-tensors==0.20.1  gguf==0.19.0

(auto-gptq and autoawq without their dependencies: only their CPU packing modules are used).
Usage: python make_fixtures.py [NAME...]
"""

import importlib
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import torch
from safetensors.torch import save_file

HIDDEN, INTER, LAYERS, HEADS, KV, VOCAB = 64, 96, 1, 4, 2, 96
OUT = pathlib.Path(__file__).parent / "data"


def part_of(package, module):
    """A module of an installed package without running the package's own __init__ (which wants GPUs and more)."""
    root = pathlib.Path(importlib.metadata.distribution(package[1]).locate_file(package[0]))
    parts = [package[0]] + module.split(".")[:-1]
    path = root
    for i, part in enumerate(parts):
        name = ".".join(parts[: i + 1])
        path = root if i == 0 else path / part
        if name not in sys.modules:
            stub = types.ModuleType(name)
            stub.__path__ = [str(path)]
            sys.modules[name] = stub
    return importlib.import_module(f"{package[0]}.{module}")


def linears():
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "self_attn.q_proj", HIDDEN, HIDDEN
        yield at + "self_attn.k_proj", HIDDEN // HEADS * KV, HIDDEN
        yield at + "self_attn.v_proj", HIDDEN // HEADS * KV, HIDDEN
        yield at + "self_attn.o_proj", HIDDEN, HIDDEN
        yield at + "mlp.gate_proj", INTER, HIDDEN
        yield at + "mlp.up_proj", INTER, HIDDEN
        yield at + "mlp.down_proj", HIDDEN, INTER


def plain():
    generator = torch.Generator().manual_seed(7)
    tensors = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
               "lm_head.weight": torch.randn(VOCAB, HIDDEN, generator=generator),
               "model.norm.weight": 1 + 0.1 * torch.randn(HIDDEN, generator=generator)}
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = 1 + 0.1 * torch.randn(HIDDEN, generator=generator)
    return {name: value.half() for name, value in tensors.items()}


def weights():
    generator = torch.Generator().manual_seed(11)
    return {name: 0.1 * torch.randn(n, k, generator=generator) for name, n, k in linears()}


def write(name, tensors, expected, quantization):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV, "vocab_size": VOCAB, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "dtype": "float16"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if tensors is not None:
        save_file({k: v.contiguous() for k, v in {**plain(), **tensors}.items()}, folder / "model.safetensors")
    save_file({k + ".weight": v.float().contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    print(name, "written")


def quantise(weight, bits, group, symmetric):
    """Scales [N, G] in FP16 steps and zeros [N, G] by round-to-nearest: the packers take them as given."""
    n, k = weight.shape
    cut = weight.reshape(n, k // group, group)
    top = 2**bits - 1
    if symmetric:
        scale = cut.abs().amax(-1) / (2 ** (bits - 1) - 0.5)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        low, high = cut.amin(-1).clamp(max=0), cut.amax(-1).clamp(min=0)
        scale = (high - low) / top
        zero = torch.round(-low / scale.half().float())
    return scale.half().float(), zero


def on_grid(weight, scale, zero, bits, columns_group):
    """The weight that the codes stand for; what GPTQ hands to its packer."""
    s, z = scale[:, columns_group], zero[:, columns_group]
    return s * (torch.clamp(torch.round(weight / s) + z, 0, 2**bits - 1) - z)


def gptq(name, bits, group, symmetric, act_order=False, version=1):
    tensors, expected = {}, {}
    for linear, weight in weights().items():
        n, k = weight.shape
        size = k if group == -1 else group
        scale, zero = quantise(weight, bits, size, symmetric)
        order = torch.arange(k, dtype=torch.int32) // size
        if act_order:
            order = order[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        module = torch.nn.Linear(k, n, bias=False)
        module.weight.data = on_grid(weight, scale, zero, bits, order.long()).half()
        if version == 1:
            QuantLinear = part_of(("auto_gptq", "auto_gptq"), "nn_modules.qlinear.qlinear_cuda").QuantLinear
            packed = QuantLinear(bits, group, k, n, bias=False)
            packed.pack(module, scale.half().clone(), zero.clone(), order)
            unpacked = packed.float()(torch.eye(k)).T
        else:
            TorchLinear = importlib.import_module("gptqmodel.nn_modules.qlinear.torch").TorchLinear
            packed = TorchLinear(bits=bits, group_size=group, sym=symmetric, desc_act=act_order, in_features=k,
                                 out_features=n, bias=False)
            packed.pack_original(module, scale.clone(), zero.clone(), order)
            packed.scales = packed.scales.float()
            unpacked = packed.dequantize_weight().T
            packed.scales = packed.scales.half()
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            value = getattr(packed, part).detach().clone()
            tensors[f"{linear}.{part}"] = value.half() if part == "scales" else value
        expected[linear] = unpacked.detach()
    write(name, tensors, expected, {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2"})


def awq(name, symmetric=False):
    WQLinear_GEMM = part_of(("awq", "autoawq"), "modules.linear.gemm").WQLinear_GEMM
    dequantize_gemm = part_of(("awq", "autoawq"), "utils.packing_utils").dequantize_gemm
    group, tensors, expected = 32, {}, {}
    for linear, weight in weights().items():
        n, k = weight.shape
        scale, zero = quantise(weight, 4, group, symmetric)
        module = torch.nn.Linear(k, n, bias=False)
        module.weight.data = on_grid(weight, scale, zero, 4, torch.arange(k) // group)
        packed = WQLinear_GEMM.from_linear(module, 4, group, scales=scale.T.contiguous(), zeros=zero.T.contiguous())
        for part in ("qweight", "qzeros", "scales"):
            tensors[f"{linear}.{part}"] = getattr(packed, part).detach().clone()
        expected[linear] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, group).T
    write(name, tensors, expected, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm",
                                    "zero_point": not symmetric, "modules_to_not_convert": None})


def compressed(name, bits, group, symmetric, activations):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    form = "int-quantized" if activations else "pack-quantized"
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric,
                            strategy="channel" if group == -1 else "group", group_size=None if group == -1 else group)
    inputs = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs if activations else None)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors, expected = {}, {}
    for linear, weight in weights().items():
        scale, zero = quantise(weight, bits, weight.shape[1] if group == -1 else group, symmetric)
        state = {"weight": weight, "weight_scale": scale}
        if not symmetric:
            state["weight_zero_point"] = (zero - 2 ** (bits - 1)).to(torch.int8)
        packed = compressor.compress(dict(state), scheme)
        expected[linear] = compressor.decompress(dict(packed), scheme)["weight"]
        packed["weight_scale"] = packed["weight_scale"].half()
        for part, value in packed.items():
            tensors[f"{linear}.{part}"] = value
    group_config = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json()),
                    "input_activations": json.loads(inputs.model_dump_json()) if activations else None,
                    "output_activations": None}
    write(name, tensors, expected, {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group_config}, "ignore": ["lm_head"], "kv_cache_scheme": None})


def gguf_file(name, kind):
    import gguf
    quantization = getattr(gguf.GGMLQuantizationType, kind)
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

    def stored(linear):
        if linear in top:
            return top[linear] + ".weight"
        _, _, layer, rest = linear.split(".", 3)
        return f"blk.{layer}.{names[rest]}.weight"

    expected = {}
    for tensor, value in plain().items():
        values = value.float().numpy()
        writer.add_tensor(stored(tensor.removesuffix(".weight")), values if values.ndim == 1 else values.astype(np.float16))
    for linear, weight in weights().items():
        values = weight.numpy()
        heads = {"q_proj": HEADS, "k_proj": KV}.get(linear.rsplit(".", 1)[1])
        packed = gguf.quants.quantize(values, quantization)
        expected[linear] = torch.from_numpy(gguf.quants.dequantize(packed, quantization).copy())
        if heads:  # llama.cpp's converter puts the rows that RoPE turns together side by side
            n = packed.shape[0]
            packed = packed.reshape(heads, 2, n // heads // 2, -1).swapaxes(1, 2).reshape(n, -1)
        writer.add_tensor(stored(linear), packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({k + ".weight": v.float().contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    print(name, "written")


FIXTURES = {
    "gptq-sym": lambda name: gptq(name, 4, 32, True),
    "gptq-asym-order": lambda name: gptq(name, 4, 32, False, act_order=True),
    "gptq-8bit-rows": lambda name: gptq(name, 8, -1, True),
    "gptq-v2": lambda name: gptq(name, 4, 32, True, version=2),
    "gptq-v2-asym": lambda name: gptq(name, 4, 32, False, version=2),
    "awq": lambda name: awq(name),
    "compressed-w4a16": lambda name: compressed(name, 4, 32, True, False),
    "compressed-w4a16-asym": lambda name: compressed(name, 4, 32, False, False),
    "compressed-w8a8": lambda name: compressed(name, 8, -1, True, True),
    "gguf-q4_0": lambda name: gguf_file(name, "Q4_0"),
    "gguf-q8_0": lambda name: gguf_file(name, "Q8_0"),
    "gguf-q4_1": lambda name: gguf_file(name, "Q4_1"),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    failed = 0
    for fixture in sys.argv[1:] or FIXTURES:
        try:
            FIXTURES[fixture](fixture)
        except Exception as error:  # a package that is not there stops its own fixtures only
            failed += 1
            print(f"{fixture}: {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(failed > 0)
