"""Decode and prefill speed of llama.cpp (PyPI llama-cpp-python) where engine_bench measures keel, as JSON lines.

    python bench/compare_llama_cpp.py MODEL.gguf [--threads 2] [--repeats 3] [--context N]

Settings: cache f16/f16 with flash attention off and on, and f16/q8_0 (which needs it). Same random token prompts lengths,
48 decode steps, median of the repeats after a warm-up with up to 1,024 tokens.
"""
import argparse, ctypes, json, statistics, time
import llama_cpp as lc

DECODE = 48

def context(model, n_ctx, threads, flash, value_type):
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 512, 512
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = flash
    params.type_k, params.type_v = lc.GGML_TYPE_F16, value_type
    made = lc.llama_init_from_model(model, params)
    assert made, "llama.cpp refused the context"
    return made

def run(ctx, vocabulary, length, seed):
    memory = lc.llama_get_memory(ctx)
    lc.llama_memory_clear(memory, True)
    tokens = [(seed * 7919 + i * 104729) % vocabulary for i in range(length)]
    start = time.perf_counter()
    for at in range(0, length, 512):
        chunk = (lc.llama_token * len(tokens[at:at + 512]))(*tokens[at:at + 512])
        assert lc.llama_decode(ctx, lc.llama_batch_get_one(chunk, len(chunk))) == 0
    lc.llama_synchronize(ctx)
    middle = time.perf_counter()
    one = (lc.llama_token * 1)()
    for i in range(DECODE):
        one[0] = (i * 31) % vocabulary
        assert lc.llama_decode(ctx, lc.llama_batch_get_one(one, 1)) == 0
        lc.llama_get_logits(ctx)
    lc.llama_synchronize(ctx)
    return length / (middle - start), DECODE / (time.perf_counter() - middle)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--context", type=int, action="append", help="may be given more than once; default 128, 1024, 4047")
    args = parser.parse_args()
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(args.model.encode(), lc.llama_model_default_params())
    vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    settings = {"f16/f16": (False, lc.GGML_TYPE_F16), "f16/f16 fa": (True, lc.GGML_TYPE_F16), "f16/q8_0 fa": (True, lc.GGML_TYPE_Q8_0)}
    contexts = {name: context(model, 4096, args.threads, *setting) for name, setting in settings.items()}
    for length in args.context or (128, 1024, 4096 - DECODE - 1):
        found = {name: [] for name in settings}
        for repeat in range(args.repeats + 1):
            for name, ctx in contexts.items():
                result = run(ctx, vocabulary, length if repeat else min(length, 1024), repeat)
                if repeat:
                    found[name].append(result)
        for name, results in found.items():
            prefill, decode = (statistics.median(column) for column in zip(*results))
            print(json.dumps({"engine": "llama.cpp", "kv_cache": name, "context": length, "threads": args.threads,
                              "decode_tokens_per_s": decode, "prefill_tokens_per_s": prefill}), flush=True)

main()
