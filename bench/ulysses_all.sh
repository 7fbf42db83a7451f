#!/bin/bash
# Everything that is measured of attention with its output exchange, in one go of at most 9 minutes:
# on two GPUs over the link between them, on one GPU with ghosts in its own and in host memory.
# Builds nothing. The build must have XSTAGE_TESTS and XSTAGE_BENCHMARKS on.
#
#   bench/ulysses_all.sh BUILD_DIR OUT_DIR [--quick] [--only NAME]...   steps whose name contains NAME
#   bench/ulysses_all.sh --predict BUILD_DIR OUT_DIR     writes the predictions alone; needs no GPU
#
# OUT_DIR gets NAME.log and the result files of each step, and summary.tsv. Where bench/results
# holds predictions (exchange-predictions-*.json), results are compared with those. A step that this
# machine cannot run says so and does not fail. Exit code 1: a step failed or ran out of time.
set -u

usage() {
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

predict=no quick=no
dirs=() only=()
while [ $# -gt 0 ]; do
  case $1 in
    --predict) predict=yes ;;
    --quick) quick=yes ;;
    --only)
      [ $# -ge 2 ] || usage
      only+=("$2")
      shift
      ;;
    -*) usage ;;
    *) dirs+=("$1") ;;
  esac
  shift
done
if [ ${#dirs[@]} -ne 2 ] || [ ! -d "${dirs[0]}" ]; then usage; fi
build=$(cd "${dirs[0]}" && pwd)
mkdir -p "${dirs[1]}"
out=$(cd "${dirs[1]}" && pwd)
cd "$(dirname "$0")/.." || exit 2

tool=$build/xstage
seconds=1s rounds=40
[ $quick = yes ] && seconds=200ms rounds=5

# Sizes are BxROWSxHEADS of all ranks together.
real_sizes='1x4608x24 1x8704x24 1x32760x12 1x32760x40 1x75600x40 8192x8 16384x8 32768x8 65536x8'
ghost_sizes='8192x32 16384x32 32768x32 65536x32'
local_sizes='2048x32 4096x32 8192x32 16384x32 32768x32 65536x32 1x4608x24 1x32760x12 1x32760x40'
host_sizes_8='1024x32 2048x32 4096x32 8192x32 16384x32'
host_sizes_2='1024x8 2048x8 4096x8 8192x8 16384x8'

# name | link | arguments
exchanges="
real-2  | h200-nv18       | $real_sizes --ranks 2 --peers real
peer-8  | h200-nv18       | $ghost_sizes --ranks 8 --peers peer
local-8 | h200-nv18       | $local_sizes --ranks 8 --peers local --ways push,copy-engine,chunked,burst,paced,fine,coupled,linear,registers
send-8  | h200-nv18       | 8192x32 16384x32 32768x32 --ranks 8 --peers local --ways push,burst,linear,senders
host-8  | h200-host-pcie5 | $host_sizes_8 --ranks 8 --peers host
host-2  | h200-host-pcie5 | $host_sizes_2 --ranks 2 --peers host
"

trim() { local word=$1; word=${word#"${word%%[! ]*}"}; printf '%s' "${word%"${word##*[! ]}"}"; }

wanted() {
  local part
  [ ${#only[@]} -gt 0 ] || return 0
  for part in "${only[@]}"; do [[ $1 == *"$part"* ]] && return 0; done
  return 1
}

num_bad=0
# step NAME SECONDS COMMAND...
step() {
  local name=$1 limit=$2
  shift 2
  wanted "$name" || return 0
  local begin=$EPOCHREALTIME status=passed
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
  local code=$?
  case $code in
    0) ;;
    3) status=impossible ;;
    124 | 137) status=timeout ;;
    *) status=failed:$code ;;
  esac
  awk -v n="$name" -v s="$status" -v a="$begin" -v b="$EPOCHREALTIME" \
    'BEGIN { printf "%s\t%s\t%.1f\n", n, s, b - a }' | tee -a "$out/summary.tsv"
  case $status in passed) ;; impossible) tail -n 2 "$out/$name.log" ;; *)
    num_bad=$((num_bad + 1))
    tail -n 5 "$out/$name.log"
    ;;
  esac
}

# exchange NAME LINK ARGUMENTS...: with PyTorch's rows where there is PyTorch.
exchange() {
  local name=$1 link=$2
  shift 2
  local filed=bench/results/exchange-predictions-$name.json
  local words=("$@" --link "$link" --costs h200 --seconds "$seconds" --rounds "$rounds")
  if [ $predict = yes ]; then
    step "$name" 300 "$tool" bench exchange "${words[@]}" --predict "$out/exchange-predictions-$name.json" --force
    return
  fi
  [ -f "$filed" ] && words+=(--predictions "$filed")
  if [[ $name != host-* ]] && python3 -c 'import torch' 2>/dev/null; then
    step "$name" 200 python3 bench/exchange.py --tool "$tool" --out "$out/exchange-$name.json" -- "${words[@]}"
  else
    step "$name" 120 "$tool" bench exchange "${words[@]}" --out "$out/exchange-$name.json" --force
  fi
}

printf 'step\tstatus\tseconds\n' >"$out/summary.tsv"
while IFS='|' read -r name link words; do
  name=$(trim "$name") link=$(trim "$link")
  [ -n "$name" ] || continue
  read -ra arguments <<<"$words"
  exchange "$name" "$link" "${arguments[@]}"
done <<<"$exchanges"
if [ $predict = no ]; then
  if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ]; then
    step processes-2 60 bench/launch.sh 2 "$tool" bench exchange 1x4608x24 8192x8 --ranks 2 --peers real \
      --link h200-nv18 --seconds "$seconds" --rounds "$rounds" --out "$out/exchange-processes-2.json" --force
  fi
  step push-rate 60 bash -c "'$build/bench/push_rate' --rounds 10 >'$out/push-rate.json'"
  step push-test 60 "$build/tests/gpu/push_gpu_test"
  oracle=$build/tests/gpu/ulysses_gpu_test
  [ -x "$oracle" ] && step oracle 120 "$oracle"
fi
echo "$num_bad failed; $out/summary.tsv"
[ $num_bad -eq 0 ]
