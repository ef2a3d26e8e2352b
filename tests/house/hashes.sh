#!/usr/bin/env bash
# What a redesign must not change: hashes of trained weights, plans and printed results, one line each, over a grid.
# hashes.sh BUILD prints them; hashes.sh BUILD FILE compares them with those of FILE and exits with 1 where they differ.
# Weights depend on the processor and the GEMM library, so FILE must come from the same machine:
#   hashes.sh BUILD >before; (change, build); hashes.sh BUILD before
# Trainings of one model and precision must agree whatever runs them; that is checked without FILE too.
set -euo pipefail
millrace=$(readlink -f "$1/millrace")
before=${2:+$(readlink -f "$2")}
export MILLRACE_PROGRESS=never
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
  echo "hashes.sh: $1" >&2
  exit 1
}

# hashed NAME COMMAND...: its exit code and the hash of its output. Texts of errors are free to change.
hashed() {
  local name=$1 code=0
  shift
  "$@" >out 2>/dev/null || code=$?
  echo "$name: exit $code, $(md5sum <out | cut -c1-32)"
}

# weights GROUP COMMAND...: the hash of the weights that a training ends with. Those of a group are equal.
weights() {
  local group=$1 hash
  shift
  "$@" >out 2>&1 || fail "$* ended with $?: $(tail -3 out)"
  hash=$(grep -a -o 'weights [0-9a-f]\{32\}' out | head -1)
  [ -n "$hash" ] || fail "no weights: $*"
  echo "$hash" >>"group-$group"
  [ "$(sort -u "group-$group" | wc -l)" -eq 1 ] || fail "other weights than the rest of $group: $*"
  echo "$group: ${*/#"$millrace"/millrace}: $hash"
}

train() { weights "$1" "$millrace" train "${@:2}"; }

trainings() {
  local model settings precision options group schedule backend
  while read -r model settings; do
    for precision in f32 bf16 f16; do
      group=$model-$precision
      read -ra options <<<"$settings --precision $precision --steps 6 --batch-size 48"
      train "$group" "${options[@]}" -p 1
      for schedule in gpipe 1f1b zb-h1 "interleaved -v 2" zb-v dualpipe-v; do
        # shellcheck disable=SC2086
        train "$group" "${options[@]}" -p 2 --schedule $schedule
      done
      train "$group" "${options[@]}" -p 4 --executor ranks --threads-per-rank 2
      train "$group" "${options[@]}" -p 2 --executor sequential --recompute
      for backend in shm ipc tcp; do
        weights "$group" "$millrace" launch -n 2 --endpoint "$backend" -- train "${options[@]}" -p 2
      done
      train "$group-replicas" "${options[@]}" -p 2 --schedule chimera
      train "$group-replicas" "${options[@]}" -p 2 --schedule chimera --executor ranks
      train "$group-tree" "${options[@]}" -p 2 --accumulate-order tree
      weights "$group-tree" "$millrace" launch -n 4 -- train "${options[@]}" -p 2 -m 4 -d 2 --shard-optimizer
      train "$group" "${options[@]}" -p 2 --save "saved-$group" --save-every 4 --keep 9
      train "$group" --resume "saved-$group/step-0000000004" -p 1
    done
  done <<'MODELS'
mlp --model mlp:64-48-48-48-10,gelu,norm,dropout=0.1
conv --model conv:8x8x1-4-8-10 --optimizer momentum
gpt --model gpt:layers=3,d=16,heads=2,context=16 --data text
llama --model gpt:layers=3,d=16,heads=4,context=16,kv=2,mlp=swiglu,norm=rms,pos=rotary --data text --optimizer lamb
MODELS
}

plans() {
  local schedule counts costs name
  for schedule in $("$millrace" list --json | tr ',' '\n' | sed -n 's/.*"name": *"\([^"]*\)".*/\1/p'); do
    for counts in "-p 2 -m 4" "-p 4 -m 8" "-p 4 -m 8 --comms" "-p 6 -m 24" "-p 3 -m 7" "-p 8 -m 16 --recompute"; do
      # shellcheck disable=SC2086
      hashed "csv $schedule $counts" "$millrace" show "$schedule" $counts --csv
    done
    for costs in "" "--f 2 --i 3 --w 1 --latency 0.25" "--atomic-pairs -d 2 --gradient-bytes 8 --bandwidth 4 --accumulate 2" \
      "--mem-f 2 --mem-i 0.25 --iterations 2" "--cores 2 --recompute --r 0.5"; do
      name="$schedule -p 4 -m 8 $costs"
      # shellcheck disable=SC2086
      hashed "simulate $name" "$millrace" simulate "$schedule" -p 4 -m 8 $costs --json
    done
    hashed "svg $schedule" "$millrace" show "$schedule" -p 4 -m 8 --svg /dev/stdout
    hashed "plan $schedule" "$millrace" show "$schedule" -p 4 -m 8 --plan /dev/stdout
  done
  hashed "sweep counts" "$millrace" sweep all -p 2,4 -m 4..9 --latency 0,0.5 --times 1:1:1,2:3:1 --json
  hashed "sweep limits" "$millrace" sweep all -p 4 -m 8 --memory-limit none,1p,6 -d 1,2 --accumulate 1,2 --gradient-bytes 4 --bandwidth 2
  for costs in "" "--latency 0.5" "--memory-limit 0.5p" "--f 1,2,1,1 --objective span" "--recompute choose --memory-limit 3"; do
    # shellcheck disable=SC2086
    hashed "search $costs" "$millrace" search -p 4 -m 6 --budget 2000 $costs --json
  done
}

{
  plans
  trainings
} | tee lines
[ -z "$before" ] || diff "$before" lines >&2 || fail "the lines above differ from $2"
