#!/usr/bin/env python3
"""Writes types.gguf (one tensor of random blocks per type, one metadata key per value type) and types.f32
(the same tensors in file order as the `gguf` Python package dequantises them).

    pip install numpy gguf && python3 make_gguf_fixtures.py
"""
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

# Where a type's blocks hold FP16 scales, which random bytes would make NaN or infinite.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.IQ4_NL: [0], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}

rng = np.random.default_rng(20250101)
writer = GGUFWriter("types.gguf", "none")
writer.add_key_value("test.u8", 200, V.UINT8)
writer.add_key_value("test.i8", -100, V.INT8)
writer.add_key_value("test.u16", 60000, V.UINT16)
writer.add_key_value("test.i16", -30000, V.INT16)
writer.add_key_value("test.u32", 4000000000, V.UINT32)
writer.add_key_value("test.i32", -2000000000, V.INT32)
writer.add_key_value("test.f32", 0.15625, V.FLOAT32)
writer.add_key_value("test.bool", True, V.BOOL)
writer.add_key_value("test.string", "na\u00efve", V.STRING)
writer.add_key_value("test.u64", 2**64 - 1, V.UINT64)
writer.add_key_value("test.i64", -(2**62), V.INT64)
writer.add_key_value("test.f64", 0.1, V.FLOAT64)
writer.add_array("test.strings", ["a", "", "\u2581b"])
writer.add_array("test.ints", [3, -4, 5])
writer.add_array("test.floats", [0.5, -1.5])
writer.add_array("test.bools", [True, False, True])

expected = []
for kind in (T.F32, T.F16, T.BF16):
    values = rng.normal(size=(3, 5)).astype(np.float32)
    raw = quantize(values, kind)
    expected.append(dequantize(raw, kind))
    writer.add_tensor(kind.name, raw, raw_dtype=kind)
for kind, halves in HALVES.items():
    block, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, size=(2, 2, size), dtype=np.uint8)
    for offset in halves:
        raw[:, :, offset:offset + 2] = rng.normal(size=(2, 2, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(2, 2 * size)
    expected.append(dequantize(raw, kind))
    writer.add_tensor(kind.name, raw, raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
np.concatenate([e.astype("<f4").ravel() for e in expected]).tofile("types.f32")

# encode.f32 and encode.TYPE: blocks of 32 values of many magnitudes, and their quantised bytes.
values = np.concatenate([
    (rng.normal(size=(24, 32)) * 10.0 ** rng.integers(-4, 3, size=(24, 1))).astype(np.float32),
    np.zeros((1, 32), np.float32), np.full((1, 32), 2.5, np.float32),
    np.tile(np.float32([0.5, -0.5, 1.5, -1.5, 63.5, -63.5, 127, -127]), (1, 4)),  # ties of Q8_0
    rng.integers(-8, 9, size=(5, 32)).astype(np.float32)]).ravel()
values.astype("<f4").tofile("encode.f32")
for kind in (T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1):
    quantize(values.reshape(1, -1), kind).tofile(f"encode.{kind.name}")
