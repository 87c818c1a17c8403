"""report.md from raw.jsonl: figures a round, their medians, ratios a round against the bars of plan.md.

    python report.py [KEEL_COMMIT] <raw.jsonl >report.md
"""
import json, statistics, sys

READ_ROOF, FLOP_ROOF = 57.1, 195.8  # GB/s and GFLOP/s of the pilot: the best this machine showed
LAYERS, HEADS, HEAD_DIM, LAYER_WEIGHTS = 30, 9, 64, 3_538_944
KEEL = ["k16v16", "k16v8", "k8v8"]
LLAMA = ["f16/f16", "f16/f16 fa", "f16/q8_0 fa"]

rows = [json.loads(line) for line in sys.stdin]
roofs = [row for row in rows if "roof_read_gb_per_s" in row]
found = {}
for row in rows:
    if "context" in row:
        for what in ("decode", "prefill"):
            key = (row["kv_cache"], row["context"], row.get("streams", 1), what)
            found.setdefault(key, {}).setdefault(row["round"], []).append(row[what + "_tokens_per_s"])
found = {key: {r: statistics.median(v) for r, v in rounds.items()} for key, rounds in found.items()}

def get(arm, context, what, streams=1):
    return found.get((arm, context, streams, what), {})

def show(rounds, form="{:.0f}"):
    if not rounds:
        return "not measured"
    each = ", ".join(form.format(rounds[r]) for r in sorted(rounds))
    return f"**{form.format(statistics.median(rounds.values()))}** ({each})"

def ratio(over, under):
    return {r: over[r] / under[r] for r in over if r in under}

def better(context, what):
    a, b = get(LLAMA[0], context, what), get(LLAMA[1], context, what)
    return {r: max(a[r], b[r]) for r in a if r in b}

def bar(name, wanted, ratios):
    met = "not measured" if not ratios else "met" if statistics.median(ratios.values()) >= wanted else "**missed**"
    print(f"| {name} | {wanted:.2f} | {show(ratios, '{:.2f}')} | {met} |")

def prefill_gflop(context):
    return (2 * LAYERS * LAYER_WEIGHTS + 2 * LAYERS * HEADS * HEAD_DIM * context) / 1e9

print("# SmolLM2-135M (Q4_1) on 2 threads of an AMD EPYC: keel against llama.cpp\n")
print("Written by report.py from raw.jsonl; protocol in plan.md, commands in run.sh. Median (each round).\n")
commit = sys.argv[1] if len(sys.argv) > 1 else "f987a1d"
print(f"keel at {commit}, llama.cpp as in llama-cpp-python 0.3.36. The machine is virtual and shared: at times all that crosses between its two\n"
      "processors takes three times as long, and no run shows when." +
      (" `keel_pilot.jsonl` and `llama_cpp_pilot.jsonl` are earlier and not used." if len(sys.argv) == 1 else "") + "\n")
reads, flops = ([r[k] for r in roofs] for k in ("roof_read_gb_per_s", "roof_f32_gflop_per_s"))
if roofs:
    print(f"Roofs beside these runs: {min(reads):.0f} to {max(reads):.0f} GB/s read, {min(flops):.0f} to {max(flops):.0f} "
          f"GFLOP/s f32. Shares below are of the pilot's {READ_ROOF} GB/s and {FLOP_ROOF} GFLOP/s.\n")
for what in ("decode", "prefill"):
    print(f"## {what.capitalize()}, tokens/s\n\n| context | " + " | ".join(KEEL + ["llama.cpp " + a for a in LLAMA]) + " |")
    print("|---" * 7 + "|")
    for context in (128, 1024, 4047):
        print(f"| {context:,} | " + " | ".join(show(get(arm, context, what)) for arm in KEEL + LLAMA) + " |")
    print()
print("## Bars\n\n| bar | wanted | found | |\n|---|---|---|---|")
for arm in ("k16v16", "k16v8"):
    for context, wanted in ((128, 1.0), (1024, 1.2), (4047, 2.0)):
        bar(f"decode {arm} / llama.cpp's better f16/f16, {context:,}", wanted, ratio(get(arm, context, "decode"), better(context, "decode")))
for arm in ("k16v16", "k16v8"):
    for context in (1024, 4047):
        bar(f"prefill {arm} / llama.cpp's better f16/f16, {context:,}", 2.0, ratio(get(arm, context, "prefill"), better(context, "prefill")))
bar("decode k16v8 / k16v16, 4,047", 1.0, ratio(get("k16v8", 4047, "decode"), get("k16v16", 4047, "decode")))
bar("decode k16v8 / llama.cpp f16/q8_0, 4,047", 3.0, ratio(get("k16v8", 4047, "decode"), get(LLAMA[2], 4047, "decode")))
for arm in KEEL:
    bar(f"eight streams / one, {arm}, 512", 3.0, ratio(get(arm, 512, "decode", 8), get(arm, 512, "decode")))
servers = {}
for row in rows:
    if "ratio" in row:
        servers.setdefault(row["round"], []).append(row["ratio"])
bar("server / offline, models/tiny, 64 streams", 0.95, {r: statistics.median(v) for r, v in servers.items()})
print("\n## Streams of 512 tokens of context, decode tokens/s together\n\n| streams | " + " | ".join(KEEL) + " |\n|---|---|---|---|")
for streams in (1, 8):
    print(f"| {streams} | " + " | ".join(show(get(arm, 512, "decode", streams)) for arm in KEEL) + " |")
print("\n## Shares of the roofs (medians)\n\n| context | decode, bytes read: " + ", ".join(KEEL) + " | prefill, f32 operations: " + ", ".join(KEEL) + " |\n|---|---|---|")
for context in (128, 1024, 4047):
    shares = []
    for arm in KEEL:
        bytes_read = [r["decode_gb_per_s"] for r in rows if r.get("kv_cache") == arm and r.get("context") == context and r.get("streams") == 1]
        shares.append(f"{100 * statistics.median(bytes_read) / READ_ROOF:.0f} %" if bytes_read else "not measured")
    prefills = [get(arm, context, "prefill") for arm in KEEL]
    operations = [f"{100 * statistics.median(p.values()) * prefill_gflop(context) / FLOP_ROOF:.0f} %" if p else "not measured" for p in prefills]
    print(f"| {context:,} | {', '.join(shares)} | {', '.join(operations)} |")
