# Sourced by the scripts next to it, which get the build folder as their argument: how an outside project is
# configured and built in a temporary place.
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

# The library once more, as the build folder has it, without compiling again what that has compiled.
compiled="-DCMAKE_CXX_COMPILER_LAUNCHER=$here/compiled.sh;$build"
unity=(-DCMAKE_UNITY_BUILD="$(of_cache CMAKE_UNITY_BUILD)"
  -DCMAKE_UNITY_BUILD_BATCH_SIZE="$(of_cache CMAKE_UNITY_BUILD_BATCH_SIZE)")
as_built=(-DMILLRACE_DEVELOPER=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON "$compiled" "${unity[@]}"
  -DMILLRACE_GEMM="$(of_cache MILLRACE_GEMM)" -DMILLRACE_SANITIZE="$(of_cache MILLRACE_SANITIZE)" -DCMAKE_CXX_COMPILER="$(of_cache CMAKE_CXX_COMPILER)")
