#!/usr/bin/env python3
"""Writes the fuzz targets' seeds and dictionaries: fuzz_seeds.py OUT [FILE.gguf | tokenizer.json ...]

OUT/<target>/ holds the seeds, OUT/<target>.dict the words. They are made from the files of this repository, and from
the further ones named (a vocabulary's or a model's), cut down to what a fuzzer can change usefully: a few kilobytes.
"""
import json
import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
KEPT_ELEMENTS = 40  # of an array in a GGUF file's metadata
KEPT_MERGES = 24    # of a tokenizer.json


def pack_string(text):
    return struct.pack("<Q", len(text)) + text


def pack_value(kind, value):
    if kind == STRING:
        return pack_string(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(pack_value(inner, v) for v in values)
    return struct.pack("<" + SCALARS[kind], value)


def pack_gguf(metadata, tensors):
    """metadata: {key: (type, value)}; tensors: [(name, sizes fastest first, type, bytes)]"""
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += pack_string(key) + struct.pack("<I", kind) + pack_value(kind, value)
    data = b""
    for name, sizes, kind, content in tensors:
        head += pack_string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(data))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data if tensors else head


def read_metadata(path):
    content = path.read_bytes()
    at = 24

    def take(layout):
        nonlocal at
        value = struct.unpack_from("<" + layout, content, at)
        at += struct.calcsize("<" + layout)
        return value[0]

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return content[at - size:at]

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner = take("I")
            return inner, [value(inner) for _ in range(take("Q"))]
        return take(SCALARS[kind])

    metadata = {}
    for _ in range(struct.unpack_from("<Q", content, 16)[0]):
        key = text()
        kind = take("I")
        metadata[key] = (kind, value(kind))
    for key, (kind, held) in metadata.items():
        if kind == ARRAY:
            metadata[key] = (kind, (held[0], held[1][:KEPT_ELEMENTS]))
    return metadata


def gguf_seeds(paths):
    floats = lambda count: struct.pack(f"<{count}f", *([1.5] * count))
    for path in paths:
        metadata = read_metadata(path)
        name = path.parent.name if path.stem == "model" else path.stem
        yield f"{name}-metadata", pack_gguf(metadata, [])
        yield f"{name}-tensors", pack_gguf(metadata, [
            (b"token_embd.weight", (32, 40), 8, bytes(34 * 40)), (b"rope_freqs.weight", (8,), 0, floats(8)),
            (b"blk.0.attn_q.bias", (64,), 1, bytes(128)), (b"output_norm.weight", (16, 2, 1, 1), 30, bytes(64)),
            (b"blk.0.ffn_up.weight", (256, 1), 12, bytes(144)), (b"odd", (3,), 77, bytes(5))])
    every = {b"k%d" % kind: (kind, 1) for kind in SCALARS}
    every |= {b"a%d" % kind: (ARRAY, (kind, [0, 1])) for kind in SCALARS} | {b"s": (STRING, b"text")}
    yield "every-type", pack_gguf(every, [])
    for family in (b"llama", b"qwen2", b"qwen3", b"phi3"):
        numbers = {b"block_count": 2, b"embedding_length": 64, b"feed_forward_length": 96, b"attention.head_count": 4,
                   b"attention.head_count_kv": 2, b"context_length": 256, b"attention.key_length": 16,
                   b"attention.value_length": 16, b"attention.sliding_window": 64, b"rope.dimension_count": 16,
                   b"rope.scaling.original_context_length": 128, b"vocab_size": 90, b"expert_count": 0}
        reals = {b"attention.layer_norm_rms_epsilon": 1e-5, b"rope.freq_base": 1e4, b"rope.scaling.factor": 2.0,
                 b"rope.scaling.attn_factor": 1.25}
        metadata = {b"general.architecture": (STRING, family), b"general.alignment": (4, 32)}
        metadata |= {family + b"." + key: (4, value) for key, value in numbers.items()}
        metadata |= {family + b"." + key: (6, value) for key, value in reals.items()}
        metadata |= {b"tokenizer.ggml.%s_token_id" % key: (4, 2) for key in (b"bos", b"eos", b"eot", b"eom")}
        for scaling in (b"none", b"linear", b"longrope"):
            yield (f"{family.decode()}-{scaling.decode()}",
                   pack_gguf(metadata | {family + b".rope.scaling.type": (STRING, scaling)},
                             [(b"rope_factors_short.weight", (8,), 0, floats(8))] if scaling == b"longrope" else []))


