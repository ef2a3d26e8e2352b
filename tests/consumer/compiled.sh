#!/usr/bin/env bash
# compiled.sh BUILD_FOLDER COMPILER ARGUMENTS...: a compiler launcher that takes an object that the build
# folder has compiled from the same source already: rooms are position-independent, so shared
# libraries link the very objects that static ones hold. Compiles what it does not find there.
set -euo pipefail
build=$1
shift
words=("$@")
for i in "${!words[@]}"; do
  [ "${words[$i]}" = -o ] || continue
  object=${words[$((i + 1))]}
  [[ $object == *CMakeFiles/millrace_* ]] || break
  # The component launch is compiled for the backends that are built.
  [[ $object != *CMakeFiles/millrace_launch.dir/* ]] || break
  # What knows whether there is MPI is compiled alone, and the libraries here are without it.
  [[ $object == */Unity/* ]] || ! grep -q '^MILLRACE_COMPONENTS:.*mpi' "$build/CMakeCache.txt" || break
  for have in "$build/CMakeFiles/${object##*CMakeFiles/}" "$build/cli/CMakeFiles/${object##*CMakeFiles/}"; do
    [ -f "$have" ] || continue
    # A unity source, which lies in the build folder, must hold the same files.
    [[ $object != */Unity/* ]] || cmp -s "${object%.o}" "${have%.o}" || continue
    cp "$have" "$object"
    exit 0
  done
done
exec "$@"
