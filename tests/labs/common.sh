# Functions that the set-up scripts of the labs and .ci/run share. Sourced, never run.

labs_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(cd "$labs_folder/../.." && pwd)
source_roots=("$checkout/protocol" "$checkout/host_arm64" "$checkout/bridge_x86" "$checkout/daemon" "$checkout/tools")

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
fail() { say "$*" >&2; exit 1; }

# find_python 3.12 -> path of an interpreter of exactly that version, or status 1. A version manager's shim is accepted
# only if it runs: pyenv has shims for versions that are not selected, and those exit with 127.
find_python() {
  local version=$1 candidate
  local -a candidates=("python$version" python3 python)
  if command -v pyenv >/dev/null; then
    while IFS= read -r candidate; do candidates+=("$candidate"); done \
      < <(compgen -G "$(pyenv root)/versions/$version*/bin/python$version" | sort -rV)
  fi
  if command -v uv >/dev/null && candidate=$(uv python find "$version" 2>/dev/null); then candidates+=("$candidate"); fi
  for candidate in "${candidates[@]}"; do
    "$candidate" -I - "$version" 2>/dev/null <<'PY' && return 0
import sys
if "%d.%d" % sys.version_info[:2] != sys.argv[1]:
    sys.exit(1)
print(sys.executable)
PY
  done
  return 1
}

# need_debs PROGRAM PACKAGE...: install the packages unless PROGRAM exists. One caller at a time, because two set-ups
# run concurrently and dpkg's lock makes the second one fail rather than wait.
need_debs() {
  local program=$1; shift
  if [ -e "$program" ] || command -v "$program" >/dev/null; then return 0; fi
  [ "$(id -u)" = 0 ] || fail "needs $program: install the packages $* first (apt-get install $*)"
  (
    flock 9
    if [ -e "$program" ] || command -v "$program" >/dev/null; then exit 0; fi
    export DEBIAN_FRONTEND=noninteractive
    # A broken third-party source must not fail the set-up; a missing package is noticed below.
    apt-get update -qq || say "apt-get update reported errors"
    said=$(apt-get install -qq -y --no-install-recommends "$@" 2>&1) || { printf '%s\n' "$said"; exit 1; }
  ) 9>"${TMPDIR:-/tmp}/.lab-apt-$(id -u).lock" >&2
}

# pip_into PYTHON ARGUMENTS...: run pip, and print its output only if it fails. (With --target pip also warns about
# packages of the interpreter that runs it, which are unrelated to the target.)
pip_into() {
  local python=$1 said; shift
  said=$("$python" -m pip install -q --disable-pip-version-check "$@" 2>&1) || { printf '%s\n' "$said" >&2; return 1; }
}

# fingerprint TEXT...: identify a state of a lab; a stamp file with the same fingerprint means that nothing has to be done.
fingerprint() { { cat "$0" "${BASH_SOURCE[0]}"; printf '%s\n' "$@"; } | sha256sum | cut -d' ' -f1; }
is_stamped() { [ -f "$1/.stamp" ] && [ "$(cat "$1/.stamp")" = "$2" ]; }
