#!/bin/bash
# Runs the GPU tests and GPU benches of a finished build on the machine it is started on. Builds
# nothing, needs nothing but the driver (comparisons with PyTorch also need PyTorch), goes on after
# failures. The build must have XSTAGE_TESTS and XSTAGE_BENCHMARKS on.
#
#   bench/gpu_all.sh BUILD_DIR OUT_DIR [--set NAME] [--gpus N] [--budget SECONDS] [--only NAME] [--list]
#
# --set NAME    entries of a set; may be given several times; left out: all sets
#                 one   one GPU: kernels, waits, peers of one GPU, host-memory probe, attention
#                 two   two GPUs, under 8 minutes: probe of both directions, compared with itself and
#                       with a loaded link, replayed; peers across GPUs; memory checker. One GPU
#                       is its own second one, and the link is the one to the host's memory
#                 many  N GPUs, under 10 minutes: fan-in and fan-out, fused attention and the
#                       expert-parallel layer on N ranks, soak and kill
#                 moe   two GPUs, under 9 minutes: the expert-parallel layer, checked and timed beside NCCL
# --gpus N      as if N GPUs were here; left out: all that are
# --budget S    stop starting entries after S seconds; left out: 480 for set two alone, 600 for many
# --only NAME   entries whose name contains NAME; may be given several times
# --list        print the entries and stop
#
# OUT_DIR gets NAME.log (all output) for each entry, what the entry writes to its folder NAME/,
# results.txt (all commands with their output) and summary.tsv. Exit code 0: all passed, or not
# possible on this machine, which the log explains. 1: an entry failed, ran out of time or is
# missing. 2: usage.
set -u

# set | name | seconds it may take | GPUs it needs | command
# The command runs in the repository root; @build is BUILD_DIR, @out the entry's own folder, @all
# OUT_DIR, @pair the GPUs "0,1" of set two and @second the latter, or "0" and the host's memory where
# there is one GPU, @n the number of ranks of set many (a single GPU holds two), @ids the GPUs
# "0,1,...", @h4 heads of which each rank has four, @where and @ghosts where peers lie, @turns and
# @replays rounds and @time time, less where processes take turns on a single GPU; @peers, @torch and
# @check are programs with their fixed arguments, @bench is a sub-command of `xstage bench`, which
# this build may not have, and @ranks-bench that once a rank.
entries='
one | doctor            | 30  | 1 | @build/xstage doctor --json
one | outbox            | 60  | 1 | @build/tests/gpu/outbox_gpu_test
one | outbox-decisions  | 60  | 1 | @build/tests/gpu/outbox_decisions_gpu_test
one | store-kinds       | 60  | 1 | @build/tests/gpu/store_kinds_gpu_test
one | memory-model      | 60  | 1 | @build/tests/gpu/memory_model_gpu_test
one | waits             | 60  | 1 | @build/tests/gpu/wait_gpu_test
one | fan-out           | 60  | 1 | @build/tests/gpu/fan_out_gpu_test
one | peers             | 300 | 1 | @peers machine exchange graph delay deadline abort side emulated adopted barrier --ranks 1,2,3,4,8 --rounds 50
one | peers-delay       | 150 | 1 | @peers delay --ranks 2 --seconds 90
one | peers-soak        | 60  | 1 | @peers exchange --ranks 2,8 --rounds 10000 --launches 100
one | peers-graph       | 60  | 1 | @peers graph --ranks 2,8 --rounds 1000
one | peers-processes   | 120 | 1 | @peers p-exchange p-kill p-doctor --ranks 2,4 --rounds 10
one | peers-stop        | 60  | 1 | @peers p-stop --ranks 2 --seconds 20
one | peers-proc-graph  | 60  | 1 | @peers p-graph --ranks 2,4 --rounds 1000 --bytes 65536
one | peers-cycles      | 60  | 1 | @peers cycles p-cycles --ranks 2 --rounds 1000
one | peers-throughput  | 60  | 1 | @peers throughput --ranks 2
one | peers-torch       | 60  | 1 | @torch tests/gpu/peers_torch.py @build/tests/gpu/libxstage_peers_test.so --devices 0
one | attention-test    | 120 | 1 | @build/tests/gpu/attention_gpu_test
one | push-test         | 120 | 1 | @build/tests/gpu/push_gpu_test
one | ulysses-test      | 300 | 1 | @build/tests/gpu/ulysses_gpu_test
one | moe-gemm-test     | 120 | 1 | @build/tests/gpu/moe_gemm_gpu_test
one | moe-exchange      | 120 | 1 | @build/tests/gpu/moe_exchange_gpu_test
one | moe-layer         | 120 | 1 | @build/tests/gpu/moe_layer_gpu_test
one | moe-processes     | 120 | 1 | @build/tests/gpu/moe_processes values replays soak kill --ranks 2 --rounds 100
one | moe-bench         | 180 | 1 | @build/xstage bench moe deepseek-v4-flash-moe-fp8 --tokens 64,2048,8192 --ways pull+pull,push+push --out @out/moe.json --force
one | probe-host        | 180 | 1 | @build/xstage probe --device 0 --peer host --out @out --force
one | attention         | 300 | 1 | @torch bench/attention.py --library @build/libxstage_attention_c.so --out @out/attention.json --shapes all
one | moe-gemm          | 300 | 1 | @torch bench/moe.py --library @build/libxstage_moe_c.so --out @out/moe.json
one | ulysses-bench     | 300 | 1 | bench/ulysses_all.sh @build @out --only host --only local --only push-rate

