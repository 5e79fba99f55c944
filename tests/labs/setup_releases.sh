#!/usr/bin/env bash
# Releases lab: packages of other versions than the installed ones, each in a separate folder, for Python 3.11.
#
#   usage: setup_releases.sh DIR
#
# DIR/onnxruntime-1.23.2 and DIR/onnxruntime-qnn-2.3.0 are results of `pip install --no-deps --target`. The tests of the
# doctor put them into environments instead of the right ones.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
mkdir -p "$lab"
python=$(find_python 3.11) || fail "no Python 3.11 on this machine"

# release NAME VERSION
release() {
  local folder=$lab/$1-$2 state
  state=$(fingerprint "$1" "$2")
  if is_stamped "$folder" "$state"; then say "already there: $folder"; return 0; fi
  rm -rf "$folder"
  pip_into "$python" --no-deps --only-binary :all: --target "$folder" "$1==$2"
  say "$1 $2, $(du -sh "$folder" | cut -f1)"
  echo "$state" > "$folder/.stamp"
}

release onnxruntime 1.23.2
release onnxruntime-qnn 2.3.0
