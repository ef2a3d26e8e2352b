#!/usr/bin/env bash
# run.sh BUILD_FOLDER: installs the library, static and shared, into temporary prefixes and builds
# outside projects against it: one that takes only millrace::plan (and must need no other library than
# the standard ones), one that trains, one that takes every component by itself, and one that has the
# sources in its tree.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# built NAME SOURCE ARGUMENTS...: configures and builds an outside project, telling why when it cannot.
built() {
  local folder=$place/$1 from=$2
  shift 2
  { cmake -S "$from" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" && cmake --build "$folder"; } \
    >"$folder.log" 2>&1 || { cat "$folder.log" >&2; exit 1; }
}

# of_cache NAME: what the build folder was configured with.
of_cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

cmake --install "$build" --prefix "$place/static" >/dev/null
for project in plan train rooms; do
  built "$project" "$here/$project" -DCMAKE_PREFIX_PATH="$place/static"
done
"$place/plan/consumer"
"$place/train/consumer"
for consumer in "$place"/rooms/*/consumer_*; do "$consumer"; done

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

compiled="-DCMAKE_CXX_COMPILER_LAUNCHER=$here/compiled.sh;$build"
built subdirectory "$here/subdirectory" -DMILLRACE_SOURCE="$source" "$compiled"
"$place/subdirectory/consumer"

# What is installed is moved before it starts: a run path must not name the place it was built for.
built shared "$source" -DBUILD_SHARED_LIBS=ON -DMILLRACE_DEVELOPER=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DMILLRACE_SANITIZE="$(of_cache MILLRACE_SANITIZE)" -DCMAKE_CXX_COMPILER="$(of_cache CMAKE_CXX_COMPILER)" "$compiled"
cmake --install "$place/shared" --prefix "$place/installed" >/dev/null
rm -r "$place/shared"
mv "$place/installed" "$place/moved"
"$place/moved/bin/millrace" --version
"$place/moved/bin/millrace" train --steps 1 --json >/dev/null
built shared_rooms "$here/rooms" -DCMAKE_PREFIX_PATH="$place/moved"
for consumer in "$place"/shared_rooms/*/consumer_*; do "$consumer"; done
for library in "$place"/moved/lib*/libmillrace_*.so "$place"/moved/lib/*/libmillrace_*.so; do
  [ -e "$library" ] || continue
  objdump -p "$library" | grep -q 'SONAME *libmillrace_[a-z]*\.so\.[0-9]' ||
    { echo "$library has no soname with a version" >&2; exit 1; }
  echo "shared: $(basename "$library")"
done | sort
