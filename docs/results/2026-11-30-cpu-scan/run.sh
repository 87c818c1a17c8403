#!/usr/bin/env bash
# Repeats the scans of this folder from the repository's root, after `make` (and `make serve MODEL=smollm2` once, which fetches it).
# PYTHON needs numpy and safetensors. Writes NAME.txt and seconds.txt beside itself, and two pages.
#   run.sh [NAME…]: only those
set -euo pipefail
out=$(dirname "$0")
twins=$(mktemp -d)
trap 'rm -rf "$twins"' EXIT

scan() {  # NAME MODEL [option…]
  local name=$1 model=$2 begin
  shift 2
  if [ -n "$only" ] && [[ " $only " != *" $name "* ]]; then return; fi
  begin=$(date +%s.%N)
  build/keel scan "$model" "$@" | sed "s#$twins/##g" >"$out/$name.txt"
  echo "$name $(echo "$(date +%s.%N) - $begin" | bc)" >>"$out/seconds.txt"
}

only=${*:-}
for bias in 100 300; do "${PYTHON:-python3}" tools/make_fragile_twin.py models/tiny "$twins/twin$bias" --bias "$bias" >/dev/null; done
scan tiny models/tiny
scan twin100 "$twins/twin100"
scan twin300 "$twins/twin300" --html "$out/twin300.html"
scan smollm2 .cache/smollm2 --html "$out/smollm2.html"
for model in qwen2 qwen2-tied qwen3 phi3 llama-bias llama-awq gguf-q4_k; do
  scan "golden-$model" "tests/golden/hf/$model" --random-tokens 1 --tokens 128
done
sed -i "s#$twins/##g" "$out"/*.html
