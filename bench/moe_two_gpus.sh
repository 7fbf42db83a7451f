#!/bin/bash
# The expert-parallel MoE layer on two GPUs, one process each: values, replays, soak, a killed rank, memcheck; then times
# of all sizes beside NCCL. On a machine with one GPU the checks run with both ranks on it, in fewer rounds since processes take
# turns, and times are of one rank whose peer is emulated in local memory.
#
#   bench/moe_two_gpus.sh TOOLS OUT [BUDGET_S]
#
# TOOLS holds xstage, moe_processes and moe_exchange_gpu_test, or is a build folder; OUT gets the result files; at most BUDGET_S seconds (540)
# are used. Exit code 0: all checks passed.
set -u
tools=$1
tests=$tools
if [ -d "$tools/tests/gpu" ]; then tests=$tools/tests/gpu; fi
out=$2
budget=${3:-540}
start=$SECONDS
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
num_gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
if [ "$num_gpus" -ge 2 ]; then devices=0,1 replays=1000 calls=10000; else devices=0 replays=100 calls=200; fi
failures=0

# step NAME SECONDS COMMAND...: runs it if there is time, its output in OUT/NAME.txt
step() {
  name=$1
  limit=$2
  shift 2
  left=$((budget - SECONDS + start))
  if [ "$left" -lt 5 ]; then echo "$name: no time left"; failures=1; return; fi
  if [ "$limit" -gt "$left" ]; then limit=$left; fi
  if timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1; then status=0; else status=$?; fi
  echo "$name: exit code $status after $((SECONDS - start)) s in all"
  if [ "$status" -ne 0 ]; then failures=1; tail -n 5 "$out/$name.txt"; fi
}

# bench NAME SECONDS ARGUMENTS...: xstage bench moe, a process per GPU, result in OUT/NAME.json
bench() {
  name=$1
  limit=$2
  shift 2
  if [ "$num_gpus" -lt 2 ]; then
    step "$name" "$limit" "$tools/xstage" bench moe "$@" --out "$out/$name.json" --force
    return
  fi
  # shellcheck disable=SC2016  # the inner shell expands
  step "$name" "$limit" bash -c '
    export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533
    RANK=1 LOCAL_RANK=1 "$@" >/dev/null & second=$!
    RANK=0 LOCAL_RANK=0 "$@"; status=$?
    wait $second && exit $status' bench "$tools/xstage" bench moe "$@" --out "$out/$name.json" --force
}

flash=$here/workloads/deepseek-v4-flash-moe-fp8.json
pro=$here/workloads/deepseek-v4-pro-moe-fp8.json
step values 60 "$tests/moe_processes" values --devices "$devices"
step replays 30 "$tests/moe_processes" replays --rounds "$replays" --devices "$devices"
step soak 60 "$tests/moe_processes" soak --rounds "$calls" --devices "$devices"
step kill 30 "$tests/moe_processes" kill --devices "$devices"
bench flash 100 "$flash" --tokens 1,8,64,512,2048,8192 --ways pull+pull,pull-each+pull,push+push
bench pro 120 "$pro" --tokens 1,8,64,512,2048,8192 --ways pull+pull
bench flash-skew 40 "$flash" --tokens 2048 --skew 1
step nccl-flash 60 python3 "$here/bench/moe_nccl.py" --hidden 4096 --experts 256
step nccl-pro 60 python3 "$here/bench/moe_nccl.py" --hidden 7168 --experts 384
step memcheck 60 compute-sanitizer --tool memcheck --error-exitcode 1 \
  "$tests/moe_exchange_gpu_test" '--gtest_filter=*Moves*PullCombinePull:*Moves*PushCombinePush'
exit $failures
