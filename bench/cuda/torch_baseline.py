#!/usr/bin/env python3
"""The outside baseline of engine_cuda_bench: a Llama-3-8B-shaped decoder in PyTorch BF16, greedy decoding as a CUDA
graph over a static KV cache, scaled_dot_product_attention throughout. Random weights; times only."""
import time

import torch
import torch.nn.functional as F

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 4096, 14336, 32, 32, 8, 128, 128256
device, dtype = "cuda", torch.bfloat16


def weight(rows, columns):
    return torch.empty(rows, columns, device=device, dtype=dtype).normal_(std=columns**-0.5)


layers = [
    {
        "qkv": weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        "o": weight(HIDDEN, HEADS * DIM),
        "gate_up": weight(2 * INTERMEDIATE, HIDDEN),
        "down": weight(HIDDEN, INTERMEDIATE),
        "norm1": torch.ones(HIDDEN, device=device, dtype=dtype),
        "norm2": torch.ones(HIDDEN, device=device, dtype=dtype),
    }
    for _ in range(LAYERS)
]
embedding, head = weight(VOCABULARY, HIDDEN), weight(VOCABULARY, HIDDEN)
norm = torch.ones(HIDDEN, device=device, dtype=dtype)
frequencies = 500000.0 ** (-torch.arange(0, DIM, 2, device=device).float() / DIM)


def rotate(x, cosine, sine):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


def forward(tokens, position, cache, prompt):
    batch, length = tokens.shape
    x = F.embedding(tokens, embedding)
    angle = (position + torch.arange(length, device=device))[:, None] * frequencies
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
    for layer, (keys, values) in zip(layers, cache):
        qkv = F.linear(F.rms_norm(x, (HIDDEN,), layer["norm1"], 1e-5), layer["qkv"])
        qkv = qkv.view(batch, length, HEADS + 2 * KV_HEADS, DIM).transpose(1, 2)
        q = rotate(qkv[:, :HEADS], cosine, sine)
        k = rotate(qkv[:, HEADS : HEADS + KV_HEADS], cosine, sine)
        v = qkv[:, HEADS + KV_HEADS :]
        if prompt:
            keys[:, :, :length], values[:, :, :length] = k, v
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(batch, length, HEADS * DIM), layer["o"])
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), layer["norm2"], 1e-5), layer["gate_up"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer["down"])
    return F.linear(F.rms_norm(x[:, -1], (HIDDEN,), norm, 1e-5), head).argmax(dim=-1, keepdim=True)


def new_cache(batch, length):
    shape = (batch, KV_HEADS, length, DIM)
    return [(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))
            for _ in range(LAYERS)]


@torch.inference_mode()
def main():
    print("PyTorch", torch.__version__, torch.cuda.get_device_name())
    for batch in (1, 4):
        cache = new_cache(batch, 2048)
        tokens = torch.randint(VOCABULARY, (batch, 2048), device=device)
        times = []
        for _ in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            forward(tokens, torch.zeros(1, device=device, dtype=torch.long), cache, True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        print(f"  prefill {batch:2} x 2048: {min(times) * 1e3:8.2f} ms, {batch * 2048 / min(times):8.0f} tok/s")
        del cache
    for batch in (1, 4, 16, 64):
        cache = new_cache(batch, 1088)  # read in full, as at depth 1,088
        tokens = torch.randint(VOCABULARY, (batch, 1), device=device)
        position = torch.full((1,), 1024, device=device, dtype=torch.long)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                forward(tokens, position, cache, False)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens.copy_(forward(tokens, position, cache, False))
        graph.replay()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(32):
            graph.replay()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / 32
        print(f"  decode batch {batch:2} depth 1088: {seconds * 1e3:7.3f} ms a step, {batch / seconds:8.0f} tok/s")
        del graph, cache


main()
