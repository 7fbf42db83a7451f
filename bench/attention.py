#!/usr/bin/env python3
"""Attention on one GPU: xstage beside PyTorch's SDPA (cuDNN, flash), same process, same tensors.

Every candidate is captured once in a CUDA graph; rounds replay the graphs of all candidates in
turn, so that clocks and temperature are shared. Reported: median and quartiles over rounds, TFLOP/s
(4*B*H*Sq*Sk*D, halved for causal), the ratio to cuDNN of the same rounds (median of per-round
ratios), and the largest relative error against float64 on sampled rows.

  bench/attention.py --library build/libxstage_attention_c.so --out results.json [--shapes all|short]
"""

import argparse
import ctypes
import datetime
import json
import math
import statistics
import subprocess
import sys
import threading
import time

try:
    import torch
    import torch.nn.functional as functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"attention.py: not possible here: {error}", file=sys.stderr)
    sys.exit(3)


class Call(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse", "workspace")]
        + [("workspace_bytes", ctypes.c_uint64), ("stream", ctypes.c_void_p)]
        + [(name, ctypes.c_int64) for name in ("num_batches", "num_query_rows", "num_key_rows",
                                               "num_heads", "num_kv_heads", "head_dim", "kv_len")]
        + [(name, ctypes.c_int32) for name in ("is_fp16", "is_head_major", "causal",
                                               "split_last_wave", "num_sms")]
        + [("scale", ctypes.c_float), ("rescale_threshold", ctypes.c_float),
           ("error", ctypes.c_char * 256)]
    )


class Shape:
    """batches x rows x heads, d = head dimension, kv = KV heads."""

    def __init__(self, batches, rows, heads, dim=128, causal=False, kv_heads=None, keys=None):
        self.batches, self.rows, self.heads, self.dim = batches, rows, heads, dim
        self.causal, self.kv_heads, self.keys = causal, kv_heads or heads, keys or rows

    def flops(self):
        full = 4 * self.batches * self.heads * self.rows * self.keys * self.dim
        return full / 2 if self.causal else full

    def name(self):
        text = f"{self.batches}x{self.rows}x{self.heads}x{self.dim}"
        if self.kv_heads != self.heads:
            text += f" kv{self.kv_heads}"
        return text + (" causal" if self.causal else "")


SHAPES = {
    "short": [Shape(1, 4608, 24), Shape(1, 16384, 16), Shape(1, 16384, 16, causal=True),
              Shape(1, 4608, 12), Shape(1, 8704, 12), Shape(1, 4416, 16, kv_heads=4),
              Shape(1, 8192, 4), Shape(1, 16384, 4), Shape(1, 32768, 4),
              Shape(1, 32760, 20), Shape(1, 17776, 30, dim=64)],
    "all": [],
}
SHAPES["all"] = SHAPES["short"] + [
    Shape(1, 65536, 4), Shape(1, 75600, 20), Shape(16, 1024, 16), Shape(4, 4096, 16),
    Shape(4, 4096, 16, causal=True), Shape(1, 17776, 30, dim=64, causal=True)]


class Xstage:
    """One variant of our kernel on given tensors."""

    def __init__(self, library, shape, q, k, v, out, num_sms, threshold, split):
        self.library = library
        self.call = Call(
            q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), out=out.data_ptr(), lse=None,
            num_batches=shape.batches, num_query_rows=shape.rows, num_key_rows=shape.keys,
            num_heads=shape.heads, num_kv_heads=shape.kv_heads, head_dim=shape.dim, kv_len=-1,
            is_fp16=int(q.dtype == torch.float16), is_head_major=0, causal=int(shape.causal),
            split_last_wave=int(split), num_sms=0, scale=0.0, rescale_threshold=threshold)
        size = library.xstage_attention_workspace_bytes(ctypes.byref(self.call), num_sms)
        if size < 0:
            raise RuntimeError(self.call.error.decode())
        self.workspace = torch.zeros(max(size, 1), dtype=torch.uint8, device="cuda")
        self.call.workspace, self.call.workspace_bytes = self.workspace.data_ptr(), size

    def __call__(self):
        self.call.stream = torch.cuda.current_stream().cuda_stream
        if self.library.xstage_attention_forward(ctypes.byref(self.call)) != 0:
            raise RuntimeError(self.call.error.decode())


