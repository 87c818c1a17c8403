#!/usr/bin/env python3
"""Prints RoPE inverse frequencies of transformers as golden numbers for src/model/rope_golden.h.

    python tools/reference/rope_reference.py > src/model/rope_golden.h      (torch and transformers from PyPI)

transformers computes them in f32; keel in f64. The test allows for that difference.
"""
import copy
import json
import logging

import transformers
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

logging.disable(logging.WARNING)

SHARED = dict(num_hidden_layers=2, intermediate_size=64, vocab_size=64)
LLAMA = dict(SHARED, hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
PHI3 = dict(SHARED, hidden_size=384, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1)

SHORT_96 = [round(1 + 0.05 * i, 2) for i in range(48)]
SHORT_72 = [round(1 + 0.03 * i, 2) for i in range(36)]
LONG_96 = [round(1 + 0.9 * i, 2) for i in range(48)]
LONG_72 = [round(1 + 0.7 * i, 2) for i in range(36)]

CASES = {
    "none": (LlamaConfig, dict(LLAMA, max_position_embeddings=4096, rope_theta=100000.0)),
    "linear": (LlamaConfig, dict(LLAMA, max_position_embeddings=16384, rope_theta=10000.0,
                                 rope_scaling=dict(rope_type="linear", factor=4.0))),
    "llama3": (LlamaConfig, dict(LLAMA, max_position_embeddings=131072, rope_theta=500000.0,
                                 rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                   high_freq_factor=4.0, original_max_position_embeddings=8192))),
    "longrope": (Phi3Config, dict(PHI3, max_position_embeddings=131072, original_max_position_embeddings=4096,
                                  rope_theta=10000.0,
                                  rope_scaling=dict(type="longrope", short_factor=SHORT_96, long_factor=LONG_96))),
    "longrope_partial": (Phi3Config, dict(PHI3, max_position_embeddings=131072, partial_rotary_factor=0.75,
                                          original_max_position_embeddings=4096, rope_theta=10000.0,
                                          rope_scaling=dict(type="longrope", short_factor=SHORT_72,
                                                            long_factor=LONG_72))),
    "partial": (Phi3Config, dict(PHI3, max_position_embeddings=4096, partial_rotary_factor=0.5, rope_theta=10000.0)),
}


def main():
    print(f"// Written by tools/reference/rope_reference.py with transformers {transformers.__version__}; do not edit.")
    print("#pragma once\n\n#include <vector>\n")
    print("namespace keel {\n")
    print("struct RopeGolden {\n  const char* name;\n  const char* config;  // the keys that matter, as config.json has them")
    print("  float magnitude;\n  std::vector<float> inverse_frequencies;\n};\n")
    print("inline const std::vector<RopeGolden> kRopeGolden = {")
    for name, (config_class, keys) in CASES.items():
        config = config_class(**copy.deepcopy(keys))
        embedding = (LlamaRotaryEmbedding if config_class is LlamaConfig else Phi3RotaryEmbedding)(config)
        frequencies = embedding.inv_freq.tolist()
        written = dict(keys, architectures=[config_class.__name__.replace("Config", "ForCausalLM")])
        print(f'    {{"{name}",\n     R"({json.dumps(written)})",')
        print(f"     {embedding.attention_scaling!r}f,\n     {{")
        for i in range(0, len(frequencies), 6):
            print("      " + " ".join(f"{value:.9e}f," for value in frequencies[i:i + 6]))
        print("     }},")
    print("};\n\n}  // namespace keel")


if __name__ == "__main__":
    main()
