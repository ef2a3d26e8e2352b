#!/usr/bin/env bash
# lint.sh [--format-only]: clang-format over every source, clang-tidy over the library's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
git ls-files '*.hpp' '*.cpp' | xargs -r -n 40 clang-format --dry-run --Werror
echo "format: $(git ls-files '*.hpp' '*.cpp' | wc -l) files hold"
[ "${1:-}" = --format-only ] && exit 0
[ -f build/release/compile_commands.json ] || cmake --preset release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/stderr
git ls-files 'scheduler/*.cpp' 'stages/*.cpp' 'transport/*.cpp' 'training/*.cpp' 'cli/*.cpp' |
  xargs -r -n 1 -P "$(nproc)" clang-tidy -p build/release --quiet
echo "tidy holds"
