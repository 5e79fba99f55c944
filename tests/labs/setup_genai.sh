#!/usr/bin/env bash
# genai lab: hosts with other releases of onnxruntime-genai.
#
#   usage: setup_genai.sh DIR
#
# DIR/VERSION is a virtual environment with that release, and otherwise the packages of the interpreter that it copies.
# DIR/newest has the newest release of the package index, which may be newer than qnnbridge's table.
# Environment: QNNBRIDGE_LAB_LIKE as in setup_arm64.sh.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
mkdir -p "$lab"
# The oldest supported release, the newest that runs every layout, and one that runs one layout less.
versions=(0.13.2 0.15.2 0.16.0)
like=${QNNBRIDGE_LAB_LIKE:-$(find_python 3.11)} || fail "no Python 3.11"
newest=$("$like" -m pip index versions onnxruntime-genai 2>/dev/null | sed -n '1s/.*(\(.*\))/\1/p')
[ -n "$newest" ] || fail "the package index does not list onnxruntime-genai"

for version in "${versions[@]}" "$newest"; do
  venv=$lab/$version
  [ "$version" = "$newest" ] && venv=$lab/newest
  state=$(fingerprint "$like" "$version")
  if is_stamped "$venv" "$state"; then say "already there: $venv"; continue; fi
  rm -rf "$venv"
  "$like" -m venv --without-pip "$venv"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  pip_into "$like" --no-deps --target "$site" "onnxruntime-genai==$version"
  # After its own packages come those of the other interpreter, including editable ones.
  "$like" - > "$site/like.pth" <<'PY'
import site
for folder in site.getsitepackages():
    print(f"import site; site.addsitedir({folder!r})")
PY
  "$venv/bin/python" -I -c "import onnxruntime_genai, qnnbridge_host; assert onnxruntime_genai.__version__ == '$version'"
  echo "$state" > "$venv/.stamp"
  say "$version: $(du -sh "$venv" | cut -f1)"
done
