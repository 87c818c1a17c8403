#!/usr/bin/env bash
# Repeats the study: run.sh MODEL.gguf PYTHON_WITH_LLAMA_CPP >raw.jsonl
set -euo pipefail
cd "$(dirname "$0")/../../.."
model=$1 python=$2
for context in 128 1024 4047; do
  for round in 1 2; do
    build/bench/engine_bench "$model" --repeats 2 --case "${context}x1"
    "$python" bench/compare_llama_cpp.py "$model" --repeats 1 --context "$context"
  done
done
build/bench/engine_bench "$model" --case 512x1 --case 512x8
build/bench/server_bench models/tiny
