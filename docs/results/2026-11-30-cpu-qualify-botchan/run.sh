#!/usr/bin/env bash
# run.sh KEEL OUT: every run of plan.md but the killed one. Finished runs are not repeated, killed ones go on.
set -u
keel=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
mkdir -p "$out"
for bias in 100 300; do
  [ -e "$out/tiny-twin-$bias" ] || python3 "$root/tools/make_fragile_twin.py" "$root/models/tiny" "$out/tiny-twin-$bias" --bias $bias
done
run() {  # NAME MODEL FORMAT [more]
  local name=$1 model=$2 format=$3; shift 3
  echo "== $name"
  "$keel" --quiet qualify "$model" --candidate "$format" --device cpu -t 2 -o "$out/$name.json" "$@"
  echo "exit code $?"
}
run tiny-k16v8 "$root/models/tiny" k16v8
run tiny-k8v8 "$root/models/tiny" k8v8
run tiny-k8v8-400 "$root/models/tiny" k8v8 --needles 400
for bias in 100 300; do
  run twin$bias-k8v8 "$out/tiny-twin-$bias" k8v8
  run twin$bias-k16v8 "$out/tiny-twin-$bias" k16v8
done
smollm2=$("$root/tools/fetch-model" smollm2)
run smollm2-k16v8 "$smollm2" k16v8 --panel "$here/smollm2-panel.json"
run smollm2-k8v8 "$smollm2" k8v8 --panel "$here/smollm2-panel.json"
run smollm2-k16v8-300 "$smollm2" k16v8 --panel "$here/smollm2-panel.json" --needles 300
