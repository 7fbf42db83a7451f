#!/bin/sh
# Runs every host benchmark of a finished build; OUT_DIR gets NAME.json for each.
#
#   bench/host_all.sh BUILD_DIR OUT_DIR
set -eu
build=$1 out=$2
mkdir -p "$out"
status=0
for program in "$build"/bench/*_bench; do
  [ -x "$program" ] || { echo "no benchmark in $build/bench: configure with XSTAGE_BENCHMARKS=ON" >&2; exit 2; }
  name=$(basename "$program")
  "$program" --benchmark_out="$out/$name.json" --benchmark_out_format=json || status=1
done
exit $status
