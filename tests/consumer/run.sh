#!/usr/bin/env bash
# run.sh BUILD_FOLDER: installs the library into a temporary prefix and builds two outside projects
# against it: one that takes only millrace::plan (and must need no other library than the standard ones),
# and one that trains.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cmake --install "$build" --prefix "$place/prefix" >/dev/null
for project in plan train; do
  cmake -S "$here/$project" -B "$place/$project" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$place/prefix" >/dev/null
  cmake --build "$place/$project" >/dev/null
  "$place/$project/consumer"
done

needed=$(objdump -p "$place/plan/consumer" | awk '$1 == "NEEDED" {print $2}' | sort)
for library in $needed; do
  case "$library" in
    libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | ld-linux*) ;;
    *)
      echo "millrace::plan needs $library, which is not a standard library" >&2
      exit 1
      ;;
  esac
done
echo "plan consumer needs only:" $needed
