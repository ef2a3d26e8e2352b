#!/usr/bin/env bash
# sanitize.sh asan|tsan [all]: builds the test programs under a sanitizer preset and runs them.
# AddressSanitizer covers the components that work on raw memory; with `all`, as in soak, core and plan too.
# ThreadSanitizer covers what is built from instrumented parts only: core, in-process mailboxes and the
# rank executor. Debian's TBB and ZeroMQ are not instrumented, so their tests are left out of it, and no
# suppression file is used. Nor is its oneDNN: the preset multiplies by Eigen.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
preset=$1
# It walks through all memory of its process, which a sanitizer's shadow makes terabytes.
walks_memory=Secret.IsNowhere*:Secret.WrittenAndReadAsAFile_LeavesNoCopy
# Whole trainings to an accuracy, matrices of trainings, and every schedule over a grid of sizes: code that other tests run
# through too.
trainings='*ReachTheAccuracy*:*ReachesTheAccuracy*:Gpt.LearnsTheText*:*GptCover*:GptMatrix.IsCovered*'
takes_long=$trainings:'Catalogue.*OverTheGrid:ListedForms.HoldWherever*'
folder=build/$preset
[ -f "$folder/build.ninja" ] || cmake --preset "$preset" >&2
case "$preset" in
  asan)
    programs=(test_stages test_transport test_run test_training)
    [ "${2:-}" != all ] || programs+=(test_core test_plan)
    zeromq='*Zmq*:*ZeroMq*:Rendezvous*'
    filter="-$zeromq:$walks_memory:$takes_long"
    ;;
  tsan)
    programs=(test_core test_transport test_run)
    filter="-*FlowGraph*:Allocation*:*flow_graph*:*Zmq*:*ZeroMq*:Rendezvous*:$walks_memory"
    ;;
  *)
    echo "sanitize.sh: '$preset' is not a sanitizer preset; use asan or tsan" >&2
    exit 2
    ;;
esac
cmake --build --preset "$preset" --target "${programs[@]}" >&2

# shards PROGRAM FILTER: its tests in as many processes as there are processors.
shards() {
  local program=$1 filter=$2 shard failed=0 count pids=()
  count=$(nproc)
  for ((shard = 0; shard < count; ++shard)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$shard "$folder/tests/$program" \
      --gtest_filter="$filter" --gtest_brief=1 >"$folder/$program.$shard.log" 2>&1 &
    pids+=($!)
  done
  for shard in "${!pids[@]}"; do
    wait "${pids[$shard]}" || failed=1
    cat "$folder/$program.$shard.log"
  done
  return $failed
}

for program in "${programs[@]}"; do
  echo "-- $program under $preset"
  shards "$program" "$filter"
done

# libzmq 4.3.4 loses a hand-shake command now and then when a connection ends early (both ends of the report's
# stack lie in its own I/O thread), so its tests look for every other fault but not for leaks.
if [ "$preset" = asan ]; then
  echo "-- test_transport over ZeroMQ under $preset, without leak detection"
  ASAN_OPTIONS=detect_leaks=0 shards test_transport "$zeromq"
fi
