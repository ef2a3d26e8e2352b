#!/bin/sh
#SBATCH --ntasks=4
#SBATCH --signal=TERM@60
#SBATCH --requeue
# Four ranks of one step, without other options. A minute before its time limit the job saves and exits with 143, and
# is requeued to continue from there. sbatch slurm.sh
srun millrace train --model mlp:64-96-64-48-10 --epochs 100 --save checkpoints --resume auto || code=$?
if [ "${code:-0}" -eq 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "${code:-0}"
