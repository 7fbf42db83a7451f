#!/bin/sh
# clang-tidy on one file, skipped if it passed with the same content before.
#
#   tools/tidy_one.sh CLANG_TIDY HASH_OF_WHAT_IT_INCLUDES FILE
set -eu
stamp=build/lint/$2-$(sha256sum "$3" | cut -c1-16)
[ ! -f "$stamp" ] || exit 0
if output=$("$1" --quiet -p build "$3" 2>/dev/null); then
  : >"$stamp"
else
  printf '%s\n' "$output"
  exit 1
fi
