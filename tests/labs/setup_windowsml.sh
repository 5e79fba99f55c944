#!/usr/bin/env bash
# windowsml lab: the real wheels of windowsml, which reads the catalogue of Windows ML.
#
#   usage: setup_windowsml.sh DIR
#
# DIR/win_amd64 and DIR/win_arm64 contain the unchanged wheels, for the labs with Windows. DIR/linux is a virtual
# environment whose windowsml is the wheel's Python with a replacement of its only library (windowsml_seam.py), and
# otherwise the packages of the interpreter that it copies. DIR/linux-without also lacks onnxruntime-qnn.
# Environment: QNNBRIDGE_LAB_LIKE as in setup_arm64.sh.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
mkdir -p "$lab"
version=2.5.96
like=${QNNBRIDGE_LAB_LIKE:-$(find_python 3.11)} || fail "no Python 3.11"
state=$(fingerprint "$like" "$version")
if is_stamped "$lab" "$state"; then say "already there: $lab"; exit 0; fi

for platform in win_amd64 win_arm64; do
  rm -rf "${lab:?}/$platform"
  pip_into "$like" --no-deps --only-binary=:all: --platform "$platform" --python-version 3.11 \
    --target "$lab/$platform" "windowsml==$version"
done

for kind in linux linux-without; do
  venv=$lab/$kind
  rm -rf "$venv"
  "$like" -m venv --without-pip "$venv"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$lab/win_amd64/windowsml" "$lab/win_amd64/windowsml-$version.dist-info" "$site"
  ln -s "$labs_folder/windowsml_seam.py" "$site/windowsml_seam.py"
  echo "import windowsml_seam" > "$site/windowsml_seam.pth"
  if [ "$kind" = linux ]; then
    # After its own packages come those of the other interpreter, including editable ones.
    "$like" - > "$site/like.pth" <<'PY'
import site
for folder in site.getsitepackages():
    print(f"import site; site.addsitedir({folder!r})")
PY
  else
    "$like" - "$site" "${source_roots[@]}" <<'PY'
import pathlib, site, sys
target, *roots = map(pathlib.Path, sys.argv[1:])
(target / "checkout.pth").write_text("".join(f"{root}\n" for root in roots))
for folder in map(pathlib.Path, site.getsitepackages()):
    for entry in folder.iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(("onnxruntime_qnn", "__", "qnnbridge")):
            if not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)
PY
  fi
  "$venv/bin/python" -I -c "import importlib.metadata, qnnbridge_host, onnxruntime; importlib.metadata.version('windowsml')"
done
echo "$state" > "$lab/.stamp"
say "windowsml $version: $(du -sh "$lab" | cut -f1)"
