#!/usr/bin/env bash
# compare.sh PROGRAM EXPECTED: runs the program and fails with a diff when it prints something else.
set -euo pipefail
printed=$("$1")
diff <(printf '%s\n' "$printed") "$2"
