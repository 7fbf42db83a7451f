#!/bin/sh
# Installs what a part of the work needs, and nothing that is there already.
#
#   tools/setup.sh build        compiler, CMake, libraries and test frameworks (Debian or Ubuntu packages)
#   tools/setup.sh cuda         nvcc from PyPI into .venv, if no CUDA toolkit is installed
#   tools/setup.sh cuobjdump    cuobjdump from PyPI into .venv, if the toolkit came without it
#   tools/setup.sh python       what builds and tests the Python package, into .venv; Python's headers
#   tools/setup.sh lint         clang-format and clang-tidy 14, shellcheck
#
# Packages are installed when run as root; otherwise the exact command is printed and the exit code is 3.
set -eu
cd "$(dirname "$0")/.."
. tools/toolchain.sh

say() { printf '%s\n' "setup: $*" >&2; }

# need_packages NAME...: all of them are installed afterwards.
need_packages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    say "no dpkg here: assuming that these Debian packages have their equivalents: $*"
    return 0
  fi
  missing=
  for package in "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    say "missing packages; run this, then try again:"
    printf '  %s\n' "sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 3
  fi
  say "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  # shellcheck disable=SC2086  # one word a package
  if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    say "installing failed; its output is above"
    exit 1
  fi
  rm -f "$log"
}

# need_wheels SPEC...: installed in .venv afterwards.
need_wheels() {
  stamp=.venv/.installed
  wanted=
  for spec in "$@"; do
    grep -qxF "$spec" "$stamp" 2>/dev/null || wanted="$wanted $spec"
  done
  [ -n "$wanted" ] || return 0
  if [ ! -x .venv/bin/python ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages python3 python3-venv
    python3 -m venv .venv
  fi
  say "fetching from PyPI into .venv:$wanted"
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input $wanted </dev/null >&2
  for spec in $wanted; do printf '%s\n' "$spec" >>"$stamp"; done
}

setup_build() {
  need_packages g++ cmake ninja-build git ca-certificates python3 \
    libfmt-dev nlohmann-json3-dev libcli11-dev libjs-chart.js libgtest-dev libgmock-dev libbenchmark-dev
}

# The wheels have the toolkit's parts but not its library names; CMake looks for those.
setup_cuda() {
  [ -z "$(find_nvcc)" ] || return 0
  need_wheels nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
  root=$(venv_cuda_root)
  [ -e "$root/lib64" ] || ln -s lib "$root/lib64"
  [ -e "$root/lib/libcudart.so" ] || ln -s libcudart.so.13 "$root/lib/libcudart.so"
}

setup_cuobjdump() {
  [ -z "$(find_cuobjdump)" ] || return 0
  need_wheels nvidia-cuda-cuobjdump==13.2.78
}

setup_python() {
  if ! have_python_headers && [ "$(id -u)" -eq 0 ]; then need_packages python3-dev; fi
  if ! have_python_headers; then
    say "no Python headers here (python3-dev): the Python package is neither built nor tested"
    return 0
  fi
  need_wheels nanobind==3.1.0 pytest==9.1.1
}

# Formatting differs between versions of clang-format, so the version is fixed.
setup_lint() {
  need_packages shellcheck git
  if [ -z "$(find_llvm14 clang-format)" ] || [ -z "$(find_llvm14 clang-tidy)" ]; then
    if apt-cache show clang-tidy-14 clang-format-14 >/dev/null 2>&1; then
      need_packages clang-format-14 clang-tidy-14
    else
      need_wheels clang-format==14.0.6 clang-tidy==14.0.6
    fi
  fi
}

case "${1-}" in
  build | cuda | cuobjdump | python | lint) "setup_$1" ;;
  *)
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
