#!/bin/sh
# Two ranks on each of two machines under torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# Its own store listens at that port of the first machine, so the rendezvous has another one. Keys are in a folder that
# both machines see (millrace keys -n 4 --out keys). torchrun.sh FIRST_MACHINE NUMBER_OF_THIS_MACHINE
set -eu
export MILLRACE_KEYS=keys MILLRACE_RENDEZVOUS="tcp://$1:29400"
exec torchrun --nnodes 2 --nproc-per-node 2 --node-rank "$2" --master-addr "$1" --no-python \
  millrace train --model mlp:64-96-64-48-10 --steps 12
