#!/usr/bin/env bash
# Python lab: one virtual environment for each Python version, with the project installed editable.
#
#   usage: setup_pythons.sh DIR
#
# DIR/py310 is an application's side (base install, no onnxruntime); DIR/py311, py312 and py313 are host sides
# (the extra [host]). A version without an interpreter on this machine is reported and omitted. DIR/releases has packages
# of other versions (setup_releases.sh).
# Environment: QNNBRIDGE_LAB_LIKE as in setup_arm64.sh.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
mkdir -p "$lab"
like=()
if [ -n "${QNNBRIDGE_LAB_LIKE:-}" ]; then
  reader=$(find_python 3.11) || fail "QNNBRIDGE_LAB_LIKE needs a Python 3.11 to read pyproject.toml"
  "$reader" "$labs_folder/project_requirements.py" --like "$QNNBRIDGE_LAB_LIKE" --only-versions > "$lab/versions.txt"
  like=(-c "$lab/versions.txt")
fi

# An editable install lists the source folders that existed when it was made, and lacks later ones.
has_all_packages() {
  "$1/bin/python" -I -c 'from importlib.util import find_spec
assert all(map(find_spec, ("qnnbridge_protocol", "qnnbridge_os", "qnnbridge_host", "qnnbridge", "qnnbridge_daemon", "qnnbridge_tools")))' 2>/dev/null
}

# environment VERSION EXTRA
environment() {
  local version=$1 extra=$2 venv=$lab/py${1/./} python state
  python=$(find_python "$version") || { say "no Python $version on this machine: py${version/./} left out"; return 0; }
  state=$(fingerprint "$python" "$extra" "$(cat "$checkout/pyproject.toml" "$lab"/versions.txt 2>/dev/null)")
  if is_stamped "$venv" "$state" && has_all_packages "$venv"; then say "already there: $venv"; return 0; fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip_into "$venv/bin/python" "${like[@]}" -e "$checkout$extra"
  say "$("$venv/bin/python" -I -c '
import importlib.util, platform, qnnbridge_protocol
name = "onnxruntime"
print(platform.python_version(), name, __import__(name).__version__ if importlib.util.find_spec(name) else "absent")')"
  echo "$state" > "$venv/.stamp"
}

environment 3.10 ''
for version in 3.11 3.12 3.13; do environment $version '[host]'; done

bash "$labs_folder/setup_releases.sh" "$lab/releases"