def sdpa(shape, q, k, v, out, backend):
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]

    def run():
        with sdpa_kernel(backend):
            result = functional.scaled_dot_product_attention(
                *heads_first, is_causal=shape.causal, enable_gqa=shape.kv_heads != shape.heads)
        out.append(result)
        del out[:-1]

    return run


def capture(run, repeats):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph


def replay_ms(graph, repeats):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def relative_error(shape, q, k, v, out, num_rows=64):
    """Against float64 on random rows of the first and the last head of the last batch."""
    worst = 0.0
    batch = shape.batches - 1
    rows = torch.randint(0, shape.rows, (num_rows,), device="cuda")
    for head in {0, shape.heads - 1}:
        kv_head = head * shape.kv_heads // shape.heads
        scores = q[batch, rows, head].double() @ k[batch, :, kv_head].double().T / math.sqrt(shape.dim)
        if shape.causal:
            hidden = torch.arange(shape.keys, device="cuda")[None] > rows[:, None] + shape.keys - shape.rows
            scores.masked_fill_(hidden, -math.inf)
        exact = scores.softmax(-1) @ v[batch, :, kv_head].double()
        error = (out[batch, rows, head].double() - exact).norm() / exact.norm()
        worst = max(worst, error.item())
    return worst


def quartiles(values):
    ordered = sorted(values)
    return [ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]]


def measure(shape, libraries, args):
    torch.manual_seed(args.seed)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    new = lambda rows, heads: torch.randn(shape.batches, rows, heads, shape.dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = new(shape.rows, shape.heads), new(shape.keys, shape.kv_heads), new(shape.keys, shape.kv_heads)
    candidates, outputs = {}, {}
    for name, library, threshold, split in libraries:
        out = torch.full_like(q, math.nan)
        candidates[name] = Xstage(library, shape, q, k, v, out, num_sms, threshold, split)
        outputs[name] = out
    sdpa_out = []
    candidates["cudnn"] = sdpa(shape, q, k, v, sdpa_out, SDPBackend.CUDNN_ATTENTION)
    if args.flash:
        candidates["flash2"] = sdpa(shape, q, k, v, [], SDPBackend.FLASH_ATTENTION)
    estimate_ms = shape.flops() / 600e9
    repeats = max(1, min(20, round(3.0 / estimate_ms)))
    rounds = max(3, min(args.rounds, round(args.seconds * 1000 / (estimate_ms * repeats * len(candidates)))))
    graphs, failures = {}, {}
    for name, run in candidates.items():
        try:
            graphs[name] = capture(run, repeats)
        except RuntimeError as error:
            failures[name] = str(error).splitlines()[0]
    times = {name: [] for name in graphs}
    for round_idx in range(rounds + 1):
        order = list(graphs) if round_idx % 2 == 0 else list(graphs)[::-1]
        for name in order:
            elapsed = replay_ms(graphs[name], repeats)
            if round_idx > 0:
                times[name].append(elapsed)
    row = {"shape": shape.name(), "flops": shape.flops(), "rounds": rounds, "repeats": repeats,
           "failures": failures, "candidates": {}}
    for name, values in times.items():
        median = statistics.median(values)
        entry = {"ms": median, "quartiles_ms": quartiles(values), "tflops": shape.flops() / median / 1e9,
                 "samples_ms": [round(value, 6) for value in values]}
        if "cudnn" in times:
            ratios = [c / x for c, x in zip(times["cudnn"], values)]
            entry["speed_to_cudnn"] = statistics.median(ratios)
            entry["speed_to_cudnn_quartiles"] = quartiles(ratios)
        result = outputs.get(name)
        if result is None and name == "cudnn" and sdpa_out:
            result = sdpa_out[-1].transpose(1, 2)
        if result is not None:
            entry["relative_error"] = relative_error(shape, q, k, v, result)
        row["candidates"][name] = entry
    return row


class ClockLog:
    """SM clock and power while the block runs, sampled by nvidia-smi; empty where it is missing."""

    def __enter__(self):
        self.samples = []
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits",
                 "--id=0", "--loop-ms=50"], stdout=subprocess.PIPE, text=True)
        except OSError:
            self.process = None
            return self
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        return self

    def _read(self):
        for line in self.process.stdout:
            try:
                self.samples.append(tuple(float(x) for x in line.split(",")))
            except ValueError:
                pass

    def take(self):
        """Median clock (MHz) and power (W) since the last call, or None."""
        samples, self.samples = self.samples, []
        if not samples:
            return None
        return {"sm_mhz": statistics.median(c for c, _ in samples),
                "watts": statistics.median(w for _, w in samples), "samples": len(samples)}

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()


