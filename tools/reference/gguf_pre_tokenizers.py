#!/usr/bin/env python3
"""Where the reference library (PyPI `tokenizers`) cuts texts, for src/text/gguf_pre_tokenizer_test.cpp.

    python tools/reference/gguf_pre_tokenizers.py OUT

The patterns are those of the tokenizer.json of models whose GGUF has the name. Texts are tokenizer_oracle.py's. OUT gets
one line a name and 100 texts: name, number of the first text, SHA-256 over "end end end\n" of each, the byte where each
piece ends (16 hex digits).
"""
import hashlib
import sys

from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from tokenizer_oracle import GROUP, STRINGS, oracle_string

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
PATTERNS = {
    "llama-bpe": [CONTRACTIONS + "|" + BEFORE + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + REST],  # Llama 3
    "qwen2": [CONTRACTIONS + "|" + BEFORE + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + REST],  # Qwen 2, 2.5, 3
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],  # SmolLM2
    "tekken": [BEFORE + UPPER + "*" + LOWER + "+|" + BEFORE + UPPER + "+" + LOWER +  # Mistral Nemo, Mistral Small
               r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + REST],
    "gpt-4o": [BEFORE + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" + BEFORE + UPPER + "+" + LOWER + "*" +  # Phi-4-mini
               CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + REST],
    "seed-coder": [CONTRACTIONS + "|" + BEFORE + r"\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + REST],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
                    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                    r"| ?[\p{P}\p{S}]+[\r\n]*" + REST],
}


def ends(splitter, text):
    total, found = 0, []
    for piece, _ in splitter.pre_tokenize_str(text):
        total += len(piece.encode())
        found.append(str(total))
    return " ".join(found)


def main():
    with open(sys.argv[1], "w") as file:
        for name, patterns in PATTERNS.items():
            splitter = Sequence([Split(Regex(pattern), "isolated") for pattern in patterns])
            for first in range(0, STRINGS, GROUP):
                digest = hashlib.sha256()
                for number in range(first, first + GROUP):
                    digest.update((ends(splitter, oracle_string(number)) + "\n").encode())
                file.write(f"{name} {first} {digest.hexdigest()[:16]}\n")


if __name__ == "__main__":
    main()
