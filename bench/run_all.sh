#!/usr/bin/env bash
# run_all.sh BUILD_FOLDER [FILTER [FLAGS]]: runs every benchmark program (FLAGS are Google Benchmark's) and writes
# bench/results/NAME.json with the machine, the compiler and the flags in its context.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
filter=${2:-.}
flags=("${@:3}")
mkdir -p bench/results
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")
arch=$(sed -n 's/^MILLRACE_ARCH:[^=]*=//p' "$build/CMakeCache.txt")
for program in "$build"/bench/*_bench; do
  [ -x "$program" ] || continue
  name=$(basename "$program")
  "$program" --benchmark_list_tests --benchmark_filter="$filter" 2>/dev/null | grep -q . || continue
  echo "== $name"
  "$program" --benchmark_filter="$filter" --benchmark_out="bench/results/$name.json" --benchmark_out_format=json \
    --benchmark_context=compiler="$("$compiler" --version | head -n 1 | tr -d ",=")" --benchmark_context=arch="$arch" \
    --benchmark_context=processor="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1 | tr -d ",=")" \
    --benchmark_context=date="$(date -u +%F)" "${flags[@]}"
done
