#!/usr/bin/env bash
# torch.sh BUILD_FOLDER: an outside project takes the component torch from the installed library.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/projects.sh"

cmake --install "$build" --prefix "$place/prefix" >/dev/null
built torch "$here/torch" -DCMAKE_PREFIX_PATH="$place/prefix"
"$place/torch/consumer_torch"
