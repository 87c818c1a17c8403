#!/usr/bin/env bash
# run.sh KEEL OUT.jsonl fp16|awq|long: the plan's runs, one process each, appended to OUT.jsonl.
set -u
keel=$1 out=$2 part=$3
here=$(cd "$(dirname "$0")/../../.." && pwd)
common="--load-format dummy --max-num-seqs 32 --max-num-batched-tokens 65536 --no-enable-chunked-prefill --no-enable-prefix-caching
  --num-prompts 32 --num-warmups 15 --device cuda"

arm() { # GEOMETRY FORMAT POOL INPUT OUTPUT
  echo "$(date +%T) $1 $2 pool $3, $4 in, $5 out: $(nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader)"
  timeout 120 "$keel" --quiet bench throughput "$here/bench/geometries/$1/config.json" $common --kv-cache-dtype "$2" --kv-cache-memory-bytes "$3" \
    --max-model-len $(($4 + $5)) --input-len "$4" --output-len "$5" --output-json "$out" | grep -E "^Throughput|Median step|Time \(s\)" | paste -sd' '
}

rounds() { # ARM…: three times over, every second time backwards
  for order in "$*" "$(printf '%s\n' "$@" | tac | paste -sd' ')" "$*"; do
    for i in $order; do arm ${arms[$i]} 8192 128; done
  done
}
arms=("qwen3-8b k16v16 40GiB" "qwen3-8b k16v8 40GiB" "qwen3-8b k8v8 40GiB" "qwen3-8b-awq k16v16 48GiB" "qwen3-8b-awq k16v8 48GiB")
case $part in
  fp16) rounds 0 1 2 ;;
  awq) rounds 3 4 ;;
  long)
    for format in k16v16 k16v8; do arm qwen3-8b $format 40GiB 1024 128; done
    for format in k16v16 k16v8; do arm qwen3-8b $format 44GiB 8192 1024; done ;;
esac
