#!/bin/sh
# Configures build/ for what is wanted and prints in one line what will be built.
#
#   tools/configure.sh demo     keeps an existing configuration; else the CUDA part only where a GPU is
#   tools/configure.sh full     the CUDA part wherever nvcc is
#   tools/configure.sh lint     the same, for reading only: nothing is said about what gets built
#
# Further arguments go to cmake.
set -eu
cd "$(dirname "$0")/.."
. tools/toolchain.sh

wanted=$1
shift
nvcc=$(find_nvcc)
[ -z "$nvcc" ] || export CUDACXX="$nvcc"

if [ "$wanted" = demo ] && [ -f build/CMakeCache.txt ]; then
  cuda=keep
elif [ -z "$nvcc" ]; then
  cuda=OFF
  [ "$wanted" = lint ] || echo "no nvcc here: building the CPU part only (CUDA=pypi fetches the compiler, or install CUDA 13)"
elif [ "$wanted" = demo ] && ! have_gpu; then
  cuda=OFF
  echo "no GPU here: building the CPU part only"
else
  cuda=ON
fi

if [ "$wanted" = full ]; then
  python=OFF
  if have_python_headers && .venv/bin/python -c 'import nanobind, pytest' 2>/dev/null; then python=ON; fi
  [ "$python" = ON ] || echo "no Python headers, nanobind or pytest here: the Python package is neither built nor tested"
  set -- "-DXSTAGE_PYTHON=$python" "-DPython_EXECUTABLE=$PWD/.venv/bin/python" "$@"
fi
if [ "$cuda" != keep ]; then
  set -- "-DXSTAGE_CUDA=$cuda" "$@"
  if [ "$cuda" = ON ]; then
    set -- "-DCMAKE_CUDA_COMPILER=$nvcc" "-DXSTAGE_CUOBJDUMP=$(find_cuobjdump)" "$@"
  fi
fi
if [ -f build/CMakeCache.txt ]; then
  cmake -S . -B build "$@" >build/configure.log || { cat build/configure.log; exit 1; }
else
  mkdir -p build
  cmake --preset release "$@" >build/configure.log || { cat build/configure.log; exit 1; }
fi
