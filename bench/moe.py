#!/usr/bin/env python3
"""Grouped GEMM of the MoE layer on one GPU, beside cuBLAS and this GPU's read bandwidth.

Same process, same clocks: every candidate is captured once in a CUDA graph, rounds replay all of
them in turn. Two parts:

  many   49152 routed rows over 128 experts (random routing, experts padded to 64 rows) against one
         dense product of 49152 rows by cuBLAS: bf16 matmul, fp8 with 1x128 and 128x128 scales.
         Rates count the padded rows. Ratio: median over rounds of the rates' ratio.
  few    64 tokens a rank: the weights of all experts that got a row, by the time that reading as
         many bytes takes.

  bench/moe.py --library build/libxstage_moe_c.so --out results.json [--parts many,few]

--library may be given several times, as NAME=PATH, to compare builds.
"""

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
import sys

try:
    import torch
except ImportError as error:
    print(f"moe.py: not possible here: {error}", file=sys.stderr)
    sys.exit(3)

BLOCK = 128


class Call(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("a", "a_scales", "w", "w_scales", "first_row", "num_rows",
                                              "out", "out_scales", "row_weights", "workspace", "stream")]
        + [("pool_rows", ctypes.c_int64)]
        + [(name, ctypes.c_int32) for name in ("num_experts", "n", "k", "is_fp8", "is_swiglu", "shape",
                                               "max_expert_rows", "num_sms")]
        + [("clamp", ctypes.c_float), ("error", ctypes.c_char * 256)]
    )


def checked(code, call):
    if code != 0:
        raise RuntimeError(call.error.decode())


