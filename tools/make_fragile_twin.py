#!/usr/bin/env python3
"""Writes a copy of a model folder whose keys FP8 cannot hold: large constants on two key channels of every KV head.

    python tools/make_fragile_twin.py models/tiny twin --bias 100     (numpy and safetensors from PyPI)

Attention barely changes in 16 bits: by default the two slowest-turning RoPE pairs get +b and -b, which add nearly the
same term to the score of every key. In FP8 the constant takes the bits that the rest of the channel needs. The model must have key
biases (Qwen2); `keel`'s tests do the same with LoadOptions::key_bias_offsets.
"""
import argparse
import json
import re
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

KEY_BIAS = re.compile(r"model\.layers\.(\d+)\.self_attn\.k_proj\.bias")


def add_offsets(path, target, head_dim, offsets):
    """Copies one safetensors file with the offsets added; returns the layers it touched."""
    tensors = load_file(path)
    layers = set()
    for name, values in tensors.items():
        match = KEY_BIAS.fullmatch(name)
        if not match:
            continue
        heads = values.astype(np.float32).reshape(-1, head_dim)
        for dim, value in offsets:
            heads[:, dim] += value
        tensors[name] = heads.reshape(-1).astype(values.dtype)
        layers.add(int(match.group(1)))
    save_file(tensors, target, metadata={"format": "pt"})
    return layers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a Hugging Face folder in F16 or F32")
    parser.add_argument("twin", type=Path, help="the folder to write; must not exist")
    parser.add_argument("--bias", type=float, default=100.0)
    parser.add_argument("--dims", type=int, nargs=2, metavar=("PLUS", "MINUS"),
                        help="head dimensions that get +bias and -bias (default: the slowest two)")
    arguments = parser.parse_args()

    config = json.loads((arguments.model / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    plus, minus = arguments.dims or (head_dim // 2 - 1, head_dim // 2 - 2)
    if not 0 <= min(plus, minus) <= max(plus, minus) < head_dim:
        parser.error(f"--dims must lie in 0..{head_dim - 1}")

    arguments.twin.mkdir(parents=True)
    layers = set()
    for source in sorted(arguments.model.iterdir()):
        target = arguments.twin / source.name
        if source.suffix == ".safetensors":
            layers |= add_offsets(source, target, head_dim, [(plus, arguments.bias), (minus, -arguments.bias)])
        elif source.is_file():
            shutil.copyfile(source, target)
    missing = set(range(config["num_hidden_layers"])) - layers
    if missing:
        shutil.rmtree(arguments.twin)
        raise SystemExit(f"{arguments.model}: no key bias in layers {sorted(missing)}: not a model to make fragile")
    print(f"{arguments.twin}: key bias {arguments.bias:+g} at dimension {plus}, {-arguments.bias:+g} at {minus}, "
          f"{len(layers)} layers")


if __name__ == "__main__":
    main()
