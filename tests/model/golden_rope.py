#!/usr/bin/env python3
"""Writes golden_rope.json: rotary frequencies in double precision, straight from the published formulas.

default: theta^(-2i/d).  linear: positions divided by the factor (kaiokendev).  llama3: Meta's apply_scaling.
yarn: "NTK-by-parts" of arXiv 2309.00071, equations 17-22, with ramp bounds rounded outwards as its authors' code does.
"""
import json
import math
import pathlib


def plain(theta, d):
    return [theta ** (-2 * i / d) for i in range(d // 2)]


def llama3(theta, d, factor, low, high, original):
    out = []
    for f in plain(theta, d):
        wavelength = 2 * math.pi / f
        if wavelength < original / high:
            out.append(f)
        elif wavelength > original / low:
            out.append(f / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def yarn(theta, d, factor, original, fast=32, slow=1, truncate=True):
    # Index whose frequency turns `turns` times within `original` positions: original * theta^(-2i/d) = 2 pi turns.
    def index(turns):
        return d / 2 * math.log(original / (2 * math.pi * turns)) / math.log(theta)

    low, high = index(fast), index(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    out = []
    for i, f in enumerate(plain(theta, d)):
        gamma = 1 - min(max((i - low) / (high - low), 0), 1)  # share that keeps its frequency
        out.append((1 - gamma) * f / factor + gamma * f)
    return out


CASES = [
    ("plain-10000-128", {"theta": 1e4, "d": 128}, plain(1e4, 128), 1),
    ("plain-1e6-64", {"theta": 1e6, "d": 64}, plain(1e6, 64), 1),
    ("linear-8-256", {"theta": 1e6, "d": 256, "rope_type": "linear", "factor": 8.0},
     [f / 8 for f in plain(1e6, 256)], 1),
    ("llama31-128", {"theta": 5e5, "d": 128, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
     llama3(5e5, 128, 8, 1, 4, 8192), 1),
    ("llama32-64", {"theta": 5e5, "d": 64, "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
     llama3(5e5, 64, 32, 1, 4, 8192), 1),
    ("yarn-qwen-128", {"theta": 1e6, "d": 128, "rope_type": "yarn", "factor": 4.0,
                       "original_max_position_embeddings": 32768},
     yarn(1e6, 128, 4, 32768), 0.1 * math.log(4) + 1),
    ("yarn-untruncated-64", {"theta": 150000.0, "d": 64, "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                             "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096},
     yarn(150000, 64, 32, 4096, truncate=False), 0.1 * math.log(32) + 1),
    ("yarn-mscale-64", {"theta": 1e4, "d": 64, "rope_type": "yarn", "factor": 40.0, "mscale": 0.707,
                        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
     yarn(1e4, 64, 40, 4096), (0.1 * 0.707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
    ("yarn-given-factor-64", {"theta": 1e4, "d": 64, "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25,
                              "beta_fast": 16, "beta_slow": 2, "original_max_position_embeddings": 2048},
     yarn(1e4, 64, 4, 2048, 16, 2), 1.25),
    ("partial-96-of-128", {"theta": 1e4, "d": 128, "partial_rotary_factor": 0.75}, plain(1e4, 96), 1),
]

cases = [{"name": name, "parameters": parameters, "frequencies": frequencies, "attention_scale": scale}
         for name, parameters, frequencies, scale in CASES]
pathlib.Path(__file__).with_name("golden_rope.json").write_text(json.dumps(cases, indent=0) + "\n")
