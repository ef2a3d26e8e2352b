#!/usr/bin/env bash
# without_zeromq.sh BUILD_FOLDER: the library and its command on a machine without ZeroMQ. They build, train in
# one process and in several of one host, and install; what needs sockets names the missing component; outside
# projects take the rest, from the installed library, from one that has the component, and from sources in their tree.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/projects.sh"

hidden=-DCMAKE_DISABLE_FIND_PACKAGE_cppzmq=ON
built without "$source" $hidden "${as_built[@]}" -UMILLRACE_DEVELOPER
grep -q "MILLRACE_DEVELOPER=OFF): they need also zeromq" "$place/without.log" ||
  { cat "$place/without.log" >&2; exit 1; }
millrace=$place/without/millrace
"$millrace" train --steps 1 --json >/dev/null 2>&1
if grep -q zmq "$place/without/build.ninja"; then
  echo "a build without ZeroMQ names it" >&2
  exit 1
fi

# refused EXPECTED_CODE PATTERN COMMAND...: it ends with that code and says one line that matches.
refused() {
  local expected=$1 pattern=$2 code=0 said
  shift 2
  said=$("$@" 2>&1) || code=$?
  [ "$code" = "$expected" ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -q "$pattern" <<<"$said" && return
  echo "$*: ended with $code, not $expected, and said: $said" >&2
  exit 1
}
refused 78 "^millrace: keys: .*component zeromq.*MILLRACE_WITH_ZEROMQ=ON" "$millrace" keys -n 2 --out "$place/keys"
refused 2 "^millrace: --endpoint tcp: this build is without its component zeromq" \
  "$millrace" launch -n 2 --endpoint tcp -- train --steps 1

# Processes of one host, over shared memory: the bits of one process.
hash_of() {
  "$@" --epochs 1 --json 2>/dev/null | grep -o '"weights_hash": *"[^"]*"'
}
[ "$(hash_of "$millrace" launch -n 2 -- train -p 2)" = "$(hash_of "$millrace" train -p 2)" ] ||
  { echo "two processes have other bits than one" >&2; exit 1; }
"$millrace" doctor >/dev/null

cmake --install "$place/without" --prefix "$place/prefix" >/dev/null
built installed "$here/rooms/training" $hidden -DCMAKE_PREFIX_PATH="$place/prefix"
"$place/installed/consumer_training"
if cmake -S "$here/rooms/zeromq" -B "$place/asks" -G Ninja -DCMAKE_PREFIX_PATH="$place/prefix" >"$place/asks.log" 2>&1; then
  echo "component zeromq was found where it is not installed" >&2
  exit 1
fi
grep -q "built without its component zeromq" "$place/asks.log" || { cat "$place/asks.log" >&2; exit 1; }

cmake --install "$build" --prefix "$place/whole" >/dev/null
built training "$here/rooms/training" $hidden -DCMAKE_PREFIX_PATH="$place/whole"
"$place/training/consumer_training"

built subdirectory "$here/subdirectory" -DMILLRACE_SOURCE="$source" -DCOMPONENT=training "$compiled" "${unity[@]}"
"$place/subdirectory/consumer"
built backend "$here/subdirectory" -DMILLRACE_SOURCE="$source" -DCOMPONENT=zeromq "$compiled" "${unity[@]}"
"$place/backend/consumer"
echo "without ZeroMQ: builds, installs, trains"
