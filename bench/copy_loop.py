#!/usr/bin/env python3
"""Keeps a link busy with copies of large buffers while a command runs.

usage: copy_loop.py --from GPU --to GPU|host -- COMMAND...

Exit code: the command's. 3: no PyTorch or not so many GPUs here.
"""
import argparse
import subprocess
import sys
import threading

try:
    import torch
except ImportError as error:
    print(f"copy_loop.py: not possible here: {error}", file=sys.stderr)
    sys.exit(3)

BYTES = 256 << 20


def copy_until(stop, source, destination, copied):
    with torch.cuda.device(source.device):
        while not stop.is_set():
            for _ in range(8):
                destination.copy_(source, non_blocking=True)
            torch.cuda.synchronize(source.device)
            copied[0] += 8 * BYTES


def gpu_or_host(text):
    return text if text == "host" else int(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", type=int, required=True, dest="source")
    parser.add_argument("--to", type=gpu_or_host, required=True, dest="destination")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    to_host = args.destination == "host"
    if torch.cuda.device_count() <= max(args.source, 0 if to_host else args.destination):
        print(f"copy_loop.py: {torch.cuda.device_count()} GPUs here", file=sys.stderr)
        return 3
    source = torch.randint(0, 255, (BYTES,), dtype=torch.uint8, device=f"cuda:{args.source}")
    if to_host:
        destination = torch.zeros(BYTES, dtype=source.dtype, pin_memory=True)
    else:
        destination = torch.zeros_like(source, device=f"cuda:{args.destination}")
    stop, copied = threading.Event(), [0]
    thread = threading.Thread(target=copy_until, args=(stop, source, destination, copied))
    thread.start()
    try:
        code = subprocess.run(args.command, check=False).returncode
    finally:
        stop.set()
        thread.join()
    print(f"copied {copied[0] / 1e9:.0f} GB meanwhile")
    return code


if __name__ == "__main__":
    sys.exit(main())
