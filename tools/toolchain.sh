# Where the tools are that may come from several places. To be sourced, with the repository as
# working directory. Each function prints a path, or nothing.
# shellcheck shell=sh

# The CUDA toolkit that tools/setup.sh puts into .venv.
venv_cuda_root() {
  for root in .venv/lib/python3*/site-packages/nvidia/cu13; do
    if [ -d "$root" ]; then (cd "$root" && pwd); fi
  done
}

first_executable() {
  for candidate in "$@"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
}

find_nvcc() {
  first_executable "${CUDACXX-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc \
    "$(venv_cuda_root)/bin/nvcc"
}

find_cuobjdump() {
  first_executable "$(command -v cuobjdump || true)" /usr/local/cuda/bin/cuobjdump \
    "$(venv_cuda_root)/bin/cuobjdump"
}

# find_llvm14 NAME: clang-format or clang-tidy of version 14.
find_llvm14() {
  for candidate in "$1-14" "$1" ".venv/bin/$1"; do
    path=$(command -v "$candidate" || true)
    if [ -n "$path" ] && "$path" --version 2>/dev/null | grep -q 'version 14\.'; then
      printf '%s\n' "$path"
      return 0
    fi
  done
}

# True if a CUDA device answers here.
have_gpu() {
  command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU '
}

# Whether extension modules can be compiled for python3.
have_python_headers() {
  python3 -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null
}
