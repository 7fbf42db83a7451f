"""Compares what the compiler gave each kernel with a table of budgets.

usage: resource_usage.py --budget TABLE [--cuobjdump PATH] [--nvcc PATH] FILE...

FILE is a library or program with device code. A line of TABLE reads

    pattern  threads  max_registers  max_stack_bytes  max_shared_bytes

`pattern` is a regular expression that is searched in the kernel's demangled name; the first line
that fits a kernel counts. `threads` is the largest block the kernel is launched with: its
registers must fit the 65,536 of an SM. Stack holds spilled registers and local arrays. Shared is
static shared memory, without the 1 KiB that the system reserves from sm_90 on. Every kernel
needs a line and every line a kernel, so the table cannot fall behind the code.

Exit code 0: all fit. 1: at least one does not. 2: the table is not readable. 77: no cuobjdump.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

REGISTERS_PER_SM = 65536
ALLOCATION_UNIT = 8  # registers per thread are allocated in steps of 8
RESERVED_SHARED_BYTES = 1024  # sm_90 and newer
NOT_POSSIBLE = 77


@dataclass(frozen=True)
class Kernel:
    name: str
    arch: str
    registers: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Budget:
    line: int
    pattern: "re.Pattern[str]"
    threads: int
    registers: int
    stack_bytes: int
    shared_bytes: int


def parse_budgets(text):
    budgets = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        try:
            pattern, *limits = fields
            threads, registers, stack, shared = map(int, limits)
            budgets.append(Budget(number, re.compile(pattern), threads, registers, stack, shared))
        except (ValueError, re.error) as error:
            raise ValueError(f"line {number}: {line.strip()!r}: {error}") from error
    return budgets


def parse_report(text):
    """Kernels in the output of `cuobjdump --dump-resource-usage`, mangled names."""
    kernels, arch, name = [], "", None
    for line in text.splitlines():
        if match := re.match(r"arch = (\S+)", line.strip()):
            arch = match[1]
        elif match := re.match(r"Function (\S+):", line.strip()):
            name = match[1]
        elif name and (match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line)):
            registers, stack, shared = map(int, match.groups())
            if int(re.sub(r"\D", "", arch) or 0) >= 90:
                shared = max(0, shared - RESERVED_SHARED_BYTES)
            kernels.append(Kernel(name, arch, registers, stack, shared))
            name = None
    return kernels


def check(kernels, budgets):
    """Sentences about everything that does not fit."""
    problems, used = [], set()
    for kernel in kernels:
        budget = next((b for b in budgets if b.pattern.search(kernel.name)), None)
        where = f"{kernel.name} ({kernel.arch})"
        if budget is None:
            problems.append(f"{where}: no line in the table; it has {kernel.registers} registers, "
                            f"{kernel.stack_bytes} B stack, {kernel.shared_bytes} B shared")
            continue
        used.add(budget.line)
        for what, has, may in (("registers", kernel.registers, budget.registers),
                               ("bytes of stack", kernel.stack_bytes, budget.stack_bytes),
                               ("bytes of shared memory", kernel.shared_bytes, budget.shared_bytes)):
            if has > may:
                problems.append(f"{where}: {has} {what}, line {budget.line} allows {may}")
        allocated = -(-kernel.registers // ALLOCATION_UNIT) * ALLOCATION_UNIT
        if allocated * budget.threads > REGISTERS_PER_SM:
            problems.append(f"{where}: {allocated} registers x {budget.threads} threads do not fit "
                            f"the {REGISTERS_PER_SM} of an SM")
    problems += [f"line {b.line}: no kernel fits {b.pattern.pattern!r}"
                 for b in budgets if b.line not in used]
    return problems


def find_cuobjdump(given, nvcc):
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "cuobjdump") if nvcc else ""
    for path in (given, beside, shutil.which("cuobjdump")):
        if path and os.access(path, os.X_OK):
            return path
    return None


def read_kernels(cuobjdump, files):
    kernels = []
    for file in files:
        result = subprocess.run([cuobjdump, "--dump-resource-usage", file],
                                capture_output=True, text=True, check=False)
        kernels += parse_report(result.stdout)
        if result.returncode and "does not contain device code" not in result.stdout + result.stderr:
            raise RuntimeError(f"{file}: {result.stderr.strip()}")
    names = subprocess.run(["c++filt"], input="\n".join(k.name for k in kernels),
                           capture_output=True, text=True, check=True).stdout.splitlines()
    return [Kernel(name, k.arch, k.registers, k.stack_bytes, k.shared_bytes)
            for name, k in zip(names, kernels)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", required=True)
    parser.add_argument("--cuobjdump", default="")
    parser.add_argument("--nvcc", default="")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    cuobjdump = find_cuobjdump(args.cuobjdump, args.nvcc)
    if cuobjdump is None:
        print("skipped: no cuobjdump here; `tools/setup.sh cuobjdump` fetches it")
        return NOT_POSSIBLE
    try:
        with open(args.budget, encoding="utf-8") as file:
            budgets = parse_budgets(file.read())
    except (OSError, ValueError) as error:
        print(f"{args.budget}: {error}")
        return 2

    kernels = read_kernels(cuobjdump, args.files)
    for kernel in kernels:
        print(f"{kernel.registers:4} registers {kernel.stack_bytes:4} B stack "
              f"{kernel.shared_bytes:6} B shared  {kernel.arch:7} {kernel.name}")
    problems = check(kernels, budgets)
    print(f"{len(kernels)} kernels, {len(problems)} problems", *problems, sep="\n  ")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
