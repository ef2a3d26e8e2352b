#!/usr/bin/env bash
# compare.sh EXPECTED PROGRAM...: runs the program and fails with a diff when it prints something else.
set -euo pipefail
expected=$1
shift
printed=$("$@")
diff <(printf '%s\n' "$printed") "$expected"