class Weights:
    """Random weights of all experts, prepared; made expert by expert to bound memory."""

    def __init__(self, library, experts, n, k, fp8, swiglu):
        self.experts, self.n, self.k, self.fp8, self.swiglu = experts, n, k, fp8, swiglu
        element = torch.float8_e4m3fn if fp8 else torch.bfloat16
        self.w = torch.empty(experts, n, k, dtype=element, device="cuda")
        rows = n // 2 if swiglu else n
        matrices = 2 if swiglu else 1
        self.scales = torch.empty(experts, matrices, -(-rows // BLOCK), -(-k // BLOCK), device="cuda") if fp8 else None
        call = Call()
        call.stream = torch.cuda.current_stream().cuda_stream
        for expert in range(experts):
            source = torch.randn(n, k, dtype=torch.bfloat16, device="cuda") / k ** 0.5
            if fp8:
                plain = torch.empty(n, k, dtype=element, device="cuda")
                checked(library.xstage_quantise_weights(
                    ctypes.byref(call), ctypes.c_void_p(source.data_ptr()), ctypes.c_void_p(plain.data_ptr()),
                    ctypes.c_void_p(self.scales[expert].data_ptr()), ctypes.c_int64(matrices), rows, k), call)
            else:
                plain = source
            if swiglu:
                checked(library.xstage_interleave(
                    ctypes.byref(call), ctypes.c_void_p(plain.data_ptr()),
                    ctypes.c_void_p(self.w[expert].data_ptr()), 1, n // 2, k, self.w.element_size()), call)
            else:
                self.w[expert] = plain
        torch.cuda.synchronize()


class Rows:
    """Routed rows in a pool: experts in order, each padded to 64 rows."""

    def __init__(self, library, counts, k, fp8):
        starts, row = [], 0
        for count in counts:
            starts.append(row)
            row += -(-count // 64) * 64
        self.counts, self.pool_rows = counts, max(row, 64)
        self.first_row = torch.tensor(starts, dtype=torch.int32, device="cuda")
        self.num_rows = torch.tensor(counts, dtype=torch.int32, device="cuda")
        self.weights = torch.rand(self.pool_rows, device="cuda")
        a = torch.randn(self.pool_rows, k, dtype=torch.bfloat16, device="cuda")
        self.scales = None
        if fp8:
            self.a = torch.empty(self.pool_rows, k, dtype=torch.float8_e4m3fn, device="cuda")
            self.scales = torch.empty(-(-k // BLOCK), self.pool_rows, device="cuda")
            call = Call()
            call.stream = torch.cuda.current_stream().cuda_stream
            checked(library.xstage_quantise_rows(
                ctypes.byref(call), ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(self.a.data_ptr()),
                ctypes.c_void_p(self.scales.data_ptr()), ctypes.c_int64(self.pool_rows),
                ctypes.c_int64(self.pool_rows), k), call)
        else:
            self.a = a


class Grouped:
    """One build of our kernel on given operands."""

    def __init__(self, library, weights, rows, shape=0, num_sms=0):
        self.library = library
        columns = weights.n // 2 if weights.swiglu else weights.n
        quantised = weights.swiglu and weights.fp8
        self.out = torch.empty(rows.pool_rows, columns, device="cuda",
                               dtype=torch.float8_e4m3fn if quantised else torch.bfloat16)
        self.out.view(torch.uint8).fill_(0xff)
        self.out_scales = torch.empty(-(-columns // BLOCK), rows.pool_rows, device="cuda")
        self.workspace = torch.zeros(16, dtype=torch.uint8, device="cuda")
        self.call = Call(
            a=rows.a.data_ptr(), w=weights.w.data_ptr(), first_row=rows.first_row.data_ptr(),
            num_rows=rows.num_rows.data_ptr(), out=self.out.data_ptr(), out_scales=self.out_scales.data_ptr(),
            row_weights=rows.weights.data_ptr() if weights.swiglu else None, workspace=self.workspace.data_ptr(),
            pool_rows=rows.pool_rows, num_experts=weights.experts, n=weights.n, k=weights.k,
            is_fp8=int(weights.fp8), is_swiglu=int(weights.swiglu), shape=shape,
            max_expert_rows=max(rows.counts), num_sms=num_sms, clamp=0.0)
        if weights.fp8:
            self.call.a_scales, self.call.w_scales = rows.scales.data_ptr(), weights.scales.data_ptr()

    def __call__(self):
        self.call.stream = torch.cuda.current_stream().cuda_stream
        checked(self.library.xstage_grouped_gemm(ctypes.byref(self.call)), self.call)


def dense_bf16(m, n, k):
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    w = torch.randn(n, k, dtype=torch.bfloat16, device="cuda") / k ** 0.5
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    return lambda: torch.mm(a, w.t(), out=out)


def dense_fp8(library, m, n, k):
    rows = Rows(library, [m], k, True)
    weights = Weights(library, 1, n, k, True, False)
    scale_a = rows.scales.t()  # [m, k/128], m contiguous
    scale_b = weights.scales[0, 0].t()  # [k/128, n/128], k contiguous
    return lambda: torch._scaled_mm(rows.a, weights.w[0].t(), scale_a=scale_a, scale_b=scale_b,
                                    out_dtype=torch.bfloat16)


def capture(run, repeats):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
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


def rounds_of(candidates, num_rounds, repeats):
    """Milliseconds of every candidate in every round, all candidates in turn."""
    graphs = {name: capture(run, repeats) for name, run in candidates.items()}
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    times = {name: [] for name in graphs}
    for index in range(num_rounds):
        names = list(graphs) if index % 2 == 0 else list(graphs)[::-1]
        for name in names:
            times[name].append(replay_ms(graphs[name], repeats))
    return times


def clocks():
    """SM clock (MHz) and power (W) just after the rounds; None without NVML."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, clock, power = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(torch.cuda.current_device(), ctypes.byref(device)):
            return None
        nvml.nvmlDeviceGetClockInfo(device, 1, ctypes.byref(clock))
        nvml.nvmlDeviceGetPowerUsage(device, ctypes.byref(power))
        return {"sm_mhz": clock.value, "power_w": power.value / 1000}
    except OSError:
        return None


def summary(values):
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": statistics.median(values), "q1": quartiles[0], "q3": quartiles[2]}


def routed(experts_total, experts_local, tokens, top_k, seed):
    """Rows per local expert: every token takes top_k different experts, all alike."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, experts_total, generator=generator).topk(top_k, dim=1).indices.flatten()
    return torch.bincount(chosen, minlength=experts_total)[:experts_local].tolist()


def spoil(candidates):
    for run in candidates.values():
        if isinstance(run, Grouped):
            run.out.view(torch.uint8).fill_(0xff)


def many(libraries, args):
    results = []
    first = next(iter(libraries.values()))
    counts = routed(128, 128, 8192, 6, args.seed)
    padded = sum(-(-count // 64) * 64 for count in counts)
    for n, k, fp8, swiglu in [(4096, 4096, True, False), (4096, 2048, True, False), (4096, 4096, True, True),
                              (4096, 4096, False, False), (4096, 2048, False, False), (4096, 4096, False, True)]:
        weights = Weights(first, 128, n, k, fp8, swiglu)
        rows = Rows(first, counts, k, fp8)
        candidates = {name: Grouped(library, weights, rows, shape=1) for name, library in libraries.items()}
        candidates["cublas"] = dense_fp8(first, 49152, n, k) if fp8 else dense_bf16(49152, n, k)
        spoil(candidates)
        times = rounds_of(candidates, args.rounds, 3)
        entry = {"part": "many", "n": n, "k": k, "type": "fp8" if fp8 else "bf16",
                 "output": "swiglu" if swiglu else "plain", "rows": sum(counts), "padded_rows": padded,
                 "clocks_after": clocks(), "samples_ms": times}
        cublas = [2 * 49152 * n * k / t / 1e9 for t in times["cublas"]]
        entry["cublas_tflops"] = summary(cublas)
        for name in libraries:
            rate = [2 * padded * n * k / t / 1e9 for t in times[name]]
            entry[name] = {"ms": summary(times[name]), "tflops": summary(rate),
                           "ratio_to_cublas": summary([r / c for r, c in zip(rate, cublas)])}
            print(f"many {entry['type']} {n}x{k} {entry['output']}: {name} {entry[name]['tflops']['median']:.0f} "
                  f"TFLOP/s, {entry[name]['ratio_to_cublas']['median']:.3f} x cuBLAS "
                  f"({entry['cublas_tflops']['median']:.0f})", file=sys.stderr, flush=True)
        results.append(entry)
        del candidates, weights, rows
        torch.cuda.empty_cache()
    return results


def few(libraries, args):
    results = []
    first = next(iter(libraries.values()))
    sink = torch.zeros(4, dtype=torch.int32, device="cuda")
    for tokens in args.tokens:
        counts = routed(256, 128, 2 * tokens, 6, args.seed + 1)  # two ranks, one computed
        active = sum(1 for count in counts if count > 0)
        for n, k, fp8, swiglu in [(4096, 4096, True, True), (4096, 2048, True, False), (4096, 4096, False, True)]:
            weights = Weights(first, 128, n, k, fp8, swiglu)
            rows = Rows(first, counts, k, fp8)
            size = active * n * k * weights.w.element_size()
            candidates = {name: Grouped(library, weights, rows, shape=2) for name, library in libraries.items()}
            candidates |= {f"{name} many": Grouped(library, weights, rows, shape=1)
                           for name, library in list(libraries.items())[:1]}

            def read(blocks, data=weights.w.data_ptr(), length=size):
                return lambda: first.xstage_read_memory(
                    ctypes.c_void_p(data), ctypes.c_int64(length), ctypes.c_void_p(sink.data_ptr()), blocks,
                    ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

            readers = {f"read {blocks}": read(blocks) for blocks in (1, 2, 4)}
            spoil(candidates)
            times = rounds_of(candidates | readers, args.rounds, 4)
            best = min(readers, key=lambda name: statistics.median(times[name]))
            entry = {"part": "few", "tokens": tokens, "n": n, "k": k, "type": "fp8" if fp8 else "bf16",
                     "output": "swiglu" if swiglu else "plain", "active_experts": active, "bytes": size,
                     "read_gb_s": summary([size / t / 1e6 for t in times[best]]), "reader": best,
                     "clocks_after": clocks(), "samples_ms": times}
            for name in candidates:
                ratio = [r / t for r, t in zip(times[best], times[name])]
                entry[name] = {"ms": summary(times[name]), "ratio_to_read": summary(ratio),
                               "gb_s": summary([size / t / 1e6 for t in times[name]])}
                print(f"few T={tokens} {entry['type']} {n}x{k} {entry['output']}: {name} "
                      f"{entry[name]['gb_s']['median']:.0f} GB/s, {entry[name]['ratio_to_read']['median']:.3f} x read "
                      f"({entry['read_gb_s']['median']:.0f}, {best})", file=sys.stderr, flush=True)
            results.append(entry)
            del candidates, weights, rows, readers
            torch.cuda.empty_cache()
    return results


def machine():
    query = "name,driver_version,power.limit,clocks.max.sm"
    text = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], check=False,
                          capture_output=True, text=True).stdout.splitlines()
    return {"gpu": text[0] if text else None, "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", required=True, help="PATH or NAME=PATH")
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", default="many,few")
    parser.add_argument("--tokens", default="64", help="of a rank, for the part few: list")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.tokens = [int(word) for word in args.tokens.split(",")]
    if not torch.cuda.is_available():
        print("moe.py: not possible here: no GPU", file=sys.stderr)
        return 3
    libraries = {}
    for word in args.library:
        name, _, path = word.rpartition("=")
        libraries[name or "xstage"] = ctypes.CDLL(path)
    torch.manual_seed(args.seed)
    results = []
    if "many" in args.parts.split(","):
        results += many(libraries, args)
    if "few" in args.parts.split(","):
        results += few(libraries, args)
    document = {"command": sys.argv, "seed": args.seed, "machine": machine(), "results": results}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
