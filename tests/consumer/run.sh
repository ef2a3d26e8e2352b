#!/usr/bin/env bash
# run.sh BUILD_FOLDER: installs the library, static and shared, into temporary prefixes and builds
# outside projects against it: one that takes only millrace::plan (and must need only fmt and
# the standard libraries), one that trains, one that takes every component by itself, and one that has the
# sources in its tree.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/projects.sh"

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
    libfmt.so.* | libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | ld-linux*) ;;
    *)
      echo "millrace::plan needs $library, which is neither fmt nor a standard library" >&2
      exit 1
      ;;
  esac
done
echo "plan consumer needs only:" $needed

built subdirectory "$here/subdirectory" -DMILLRACE_SOURCE="$source" -DCOMPONENT=plan "$compiled" "${unity[@]}"
"$place/subdirectory/consumer"

# A room alone as the top-level project has no tests, which use everything, and says so.
built alone "$source" -DMILLRACE_COMPONENTS=plan -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON "$compiled" "${unity[@]}"
grep -q "MILLRACE_DEVELOPER=OFF): they need also command and zeromq" "$place/alone.log" ||
  { cat "$place/alone.log" >&2; exit 1; }

# What is installed is moved before it starts: a run path must not name the place it was built for.
built shared "$source" -DBUILD_SHARED_LIBS=ON "${as_built[@]}"
cmake --install "$place/shared" --prefix "$place/installed" >/dev/null
rm -r "$place/shared"
mv "$place/installed" "$place/moved"
"$place/moved/bin/millrace" --version
"$place/moved/bin/millrace" train --steps 1 --json >/dev/null
built shared_rooms "$here/rooms" -DCMAKE_PREFIX_PATH="$place/moved"
for consumer in "$place"/shared_rooms/*/consumer_*; do "$consumer"; done
for library in "$place"/moved/lib*/libmillrace_*.so "$place"/moved/lib/*/libmillrace_*.so; do
  [ -e "$library" ] || continue
  # Not grep -q, which ends before objdump has written all and makes the pipe a failure.
  objdump -p "$library" | grep >/dev/null 'SONAME *libmillrace_[a-z]*\.so\.[0-9]' ||
    { echo "$library has no soname with a version" >&2; exit 1; }
  echo "shared: $(basename "$library")"
done | sort
