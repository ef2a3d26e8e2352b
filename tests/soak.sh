#!/usr/bin/env bash
# soak.sh BUILD_FOLDER: the long tests that CI has no time for. Every fuzz target for SOAK_FUZZ_SECONDS
# (default 600), then SOAK_ROUNDS (default 100) kills, stops and hundreds of slowed steps, 128 ranks, then every ctest case
# labelled soak.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
seconds=${SOAK_FUZZ_SECONDS:-600}

# Without precompiled headers and unity builds: every file includes what it uses.
cmake --preset dev
cmake --build --preset dev
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
cmake --build --preset fuzz
for target in build/fuzz/tests/fuzz/fuzz_*; do
  [ -x "$target" ] && [ -f "$target" ] || continue
  name=${target##*/fuzz_}
  grown=build/fuzz/corpus/$name
  mkdir -p "$grown"
  echo "== fuzz $name for $seconds s"
  "$target" -max_total_time="$seconds" -print_final_stats=1 "$grown" tests/fuzz/"$name"_corpus
done
tests/house/sanitize.sh asan all
# One model's weights, for every way to run it; the hashes are for a comparison of two builds.
tests/house/hashes.sh "$build" >"$build/hashes.txt"
MILLRACE_ROUNDS=${SOAK_ROUNDS:-100} "$build"/tests/test_cli --gtest_filter='Campaign.*'
# 200 kills of jobs that launch --restarts starts again: 50 of each of four jobs.
MILLRACE_ROUNDS=${SOAK_KILLS:-50} "$build"/tests/test_cli --gtest_filter='RestartedJob.RandomKills*'
# 501 terminations of trainings, in one process and in two.
MILLRACE_ROUNDS=${SOAK_TERMINATIONS:-167} "$build"/tests/test_cli --gtest_filter='Terminations.*'
MILLRACE_RANKS=128 "$build"/tests/test_cli --gtest_filter='ManyRanks.*'
# 10^8 hostile frames and 10^6 hostile connections.
MILLRACE_TIMES=100 "$build"/tests/test_transport --gtest_filter='FrameCampaign.*:*GarbageConnections*'
# 10^5 and more flipped bytes, and 1,000 checkpoints while training runs.
MILLRACE_TIMES=70 "$build"/tests/test_training --gtest_filter='Damaged.*:Checkpoint.WrittenWhile*'
# Among them the tests of millrace.torch with every case.
ctest --test-dir "$build" --build-config soak --label-regex soak --verbose
