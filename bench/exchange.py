#!/usr/bin/env python3
"""Attention with its output exchange: `xstage bench exchange`, and beside it in the same run what
PyTorch offers: cuDNN attention alone, and NCCL with the permutes around it where there are GPUs.

  bench/exchange.py --tool build/xstage --out results.json -- flux.1-dev-1024 --ranks 2 --peers real --link h200-nv18

What follows `--` goes to the tool. Its result file gets a member "torch": for each case the times
of cuDNN attention on a rank's heads, and with as many GPUs as ranks also

  usual   attention, permute, all_to_all_single, permute, as sequence-parallel libraries do it
  lean    the same without the first permute where the tensor lies right already

as graph replays on every rank, in turn with attention alone (forwards, then backwards); a replay's
time is the largest of all ranks. `added` is the median of the paired differences.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.distributed as distributed
    import torch.multiprocessing as multiprocessing
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"exchange.py: not possible here: {error}", file=sys.stderr)
    sys.exit(3)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def attention(case, q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            is_causal=case["causal"], enable_gqa=k.shape[2] != q.shape[2])
    return out.transpose(1, 2)


def usual(x, ranks):
    """[B,S,h,D] -> [B,S/P,H,D], every step a copy."""
    b, s, h, d = x.shape
    send = x.reshape(b, ranks, s // ranks, h, d).permute(1, 3, 2, 0, 4).contiguous()
    received = torch.empty_like(send)
    distributed.all_to_all_single(received, send)
    return received.reshape(ranks * h, s // ranks, b, d).permute(2, 1, 0, 3).contiguous()


def lean(x, ranks):
    """The same; the first permute is none for one batch."""
    b, s, h, d = x.shape
    send = x.reshape(b, ranks, s // ranks, h, d).transpose(0, 1).contiguous()
    received = torch.empty_like(send)
    distributed.all_to_all_single(received, send)
    return received.permute(1, 2, 0, 3, 4).reshape(b, s // ranks, ranks * h, d)


def capture(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def replay_us(graph, meet):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    meet()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def measure_case(case, rank, ranks, args):
    """Series of this rank: name -> microseconds, two a round."""
    shape = case["shape"]
    local = dict(shape, ranks=ranks)
    heads = shape["heads"] // case["ranks"]
    kv_heads = max(1, (shape["kv_heads"] or shape["heads"]) // case["ranks"])
    torch.manual_seed(args.seed * 100 + rank)
    new = lambda h: torch.randn(shape["batch"], shape["rows"], h, shape["head_dim"],
                                device="cuda", dtype=DTYPES[shape["dtype"]])
    q, k, v = new(heads), new(kv_heads), new(kv_heads)
    ways = {"cudnn": lambda: attention(local, q, k, v)}
    if ranks > 1:
        ways["usual"] = lambda: usual(attention(local, q, k, v), ranks)
        ways["lean"] = lambda: lean(attention(local, q, k, v), ranks)
    flag = torch.zeros(1, device="cuda")

    def meet():
        if ranks > 1:
            distributed.all_reduce(flag)
        else:
            torch.cuda.synchronize()

    graphs = {name: capture(run) for name, run in ways.items()}
    series = {name: [] for name in graphs}
    begin = time.monotonic()
    for round_idx in range(args.rounds + 1):
        for name in list(graphs) + list(graphs)[::-1]:
            elapsed = replay_us(graphs[name], meet)
            if round_idx > 0:
                series[name].append(elapsed)
        over = torch.tensor([float(time.monotonic() - begin > args.seconds and round_idx >= 5)], device="cuda")
        if ranks > 1:
            distributed.all_reduce(over)
        if over.item() > 0:
            break
    return series


def slowest(series, ranks):
    """The largest of all ranks, replay by replay."""
    if ranks == 1:
        return series
    result = {}
    for name, values in series.items():
        t = torch.tensor(values, device="cuda", dtype=torch.float64)
        distributed.all_reduce(t, op=distributed.ReduceOp.MAX)
        result[name] = t.tolist()
    return result


def rows_of(series):
    def rounds(values):
        return [(values[i] + values[i + 1]) / 2 for i in range(0, len(values) - 1, 2)]

    row = {}
    alone = rounds(series["cudnn"])
    for name, values in series.items():
        row[name] = {"us": statistics.median(rounds(values)), "times_us": values}
        if name != "cudnn":
            row[name]["added_us"] = statistics.median(x - a for x, a in zip(rounds(values), alone))
    return row


def worker(rank, ranks, port, cases, args, path):
    torch.cuda.set_device(rank)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
        distributed.init_process_group("nccl", rank=rank, world_size=ranks,
                                       device_id=torch.device("cuda", rank))
    rows = []
    for case in cases:
        row = {"case": case["case"], "ranks": ranks}
        try:
            series = slowest(measure_case(case, rank, ranks, args), ranks)
            row.update(rows_of(series))
        except RuntimeError as error:
            row["failed"] = str(error).splitlines()[0]
        rows.append(row)
        if rank == 0:
            text = ", ".join(f"{n} {row[n]['us']:.1f} us" for n in ("cudnn", "usual", "lean") if n in row)
            print(f"torch   {case['case']}: {text or row.get('failed')}", flush=True)
        torch.cuda.empty_cache()
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file)
    if ranks > 1:
        distributed.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torch_rows(cases, args):
    """One entry a case; NCCL where every rank has a GPU, else cuDNN alone."""
    rows = []
    gpus = torch.cuda.device_count()
    divides = lambda c: c["shape"]["rows"] % c["ranks"] == 0 and c["shape"]["heads"] % c["ranks"] == 0
    plain = lambda c: c["shape"]["prefix"] == 0 and c["shape"]["suffix"] == 0
    for ranks in sorted({c["ranks"] for c in cases}):
        some = [c for c in cases if c["ranks"] == ranks and divides(c)]
        real = [c for c in some if c["peers"] == "real" and ranks <= gpus and ranks > 1 and plain(c)]
        for group, size in ((real, ranks), ([c for c in some if c not in real], 1)):
            if not group:
                continue
            path = args.out + ".torch"
            if size > 1:
                multiprocessing.spawn(worker, (size, free_port(), group, args, path), nprocs=size)
            else:
                worker(0, 1, 0, group, args, path)
            with open(path, encoding="utf-8") as file:
                rows += json.load(file)
            os.remove(path)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="build/xstage")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=20, help="of the PyTorch rows")
    parser.add_argument("--seconds", type=float, default=2.0, help="about, for the PyTorch rows of a case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("tool_arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    extra = [a for a in args.tool_arguments if a != "--"]
    if not torch.cuda.is_available():
        print("exchange.py: not possible here: no GPU", file=sys.stderr)
        sys.exit(3)
    code = subprocess.run([args.tool, "bench", "exchange", *extra, "--out", args.out, "--force"],
                          check=False).returncode
    if code not in (0, 1):
        sys.exit(code)
    with open(args.out, encoding="utf-8") as file:
        result = json.load(file)
    result["torch"] = {"version": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                       "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                       "rows": torch_rows(result["cases"], args)}
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    sys.exit(code)


if __name__ == "__main__":
    main()