def safetensors_seeds():
    def pack(header, data):
        text = json.dumps(header, separators=(",", ":")).encode()
        return struct.pack("<Q", len(text)) + text + data

    content = (ROOT / "models/tiny/model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    smallest = sorted(header, key=lambda name: header[name]["data_offsets"][1] - header[name]["data_offsets"][0])[:4]
    kept, data = {"__metadata__": {"format": "pt"}}, b""
    for name in smallest:
        begin, end = header[name]["data_offsets"]
        kept[name] = header[name] | {"data_offsets": [len(data), len(data) + end - begin]}
        data += content[8 + size + begin:8 + size + end]
    yield "tiny", pack(kept, data)
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2,
             "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1}
    every, end = {}, 0
    for dtype, size in sizes.items():
        every[dtype.lower()] = {"dtype": dtype, "shape": [1, 3], "data_offsets": [end, end + 3 * size]}
        end += 3 * size
    yield "every-dtype", pack(every, bytes(end))
    yield "empty-tensor", pack({"e": {"dtype": "U8", "shape": [0, 7], "data_offsets": [0, 0]},
                                "s": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}, b"x")
    yield "none", pack({}, b"")


def small_tokenizer(document):
    """The same document with the tokens that its first merges need, and its first added tokens, numbered anew."""
    model = document["model"]
    merges = model["merges"][:KEPT_MERGES]
    wanted = {}
    for merge in merges:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        for text in (left, right, left + right, *left, *right):
            wanted.setdefault(text, len(wanted))
    for text in (model.get("unk_token"), "a", "b", "Ġ", "<0x0A>", "<0xE2>"):
        if text and text in model["vocab"]:
            wanted.setdefault(text, len(wanted))
    added = [token | {"id": wanted.get(token["content"], len(wanted) + i)}
             for i, token in enumerate(document["added_tokens"][:4])]
    return document | {"model": model | {"vocab": wanted, "merges": merges}, "added_tokens": added}


def tokenizer_seeds(paths):
    dump = lambda document: json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    small = None
    for path in paths:
        small = small_tokenizer(json.loads(path.read_text()))
        yield path.parent.name, dump(small)
    spaced = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}]}
    undone = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    around = {"type": "TemplateProcessing",
              "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
              "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    texts = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "▁", "h", "e", "l", "o", "he", "ll", "llo", "hello", "▁hello"]
    spm = small | {
        "normalizer": spaced, "pre_tokenizer": None, "decoder": undone, "post_processor": around,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": True,
                  "vocab": {text: i for i, text in enumerate(texts)},
                  "merges": ["h e", "l l", "ll o", "he llo", "▁ hello"]},
        "added_tokens": [{"id": i, "content": text, "special": i < 2, "single_word": i == 2, "lstrip": True,
                          "rstrip": True, "normalized": i == 2} for i, text in enumerate(texts[:3])]}
    yield "spm", dump(spm)
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield f"steps-{behavior}", dump(spm | {
            "normalizer": {"type": "NFD"}, "decoder": {"type": "Metaspace", "replacement": "▁"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\p{L}+"}, "behavior": behavior, "invert": True},
                {"type": "Split", "pattern": {"String": "l"}, "behavior": behavior},
                {"type": "Digits", "individual_digits": False}, {"type": "Punctuation", "behavior": behavior},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
                {"type": "WhitespaceSplit"}]}})


def request_seeds():
    chat = {"model": "tiny", "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}, {"type": "text", "text": "é😀"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": [2.5]}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        "tool_choice": "auto", "logprobs": True, "top_logprobs": 3, "max_completion_tokens": 16, "stream": True,
        "stream_options": {"include_usage": True}, "chat_template_kwargs": {"enable_thinking": False}}
    yield "chat", chat
    yield "sampling", {"prompt": "a", "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 5, "seed": -3, "n": 2,
                       "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 2, "min_tokens": 1,
                       "ignore_eos": True, "include_stop_str_in_output": False, "skip_special_tokens": True,
                       "stop": ["\n", "é"], "stop_token_ids": [1, 2], "logit_bias": {"5": -100, "7": 3.5},
                       "max_tokens": 8, "echo": True, "logprobs": 2, "prompt_logprobs": 1, "best_of": 1}
    yield "unsupported", {"prompt": [[1, 2], [3]], "suffix": "", "response_format": {"type": "text"},
                          "modalities": ["text"], "function_call": "none", "guided_json": {}, "use_beam_search": False,
                          "user": "u", "never_heard_of": 1e300, "stop": "x", "top_k": 3.0}
    yield "stop-text", {"prompt": "a", "stop": "x", "temperature": None}


def dictionary(sources):
    words = set()
    for source in sources:
        words |= set(re.findall(r'"([ -!#-\[\]-~]{2,40})"', (ROOT / source).read_text()))
    words = {word for word in words if not re.search(r"\{\}|: | is | not ", word)}
    return "".join(f'"{word}"\n' for word in sorted(words))


def main():
    out = pathlib.Path(sys.argv[1])
    further = [pathlib.Path(path) for path in sys.argv[2:]]
    ggufs = sorted(ROOT.glob("tests/golden/hf/gguf-q4_[0k]/model.gguf")) + [p for p in further if p.suffix == ".gguf"]
    tokenizers = [ROOT / "models/tiny/tokenizer.json"] + [p for p in further if p.suffix == ".json"]
    gguf = list(gguf_seeds(ggufs))
    targets = {
        "safetensors_fuzz": (safetensors_seeds(), ["src/files/safetensors.cpp"]),
        "gguf_fuzz": (gguf, ["src/files/gguf.cpp"]),
        "gguf_config_fuzz": (gguf, ["src/model/gguf_config.cpp", "src/files/gguf.cpp", "src/model/families/llama.cpp",
                                    "src/model/families/qwen.cpp", "src/model/families/phi3.cpp"]),
        "tokenizer_json_fuzz": (tokenizer_seeds(tokenizers), ["src/text/tokenizer_json.cpp",
                                                              "src/text/tokenizer_json_steps.cpp"]),
        "request_json_fuzz": (((name, json.dumps(body, ensure_ascii=False).encode()) for name, body in request_seeds()),
                              ["src/server/openai/chat.cpp", "src/server/openai/sampling_params.cpp"]),
    }
    for target, (seeds, sources) in targets.items():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in seeds:
            (folder / name).write_bytes(content)
        (out / f"{target}.dict").write_text(dictionary(sources))


main()
