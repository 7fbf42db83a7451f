#!/usr/bin/env python3
"""Tile costs of our attention from its benchmark: step, tile and part times that fit all full shapes best.

    bench/attention_costs.py bench/results/attention-h200.json profiles/costs/h200-estimate.json > profiles/costs/h200.json

The model is the planner's: full waves of equal tiles, then the tail, split along keys where that saves six
blocks or more. What the benchmark does not cover (MoE, exchanges) is taken over from the second file.
"""
import json
import math
import sys

SMS, ROWS, LAUNCH_NS = 132, 128, 5000.0
KEYS = {128: 160, 64: 192}


def counts(shape, head_dim):
    """Steps, tiles and parts of the longest SM."""
    batch, rows, heads = (int(x) for x in shape.split()[0].split("x")[:3])
    tiles = batch * heads * math.ceil(rows / ROWS)
    blocks = math.ceil(rows / KEYS[head_dim])
    waves, tail = divmod(tiles, SMS)
    steps, whole, parts = waves * blocks, waves, 0
    share = math.ceil(tail * blocks / SMS)
    if tail and blocks - share >= 6:
        steps, parts, whole = steps + share, 1, whole + 1
    elif tail:
        steps, whole = steps + blocks, whole + 1
    return steps, whole, parts


def solve(rows, num):
    """Least squares of relative errors in the first `num` of (step, tile, part), by normal equations."""
    a = [[0.0] * (num + 1) for _ in range(num)]
    for weights, time in rows:
        w = [x / time for x in weights[:num]]
        for i in range(num):
            for j in range(num):
                a[i][j] += w[i] * w[j]
            a[i][num] += w[i]
    for i in range(num):
        pivot = a[i][i]
        a[i] = [x / pivot for x in a[i]]
        for k in range(num):
            if k != i:
                a[k] = [x - a[k][i] * y for x, y in zip(a[k], a[i])]
    return [r[num] for r in a]


def main():
    bench = json.load(open(sys.argv[1]))
    costs = json.load(open(sys.argv[2]))
    rows, small = [], None
    for row in bench["rows"]:
        if "causal" in row["shape"]:
            continue
        ours = min(c["ms"] for name, c in row["candidates"].items() if name != "cudnn") * 1e6
        head_dim = int(row["shape"].split()[0].split("x")[3])
        if head_dim == 64:
            small = (counts(row["shape"], 64), ours)
        else:
            rows.append((row["shape"], counts(row["shape"], 128), ours - LAUNCH_NS))
    points = [(c, t) for _, c, t in rows]
    step, tile, part = solve(points, 3)
    if part < 0:  # less than what the fit can tell from nothing
        (step, tile), part = solve(points, 2), 0.0
    errors = []
    for shape, c, t in rows:
        errors.append(abs(c[0] * step + c[1] * tile + c[2] * part - t) / (t + LAUNCH_NS))
        print(f"{shape}: {100 * errors[-1]:.1f} %", file=sys.stderr)
    print(f"step {step:.0f} ns, tile {tile:.0f} ns, part {part:.0f} ns; worst error {100 * max(errors):.1f} %", file=sys.stderr)
    entries = []
    for head_dim, step_ns in ((128, step), (64, (small[1] - LAUNCH_NS - small[0][1] * tile - small[0][2] * part) / small[0][0])):
        for dtype in ("bf16", "fp16"):
            entries.append({"dtype": dtype, "head_dim": head_dim, "block_rows": ROWS, "block_keys": KEYS[head_dim],
                            "step_ns": round(step_ns), "tile_ns": round(max(0.0, tile)), "part_ns": round(max(0.0, part)),
                            "estimated": False})
    costs["name"] = "h200"
    costs["source"] = (f"Attention: our kernel, {bench['date'][:10]}, {len(rows)} full bf16 shapes of {sys.argv[1]} fitted to "
                       f"{100 * max(errors):.1f} % at worst; fp16 and causal taken alike. MoE: estimate from dense cuBLAS rates, no kernel of ours. "
                       "Exchanges: measured on 2 H200 with an NV18 link.")
    costs["attention"] = entries
    for entry in costs["moe"]:
        entry["estimated"] = True
    costs["estimated"] = True
    json.dump(costs, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
