#!/bin/sh
# Checks every tracked file: formatting, clang-tidy on host code, shell scripts, house rules.
# All checks run; the exit code is 1 if any found something.
#
#   tools/lint.sh [JOBS]
set -eu
cd "$(dirname "$0")/.."
. tools/toolchain.sh

jobs=${1:-2}
max_lines=600
failures=0

# verdict NAME STATUS
verdict() {
  if [ "$2" -eq 0 ]; then echo "lint: $1 ok"; else echo "lint: $1 FAILED"; failures=1; fi
}

check_format() {
  git ls-files -z '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.h' |
    xargs -0 -r "$(find_llvm14 clang-format)" --dry-run --Werror --style=file
}

# A file is looked at again only when it, a header, the checks or its flags changed.
check_tidy() {
  tools/configure.sh lint -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DXSTAGE_TESTS=ON || return 1
  mkdir -p build/lint
  common=$(git ls-files -z '*.hpp' '*.h' '*.cuh' .clang-tidy tools/tidy_one.sh | xargs -0 cat |
    cat - build/compile_commands.json | sha256sum | cut -c1-16)
  git ls-files 'src/*.cpp' 'python/*.cpp' 'bench/*.cpp' | while read -r file; do
    if grep -qF "/$file\"" build/compile_commands.json; then printf '%s\n' "$file"; fi
  done | xargs -r -n 1 -P "$jobs" tools/tidy_one.sh "$(find_llvm14 clang-tidy)" "$common"
}

check_shell() {
  for file in $(git ls-files); do
    case $(head -c 20 "$file" | tr -d '\0' | head -n 1) in
      '#!/bin/sh'* | '#!/bin/bash'* | '#!/usr/bin/env b'*) printf '%s\n' "$file" ;;
    esac
  done | xargs -r shellcheck -x
}

check_length() {
  too_long=$(git ls-files -z '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.py' '*.sh' '*.cmake' |
    xargs -0 wc -l | awk -v max="$max_lines" '$2 != "total" && $1 > max')
  [ -z "$too_long" ] || { printf 'more than %s lines:\n%s\n' "$max_lines" "$too_long"; return 1; }
}

# forbid WHERE REGEX: no file under WHERE includes what the regular expression names.
forbid() {
  ! git grep -nE "^ *# *include +[<\"]($2)" -- "$1"
}

# The arrows of docs/architecture.md.
check_includes() {
  found=0
  gpu='cuda|cuda_.*|cooperative_groups.*|cuda/.*|device/|peers/|probe/|attention/|moe/'
  forbid include "cuda_|cuda/|cuda\.h|fmt/|nlohmann/|CLI/" || found=1
  forbid src/model "$gpu|io/|cli/|simulate/|fmt/|nlohmann/|fstream|iostream" || found=1
  forbid src/simulate "$gpu|io/|cli/|fmt/|nlohmann/|fstream|iostream" || found=1
  forbid src/io "$gpu|cli/" || found=1
  forbid src/device "peers/|probe/|attention/|moe/|io/|cli/|model/" || found=1
  forbid src/peers "probe/|attention/|moe/|io/|cli/" || found=1
  for operator in probe attention moe; do
    forbid "src/$operator" "io/|cli/|fmt/|nlohmann/" || found=1
  done
  return $found
}

# No path of somebody's own machine in what others read.
check_paths() {
  ! git grep -nIE '(^|[^A-Za-z0-9_.~}])/(home|root|work|Users)/' -- . ':!tools/lint.sh'
}

status=0; check_format || status=1; verdict clang-format $status
status=0; check_shell || status=1; verdict shellcheck $status
status=0; check_length || status=1; verdict "file length" $status
status=0; check_paths || status=1; verdict "machine paths" $status
status=0; check_includes || status=1; verdict "who includes what" $status
status=0; check_tidy || status=1; verdict clang-tidy $status
exit $failures
