#!/usr/bin/env bash
# journeys.sh [--print]: counts the files of two journeys through the library (journeys.py says which). Fails where a
# journey is longer than its limit or CONTRIBUTING.md shows other files; --print prints the block for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=build/asan
[ -f "$build/build.ninja" ] || cmake --preset asan >&2
cmake --build --preset asan --target example_first test_training >&2

# journey NAME TEXT LIMIT PROGRAM [ARGUMENT...]
journey() {
  local name=$1 text=$2 limit=$3 files count
  shift 3
  files=$(ASAN_OPTIONS=detect_leaks=0 timeout 300 gdb -q -batch -ex "set \$journey = \"$name\"" -ex "set \$root = \"$PWD\"" \
    -x tests/house/journeys.py --args "$@" 2>"$build/journey.log" | sed -n 's/^journey: /  /p')
  [ -n "$files" ] || { echo "journeys.sh: gdb did not follow the $name:" >&2; tail -5 "$build/journey.log" >&2; return 1; }
  count=$(wc -l <<<"$files")
  printf '%s: %s files\n%s\n' "$text" "$count" "$files"
  [ "$count" -le "$limit" ] || { echo "journeys.sh: more than $limit files lie on the way of the $name" >&2; return 1; }
}

action=$(journey action "An action, from its generator to a matrix product" 16 "$build/examples/first")
tensor=$(journey tensor "A tensor, from its forward pass to another rank's mailbox" 11 \
  "$build/tests/test_training" --gtest_filter='*GridCover*/SharedMemory')
found=$action$'\n\n'$tensor
if [ "${1:-}" = --print ]; then
  echo "$found"
elif [[ $(<CONTRIBUTING.md) != *"$found"* ]]; then
  printf 'journeys.sh: CONTRIBUTING.md shows other files than these:\n%s\n' "$found" >&2
  exit 1
fi