two | two-doctor        | 20  | 1 | @build/xstage doctor
two | two-probe         | 60  | 1 | @build/xstage probe --device 0 --peer @second --out @out/first.json --force --tables
two | two-probe-back    | 60  | 2 | @build/xstage probe --device 1 --peer 0 --out @out/back.json --force --tables
two | two-probe-quick   | 20  | 1 | @build/xstage probe --quick --device 0 --peer @second --out @out/quick.json --force
two | two-probe-again   | 60  | 1 | @build/xstage probe --device 0 --peer @second --parts isolated,periodic,memory --out @out/again.json --force
two | two-probe-loaded  | 60  | 1 | @torch bench/copy_loop.py --from 0 --to @second -- @build/xstage probe --device 0 --peer @second --parts isolated,periodic,memory --out @out/loaded.json --force
two | two-same          | 10  | 1 | @build/xstage compare @all/two-probe/first.json @all/two-probe-again/again.json
two | two-slower        | 10  | 1 | @build/xstage compare @all/two-probe/first.json @all/two-probe-loaded/loaded.json; test $? -eq 1
two | two-probe-host    | 60  | 2 | @build/xstage probe --device 0 --peer host --out @out/host.json --force --tables
two | two-accuracy      | 20  | 1 | @build/bench/model_accuracy @all/two-probe/first.csv
two | two-replay        | 60  | 1 | mkdir -p @out && @build/bench/replay_probe @all/two-probe/first.csv >@out/probe.csv && @build/bench/replay_mock @all/two-probe/first.tables.json @all/two-probe/first.json >@out/mock.csv && tail -n 4 @out/probe.csv @out/mock.csv
two | two-peers         | 60  | 1 | @peers machine exchange deadline abort side adopted --ranks 2,8 --rounds 200 --seconds 0.5 --deadline 5 --devices @pair
two | two-soak          | 60  | 1 | @peers exchange --ranks 2,8 --rounds 10000 --launches 100 --devices @pair
two | two-graph         | 30  | 1 | @peers graph --ranks 2,8 --rounds 1000 --devices @pair
two | two-barrier       | 20  | 1 | @peers barrier --ranks 2,8 --rounds 20000 --devices @pair
two | two-processes     | 60  | 1 | @peers p-exchange --ranks 2 --rounds @turns --launches 20 --bytes 262144 --devices @pair
two | two-process-graph | 30  | 1 | @peers p-graph --ranks 2 --rounds @replays --bytes 262144 --devices @pair
two | two-shared-gpu    | 60  | 2 | @peers p-exchange --ranks 2,4 --rounds 40 --launches 2 --bytes 262144
two | two-kill          | 60  | 1 | @peers p-kill --ranks 2,4 --bytes 262144 --devices @pair
two | two-kill-shared   | 30  | 2 | @peers p-kill --ranks 2,4 --bytes 262144
two | two-masks         | 40  | 1 | @peers p-masks p-doctor --ranks 2 --bytes 262144 --devices @pair
two | two-throughput    | 40  | 1 | @peers throughput --ranks 2
two | two-torch         | 60  | 1 | @torch tests/gpu/peers_torch.py @build/tests/gpu/libxstage_peers_test.so --devices @pair --rounds @replays
two | two-memcheck      | 60  | 1 | @check @build/tests/gpu/peers_gpu exchange emulated adopted p-exchange --ranks 2 --rounds 2 --launches 1 --bytes 65536 --devices @pair
two | two-memcheck-sees | 30  | 1 | @check @build/tests/gpu/peers_gpu p-spoiled --ranks 2; test $? -ne 0 && grep -q "Invalid __global__ write" @all/two-memcheck-sees.log
two | two-stop          | 60  | 1 | @peers p-stop --ranks 2 --seconds 20 --devices @pair
two | two-ulysses       | 300 | 2 | bench/ulysses_all.sh @build @out --quick --only real --only peer --only processes

