#!/usr/bin/env python3
"""Tables of docs/exchange.md from result files of `xstage bench exchange` (and bench/exchange.py).

  bench/exchange_tables.py docs/exchange.md bench/results/exchange-*-h200.json     rewrites the part between the marks
  bench/exchange_tables.py - FILES                                                  prints it

Everything between "<!-- exchange tables: begin -->" and "<!-- exchange tables: end -->" is replaced.
"""

import json
import os
import random
import statistics
import sys

BEGIN, END = "<!-- exchange tables: begin -->", "<!-- exchange tables: end -->"
SERIAL = ("push", "copy-engine", "chunked")
FUSED = ("burst", "paced", "fine", "coupled", "linear", "senders", "registers")
PEERS = {"local_ghosts": "ghosts in the same GPU", "host_ghosts": "ghosts in pinned host memory",
         "peer_ghosts": "ghosts on the other GPU", "real": "every rank computes"}


MAX_CLOCK_DIFFERENCE, MIN_ALIKE_ROUNDS = 0.005, 5  # as src/model/paired.hpp has them


def rounds(values):
    return [(values[i] + values[i + 1]) / 2 for i in range(0, len(values) - 1, 2)]


def paired(a, b, key="done_ns", combine=lambda x, y: x - y):
    """Of two ways, from their samples: value and interval, without rounds at unlike clocks; ~ where nearly all are."""
    pairs = [(combine(x, y), abs(c - d) <= MAX_CLOCK_DIFFERENCE * d)
             for x, y, c, d in zip(rounds(a[key]), rounds(b[key]), rounds(a["clock_mhz"]), rounds(b["clock_mhz"]))]
    alike = [value for value, is_alike in pairs if is_alike]
    differ = len(alike) < min(MIN_ALIKE_ROUNDS, len(pairs))
    values = [value for value, _ in pairs] if differ else alike
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return {"value": statistics.median(values), "low": medians[25], "high": medians[974], "mark": "~" if differ else ""}


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
    return f"{e.get('mark', '')}{us(e['value'])} [{us(e['low'])}, {us(e['high'])}]"


def ways_of(case):
    ways = {w["way"]: w for w in case["ways"] if "exposed_ns" in w}
    for way in ways.values():
        way["exposed_ns"] = paired(way, ways["alone"])
        way["sender_ns"] = paired(way, ways["alone"], "sent_ns")
    return ways


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
            fused["way"], interval(fused["exposed_ns"]),
            f"{min(others) / fused['total_ns']['value']:.3f}" if others else "-",
            f"{min(others) / alone:.3f}" if others else "-",
            f"{100 * alone / fused['total_ns']['value']:.1f}",
            "yes" if case["gains"] else "**no gain**"])
    return table(["B x S x H", "ranks", "burst: exposed", "bar", "sender", "local owners", "fastest fused",
                  "its exposed", "x best other", "perfect", "% of it", "gains"], rows)


def pairs_table(result):
    """Fused ways against the burst of the same rounds."""
    rows = []
    for case in result["cases"]:
        ways = ways_of(case)
        if "burst" in ways:
            rows.append([shape_of(case), str(case["ranks"])] +
                        [interval(paired(ways[n], ways["burst"])) if n in ways else "-" for n in FUSED[1:]])
    return table(["B x S x H", "ranks", *FUSED[1:]], rows)


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
    rows = {}
    for case, name, p, m, error, null in cells:
        rows.setdefault(case["case"], [shape_of(case), str(case["ranks"])] + ["-"] * len(FUSED))
        rows[case["case"]][2 + FUSED.index(name)] = f"{us(p)} / {us(m)}" + (" ok" if error <= null / 2 else "")
    lines.append("Predicted / measured; ok: the error is at most half of the better null model's.")
    lines.append(table(["B x S x H", "ranks", *FUSED], list(rows.values())))
    return "\n\n".join(lines)


def push_section(path, result):
    """The push kernel on all SMs, and the copy engine."""
    rows = []
    cells = {}
    for row in result["rows"]:
        if row["sms"] in (0, 132):
            key = (row["place"], f"{row['rows']}x{row['heads_of_rank']}", str(row["ranks"]))
            cells.setdefault(key, {})[row["way"]] = row
    for key, ways in cells.items():
        rows.append([*key, f"{ways['bulk']['remote_bytes'] / 1e6:.1f}"] +
                    [f"{ways[n]['median_ns'] / 1e3:.1f} ({ways[n]['gb_per_s']:.1f})"
                     for n in ("bulk", "register16", "copy engine")])
    head = (f"**Serial exchange alone** ([{os.path.basename(path)}](../bench/results/{os.path.basename(path)}), "
            f"{result['gpu']}, commit {result['commit']}; microseconds, in brackets GB/s of the bytes that leave)")
    return "\n\n".join([head, table(["ghosts", "rows x heads of a rank", "ranks", "MB", "push, bulk", "push, registers",
                                     "copy engine"], rows)])


def section(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    if result["schema"] == "xstage.push_rate":
        return push_section(path, result)
    wrong = sum(w["wrong_bytes"] for c in result["cases"] for w in c["ways"] if w["way"] != "chunked")
    chunked = sum(w["wrong_bytes"] for c in result["cases"] for w in c["ways"] if w["way"] == "chunked")
    kinds = sorted({PEERS[c["peers"]] for c in result["cases"]})
    head = (f"**{', '.join(kinds)}** ([{os.path.basename(path)}](../bench/results/{os.path.basename(path)}), "
            f"{result['gpu']}, {result['date'][:10]}, commit {result['commit']}; microseconds; wrong bytes: {wrong}"
            + (f", of chunked: {chunked}" if chunked else "") + ")")
    return "\n\n".join([head, "Exposed, by way:", exposed_table(result), "What fusing gains:", bound_table(result),
                        "Against burst, paired:", pairs_table(result),
                        *([prediction_text(result)] if any(c["drain_ns"] for c in result["cases"]) else [])])


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
