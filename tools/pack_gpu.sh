#!/bin/bash
# Packs what bench/gpu_all.sh needs of a build, stripped, into an archive. Unpacked, its folder
# gpu_build stands for the build: copy it with the repository and give it as BUILD_DIR.
#
#   tools/pack_gpu.sh BUILD_DIR FILE.tar.gz [--set NAME] [--only NAME]
#
# --set and --only choose entries as in bench/gpu_all.sh. Prints files and bytes. Exit code 1: a
# file is not built. 2: usage.
set -eu

if [ $# -lt 2 ] || [ ! -d "$1" ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
build=$1 archive=$2
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
folder=$root/gpu_build
entries=$("$(dirname "$0")/../bench/gpu_all.sh" --list "$@")
scripts=$(grep -o 'bench/[a-z_]*\.sh' <<<"$entries" | sort -u) || true
# shellcheck disable=SC2016,SC2086  # a script's own "$build"; names without spaces
words=$({
  sed 's|@peers|@build/tests/gpu/peers_gpu|g; s|@ranks-bench|@build/xstage|g; s|@bench|@build/xstage|g' <<<"$entries"
  [ -z "$scripts" ] || (cd "$(dirname "$0")/.." && sed -n 's|\$build/|@build/|gp' $scripts)
} | grep -o "@build/[^ ;|\"']*" | sort -u)
missing=0
for word in $words; do
  file=${word#@build/}
  if [ ! -f "$build/$file" ]; then
    echo "not built: $file" >&2
    missing=1
    continue
  fi
  mkdir -p "$folder/$(dirname "$file")"
  strip -o "$folder/$file" "$build/$file"
  printf '%10d  %s\n' "$(stat -c %s "$folder/$file")" "$file"
done
tar -czf "$archive" -C "$root" gpu_build
printf '%10d  %s\n' "$(stat -c %s "$archive")" "$archive"
exit $missing
