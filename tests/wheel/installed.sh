#!/usr/bin/env bash
# installed.sh WHEEL PYTHON [WEIGHTS]: the wheel in a fresh environment of that Python, outside the source tree. WEIGHTS: a
# file with what `train --epochs 2` of the wheel's own build printed. MILLRACE_EMULATOR: what runs Python and the command.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$here/../engines/claims.sh"
wheel=$(readlink -f "$1")
python=$2
expected=${3:+$(readlink -f "$3")}
read -r -a emulator <<<"${MILLRACE_EMULATOR:-}"
program=$here/../python/launched.py
export PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH
cd "$place"

claim "installs for $("$python" --version)"
"$python" -m venv venv
venv/bin/pip install --quiet "$wheel" >installing 2>&1 || refute "pip failed" installing
command=$(echo "$place"/venv/lib/python*/site-packages/millrace/bin/millrace)

claim "imports, without PyTorch"
ends_with 0 imported "${emulator[@]}" venv/bin/python -c "
import importlib.metadata, sys, millrace
assert millrace.__file__.startswith('$place'), millrace.__file__
assert 'torch' not in sys.modules
assert millrace.__version__ == importlib.metadata.version('millrace-pipeline')
print('millrace', millrace.__version__)"

claim "trains 4 ranks in Python"
ends_with 0 alone "${emulator[@]}" venv/bin/python "$program" --ranks 4 --schedule zb-v
says alone weights
if [ ${#emulator[@]} -gt 0 ]; then
  claim "runs the command under ${emulator[*]}"
  ends_with 0 train "${emulator[@]}" "$command" train --epochs 2
  says train "test accuracy"
  exit
fi
ends_with 0 launched venv/bin/millrace launch -n 4 -- venv/bin/python "$program" --ranks 4 --schedule zb-v
same_weights alone launched

claim "the console script has the version of the module"
ends_with 0 version venv/bin/millrace --version
says version "$(cat imported), "

claim "train has the weights of the build, in 1 process and in 2"
ends_with 0 train venv/bin/millrace train --epochs 2
ends_with 0 launched venv/bin/millrace launch -n 2 -- train --epochs 2
same_weights "${expected:-train}" train
same_weights train launched
