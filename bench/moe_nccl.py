#!/usr/bin/env python3
"""What the usual stack takes to move an MoE layer's rows: gathers, NCCL all-to-alls, weighted sum; one process per GPU.

    bench/moe_nccl.py --hidden 4096 --experts 256 --top-k 6 --tokens 64,2048,8192 > moe-nccl.json

With one GPU the peer's half is emulated in its memory, as `xstage bench moe` does: copies stand where the all-to-alls are.

Rows are fp8 with float32 scales on the way in and bf16 on the way back. Split sizes are known in advance, which spares
the stack a host synchronisation that it has in real use. Times are us, medians over rounds of the slowest rank; the
experts' products are left out: add those of `xstage bench moe` of the same shape.
"""
import argparse
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def routing(args, tokens, ranks, generator):
    """ids[rank][token, slot]: distinct experts of a token."""
    return [torch.rand(tokens, args.experts, generator=generator).argsort(1)[:, :args.top_k] for _ in range(ranks)]


class Layer:
    """Buffers and index lists of one rank; run() enqueues a call."""

    def __init__(self, args, tokens, rank, ranks):
        self.args, self.tokens = args, tokens
        ids = routing(args, tokens, ranks, torch.Generator().manual_seed(args.seed))
        owner = [table.flatten() * ranks // args.experts for table in ids]
        mine = owner[rank]
        order = torch.argsort(mine, stable=True)  # entries by destination
        self.send_tokens = (order // args.top_k).cuda()
        self.send = [int((mine == peer).sum()) for peer in range(ranks)]
        self.receive = [int((owner[peer] == rank).sum()) for peer in range(ranks)]
        experts = torch.cat([ids[peer].flatten()[torch.argsort(owner[peer], stable=True)]
                             [sum(int((owner[peer] == p).sum()) for p in range(rank)):][:self.receive[peer]]
                             for peer in range(ranks)])
        to_pool = torch.argsort(experts, stable=True)
        self.to_pool = to_pool.cuda()
        self.from_pool = torch.argsort(to_pool).cuda()
        self.slots = torch.argsort(order).cuda()
        row_bytes = args.hidden + (args.hidden + 127) // 128 * 4
        self.x = torch.randint(0, 120, (tokens, row_bytes), dtype=torch.uint8, device="cuda")
        self.weights = torch.rand(tokens, args.top_k, 1, device="cuda")
        self.received = torch.empty(sum(self.receive), row_bytes, dtype=torch.uint8, device="cuda")
        self.outputs = torch.randn(sum(self.receive), args.hidden, device="cuda").bfloat16()
        self.returned = torch.empty(tokens * args.top_k, args.hidden, dtype=torch.bfloat16, device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]

    def exchange(self, to, rows, receive, send):
        if not self.args.emulated:
            dist.all_to_all_single(to, rows, receive, send)
            return
        # Own rows are copied, those of the other rank come from its image: as many bytes as in earnest.
        count = min(len(to), len(rows))
        to[:count].copy_(rows[:count])

    def dispatch(self):
        self.exchange(self.received, self.x.index_select(0, self.send_tokens), self.receive, self.send)
        self.pool = self.received.index_select(0, self.to_pool)

    def combine(self):
        self.exchange(self.returned, self.outputs.index_select(0, self.from_pool), self.send, self.receive)
        rows = self.returned.index_select(0, self.slots).view(self.tokens, self.args.top_k, self.args.hidden)
        self.y = torch.bmm(self.weights.bfloat16().transpose(1, 2), rows)

    def time(self):
        if not self.args.emulated:
            dist.barrier()
        torch.cuda._sleep(200_000)
        self.events[0].record()
        self.dispatch()
        self.events[1].record()
        self.combine()
        self.events[2].record()
        torch.cuda.synchronize()
        return [self.events[i].elapsed_time(self.events[i + 1]) * 1e3 for i in range(2)]


def work(rank, ranks, args, queue):
    torch.cuda.set_device(rank)
    if not args.emulated:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=args.port)
        dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    for tokens in args.tokens:
        layer = Layer(args, tokens, rank, ranks)
        rounds = []
        for i in range(-3, args.rounds):
            times = torch.tensor(layer.time(), device="cuda")
            if not args.emulated:
                dist.all_reduce(times, dist.ReduceOp.MAX)
            if i >= 0:
                rounds.append(times.tolist())
        if rank == 0:
            dispatch, combine = (statistics.median(column) for column in zip(*rounds))
            queue.put({"tokens": tokens, "dispatch_us": dispatch, "combine_us": combine,
                       "samples_us": [[round(t, 3) for t in pair] for pair in rounds]})
        del layer
    if not args.emulated:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=6)
    parser.add_argument("--tokens", default="1,8,64,512,2048,8192")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", default="29611")
    args = parser.parse_args()
    args.tokens = [int(word) for word in args.tokens.split(",")]
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        print("moe_nccl: no GPU here", file=sys.stderr)
        return 3
    args.emulated = num_gpus == 1
    ranks = max(num_gpus, 2)
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (ranks, args, queue), nprocs=num_gpus)
    results = [queue.get() for _ in args.tokens]
    print(json.dumps({"schema": "xstage.bench.moe_nccl", "version": 1, "torch": torch.__version__,
                      "nccl": ".".join(map(str, torch.cuda.nccl.version())), "gpu": torch.cuda.get_device_name(),
                      "hidden": args.hidden, "experts": args.experts, "top_k": args.top_k, "ranks": ranks, "emulated": args.emulated,
                      "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
