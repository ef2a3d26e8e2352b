#!/usr/bin/env bash
# lint.sh [--format-only] [FILE...]: clang-format over every source, clang-tidy over every .cpp that
# needs no PyTorch (or over the ones named). What held is remembered in build/lint under a hash of the file, of our headers that it
# includes and of the configuration, so a second run reads only what changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
git ls-files '*.hpp' '*.cpp' | xargs -r -n 40 clang-format --dry-run --Werror
echo "format: $(git ls-files '*.hpp' '*.cpp' | wc -l) files hold"
[ "${1:-}" = --format-only ] && exit 0
# Commands of its own, a file each: clang cannot read the headers that g++ has precompiled.
commands=build/lint/commands
mkdir -p build/lint
cmake --preset release -B "$commands" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DCMAKE_UNITY_BUILD=OFF -DMILLRACE_COMPONENTS="command;python" >/dev/null

# A header that is missing counts as nothing here: clang-tidy then says so itself.
key() {
  {
    cat .clang-tidy */.clang-tidy
    g++ -std=c++20 -I. -Iinclude -Itests -MM -MG "$1" | sed 's/^[^:]*://; s/\\$//' | xargs cat 2>/dev/null || true
  } | sha256sum | cut -d' ' -f1
}

tidy() {
  local held said
  held=build/lint/$(key "$1")
  [ -e "$held" ] && return 0
  if ! said=$(clang-tidy -p "$commands" --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>/dev/null); then
    printf '%s\n' "$said" "tidy: $1 does not hold"
    return 1
  fi
  printf '%s' "$said"
  touch "$held"
}
export commands
export -f key tidy

{ [ $# -gt 0 ] && printf '%s\n' "$@" || git ls-files '*.cpp' ':!examples/torch'; } |
  xargs -r -n 1 -P "$(nproc)" bash -c 'tidy "$1"' tidy
echo "tidy holds"
