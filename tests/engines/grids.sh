# shellcheck shell=bash
# Grids drawn out of the many that all give the bits of one process, sourced by scripts that run them.

# pick VALUE...: one of them. Not in a subshell, which would draw from numbers of its own.
pick() { picked=${*:RANDOM % $# + 1:1}; }

# pick_whether FLAG: adds it to the options, or does not.
pick_whether() {
  pick "" " $1"
  options+=$picked
}

# drawn SEED COUNT: so many grids, each a line: copies, places of a pipeline, processes, schedule, and options. The same ones
# for the same seed. An update has 16 micro-batches, and dualpipe-v two a place at least.
drawn() {
  RANDOM=$1
  local left=$2 copies stages schedule processes options
  while [ "$left" -gt 0 ]; do
    pick 1 2 4; copies=$picked
    pick 1 2 4; stages=$picked
    pick 1f1b zb-h1 interleaved zb-v dualpipe-v; schedule=$picked
    pick 1 2 4; processes=$((copies * stages / picked))
    [ "$processes" -ge 2 ] || continue
    [ "$schedule" != dualpipe-v ] || [ $((16 / copies)) -ge $((2 * stages)) ] || continue
    pick "--batch-size 64" "--batch-size 50"; options=$picked
    pick_whether "--model gpt:layers=7,d=16,heads=2,context=16 --data text"
    pick_whether "--precision bf16"
    pick_whether --shard-optimizer
    pick_whether --recompute
    echo "$copies $stages $processes $schedule $options"
    left=$((left - 1))
  done
}
