#!/bin/sh
#SBATCH --ntasks=4
#SBATCH --signal=TERM@60
#SBATCH --requeue
# Four ranks of one step; nothing else need be said. A minute before its time ends the job saves and ends with 143, and
# is queued again to go on from there. sbatch slurm.sh
srun millrace train --model mlp:64-96-64-48-10 --epochs 100 --save checkpoints --resume auto || code=$?
if [ "${code:-0}" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "${code:-0}"
