#!/bin/sh
# Starts a command once per rank on this machine, with torchrun's variables, and waits for all. The
# output of rank 0 is shown; that of the others only if they fail.
#
#   bench/launch.sh NUM_RANKS COMMAND...
#
# Exit code: the largest of the ranks'.
set -u
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
num_ranks=$1
shift
folder=$(mktemp -d) || exit 4
trap 'rm -rf "$folder"' EXIT
export WORLD_SIZE="$num_ranks" LOCAL_WORLD_SIZE="$num_ranks" MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
rank=0
while [ "$rank" -lt "$num_ranks" ]; do
  (
    RANK=$rank LOCAL_RANK=$rank "$@" >"$folder/$rank" 2>&1 </dev/null
    echo $? >"$folder/$rank.code"
  ) &
  rank=$((rank + 1))
done
wait
worst=0 rank=0
while [ "$rank" -lt "$num_ranks" ]; do
  code=$(cat "$folder/$rank.code")
  if [ "$rank" -eq 0 ] || [ "$code" -ne 0 ]; then
    [ "$rank" -eq 0 ] || echo "rank $rank ended with $code:"
    cat "$folder/$rank"
  fi
  [ "$code" -le "$worst" ] || worst=$code
  rank=$((rank + 1))
done
exit "$worst"
