#!/usr/bin/env bash
# run.sh KEEL: the study of this folder, from the repository's root. SMOLLM2: a SmolLM2-135M GGUF to sweep as well.
set -eu
keel=$1 here=docs/results/2026-11-30-cpu-compare
status=0
"$keel" bench compare $here/plan.json -o $here/compare || status=$?
[ $status -ne 2 ]
sweep() { # NAME MODEL FORMAT CONTEXTS BATCHES
  "$keel" --quiet bench sweep "$2" --device cpu -t 2 --kv-cache-dtype "$3" --contexts "$4" --batches "$5" --steps 24 --repeat 3 --csv $here/$1-$3.csv
  "$keel" fit $here/$1-$3.csv > $here/$1-$3.txt
}
for format in k16v16 k16v8; do
  sweep tiny models/tiny $format 128,512 1,2,4,8,16,32
  if [ -n "${SMOLLM2:-}" ]; then sweep smollm2 "$SMOLLM2" $format 256 1,2,4,8,16; fi
done