def gemm_tflops(size=8192, repeats=10):
    """This GPU's dense bf16 rate, in the same run."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    graph = capture(lambda: torch.mm(a, b), repeats)
    return 2 * size**3 / statistics.median(replay_ms(graph, repeats) for _ in range(5)) / 1e9


def output_of(*command):
    """What a command prints, or None where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def load(path):
    library = ctypes.CDLL(path)
    library.xstage_attention_workspace_bytes.restype = ctypes.c_int64
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", required=True,
                        help="[NAME=]PATH[:threshold[:split]]; may be given several times; threshold -1: as fastest")
    parser.add_argument("--out", required=True)
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="short")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="about, for each shape")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all shapes; the rest is left out and named")
    parser.add_argument("--flash", action="store_true", help="also SDPA's flash backend")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", help="of the library, for the result file; left out, git's HEAD here")
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("attention.py: not possible here: no sm_90 GPU", file=sys.stderr)
        sys.exit(3)
    start = time.monotonic()
    libraries = []
    for text in args.library:
        name, _, rest = text.rpartition("=")
        path, threshold, split = (*rest.split(":"), *["-1", "1"][rest.count(":"):])
        libraries.append((name or "xstage", load(path), float(threshold), int(split)))
    properties = torch.cuda.get_device_properties(0)
    result = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "gpu": properties.name, "num_sms": properties.multi_processor_count,
              "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
              "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
              "commit": args.commit or output_of("git", "rev-parse", "HEAD"),
              "command": sys.argv, "seed": args.seed, "rows": [], "left_out": []}
    with ClockLog() as clocks:
        run_all(args, libraries, result, clocks, start)


def run_all(args, libraries, result, clocks, start):
    properties = torch.cuda.get_device_properties(0)
    result["gemm_8192_tflops"] = gemm_tflops()
    print(f"{properties.name}   dense bf16 {result['gemm_8192_tflops']:.0f} TFLOP/s (8192^3)")
    for shape in SHAPES[args.shapes]:
        if time.monotonic() - start > args.budget:
            result["left_out"].append(shape.name())
            continue
        clocks.take()
        row = measure(shape, libraries, args)
        row["clocks"] = clocks.take()
        result["rows"].append(row)
        for name, entry in row["candidates"].items():
            print(f"{shape.name():28} {name:14} {entry['ms'] * 1e3:10.1f} us {entry['tflops']:7.0f} TF"
                  f"   x cuDNN {entry.get('speed_to_cudnn', math.nan):5.3f}"
                  f"   error {entry.get('relative_error', math.nan):.2e}", flush=True)
        print(f"{shape.name():28} clocks {row['clocks']}")
        for name, reason in row["failures"].items():
            print(f"{shape.name():28} {name:14} failed: {reason}", flush=True)
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    if result["left_out"]:
        print("left out, out of time: " + ", ".join(result["left_out"]))


if __name__ == "__main__":
    main()
