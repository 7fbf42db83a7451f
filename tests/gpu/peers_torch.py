"""Adopts torch symmetric memory and moves bytes through it with our kernels, one process a rank.

usage: peers_torch.py LIBRARY [--ranks N] [--devices 0,1] [--rounds N] [--bytes B]

LIBRARY is libxstage_peers_test.so of a build. Ranks take --devices in turn; several on one GPU are
allowed. Multicast is off. Every byte that arrives is checked on the GPU. Prints one JSON line.

Exit code 0: all right. 1: wrong bytes or an error. 3: no PyTorch or no GPU here.
"""

import argparse
import ctypes
import json
import os
import socket
import sys
import time


class Adopted(ctypes.Structure):
    _fields_ = [("num_wrong", ctypes.c_uint64), ("num_checked", ctypes.c_uint64),
                ("error", ctypes.c_char * 256)]


def load(path):
    library = ctypes.CDLL(path)
    library.xstage_adopt.restype = ctypes.c_void_p
    library.xstage_adopt.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int,
                                     ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(Adopted)]
    library.xstage_exchange.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32,
                                        ctypes.POINTER(Adopted)]
    library.xstage_release.argtypes = [ctypes.c_void_p]
    return library


def run_rank(rank, args, port, results):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric_memory

    device = args.devices[rank % len(args.devices)]
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=args.ranks)
    buffer = symmetric_memory.empty(args.bytes, dtype=torch.uint8, device=f"cuda:{device}")
    buffer.fill_(0xa5)
    torch.cuda.synchronize()
    handle = symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)
    bases = (ctypes.c_void_p * args.ranks)(*handle.buffer_ptrs)
    library, call = load(args.library), Adopted()
    adopted = library.xstage_adopt(bases, rank, args.ranks, args.bytes, device, ctypes.byref(call))
    dist.barrier()
    code = 1
    if adopted:
        code = library.xstage_exchange(adopted, args.rounds, args.seed, ctypes.byref(call))
        dist.barrier()
        library.xstage_release(adopted)
    results.put({"rank": rank, "device": device, "code": code, "wrong": call.num_wrong,
                 "checked": call.num_checked, "error": call.error.decode()})
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--devices", type=lambda text: [int(x) for x in text.split(",")], default=[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    try:
        import torch
        import torch.multiprocessing as mp
    except ImportError as error:
        print(error)
        return 3
    if torch.cuda.device_count() <= max(args.devices):
        print(f"{torch.cuda.device_count()} GPUs here, --devices {args.devices}")
        return 3

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.spawn(run_rank, args=(args, port, results), nprocs=args.ranks)
    ranks = sorted((results.get() for _ in range(args.ranks)), key=lambda r: r["rank"])
    fine = all(r["code"] == 0 and r["wrong"] == 0 and r["checked"] > 0 for r in ranks)
    print(json.dumps({"case": "torch symmetric memory", "torch": torch.__version__, "fine": fine,
                      "ranks": ranks, "rounds": args.rounds, "bytes": args.bytes,
                      "seconds": round(time.monotonic() - start, 2)}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