moe | moe-two-gpus     | 535 | 1 | bench/moe_two_gpus.sh @build @out 530

many | many-doctor      | 20  | 1 | @build/xstage doctor
many | many-fan         | 120 | 2 | @build/xstage probe --device 1 --peer 0 --parts fan_in,fan_out --out @out/fan.json --force --tables
many | many-attention   | 150 | 1 | @ranks-bench exchange 8192x@h4 16384x@h4 32768x@h4 49152x@h4 65536x@h4 wan2.2-14b-720p hunyuanvideo-720p --ranks @n --peers @where --link profiles/h200-nv18.json --seconds @time --out @out/attention.json --force
many | many-emulated    | 60  | 1 | @bench exchange 8192x32 32768x32 --ranks 8 --peers @ghosts --link profiles/h200-nv18.json --seconds @time --out @out/emulated.json --force
many | many-experts     | 120 | 1 | @ranks-bench moe deepseek-v4-flash-moe-fp8 hunyuanimage-3-moe-fp8 --ranks @n --tokens 64,2048,8192 --out @out/experts.json --force
many | many-moe-ranks   | 120 | 1 | @build/tests/gpu/moe_processes values replays soak kill --ranks @n --rounds @turns --devices @ids
many | many-barrier     | 30  | 1 | @peers barrier --ranks @n --rounds 20000 --devices @ids
many | many-soak        | 90  | 1 | @peers exchange --ranks @n --rounds 10000 --launches 100 --devices @ids
many | many-graph       | 40  | 1 | @peers graph --ranks @n --rounds 1000 --devices @ids
many | many-processes   | 90  | 1 | @peers p-exchange --ranks @n --rounds @turns --launches 20 --bytes 1048576 --devices @ids
many | many-kill        | 60  | 1 | @peers p-kill --ranks @n --bytes 1048576 --devices @ids
many | many-torch       | 60  | 1 | @torch tests/gpu/peers_torch.py @build/tests/gpu/libxstage_peers_test.so --ranks @n --devices @ids --rounds @replays
'

usage() {
  sed -n '2,24s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

build='' out='' list=no gpus='' budget=''
only=() sets=()
while [ $# -gt 0 ]; do
  case $1 in
    --only | --set | --gpus | --budget)
      [ $# -ge 2 ] || usage
      case $1 in
        --only) only+=("$2") ;;
        --set) sets+=("$2") ;;
        --gpus) gpus=$2 ;;
        --budget) budget=$2 ;;
      esac
      shift
      ;;
    --list) list=yes ;;
    -*) usage ;;
    *) if [ -z "$build" ]; then build=$1; elif [ -z "$out" ]; then out=$1; else usage; fi ;;
  esac
  shift
done
for set in ${sets[@]+"${sets[@]}"}; do
  case $set in one | two | moe | many) ;; *) echo "--set $set: legal are one, two, moe, many" >&2; exit 2 ;; esac
done

