#!/usr/bin/env bash
# long.sh KEEL OUT.jsonl short|long: K8/V8 and shorter prompts; longer answers. One process each, from the repository's root.
set -u
keel=$1 out=$2
arm() { # FORMAT POOL INPUT OUTPUT
  timeout 120 "$keel" --quiet bench throughput bench/geometries/qwen3-8b/config.json --load-format dummy --device cuda --max-num-seqs 32 --max-num-batched-tokens 65536 \
    --no-enable-chunked-prefill --no-enable-prefix-caching --num-prompts 32 --num-warmups 8 --kv-cache-dtype "$1" --kv-cache-memory-bytes "$2" \
    --max-model-len $(($3 + $4)) --input-len "$3" --output-len "$4" --output-json "$out" | grep -E "^Throughput|Median step" | paste -sd' '
}
case $3 in
  short)
    arm k8v8 40GiB 8192 128
    for format in k16v16 k16v8; do arm $format 40GiB 1024 128; done ;;
  long)
    for format in k16v16 k16v8; do arm $format 44GiB 8192 1024; done ;;
esac
