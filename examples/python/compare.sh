#!/usr/bin/env bash
# compare.sh PYTHON SCRIPT EXPECTED MILLRACE: runs the script, which draws into a file of its own, in one process and in
# four, one per rank, and fails with a diff when it prints something else or draws nothing.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for launch in "" "$4 launch -n 4 --"; do
  printed=$($launch "$1" "$2" "$folder/picture.svg")
  diff <(printf '%s\n' "$printed") "$3"
  grep -q '</svg>' "$folder/picture.svg"
  rm "$folder/picture.svg"
done
