#!/usr/bin/env bash
# run.sh KEEL OUT: the sweeps of both formats and two pilot blocks, on one GPU, from the repository's root.
set -eu
keel=$1 out=$2 here=docs/results/2026-11-30-h200-sweep
cp bench/geometries/qwen3-8b/config.json config.json  # where the plan looks for it
for format in k16v16 k16v8; do
  "$keel" bench sweep config.json --load-format dummy --device cuda --kv-cache-dtype $format --kv-cache-memory-bytes 48GiB --max-model-len 8448 --max-num-seqs 32 \
    --max-num-batched-tokens 16384 --contexts 2048,8192 --batches 1,2,4,8,16,32 --steps 16 --repeat 1 --csv "$out/sweep-$format.csv" --output-json "$out/sweep-$format.jsonl"
done
"$keel" bench compare $here/plan.json --pilot 2 -o "$out/compare"
