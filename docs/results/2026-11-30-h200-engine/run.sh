#!/usr/bin/env bash
# run.sh BUILD OUT PART…: the plan's runs, one process each; records and tables land in the folder OUT. PART: dense, awq, long, capacity, steps or prefill.
set -u
here=$(cd "$(dirname "$0")/../../.." && pwd)
build=$1 out=$2
shift 2
mkdir -p "$out"
find_program() { find "$build" -name "$1" -type f | head -1; }
keel=$(find_program keel)
common="--load-format dummy --device cuda --max-num-batched-tokens 65536 --no-enable-prefix-caching"

# bench COMMAND GEOMETRY FORMAT POOL INPUT OUTPUT RECORD OPTIONS…
bench() {
  local command=$1 model=$here/bench/geometries/$2/config.json
  echo "$(date +%T) $command $2 $3 pool $4, $5 in, $6 out: $(nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader)"
  timeout 120 "$keel" --quiet bench "$command" "$model" $common --kv-cache-dtype "$3" --kv-cache-memory-bytes "$4" --max-model-len $(($5 + $6)) \
    --input-len "$5" --output-len "$6" --output-json "$out/$7" "${@:8}" >"$out/last.txt" 2>&1 || { echo "  failed: exit code $?"; tail -3 "$out/last.txt"; }
  grep -E "^Throughput|Median step|Most running|Preempt" "$out/last.txt" | paste -sd' '
}
whole="--max-num-seqs 32 --no-enable-chunked-prefill --num-prompts 32 --num-warmups 15"
arms=("qwen3-8b k16v16 40GiB" "qwen3-8b k16v8 40GiB" "qwen3-8b k8v8 40GiB" "qwen3-8b-awq k16v16 48GiB" "qwen3-8b-awq k16v8 48GiB")

rounds() { # ARM…: three times over, every second time backwards
  local order i
  for order in "$*" "$(printf '%s\n' "$@" | tac | paste -sd' ')" "$*"; do
    for i in $order; do bench throughput ${arms[$i]} 8192 128 requests.jsonl $whole; done
  done
}

for part in "$@"; do
  case $part in
    dense) rounds 0 1 2 ;;
    awq) rounds 3 4 ;;
    long)
      for format in k16v16 k16v8; do bench throughput qwen3-8b $format 44GiB 8192 1024 long.jsonl $whole; done
      for format in k16v16 k16v8; do bench throughput qwen3-8b $format 40GiB 1024 128 short.jsonl $whole; done ;;
    capacity)  # two requests more than fit
      while read -r format prompts; do
        bench throughput qwen3-8b "$format" 40GiB 8192 128 capacity.jsonl --max-num-seqs 128 --num-prompts "$prompts" --num-warmups 0
      done <<<"k16v16 37"$'\n'"k16v8 48"$'\n'"k8v8 72" ;;
    steps)
      for arm in "${arms[@]}"; do
        set -- $arm
        CUDA_INJECTION64_PATH=$(find_program libkernel_trace.so) KERNEL_TRACE=$out/step-$1-$2.txt \
          bench latency $arm 8192 20 traced.jsonl --max-num-seqs 32 --batch-size 32 --num-iters-warmup 0 --num-iters 1
      done ;;
    prefill) timeout 90 "$(find_program prefill_step_bench)" "$here/bench/geometries/qwen3-8b/config.json" 32 8192 2 | tee "$out/prefill.txt" ;;
  esac
done
rm -f "$out/last.txt"
