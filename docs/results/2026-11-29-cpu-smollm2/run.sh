#!/usr/bin/env bash
# One slot of the study, at most four minutes, so that a shared machine can be kept quiet for each:
#   run.sh short|long|streams ROUND MODEL.gguf PYTHON_WITH_LLAMA_CPP >>raw.jsonl
# short: contexts 128 and 1,024; long: 4,047; streams: eight against one, and the server. Rounds 1 to 3 of each make the study.
set -euo pipefail
cd "$(dirname "$0")/../../.."
slot=$1 round=$2 model=$3 python=$4
keel() { build/bench/engine_bench "$model" --repeats "$1" "${@:2}"; }
both() { keel 1 --case "$1x1"; "$python" bench/compare_llama_cpp.py "$model" --repeats 1 --context "$1"; }
case $slot in
  short) both 128; both 1024 ;;
  long) both 4047 ;;
  streams) keel 2 --case 512x1 --case 512x8; build/bench/server_bench models/tiny 5 ;;
  *) echo "run.sh: $slot: wanted short, long or streams" >&2; exit 2 ;;
esac | sed -u "s/^{/{\"slot\":\"$slot\",\"round\":$round,/"
