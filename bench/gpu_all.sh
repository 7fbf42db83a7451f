#!/bin/bash
# Runs every GPU test and GPU bench of a finished build on the machine it is started on. Builds
# nothing, needs nothing but the driver (comparisons with PyTorch also need PyTorch), goes on after
# failures. The build must have XSTAGE_TESTS and XSTAGE_BENCHMARKS on.
#
#   bench/gpu_all.sh BUILD_DIR OUT_DIR [--only NAME] [--list]
#
# --only NAME   entries whose name contains NAME; may be given several times
# --list        print the entries and stop
#
# OUT_DIR gets NAME.log (all output) for each entry, what the entry writes to its folder NAME/, and
# summary.tsv. Exit code 0: all passed. 1: an entry failed, ran out of time or is missing. 2: usage.
set -u

# name | seconds it may take | command
# The command runs in the repository root; @build is BUILD_DIR, @out the entry's own folder.
entries='
doctor            | 30  | @build/xstage doctor --json
outbox            | 60  | @build/tests/gpu/outbox_gpu_test
outbox-decisions  | 60  | @build/tests/gpu/outbox_decisions_gpu_test
store-kinds       | 60  | @build/tests/gpu/store_kinds_gpu_test
memory-model      | 60  | @build/tests/gpu/memory_model_gpu_test
wait              | 60  | @build/tests/gpu/wait_gpu_test
peers             | 300 | @build/tests/gpu/peers_gpu machine exchange graph delay deadline abort side emulated adopted --ranks 1,2,3,4,8 --rounds 50
peers-processes   | 120 | @build/tests/gpu/peers_gpu p-exchange p-kill p-stop p-doctor --ranks 2,3 --rounds 10
peers-cycles      | 60  | @build/tests/gpu/peers_gpu cycles p-cycles --ranks 2 --rounds 50
peers-throughput  | 60  | @build/tests/gpu/peers_gpu throughput --ranks 2
attention-test    | 120 | @build/tests/gpu/attention_gpu_test
push-test         | 120 | @build/tests/gpu/push_gpu_test
moe-gemm-test     | 120 | @build/tests/gpu/moe_gemm_gpu_test
moe-exchange      | 120 | @build/tests/gpu/moe_exchange_gpu_test
moe-layer         | 120 | @build/tests/gpu/moe_layer_gpu_test
moe-processes     | 120 | @build/tests/gpu/moe_processes values replays soak kill --ranks 2 --rounds 100
moe-bench         | 180 | @build/xstage bench moe deepseek-v4-flash-moe-fp8 --tokens 64,2048,8192 --ways pull+pull,push+push --out @out/moe.json
outbox            | 60  | @build/tests/gpu/outbox_gpu_test
outbox-decisions  | 60  | @build/tests/gpu/outbox_decisions_gpu_test
store-kinds       | 60  | @build/tests/gpu/store_kinds_gpu_test
memory-model      | 60  | @build/tests/gpu/memory_model_gpu_test
waits             | 60  | @build/tests/gpu/wait_gpu_test
probe-quick       | 60  | @build/xstage probe --quick --out @out --force
probe-host        | 180 | @build/xstage probe --peer host --out @out --force
attention         | 300 | python3 bench/attention.py --library @build/libxstage_attention_c.so --out @out/attention.json --shapes all
moe-gemm          | 300 | python3 bench/moe.py --library @build/libxstage_moe_c.so --out @out/moe.json
'

usage() {
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

build='' out='' list=no
only=()
while [ $# -gt 0 ]; do
  case $1 in
    --only) [ $# -ge 2 ] || usage; only+=("$2"); shift ;;
    --list) list=yes ;;
    -*) usage ;;
    *) if [ -z "$build" ]; then build=$1; elif [ -z "$out" ]; then out=$1; else usage; fi ;;
  esac
  shift
done

trim() { local word=$1; word=${word#"${word%%[! ]*}"}; printf '%s' "${word%"${word##*[! ]}"}"; }

wanted() {
  [ ${#only[@]} -gt 0 ] || return 0
  local part
  for part in "${only[@]}"; do [[ $1 == *"$part"* ]] && return 0; done
  return 1
}

# run_entry NAME SECONDS COMMAND: prints one word, the entry's status.
run_entry() {
  local name=$1 limit=$2 command=$3 log=$out/$1.log
  mkdir -p "$out/$name"
  local program=${command%% *}
  if [[ $program == "$build"/* ]] && [ ! -x "$program" ]; then
    echo "not built: $program" >"$log"
    echo missing
    return
  fi
  timeout --kill-after=10 "$limit" bash -c "$command" >"$log" 2>&1 </dev/null
  local code=$?
  rmdir "$out/$name" 2>/dev/null
  case $code in
    0) echo passed ;;
    3) echo impossible ;;  # the tool's own word: not possible on this machine, reason in the log
    124 | 137) echo timeout ;;
    *) echo "failed:$code" ;;
  esac
}

if [ $list = yes ]; then
  printf '%s\n' "$entries" | sed '/^$/d'
  exit 0
fi
if [ -z "$out" ] || [ ! -d "$build" ]; then usage; fi
build=$(cd "$build" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2

nvidia-smi --query-gpu=index,name,uuid,driver_version,clocks.sm,clocks.max.sm,power.limit \
  --format=csv >"$out/gpus.csv" 2>&1 || echo "no GPU answers here: see $out/gpus.csv" >&2
printf 'name\tstatus\tseconds\n' >"$out/summary.tsv"

num_run=0 num_bad=0
while IFS='|' read -r name limit command; do
  name=$(trim "$name") limit=$(trim "$limit") command=$(trim "$command")
  if [ -z "$name" ] || ! wanted "$name"; then continue; fi
  command=${command//@build/$build}
  command=${command//@out/$out/$name}
  begin=$EPOCHREALTIME
  status=$(run_entry "$name" "$limit" "$command")
  seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  printf '%s\t%s\t%s\n' "$name" "$status" "$seconds" | tee -a "$out/summary.tsv"
  num_run=$((num_run + 1))
  case $status in
    passed) ;;
    impossible) tail -n 2 "$out/$name.log" | sed 's/^/    /' ;;
    *) num_bad=$((num_bad + 1)); tail -n 5 "$out/$name.log" | sed 's/^/    /' ;;
  esac
done <<<"$entries"

echo "$num_run entries, $num_bad failed; $out/summary.tsv"
[ $num_run -gt 0 ] || { echo "no entry is named like that; --list shows them" >&2; exit 2; }
[ $num_bad -eq 0 ]
