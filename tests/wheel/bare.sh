#!/usr/bin/env bash
# bare.sh WHEEL WEIGHTS: installed.sh in a Debian 12 of its own with nothing but Python: no compiler, oneTBB, oneDNN or ZeroMQ.
# Needs root and debootstrap. The system is made once, in build/wheel/debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
debian=build/wheel/debian
if [ ! -f "$debian/made" ]; then
  rm -rf "$debian"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$debian" >build/wheel/debian.log
  touch "$debian/made"
fi
copied=$debian/millrace
rm -rf "$copied"
mkdir -p "$copied/tests"
cp -r tests/wheel tests/engines tests/python "$copied/tests"
cp "$1" "$copied"
cp "$2" "$copied/weights"
# numpy comes from outside: what runs inside needs no network.
build/wheel/tools-3.11/bin/pip download --quiet --only-binary :all: --dest "$copied" numpy
if chroot "$debian" which c++ cmake || find "$debian/usr/lib" -name 'libtbb*' -o -name 'libdnnl*' -o -name 'libzmq*' | grep .; then
  echo "bare.sh: $debian is not bare" >&2
  exit 1
fi
mount -t proc proc "$debian/proc"
trap 'umount "$debian/proc"' EXIT
chroot "$debian" env -i PATH=/usr/bin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/millrace \
  bash /millrace/tests/wheel/installed.sh "/millrace/$(basename "$1")" python3 /millrace/weights
