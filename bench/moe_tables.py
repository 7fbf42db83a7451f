#!/usr/bin/env python3
"""Tables of docs/moe-layer.md from result files of `xstage bench moe`, bench/moe.py and bench/moe_nccl.py.

  bench/moe_tables.py docs/moe-layer.md bench/results/moe-layer-*-h200.json     rewrites the part between the marks
  bench/moe_tables.py - FILES                                                   prints it

Everything between "<!-- moe tables: begin -->" and "<!-- moe tables: end -->" is replaced.
"""

import json
import os
import sys

BEGIN, END = "<!-- moe tables: begin -->", "<!-- moe tables: end -->"
SHORT = {"deepseek-v4-flash-moe-fp8": "Flash fp8", "deepseek-v4-pro-moe-fp8": "Pro fp8"}


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def us(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def name_of(result):
    name = SHORT.get(result["workload"], result["workload"].replace("-moe-", " ").replace("-like", "-like"))
    return name + (f", skew {result['skew']:g}" if result["skew"] else "")


def dense_rates(files):
    """TFLOP/s of cuBLAS at K = 4096 by type, from a file of bench/moe.py; an empty dictionary without one."""
    rates = {}
    for _, data in files:
        for row in data.get("results", []):
            if "cublas_tflops" in row and row["k"] == 4096:
                rates.setdefault(row["type"], row["cublas_tflops"]["median"])
    return rates


def floor_us(result, rates, dense):
    """Whichever is larger, products at the dense rate or active weights at the read rate; and the rows."""
    rate = dense.get("bf16" if "bf16" in result["workload"] else "fp8")
    if rate is None:
        return None
    products = max(result["products_flop"] / rate / 1e6, result["weight_bytes"] / rates["local_read"] / 1e3)
    rows = (result["pool_bytes"] + result["combine_bytes"]) / rates["local_copy"] / 1e3
    return products + rows


def layer_table(data, dense, usual):
    header = ["layer", "tokens", "us", "p10-p90", "floor", "route", "dispatch", "linear1", "linear2", "meet", "sum",
              "TFLOP/s", "push + push", "usual stack"]
    rows = []
    for r in data["results"]:
        ways = {w["way"]: w for w in r["ways"]}
        w = ways.get("pull+pull") or r["ways"][0]
        floor = floor_us(r, data["rates"], dense)
        push = ways.get("push+push")
        both = w["linear1_us"]["median"] + w["linear2_us"]["median"]
        stack = usual.get((r["workload"], r["tokens"]))
        rows.append([name_of(r), str(r["tokens"]), us(w["whole_us"]["median"]),
                     f"{us(w['whole_us']['p10'])}-{us(w['whole_us']['p90'])}", "-" if floor is None else us(floor),
                     *(us(w[f"{p}_us"]["median"]) for p in ("route", "dispatch", "linear1", "linear2", "meet", "sum")),
                     f"{r['products_flop'] / both / 1e6:.0f}", us(push["whole_us"]["median"]) if push else "-",
                     us(stack + both) if stack and not r["skew"] else "-"])
    return table(header, rows)


def rate_table(data, least_tokens):
    """Of calls that are large enough for a rate to say something."""
    link = data["rates"]["from_host"] if data["peer"] == "host" else data["rates"]["local_copy"]
    host = data["peer"] == "host"
    header = ["layer", "way", "dispatch GB/s", "x copy", "sum GB/s", "x copy"]
    rows = []
    for r in data["results"]:
        if r["tokens"] < least_tokens or r["skew"]:
            continue
        for w in r["ways"]:
            pushes = w["way"].endswith("+push")
            moved = r["pool_bytes"]
            if host:
                once = w["way"].startswith("pull+")
                moved = r["dispatch_unique_bytes"] if once else r["dispatch_remote_bytes"]
            dispatch = moved / w["dispatch_us"]["median"] / 1e3
            total = r["combine_remote_bytes"] if host else r["combine_bytes"]
            combine = total / w["sum_us"]["median"] / 1e3
            known = not (pushes and host)
            rows.append([name_of(r), w["way"], f"{dispatch:.0f}", f"{dispatch / link:.2f}",
                         f"{combine:.0f}" if known else "-", f"{combine / link:.2f}" if known else "-"])
    return table(header, rows)


def machine_of(data):
    names = {gpu["name"] for gpu in data.get("machine", {}).get("gpus", [])}
    rates = data["rates"]
    return (f"{', '.join(sorted(names)) or 'one GPU'}, {data['date'][:10]}, commit {data['commit']}; in the same run copying "
            f"{rates['local_copy']:.0f} GB/s, reading {rates['local_read']:.0f}, from host memory {rates['from_host']:.1f}")


def usual_of(files):
    """us of moving rows by the usual stack, by workload and tokens."""
    hidden_of = {4096: "deepseek-v4-flash-moe-fp8", 7168: "deepseek-v4-pro-moe-fp8"}
    return {(hidden_of[data["hidden"]], row["tokens"]): row["dispatch_us"] + row["combine_us"]
            for _, data in files if data.get("schema") == "xstage.bench.moe_nccl" and data["hidden"] in hidden_of
            for row in data["results"]}


def render(files):
    dense, usual = dense_rates(files), usual_of(files)
    parts = []
    for path, data in files:
        if data.get("schema") != "xstage.bench.moe":
            continue
        parts.append(f"[{os.path.basename(path)}](../bench/results/{os.path.basename(path)}): {machine_of(data)}.")
        if data["results"][0]["ways"][0]["linear1_us"]["median"] > 5:
            parts.append(layer_table(data, dense, usual))
        if data["peer"] == "host" or len(data["results"][0]["ways"]) > 1:
            parts.append("Rows that remote ranks send, beside the copy engine's rate from host memory:" if data["peer"] == "host"
                         else "All rows of the pool, and all that are summed, beside a copy of memory:")
            parts.append(rate_table(data, 8192))
    return "\n\n".join(parts)


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    files = []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            files.append((path, json.load(file)))
    text = render(files)
    if sys.argv[1] == "-":
        print(text)
        return 0
    with open(sys.argv[1], encoding="utf-8") as file:
        page = file.read()
    if BEGIN not in page or END not in page:
        print(f"moe_tables: {sys.argv[1]} lacks {BEGIN} or {END}", file=sys.stderr)
        return 2
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
