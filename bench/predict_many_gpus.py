#!/usr/bin/env python3
"""Predict what four and eight GPUs will show, before they are run: the tables of the probe's parts
`fan_in` and `fan_out`, the fused attention and the expert-parallel layer on P = 4 and 8 ranks.

usage: predict_many_gpus.py --xstage PROGRAM --link NAME|FILE --link-file LINK.json > prediction.json

How, and what is assumed:

  port        every GPU has one ingress and one egress port, each of rate R of the pair's profile,
              whatever the number of senders and the bytes in flight: a work-conserving drain. A
              public report on 8x H200 contradicts it for register stores (278, 337 and 193 GB/s at
              in-flight factors 4, 12 and 32 with 7 senders), so this is what the run decides.
  fan_in      sum of s senders = min(s * what one alone sends, R), equal shares
  capacity    q per SM is the sender's own and stays; the stage behind it drains at R / s. Isolated
              burst of one sender, s - 1 others busy: max(T0, (K B - K q) / (R / s))
  paced       80 % of R by all senders together: issue stays at T0 (plus the spread of collisions for
              bursts above q, not predicted); rate 0.8 R / (1 + T0 / gap)
  fan_out     one sender, d receivers: R, as to one
  operators   `xstage plan`: the simulator with that port, tile costs of the plan's costs file;
              barriers, skew between ranks and routing as the planner documents them
  barrier     all-rank barrier: 2.0 us (two GPUs, measured 1.98) plus 0.1 us a further peer
  kill -9     all survivors have raised the error within 0.3 s, their processes end within 1 s
All rates in B/ns = GB/s, times in us unless named otherwise.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile

RANKS = (2, 4, 8)
# Sequence length at 4 local heads of 128, and what a public report measured for the sender side of
# its fused kernel on 8 GPUs of another kind (148 SMs, R 717 GB/s): context, not a target.
LOCAL_HEADS = 4
SEQUENCES = {8192: 207.0, 16384: 795.5, 32768: 3241.5, 49152: 7285.7, 65536: 13218.3}
VIDEO = ("wan2.2-14b-720p", "hunyuanvideo-720p")
EXPERTS = ("hunyuanimage-3-moe-fp8", "deepseek-v4-flash-moe-fp8")
KIB = 1024


def value(kind, name):
    return kind[name]["value"]


def issue_into_empty(kind, num_bytes):
    """T0 by linear interpolation of the issue curve, its end continued at the injection rate."""
    curve = kind["issue_curve"]
    if num_bytes <= curve[0]["bytes"]:
        return curve[0]["issue_ns"]
    for low, high in zip(curve, curve[1:]):
        if num_bytes <= high["bytes"]:
            share = (num_bytes - low["bytes"]) / (high["bytes"] - low["bytes"])
            return low["issue_ns"] + share * (high["issue_ns"] - low["issue_ns"])
    return curve[-1]["issue_ns"] + (num_bytes - curve[-1]["bytes"]) / value(kind, "injection_rate")


def fan_tables(link, num_gpus):
    sms = link["source"]["num_sms"]
    tables = {"fan_in": [], "fan_in_bursts": [], "fan_in_paced": [], "fan_out": []}
    for kind in link["kinds"]:
        rate, q = value(kind, "drain_rate"), value(kind, "capacity_mean_bytes")
        for senders in range(1, num_gpus):
            for producers in (16, 66, sms):
                for kib in (8, 32, 64):
                    alone = min(rate, producers * kib * KIB / issue_into_empty(kind, kib * KIB))
                    tables["fan_in"].append(
                        {"kind": kind["kind"], "senders": senders, "producers": producers,
                         "bytes": kib * KIB, "rate_gb_s": round(min(senders * alone, rate), 1)})
            for kib in (4, 8, 32, 64):
                gap = senders * kib * KIB * sms / (0.8 * rate)
                t0 = issue_into_empty(kind, kib * KIB)
                tables["fan_in_paced"].append(
                    {"kind": kind["kind"], "senders": senders, "bytes": kib * KIB,
                     "rate_gb_s": round(0.8 * rate / (1 + t0 / gap), 1), "issue_ns": round(t0)})
            if senders in (1, 2, 4, 7):
                for kib in (4, 8, 16, 32, 64):
                    volume = sms * (kib * KIB - q)
                    issue = max(issue_into_empty(kind, kib * KIB), volume * senders / rate)
                    tables["fan_in_bursts"].append(
                        {"kind": kind["kind"], "senders": senders, "bytes": kib * KIB,
                         "issue_ns": round(issue)})
        if kind["kind"] != "tensor":
            for receivers in range(1, num_gpus):
                tables["fan_out"].append(
                    {"kind": kind["kind"], "receivers": receivers, "rate_gb_s": round(rate, 1)})
    return tables


def plan(args, workload, ranks):
    command = [args.xstage, "plan", workload, "--link", args.link, "--ranks", str(ranks), "--json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "ranks": ranks,
        "shape": result["shape"],
        "drain_us": round(result["drain_ns"] / 1e3, 2),
        "alone_us": round(result["compute_ns"] / 1e3, 1),
        "choice": result["choice"],
        "costs": result["costs"],
        "candidates": [{"name": c["name"], "evidence": c["evidence"],
                        "total_us": round(c["total_ns"] / 1e3, 1),
                        "exposed_us": round(c["exposed_ns"] / 1e3, 2)}
                       for c in result["candidates"]],
    }


def attention_file(folder, sequence, ranks):
    path = os.path.join(folder, f"attention-{sequence}-{ranks}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": "xstage.workload", "version": 1, "name": f"{sequence}x{LOCAL_HEADS}",
                   "description": "4 local heads", "source": "public report of a fused kernel",
                   "attention": {"batch": 1, "sequence": sequence, "heads": LOCAL_HEADS * ranks,
                                 "head_dim": 128, "dtype": "bf16"}}, file)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--xstage", required=True)
    parser.add_argument("--link", required=True)
    parser.add_argument("--link-file", required=True)
    args = parser.parse_args()
    with open(args.link_file, "rb") as file:
        text = file.read()
    link = json.loads(text)
    report = {
        "schema": "xstage.many_gpus_prediction", "version": 1,
        "link": link["name"], "link_sha256": hashlib.sha256(text).hexdigest(),
        "method": __doc__.split("How, and what is assumed:")[1].strip().splitlines(),
        "barrier_us": {"4": 2.2, "8": 2.6},
        "kill_error_s": 0.3, "kill_gone_s": 1.0,
        "fan": {str(n): fan_tables(link, n) for n in (4, 8)},
        "attention": [], "video": [], "experts": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            for sequence, reported in SEQUENCES.items():
                entry = plan(args, attention_file(folder, sequence, ranks), ranks)
                report["attention"].append({"sequence": sequence, "local_heads": LOCAL_HEADS,
                                            "reported_sender_side_us_8_other_gpus": reported,
                                            **entry})
            for name in VIDEO:
                report["video"].append({"workload": name, **plan(args, name, ranks)})
            for name in EXPERTS:
                report["experts"].append({"workload": name, **plan(args, name, ranks)})
    json.dump(report, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
