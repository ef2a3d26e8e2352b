#!/usr/bin/env bash
# A network between four machines, on this one: namespaces joined by a switch of ours that delays (netem is in few
# kernels), slowed down by tbf, and dropping packets by nftables. Four workers over tcp with keys. lan.sh BUILD.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$here/claims.sh"
build=$(readlink -f "$1")
millrace=$build/millrace
export MILLRACE_PROGRESS=never
names=$(basename "$place" | tr -dc a-zA-Z0-9)
# Before all other work of the machine, where that is allowed.
first=(chrt --rr 1)
"${first[@]}" true 2>/dev/null || first=(nice -n -20)
switch=
disjoin() {
  [ -z "$switch" ] || { kill "$switch" && wait "$switch"; } 2>/dev/null || true
  switch=
  for rank in 0 1 2 3; do ip netns del "$names$rank" 2>/dev/null || true; done
}
trap 'disjoin; rm -rf "$place"' EXIT

# joined DELAY_US RATE LOSS: DELAY on every way, RATE for every machine, of a thousand packets LOSS lost.
joined() {
  disjoin
  local rank tries
  for rank in 0 1 2 3; do ip netns add "$names$rank"; done
  "${first[@]}" "$build/tests/delaying_switch" "$1" "$names"{0,1,2,3} >"$place/switch" 2>&1 &
  switch=$!
  for tries in $(seq 50); do
    grep -q ready "$place/switch" && break
    read -r -t 0.1 <> <(:) || true
  done
  says "$place/switch" ready
  for rank in 0 1 2 3; do
    ip -n "$names$rank" link set lo up
    ip -n "$names$rank" address add "10.77.0.1$rank/24" dev lan
    ip -n "$names$rank" link set lan up
    ip netns exec "$names$rank" tc qdisc add dev lan root tbf rate "$2" burst 16kb latency 200ms
    [ "$3" -eq 0 ] || ip netns exec "$names$rank" nft "add table inet loss; add chain inet loss arrives { type filter hook \
input priority 0; }; add rule inet loss arrives iifname lan numgen random mod 1000 < $3 drop"
  done
}

# trained FILE OPTIONS...: four workers, each in its namespace, or of_machine of them in one; what they say in FILE.
of_machine=1
trained() {
  local rank machine code=0 processes=()
  for rank in 1 2 3 0; do
    machine=$((rank / of_machine))
    ip netns exec "$names$machine" timeout 100 "$millrace" worker --rank "$rank" --world 4 --rendezvous tcp://10.77.0.10:29400 \
      --keys "$place/keys" --interface "10.77.0.1$machine" -- train "${@:2}" >"$1.$rank" 2>&1 &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || code=$?; done
  cat "$1".? >"$1"
  [ "$code" -eq 0 ] || refute "a worker ended with $code" "$1"
}

"$millrace" keys -n 4 --out "$place/keys" >/dev/null
ends_with 0 "$place/alone" "$millrace" train --steps 20

same_bits() {
  trained "$place/ranks" --steps 20
  same_weights "$place/alone" "$place/ranks"
}

# predicted LATENCY_MS BYTES_PER_MS: a step of passes that sleep, measured and simulated, differ by a tenth at most. The four
# machines share this one's processors: other work delays them, so they go before it and may try three times.
predicted() {
  local try
  for try in 1 2 3; do steps_as_simulated "$@" && return 0; done
  refute "a step is not what was simulated" "$place/step"
}
steps_as_simulated() {
  local pass=20 bytes=65536 rank processes=() code=0
  for rank in 1 2 3 0; do
    MILLRACE_RANK=$rank MILLRACE_WORLD=4 MILLRACE_RENDEZVOUS=tcp://10.77.0.10:29500 MILLRACE_KEYS=$place/keys \
      ip netns exec "$names$rank" "${first[@]}" timeout 60 "$build/tests/sleeper" $pass $bytes >"$place/sleeper.$rank" 2>&1 &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || code=$?; done
  cat "$place"/sleeper.? >"$place/sleepers"
  [ "$code" -eq 0 ] || refute "a sleeper ended with $code" "$place/sleepers"
  "$millrace" simulate 1f1b -p 4 -m 8 --f $pass --i $pass --w $pass --latency "$1" --bandwidth "$2" --message-bytes $bytes \
    --json >"$place/simulated"
  python3 - "$place" <<'PYTHON'
import json, sys
place = sys.argv[1]
measured = float(next(line for line in open(place + "/sleepers") if line.startswith("step ")).split()[1])
simulated = json.load(open(place + "/simulated"))["makespan"]
open(place + "/step", "w").write(f"measured {measured:.1f} ms, simulated {simulated:.1f} ms\n")
print(f"       measured {measured:.1f} ms, simulated {simulated:.1f} ms")
sys.exit(abs(measured / simulated - 1) > 0.1)
PYTHON
}

claim "lan: 0.2 ms and 1 Gbit/s: the bits of one process"
joined 200 1gbit 0
same_bits
claim "lan: 0.2 ms and 1 Gbit/s: the step that was simulated"
predicted 0.2 125000

claim "lan: two ranks on each of two machines: those of one share memory and no others do, and the bits of one process"
of_machine=2
same_bits
of_machine=1
for rank in 0 1 2 3; do
  says "$place/ranks.$rank" "rank $rank shares memory with rank $((rank ^ 1)), but does not reach ranks"
done

claim "lan: 5 ms and 100 Mbit/s: the bits of one process"
joined 5000 100mbit 0
same_bits
claim "lan: 5 ms and 100 Mbit/s: the step that was simulated"
predicted 5 12500

claim "lan: one packet of a thousand lost: the bits of one process, and no false alarm"
joined 200 1gbit 1
trained "$place/ranks" --steps 200
ends_with 0 "$place/alone" "$millrace" train --steps 200
same_weights "$place/alone" "$place/ranks"
ip netns exec "${names}0" nft list ruleset >"$place/rules"
says "$place/rules" "numgen random mod 1000"
