# shellcheck shell=bash
# What the tests of engines share, sourced by each: claims with names, a folder of their own, and how a job is checked.
# A script ends with 1 at the first claim that does not hold, and says what it saw.
set -euo pipefail

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# claim TEXT: what the lines that follow check.
claim() {
  said=$1
  printf '%4ss  %s\n' "$SECONDS" "$said"
}

# refute WHAT [FILE]: the claim does not hold.
refute() {
  printf 'FAILED: %s\n  %s\n' "$said" "$1" >&2
  [ $# -lt 2 ] || sed 's/^/  | /' "$2" | tail -40 >&2
  exit 1
}

# weights FILE: the hash that a training printed there.
weights() { grep -a -o 'weights [0-9a-f]\{32\}' "$1" | head -1; }

# same_weights FILE FILE: two trainings ended with the same bits.
same_weights() {
  [ -n "$(weights "$1")" ] || refute "no weights" "$1"
  [ "$(weights "$1")" = "$(weights "$2")" ] || refute "other weights than those of $1" "$2"
}

# ends_with CODE FILE COMMAND...: runs it with its output in FILE.
ends_with() {
  local expected=$1 output=$2 code=0
  shift 2
  timeout 60 "$@" >"$output" 2>&1 || code=$?
  [ "$code" -eq "$expected" ] || refute "exit code $code instead of $expected: $*" "$output"
}

# says FILE TEXT
says() { grep -a -q -F -- "$2" "$1" || refute "nothing says: $2" "$1"; }
