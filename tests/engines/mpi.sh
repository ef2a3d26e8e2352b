#!/usr/bin/env bash
# Ranks of mpirun: the transport's suite, the bits of one process, and how jobs end. mpi.sh BUILD openmpi|mpich, where
# BUILD holds millrace and tests/test_mpi, linked with that MPI. MILLRACE_GRIDS (4) grids are drawn from the numbers that
# follow MILLRACE_SEED (17).
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$here/claims.sh"
source "$here/grids.sh"
build=$(readlink -f "$1") mpi=$2
millrace=$build/millrace
export MILLRACE_PROGRESS=never MILLRACE_TEST_DIRECTORY=$place
cd "$place"

mpirun() {
  if [ "$mpi" = openmpi ]; then
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 exec mpirun.openmpi --oversubscribe "$@"
  else
    exec mpirun.mpich "$@"
  fi
}
export -f mpirun
export mpi

# rank_of PID: which rank of mpirun that process is.
rank_of() {
  tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -1
}

# process_of RANK MARK: the process of that rank whose command line has MARK.
process_of() {
  local process
  for process in $(pgrep -f -- "$2"); do
    [ "$(rank_of "$process")" = "$1" ] && [ "$(cat "/proc/$process/comm")" = millrace ] && echo "$process" && return 0
  done
  return 1
}

# begin MARK PROCESSES: a job of four ranks in the background that trains for ever; returns when it has trained some steps.
begin() {
  timeout 60 bash -c 'mpirun "$@"' mpirun -n "$2" "$millrace" train -p 4 --epochs 100000 --seed "$1" --log "steps-$1.csv" >job 2>&1 &
  job=$!
  local tries
  for tries in $(seq 300); do
    [ "$(cat "steps-$1.csv" 2>/dev/null | wc -l)" -ge 5 ] && return 0
    read -r -t 0.1 <> <(:) || true
  done
  refute "the job did not begin" job
}

# ended CODE...: the job's exit code is one of these.
ended() {
  local code=0
  wait "$job" || code=$?
  [[ " $* " == *" $code "* ]] || refute "the job ended with $code instead of $*" job
}

claim "$mpi: the transport keeps its promises with a process per rank"
ends_with 0 suite bash -c 'mpirun "$@"' mpirun -n 8 "$build/tests/test_mpi"
says suite "PASSED"

claim "$mpi: mpirun -n 4 millrace train gives the bits of one process"
for options in "" "--schedule zb-h1" "--schedule gpipe"; do
  # shellcheck disable=SC2086
  ends_with 0 alone "$millrace" train --steps 12 $options
  # shellcheck disable=SC2086
  ends_with 0 ranks bash -c 'mpirun "$@"' mpirun -n 4 "$millrace" train --steps 12 $options
  same_weights alone ranks
done