trim() { local word=$1; word=${word#"${word%%[! ]*}"}; printf '%s' "${word%"${word##*[! ]}"}"; }

# wanted SET NAME
wanted() {
  local part found=no
  if [ ${#sets[@]} -gt 0 ]; then
    for part in "${sets[@]}"; do [ "$1" = "$part" ] && found=yes; done
    [ $found = yes ] || return 1
  fi
  [ ${#only[@]} -gt 0 ] || return 0
  for part in "${only[@]}"; do [[ $2 == *"$part"* ]] && return 0; done
  return 1
}

# run_entry NAME SECONDS GPUS COMMAND: prints one word, the entry's status.
run_entry() {
  local name=$1 limit=$2 needed=$3 command=$4 log=$out/$1.log
  if [ "$needed" -gt "$gpus" ]; then
    echo "needs $needed GPUs, $gpus here" >"$log"
    echo impossible
    return
  fi
  if [ "$limit" -lt 1 ]; then
    echo "no time left of $budget s" >"$log"
    echo timeout
    return
  fi
  local program=${command%% *} word
  if [[ $program == "$build"/* ]] && [ ! -x "$program" ]; then
    echo "not built: $program" >"$log"
    echo missing
    return
  fi
  if [ "$program" = compute-sanitizer ] && ! command -v "$program" >/dev/null; then
    echo "no $program here" >"$log"
    echo impossible
    return
  fi
  for word in $command; do  # what an earlier entry should have written
    if [[ $word == "$out"/*.json || $word == "$out"/*.csv ]] && [[ $word != "$out/$name"/* ]] && [ ! -f "$word" ]; then
      echo "needs ${word#"$out"/}, which is not there" >"$log"
      echo impossible
      return
    fi
  done
  mkdir -p "$out/$name"
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

# bench_command [PROGRAM...]: says so and ends with 3 if the build has no such sub-command.
bench_command() {
  # shellcheck disable=SC2016  # expanded by the entry's own shell
  printf 'b() { %s bench "$1" --help >/dev/null 2>&1 || { echo "not built: xstage bench $1"; exit 3; }; %s %s bench "$@"; }; b' \
    "$build/xstage" "$*" "$build/xstage"
}

if [ $list = yes ]; then
  while IFS='|' read -r set name rest; do
    set=$(trim "$set") name=$(trim "$name")
    if [ -n "$name" ] && wanted "$set" "$name"; then echo "$set | $name |$rest"; fi
  done <<<"$entries"
  exit 0
fi
if [ -z "$out" ] || [ ! -d "$build" ]; then usage; fi
build=$(cd "$build" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2

gpus_here=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ -n "$gpus" ] || gpus=$gpus_here
case $gpus in *[!0-9]*) echo "--gpus $gpus: legal are numbers from 1" >&2; exit 2 ;; esac
[ "$gpus" -ge 1 ] || gpus=1
if [ "$gpus" -gt "$gpus_here" ] && [ "$gpus_here" -gt 0 ]; then
  echo "--gpus $gpus: $gpus_here here" >&2
  exit 2
fi
if [ -z "$budget" ] && [ ${#sets[@]} -eq 1 ]; then
  case ${sets[0]} in two) budget=480 ;; many) budget=600 ;; esac
fi
ranks=$gpus where=real ghosts=peer pair=0,1 second=1 turns=10000 replays=1000 time=4s
if [ "$gpus" -eq 1 ]; then  # two ranks share the GPU
  ranks=2 where=local ghosts=local pair=0 second=host turns=200 replays=200 time=1s
fi
ids=$(seq -s, 0 $((gpus - 1)))

nvidia-smi --query-gpu=index,name,uuid,driver_version,clocks.sm,clocks.max.sm,power.limit \
  --format=csv >"$out/gpus.csv" 2>&1 || echo "no GPU answers here: see $out/gpus.csv" >&2
printf 'name\tstatus\tseconds\n' >"$out/summary.tsv"
{
  echo "# $(date -u +%Y-%m-%d), $("$build/xstage" --version 2>/dev/null | head -n 1)"
  sed 's/^/# /' "$out/gpus.csv"
} >"$out/results.txt"

num_run=0 num_bad=0 first=$SECONDS
while IFS='|' read -r set name limit needed command; do
  set=$(trim "$set") name=$(trim "$name") limit=$(trim "$limit") needed=$(trim "$needed")
  if [ -z "$name" ] || ! wanted "$set" "$name"; then continue; fi
  if [ -n "$budget" ] && [ $((budget - SECONDS + first)) -lt "$limit" ]; then
    limit=$((budget - SECONDS + first))
  fi
  shown=$(trim "$command")
  shown=${shown//@h4/$((4 * ranks))} shown=${shown//@n/$ranks} shown=${shown//@ids/$ids}
  shown=${shown//@where/$where} shown=${shown//@ghosts/$ghosts}
  shown=${shown//@pair/$pair} shown=${shown//@second/$second}
  shown=${shown//@turns/$turns} shown=${shown//@replays/$replays} shown=${shown//@time/$time}
  command=${shown//@peers/$build/tests/gpu/peers_gpu}
  command=${command//@check/compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all}
  command=${command//@torch/python3}
  launch=''
  if [ $where = real ]; then launch="bench/launch.sh $ranks"; fi
  command=${command//@ranks-bench/"$(bench_command "$launch")"}
  command=${command//@bench/"$(bench_command)"}
  command=${command//@build/"$build"}
  command=${command//@out/"$out/$name"}
  command=${command//@all/"$out"}
  begin=$EPOCHREALTIME
  status=$(run_entry "$name" "$limit" "$needed" "$command")
  seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  printf '%s\t%s\t%s\n' "$name" "$status" "$seconds" | tee -a "$out/summary.tsv"
  {
    printf -- '--- %s: %s\n' "$name" "$shown"
    sed "s|$out|OUT|g; s|$build|BUILD|g" "$out/$name.log"
    printf -- '%s, %s s\n' "$status" "$seconds"
  } >>"$out/results.txt"
  num_run=$((num_run + 1))
  case $status in
    passed) ;;
    impossible) tail -n 2 "$out/$name.log" | sed 's/^/    /' ;;
    *) num_bad=$((num_bad + 1)); tail -n 5 "$out/$name.log" | sed 's/^/    /' ;;
  esac
done <<<"$entries"

echo "$num_run entries, $num_bad failed, $((SECONDS - first)) s; $out/summary.tsv"
[ $num_run -gt 0 ] || { echo "no entry is named like that; --list shows them" >&2; exit 2; }
[ $num_bad -eq 0 ]
