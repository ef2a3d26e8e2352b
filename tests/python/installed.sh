#!/usr/bin/env bash
# installed.sh BUILD PYTHON FOLDER: installs the package alone under a prefix of its own and imports it from there.
set -euo pipefail
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --component python --prefix "$prefix" >/dev/null
cd "$prefix"
PYTHONPATH="$prefix/$3" "$2" -c "
import millrace
assert millrace.__file__.startswith('$prefix'), millrace.__file__
assert millrace.generate('1f1b').verify() == []"
test -f "$3/millrace/py.typed" -a -f "$3/millrace/_millrace.pyi"
