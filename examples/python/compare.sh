#!/usr/bin/env bash
# compare.sh PYTHON SCRIPT EXPECTED: runs the script, which draws into a file of its own, and fails with a diff when it
# prints something else or draws nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printed=$("$1" "$2" "$folder/picture.svg")
diff <(printf '%s\n' "$printed") "$3"
grep -q '</svg>' "$folder/picture.svg"
