#!/usr/bin/env python3
"""EleutherAI's lm-eval, unchanged, against `keel serve` through its `local-completions` model.

usage: lm_eval_local.py KEEL MODEL [OUTPUT_FOLDER]     (needs the packages lm-eval and tenacity)
A small task of two-way choices about sums is written to a scratch folder, so nothing is downloaded. Scored twice:
as text, and as token ids. Exit code 0: both ran and agree, and the score is above chance; 1: not; 2: something is missing.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

TASK = """task: keel_sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
"""


def write_task(folder):
    data = os.path.join(folder, "sums.jsonl")
    with open(data, "w") as file:
        for i in range(20):
            a, b = 11 + 3 * i, 12 + 2 * i
            question = (f"<|im_start|>user\nTom has {a} apples and buys {b} more. How many apples does Tom have now?<|im_end|>\n"
                        f"<|im_start|>assistant\n{a} + {b} =")
            right, wrong = f" {a + b}.", f" {a + b + 1 + i % 7}."
            choices = [right, wrong] if i % 2 == 0 else [wrong, right]
            file.write(json.dumps({"question": question, "choices": choices, "answer": i % 2}) + "\n")
    with open(os.path.join(folder, "keel_sums.yaml"), "w") as file:
        file.write(TASK.format(data=data))


def start(keel, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([keel, "serve", model, "--port", str(port), "--served-model-name", "tiny"])
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
            return server, port
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
    print("the server does not answer", file=sys.stderr)
    sys.exit(2)


def evaluate(port, model, folder, token_ids):
    out = os.path.join(folder, "ids" if token_ids else "text")
    args = (f"model=tiny,base_url=http://127.0.0.1:{port}/v1/completions,tokenizer_backend=huggingface,tokenizer={model},"
            f"tokenized_requests={token_ids},num_concurrent=4,max_retries=1,max_length=2048")
    subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", args, "--tasks", "keel_sums",
                    "--include_path", folder, "--output_path", out, "--batch_size", "4"],
                   check=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.path.join(folder, "cache")})
    for root, _, files in os.walk(out):
        for name in files:
            if name.startswith("results_"):
                return os.path.join(root, name)
    raise FileNotFoundError("lm-eval wrote no results")


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        print("the package lm-eval is not installed", file=sys.stderr)
        return 2
    model = os.path.abspath(sys.argv[2])
    server, port = start(os.path.abspath(sys.argv[1]), model)
    scores = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_task(folder)
            for token_ids in (False, True):
                results = evaluate(port, model, folder, token_ids)
                with open(results) as file:
                    scores[token_ids] = json.load(file)["results"]["keel_sums"]["acc,none"]
                if len(sys.argv) == 4:
                    os.makedirs(sys.argv[3], exist_ok=True)
                    shutil.copy(results, os.path.join(sys.argv[3], f"lm_eval_{'ids' if token_ids else 'text'}.json"))
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=60)
    print(f"accuracy: {scores[False]} as text, {scores[True]} as token ids; the server ended with {code}")
    return 0 if code == 0 and scores[False] == scores[True] and scores[True] > 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
