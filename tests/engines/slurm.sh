#!/usr/bin/env bash
# Ranks that srun starts, in a cluster of two nodes on this machine: munged, slurmctld and two slurmd of our own, ended
# at the end. slurm.sh BUILD.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$here/claims.sh"
build=$(readlink -f "$1")
millrace=$build/millrace
export MILLRACE_PROGRESS=never SLURM_CONF=$place/slurm.conf
for variable in "${!SLURM_@}"; do [ "$variable" = SLURM_CONF ] || unset "$variable"; done
chmod 755 "$place"
mkdir -m 755 "$place"/{munge,state,spool-n1,spool-n2,job}
daemons=()
end_daemons() {
  scancel --quiet --state=RUNNING 2>/dev/null || true
  for process in "${daemons[@]}"; do kill "$process" 2>/dev/null || true; done
  for process in "${daemons[@]}"; do
    timeout 10 tail --pid="$process" -f /dev/null || kill -KILL "$process" 2>/dev/null || true
  done
  rm -rf "$place"
}
trap end_daemons EXIT

# started NAME COMMAND...: a daemon in the foreground of its own process.
started() {
  "${@:2}" >"$place/$1.log" 2>&1 &
  daemons+=($!)
}

# soon WHAT COMMAND...: holds within some seconds.
soon() {
  local tries
  for tries in $(seq 300); do
    "${@:2}" >/dev/null 2>&1 && return 0
    read -r -t 0.1 <> <(:) || true
  done
  refute "$1: ${*:2}"
}

claim "slurm: a cluster of two nodes starts"
dd if=/dev/urandom of="$place/munge/key" bs=128 count=1 2>/dev/null
chmod 400 "$place/munge/key"
chown -R munge: "$place/munge"
started munged setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$place/munge/key" \
  --socket="$place/munge/socket" --pid-file="$place/munge/pid" --log-file="$place/munge/log" --seed-file="$place/munge/seed"
cat >"$SLURM_CONF" <<TEXT
ClusterName=millrace
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$((21000 + $$ % 1000))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool-%n
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
SlurmdTimeout=60
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((22000 + $$ % 1000)) CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((23000 + $$ % 1000)) CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
TEXT
soon "munged answers" test -S "$place/munge/socket"
started slurmctld slurmctld -D
started slurmd-n1 slurmd -D -N n1
started slurmd-n2 slurmd -D -N n2
soon "both nodes are idle" bash -c '[ "$(sinfo --noheader --format=%T --Node | grep -c idle)" -eq 2 ]'

cd "$place/job"
ends_with 0 "$place/alone" "$millrace" train --steps 12

claim "slurm: srun -n 4 millrace train gives the bits of one process, and leaves nothing"
ends_with 0 "$place/steps" srun -n 4 --overcommit "$millrace" train --steps 12
same_weights "$place/alone" "$place/steps"
[ -z "$(ls -A)" ] || refute "left in the job's folder: $(ls -A)"

claim "slurm: so do two nodes"
ends_with 0 "$place/nodes" srun -N 2 -n 4 --overcommit "$millrace" train --steps 12
same_weights "$place/alone" "$place/nodes"

claim "slurm: and two processes of two places each"
ends_with 0 "$place/places" srun -N 2 -n 2 --overcommit "$millrace" train --steps 12 -p 4
same_weights "$place/alone" "$place/places"
says "$place/places" "2 processes of 2 places each"

claim "slurm: in a batch script, millrace train is alone, and srun millrace train is four ranks"
cat >script <<TEXT
#!/bin/sh
$millrace train --steps 12
srun -n 4 --overcommit $millrace train --steps 12
TEXT
ends_with 0 "$place/submit" sbatch --wait -N 2 -n 4 --overcommit --output="$place/batch" script
[ "$(grep -a -c "$(weights "$place/alone")" "$place/batch")" -eq 2 ] || refute "not twice the same weights" "$place/batch"
says "$place/batch" "4 processes"
rm script

claim "slurm: a port that is taken is passed over"
ends_with 0 "$place/next" salloc --quiet -n 2 --overcommit bash -c '
  port=$((20000 + (SLURM_JOB_ID * 16) % 10000))
  python3 -c "
import socket, subprocess, sys
taken = socket.socket()
taken.bind((\"127.0.0.1\", int(sys.argv[1])))
taken.listen()
sys.exit(subprocess.call([\"srun\", \"-n\", \"2\", \"--overcommit\", sys.argv[2], \"train\", \"--steps\", \"12\"]))
" $port '"$millrace"
says "$place/next" "2 processes"

# begin: a step in the background that trains for ever; returns when it has trained some steps.
begin() {
  rm -f steps.csv
  srun -N 2 -n 4 --overcommit --job-name="$1" "$millrace" train --epochs 100000 --seed 61 --log steps.csv "${@:2}" >"$place/$1.out" 2>&1 &
  step=$!
  soon "the job trains" bash -c '[ "$(cat steps.csv 2>/dev/null | wc -l)" -ge 5 ]'
}
# ended CODE FILE
ended() {
  local code=0
  timeout 40 tail --pid="$step" -f /dev/null || refute "srun does not end" "$2"
  wait "$step" || code=$?
  [ "$code" -eq "$1" ] || refute "srun ended with $code instead of $1" "$2"
}
nothing_left() {
  soon "no process is left" bash -c '! pgrep -f -- "train --epochs 100000 --seed 6[1]"'
  rm -f steps.csv
  [ -z "$(ls -A)" ] || refute "left in the job's folder: $(ls -A)"
}

claim "slurm: a killed rank is named by the others, and the step ends"
begin killed
kill -KILL "$(pgrep -f -- "train --epochs 100000 --seed 61" | while read -r process; do
  [ "$(cat "/proc/$process/comm")" = millrace ] && tr '\0' '\n' <"/proc/$process/environ" | grep -q '^SLURM_PROCID=2$' && echo "$process"
done)"
ended 137 "$place/killed.out"
says "$place/killed.out" "lost rank 2"
nothing_left

claim "slurm: scancel ends all ranks"
begin cancelled
scancel --name cancelled
ended 143 "$place/cancelled.out"
nothing_left

claim "slurm: with --save, scancel --signal=TERM has the state saved first"
begin saved --save kept
scancel --signal=TERM --name saved
ended 143 "$place/saved.out"
ls kept >/dev/null || refute "nothing was saved" "$place/saved.out"
rm -rf kept
nothing_left

claim "slurm: a job that is put back into the queue goes on where it was saved, to the bit"
options="--steps 300 --seed 62"
cat >script <<TEXT
#!/bin/sh
srun -N 2 -n 4 --overcommit $millrace train $options --save kept --save-every 5 --resume auto
TEXT
# shellcheck disable=SC2086
ends_with 0 "$place/whole" "$millrace" train $options
job=$(sbatch --parsable --requeue --open-mode=append -N 2 -n 4 --overcommit --output="$place/requeued" script)
soon "the job saves" bash -c 'ls kept/*'
scontrol requeue "$job"
# It would wait for two minutes, by a habit of SLURM.
soon "the job waits" bash -c "scontrol --oneliner show job $job | grep JobState=PENDING"
scontrol update "JobId=$job" StartTime=now
soon "the job ends" bash -c "scontrol --oneliner show job $job | grep JobState=COMPLETED"
same_weights "$place/whole" "$place/requeued"
says "$place/requeued" "resumed"
rm -rf kept script
