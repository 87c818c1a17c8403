#!/usr/bin/env python3
"""Token ids by the reference library (PyPI `tokenizers`), for src/text/tokenizer_oracle_test.cpp.

    python tools/reference/tokenizer_oracle.py OUT NAME=TOKENIZER_JSON ...

The strings follow from their number alone, by the rule that src/text/testdata/oracle_strings.h has too. OUT gets one
line a tokenizer and 100 strings: name, number of the first string, SHA-256 over "id id id\n" of each (16 hex digits).
Strings with an odd number are encoded with special tokens parsed, those with an even one as plain text.
"""
import hashlib
import sys

from tokenizers import Tokenizer

STRINGS = 10_000
GROUP = 100
MASK = (1 << 64) - 1

WORDS = [
    "the", "Hello", "world", "don't", "I'LL", "we've", "it's", "'tis", "Naïve", "Füh", "rer", "tokenizer", "x86",
    "HTTP", "camelCase", "snake_case", "über", "Việt", "нещо", "Български", "γλώσσα", "שלום", "مرحبا", "नमस्ते", "ខ្មែរ",
    "你好", "世界", "日本語", "かな", "한국어", "ไทย", "🦙", "😶‍🌫️", "✅", "½", "²", "Ⅷ", "٣٤", "ﬁ", "Å", "ſ", "ß", "İ", "ǅ",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x41>", "<think>", "[MASK]", "<pad>",
    "▁", "_", "a", "b", "S", "\u0301", "\u0323", "e\u0301\u0323", "\u200d", "\ufeff", "\u00ad", "\0",
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "       ", "\u0085"]
PUNCTUATION = [".", ",", "!", "?!", "...", "'", "\"", "(", ")", "[]", "{};", "--", "=>", "$", "€", "%", "^~", "`", "#",
               "。", "，", "「", "¿", "—", "…", "/", "\\", "|", "&&", "<", ">"]
RANGES = [(0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x620, 0x64a),
          (0x905, 0x939), (0xe01, 0xe30), (0x1100, 0x1112), (0x1ea0, 0x1ef9), (0x3041, 0x3096), (0x4e00, 0x9fa5),
          (0xac00, 0xd7a3), (0xff01, 0xff5e), (0x1f300, 0x1f5ff), (0x10400, 0x1044f), (0x300, 0x36f)]


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Draws:
    def __init__(self, seed):
        self.seed, self.counter = seed, 0

    def below(self, n):
        value = mix64(mix64(self.seed) ^ ((self.counter * 0xD1342543DE82EF95) & MASK))
        self.counter += 1
        return value % n


def oracle_string(number):
    draws = Draws(number)
    text = ""
    for _ in range(draws.below(16)):
        kind = draws.below(8)
        if kind < 3:
            text += WORDS[draws.below(len(WORDS))]
            if draws.below(2):
                text += " "
        elif kind == 3:
            text += SPACES[draws.below(len(SPACES))]
        elif kind == 4:
            text += PUNCTUATION[draws.below(len(PUNCTUATION))]
        elif kind == 5:
            text += str(draws.below(10 ** (1 + draws.below(7))))
        elif kind == 6:
            low, high = RANGES[draws.below(len(RANGES))]
            for _ in range(1 + draws.below(6)):
                text += chr(low + draws.below(high - low + 1))
        else:
            text += chr(97 + draws.below(26)) * (1 + draws.below(40))
    return text


def encode(tokenizer, number):
    tokenizer.encode_special_tokens = number % 2 == 0
    return tokenizer.encode(oracle_string(number), add_special_tokens=False).ids


def main():
    out, *models = sys.argv[1:]
    with open(out, "w") as file:
        for model in models:
            name, path = model.split("=", 1)
            tokenizer = Tokenizer.from_file(path)
            for first in range(0, STRINGS, GROUP):
                digest = hashlib.sha256()
                for number in range(first, first + GROUP):
                    digest.update((" ".join(map(str, encode(tokenizer, number))) + "\n").encode())
                file.write(f"{name} {first} {digest.hexdigest()[:16]}\n")


if __name__ == "__main__":
    main()
