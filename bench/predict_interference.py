#!/usr/bin/env python3
"""Predict the mock attention and the load stalls from a link profile, before they are run.

usage: predict_interference.py LINK.json [--step-ns 2000] [--sms 132] > prediction.json

What is predicted, and how (docs/experiments.md tells how it came out):

  D        = V / R, V = SMs * 32 KiB: time that one aligned burst of a tile of every SM drains
  slack    = 2 steps: what the two stages of the main loop hold in advance
  stall(c) = D * c / 32 KiB * (1 - s / 3) for a chunk of c bytes of every SM: its loads queue behind
             its stores, and with shares spread by +-s the mean SM is done that much early
  first    chunk of the kernel, all SMs in step: costs max(0, stall - slack)
  later    chunks: the SMs have fallen out of step, the more the larger the part of a stall that the
           stages hide: max(0, stall - slack) * max(0, 1 - 2.5 * slack / stall). The factor 2.5 is
           empirical, from an exploratory run at other tile lengths.
  a tile   takes max(D, its main loop + the stalls of its chunks): the link sets the pace if demand
           exceeds R
  coupled  by the consumers: every tile waits for stall(32 KiB) + fence - one step
All times in ns. Increments are over the same kernel without communication.
"""
import argparse
import hashlib
import json

TILE_BYTES = 32 * 1024
TILES = 8


def kind_of(link, name):
    return next(kind for kind in link["kinds"] if kind["kind"] == name)


def value(kind, name):
    return kind[name]["value"]


def predict_case(kind, sms, step_ns, steps, chunk, coupled):
    """Increment of the whole kernel over the same kernel without communication."""
    drain = TILE_BYTES * sms / value(kind, "drain_rate")
    spread = value(kind, "share_spread") or 0.0
    tile = steps * step_ns
    slack = 2 * step_ns
    if coupled:
        fence = value(kind, "visible_latency_ns") or 0.0
        return TILES * (drain * (1 - spread / 3) + fence - step_ns)
    stall = drain * (1 - spread / 3) * chunk / TILE_BYTES
    first = max(0.0, stall - slack)
    later = first * max(0.0, 1 - 2.5 * slack / stall)
    num_chunks = TILE_BYTES // chunk
    second_tile = max(drain, tile + first + (num_chunks - 1) * later) - tile
    later_tile = max(drain, tile + num_chunks * later) - tile
    return second_tile + (TILES - 2) * later_tile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("link")
    parser.add_argument("--step-ns", type=float, default=2000)
    parser.add_argument("--sms", type=int, default=132)
    options = parser.parse_args()
    with open(options.link, "rb") as file:
        text = file.read()
    link = json.loads(text)
    kind = kind_of(link, "bulk")
    drain = TILE_BYTES * options.sms / value(kind, "drain_rate")
    rows = []
    for demand in (1.2, 0.6, 0.3, 0.15):
        steps = max(4, round(drain / demand / options.step_ns))
        for name, chunk, coupled in (
            ("burst", TILE_BYTES, False),
            ("paced 16K", 16384, False),
            ("paced 8K", 8192, False),
            ("paced 4K", 4096, False),
            ("consumers, coupled", TILE_BYTES, True),
        ):
            rows.append({
                "case": name,
                "demand": demand,
                "steps_per_tile": steps,
                "increment_ns": round(predict_case(kind, options.sms, options.step_ns, steps, chunk, coupled)),
            })
    loads = []
    for name in ("register16", "bulk"):
        params = kind_of(link, name)
        for kib in (8, 32):
            burst_drain = kib * 1024 * options.sms / value(params, "drain_rate")
            loads.append({"kind": name, "phase": "lockstep", "bytes": kib * 1024,
                          "max_latency_ns": round(burst_drain + 600)})
    print(json.dumps({
        "schema": "xstage.prediction", "version": 1, "what": "mock attention and load stalls",
        "link": link["name"], "link_sha256": hashlib.sha256(text).hexdigest(),
        "mock_attention": rows, "load_stalls": loads}, indent=2))


if __name__ == "__main__":
    main()
