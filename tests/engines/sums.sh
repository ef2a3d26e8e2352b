#!/usr/bin/env bash
# Sums over processes: the programs of `./run bench --all-reduce`, ours and the baselines', add up right. How fast they do is
# the benchmark's. sums.sh BUILD, where BUILD holds bench/all_reduce_*.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$here/claims.sh"
build=$(readlink -f "$1")/bench
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
bytes=1048576

# adds_up NAME PROCESSES COMMAND...: every program looks at its sums before it takes their time.
adds_up() {
  local name=$1 processes=$2
  shift 2
  ends_with 0 sums "$@" "$name" "$processes" "$bytes"
  says sums "$name $processes $bytes "
}

cd "$place"
claim "sums over processes are right, and those of Open MPI and Gloo beside them the same"
adds_up millrace 4 "$build/all_reduce_millrace"
adds_up "millrace unchecked" 2 "$build/all_reduce_millrace"
adds_up open-mpi 2 mpirun.openmpi --oversubscribe -n 2 "$build/all_reduce_open_mpi"
adds_up "gloo ring" 2 "$build/all_reduce_gloo"
adds_up "gloo bcube" 2 "$build/all_reduce_gloo"
