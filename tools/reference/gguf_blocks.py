"""Golden values for src/kernels/matmul/dequantize_test.cpp, from independent code.

GGUF blocks: random bytes, dequantised by PyPI `gguf` (gguf.quants). AWQ: a small random matrix packed and unpacked here with
numpy, following AutoAWQ's column order. Needs: pip install gguf numpy. Run: python gguf_blocks.py > ../../src/kernels/matmul/golden_weights.inc
"""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

BLOCKS = 2
KINDS = [  # name, type, bytes of a block, offsets of its f16 fields
    ("q8_0", T.Q8_0, 34, [0]),
    ("q4_0", T.Q4_0, 18, [0]),
    ("q4_1", T.Q4_1, 20, [0, 2]),
    ("q4_k", T.Q4_K, 144, [0, 2]),
    ("q5_k", T.Q5_K, 176, [0, 2]),
    ("q6_k", T.Q6_K, 210, [208]),
]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds row AWQ_ORDER[i] of its eight


def halves(rng, count):
    return rng.uniform(-0.1, 0.1, count).astype(np.float16)


def lines(values, form):
    texts = [form(v) for v in values]
    return "\n".join("    " + ", ".join(texts[i : i + 12]) + "," for i in range(0, len(texts), 12))


def emit(kind, name, values):
    if kind == "float":  # bit patterns: exact
        bits = np.asarray(values, np.float32).reshape(-1).view(np.uint32)
        print(f"constexpr std::uint32_t {name}[] = {{\n{lines(bits, lambda v: f'0x{v:08x}')}\n}};")
    else:
        print(f"constexpr unsigned char {name}[] = {{\n{lines(values, str)}\n}};")


def main():
    rng = np.random.default_rng(20260)
    print("// Written by tools/reference/gguf_blocks.py; results are bit patterns of f32.")
    for name, kind, size, scales in KINDS:
        blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for offset in scales:
            blocks[:, offset : offset + 2] = halves(rng, BLOCKS).view(np.uint8).reshape(BLOCKS, 2)
        emit("bytes", f"k_{name}_bytes", blocks.reshape(-1))
        # Only every fifth value: each of a block's fields is still met.
        emit("float", f"k_{name}_values", dequantize(blocks, kind).reshape(-1)[::5])

    rows, columns = 16, 256
    codes = rng.integers(0, 16, (columns, rows))
    zeros = rng.integers(0, 16, (columns // 128, rows))
    scales = halves(rng, (columns // 128) * rows).reshape(-1, rows)

    def pack(matrix):
        words = np.zeros((matrix.shape[0], rows // 8), np.uint32)
        for i, row in enumerate(AWQ_ORDER):
            words |= matrix[:, row::8].astype(np.uint32) << np.uint32(4 * i)
        return words

    exact = (codes - np.repeat(zeros, 128, 0)).astype(np.float32) * np.repeat(scales.astype(np.float32), 128, 0)
    emit("bytes", "k_awq4_codes", pack(codes).view(np.uint8).reshape(-1))
    emit("bytes", "k_awq4_zeros", pack(zeros).view(np.uint8).reshape(-1))
    emit("bytes", "k_awq4_scales", scales.reshape(-1).view(np.uint8))
    emit("float", "k_awq4_values", exact.T.reshape(-1)[::29])  # [rows][columns]


main()
