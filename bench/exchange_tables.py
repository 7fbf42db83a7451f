#!/usr/bin/env python3
"""Tables of docs/exchange.md from result files of `xstage bench exchange` (and bench/exchange.py).

  bench/exchange_tables.py docs/exchange.md bench/results/exchange-*-h200.json     rewrites the part between the marks
  bench/exchange_tables.py - FILES                                                  prints it

Everything between "<!-- exchange tables: begin -->" and "<!-- exchange tables: end -->" is replaced.
"""

import json
import os
import statistics
import sys

BEGIN, END = "<!-- exchange tables: begin -->", "<!-- exchange tables: end -->"
SERIAL = ("push", "copy-engine", "chunked")
FUSED = ("burst", "paced", "fine", "coupled", "linear", "registers")
PEERS = {"local_ghosts": "ghosts in the same GPU", "host_ghosts": "ghosts in pinned host memory",
         "peer_ghosts": "ghosts on the other GPU", "real": "every rank computes"}


def us(ns):
    if ns is None:
        return "-"
    value = ns / 1e3
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def interval(e):
    if not e or e["value"] is None:
        return "-"
    if e["low"] is None:
        return us(e["value"])
    return f"{us(e['value'])} [{us(e['low'])}, {us(e['high'])}]"


def ways_of(case):
    return {w["way"]: w for w in case["ways"] if "exposed_ns" in w}


def shape_of(case):
    s = case["shape"]
    text = f"{s['batch']}x{s['rows']}x{s['heads']}"
    return text if s["head_dim"] == 128 else text + f"x{s['head_dim']}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def torch_row(result, case):
    for row in result.get("torch", {}).get("rows", []):
        if row["case"] == case["case"]:
            return row
    return {}


def exposed_table(result):
    names = [n for n in SERIAL + FUSED if any(n in ways_of(c) for c in result["cases"])]
    has_nccl = any("usual" in torch_row(result, c) for c in result["cases"])
    header = ["B x S x H", "ranks", "alone", "at R"] + (["NCCL + permutes"] if has_nccl else []) + names
    rows = []
    for case in result["cases"]:
        ways = ways_of(case)
        row = [shape_of(case), str(case["ranks"]), us(ways["alone"]["total_ns"]["value"]),
               us(case["drain_ns"]) if case["drain_ns"] else "-"]
        if has_nccl:
            added = torch_row(result, case).get("usual", {}).get("added_us")
            row.append("-" if added is None else f"{added:.1f}")
        for name in names:
            cell = ways.get(name)
            text = interval(cell["exposed_ns"]) if cell else "-"
            if cell and cell["fell_back"]:
                text += " (serial)"
            row.append(text)
        rows.append(row)
    return table(header, rows)


def bound_table(result):
    """Default fused way: what the bar allows, what the plan alone costs, the gain."""
    rows = []
    for case in result["cases"]:
        ways = ways_of(case)
        if "burst" not in ways or ways["burst"]["fell_back"]:
            continue
        fused = min((ways[n] for n in FUSED if n in ways and not ways[n]["fell_back"]),
                    key=lambda w: w["total_ns"]["value"])
        alone = ways["alone"]["total_ns"]["value"]
        others = [ways[n]["total_ns"]["value"] for n in SERIAL if n in ways]
        local = ways.get("burst-local")
        rows.append([
            shape_of(case), str(case["ranks"]), interval(ways["burst"]["exposed_ns"]),
            us(case["last_wave_ns"] + 3500) if case["drain_ns"] else us(max(3000, 0.003 * alone)),
            interval(ways["burst"]["sender_ns"]),
            interval(local["exposed_ns"]) if local else "-",
            fused["way"],
            f"{min(others) / fused['total_ns']['value']:.3f}" if others else "-",
            f"{min(others) / alone:.3f}" if others else "-",
            f"{100 * alone / fused['total_ns']['value']:.1f}",
            "yes" if case["gains"] else "**no gain**"])
    return table(["B x S x H", "ranks", "burst: exposed", "bar", "sender", "local owners", "fastest fused",
                  "x best other", "perfect", "% of it", "gains"], rows)


def prediction_errors(result):
    """(case, way, predicted, measured, error, better null's error), cells whose effect is over 3 %."""
    cells = []
    for case in result["cases"]:
        ways = ways_of(case)
        alone = ways["alone"]["total_ns"]["value"]
        for name in FUSED:
            way = ways.get(name)
            if not way or way["fell_back"] or "predicted" not in way:
                continue
            measured, p = way["exposed_ns"]["value"], way["predicted"]
            if abs(measured) < 0.03 * alone:
                continue
            nulls = min(abs(p["unbounded_ns"] - measured), abs(p["coupled_ns"] - measured))
            cells.append((case, name, p["increment_ns"], measured, abs(p["increment_ns"] - measured), nulls))
    return cells


def prediction_text(result):
    cells = prediction_errors(result)
    if not cells:
        return "No cell has an effect over 3 %: nothing to judge predictions by."
    source = result["predictions"]["file"]
    within = sum(error <= null / 2 for *_, error, null in cells)
    relative = sorted(error / measured for *_, measured, error, _ in cells if measured > 0)
    lines = [f"Predictions {'filed before the run: `' + source + '`' if source else 'made by the run itself'}; "
             f"link {result['predictions']['link_sha256'][:12]}, costs {result['predictions']['costs_sha256'][:12]}. "
             f"{len(cells)} cells over 3 %: error relative to the increment, median {100 * statistics.median(relative):.0f} %; "
             f"at most half of the better null model's in {within}."]
    rows = [[shape_of(c), str(c["ranks"]), name, us(p), us(m), us(e), us(n), "yes" if e <= n / 2 else "no"]
            for c, name, p, m, e, n in cells]
    lines.append(table(["B x S x H", "ranks", "way", "predicted", "measured", "error", "better null's", "half of it"], rows))
    return "\n\n".join(lines)


def section(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    wrong = sum(w["wrong_bytes"] for c in result["cases"] for w in c["ways"])
    kinds = sorted({PEERS[c["peers"]] for c in result["cases"]})
    head = (f"**{', '.join(kinds)}** ([{os.path.basename(path)}](../bench/results/{os.path.basename(path)}), "
            f"{result['gpu']}, {result['date'][:10]}, commit {result['commit']}; microseconds; wrong bytes: {wrong})")
    return "\n\n".join([head, "Exposed, by way:", exposed_table(result), "What fusing gains:", bound_table(result),
                        prediction_text(result)])


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    text = "\n\n".join(section(path) for path in sys.argv[2:])
    if sys.argv[1] == "-":
        print(text)
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        document = file.read()
    if BEGIN not in document or END not in document:
        print(f"{sys.argv[1]}: the marks {BEGIN} and {END} are missing", file=sys.stderr)
        sys.exit(6)
    before, rest = document.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()