# one_hash: every grid that is read gives the bits of one process. What only a grid has does not count for that process.
one_hash() {
  local copies stages processes schedule options plain alone
  while read -r copies stages processes schedule options; do
    said="$mpi: grid $copies $stages $processes $schedule $options"
    plain=${options//--shard-optimizer/}
    alone="alone ${plain//--recompute/}"
    # shellcheck disable=SC2086
    [ -f "$alone" ] ||
      ends_with 0 "$alone" "$millrace" train ${alone#alone} --steps 4 -p 1 --micro-batches 16 --accumulate-order tree
    # shellcheck disable=SC2086
    ends_with 0 ranks bash -c 'mpirun "$@"' mpirun -n "$processes" "$millrace" train $options --steps 4 \
      --schedule "$schedule" -d "$copies" -p "$stages" --micro-batches $((16 / copies)) --accumulate-order tree </dev/null
    same_weights "$alone" ranks
  done
}

claim "$mpi: grids of copies and stages give the bits of one process"
one_hash <<'GRIDS'
1 4 4 zb-v        --batch-size 50 --recompute
2 2 4 zb-h1       --batch-size 64 --model gpt:layers=7,d=16,heads=2,context=16 --data text --shard-optimizer
2 2 4 interleaved --batch-size 64 --precision bf16 --recompute
2 2 4 dualpipe-v  --batch-size 50 --model gpt:layers=7,d=16,heads=2,context=16 --data text --precision bf16
4 2 8 1f1b        --batch-size 50 --precision bf16 --optimizer lamb --shard-optimizer
GRIDS

claim "$mpi: fewer processes than places give the bits of one process"
one_hash <<'GRIDS'
1 4 2 1f1b        --batch-size 50
2 2 2 zb-h1       --batch-size 64 --model gpt:layers=7,d=16,heads=2,context=16 --data text --precision bf16
2 4 4 interleaved --batch-size 50 --shard-optimizer
4 2 2 zb-v        --batch-size 50 --recompute --shard-optimizer
GRIDS

seed=${MILLRACE_SEED:-17} grids=${MILLRACE_GRIDS:-4}
claim "$mpi: $grids more, drawn from $seed, give the bits of one process"
drawn "$seed" "$grids" >drawn
sed 's/^/         /' drawn
one_hash <drawn

claim "$mpi: the command names the MPI that it was built with"
"$millrace" --version >version
[ "$mpi" = openmpi ] && name="Open MPI" || name=MPICH
says version "ranks of mpirun by $name"

claim "$mpi: ranks that were told different things are refused, with the difference"
ends_with 78 differ bash -c 'mpirun -n 1 "$0" train --steps 2 -p 2 : -n 1 "$0" train --steps 3 -p 2' "$millrace"
says differ "steps differs: rank 0 has '2', rank 1 has '3'"

claim "$mpi: processes that count their ranks otherwise are refused, with the difference"
ends_with 78 worlds bash -c 'mpirun -n 1 "$0" train --steps 2 -p 4 : -n 1 "$0" train --steps 2 -p 2' "$millrace"
says worlds "world differs: rank 0 has '4', rank 1 has '2'"

claim "$mpi: processes that do not divide the places are refused, with those that do"
ends_with 2 three bash -c 'mpirun -n 3 "$0" train --steps 2 -p 4' "$millrace"
says three "1, 2 or 4 would have as many each"

claim "$mpi: the mpirun of another MPI is found out"
if [ "$mpi" = openmpi ]; then other=(mpirun.mpich); else
  other=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --oversubscribe)
fi
ends_with 78 other "${other[@]}" -n 2 "$millrace" train --steps 2
says other "start the processes with the mpirun of the MPI that they were built with"

# What mpirun returns for a job that ends without MPI_Finalize. Open MPI's returns a rank's exit code, and continues a
# stopped rank before it ends it. MPICH's kills the other ranks and returns the code of any of them, or 1 where it reaps
# a rank before it reads that the rank's PMI socket is closed (src/pm/hydra/pm/pmiserv/pmip_cb.c of MPICH 4.0.2).
reported=(75) killed=(137)
[ "$mpi" = openmpi ] || reported=(75 9 1) killed=(137 9 1)

claim "$mpi: a rank that is stopped is named by all others, with what every rank did"
export MILLRACE_HEARTBEAT_TIMEOUT=1.5
begin 51 4
kill -STOP "$(process_of 2 '--seed 51')"
ended "${reported[@]}"
# Two, not three: a rank stopped in the middle of a message blocks its receiver, as both MPIs have one queue for all senders.
[ "$(grep -a -c "rank 2 is silent; everyone waits for rank 2: " job)" -ge 2 ] || refute "not two reports" job
for rank in 0 1 2 3; do says job "  rank $rank "; done

claim "$mpi: asked to end, a rank says what it waits for"
export MILLRACE_HEARTBEAT_TIMEOUT=3
begin 52 4
kill -STOP "$(process_of 2 '--seed 52')"
kill -TERM "$(process_of 1 '--seed 52')"
ended "${reported[@]}"
says job "rank 1 was asked to end; it waits for"

claim "$mpi: of a process with several ranks every one is named, and says what it waits for"
begin 54 2
kill -STOP "$(process_of 1 '--seed 54')"
kill -TERM "$(process_of 0 '--seed 54')"
ended "${reported[@]}"
for rank in 0 1; do says job "rank $rank was asked to end; it "; done
says job "is silent; everyone waits for rank "
for rank in 0 1 2 3; do says job "  rank $rank "; done

claim "$mpi: a rank that is killed ends the job"
export MILLRACE_HEARTBEAT_TIMEOUT=10
begin 53 4
kill -KILL "$(process_of 2 '--seed 53')"
ended "${killed[@]}"

claim "$mpi: nothing is left"
left=$(pgrep -f -- "--epochs 100000 --seed 5[1234]" || true)
[ -z "$left" ] || refute "processes: $left"
