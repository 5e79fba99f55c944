#!/usr/bin/env bash
# ARM64 lab: a real aarch64 CPython 3.11 with ONNX Runtime and the QNN execution provider, run by qemu's user mode.
#
#   usage: setup_arm64.sh DIR
#
# Afterwards DIR has three launchers, each for a separate ARM64 machine (see README.md in this folder):
#   python-arm64            no NPU
#   python-arm64-fake-npu   the QNN provider detects an NPU
#   python-arm64-broken     `import onnxruntime` crashes with SIGSEGV
#
# Needs no chroot, no binfmt_misc and no foreign architecture in dpkg: Debian's arm64 packages are only unpacked, and
# qemu looks up absolute paths in the unpacked tree first. The project's source roots are on the path of all three,
# by a .pth file, because the host runs isolated (-I). Environment: QNNBRIDGE_LAB_LIKE=PYTHON takes the versions of
# onnxruntime, onnxruntime-qnn and onnx from that interpreter.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
version=3.11 suite=bookworm
machine=$lab/machine packages=$lab/packages
stdlib=$machine/usr/lib/python$version

python=$(find_python $version) || fail "needs a Python $version with pip"
wanted=$("$python" "$labs_folder/project_requirements.py" ${QNNBRIDGE_LAB_LIKE:+--like "$QNNBRIDGE_LAB_LIKE"} host genai)
need_debs qemu-aarch64-static qemu-user-static

unpack_debian() {
  # A separate apt state for arm64, empty except for the machine's package sources and keys.
  local state=$lab/apt
  rm -rf "$state"; mkdir -p "$state/lists/partial" "$state/archives/partial"; : > "$state/status"
  local -a apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=false
    -o APT::Sandbox::User=root -o APT::Default-Release=$suite -o Acquire::Languages=none -o Acquire::Retries=3
    -o Dir::State="$state" -o Dir::State::lists="$state/lists" -o Dir::State::status="$state/status"
    -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives")
  printf '#clear APT::Architectures;\n' > "$state/apt.conf"
  APT_CONFIG=$state/apt.conf "${apt[@]}" update || say "apt-get update reported errors"
  # libatomic1: without it the QNN library runs until it has to read or write a context binary.
  APT_CONFIG=$state/apt.conf "${apt[@]}" install -y --download-only \
    python$version-minimal libpython$version-stdlib libstdc++6 libgcc-s1 libatomic1
  # Debian's merged /usr: packages still contain paths under /lib, which must be unpacked to /usr/lib.
  local part
  mkdir -p "$machine"
  for part in bin sbin lib; do mkdir -p "$machine/usr/$part"; ln -sfn "usr/$part" "$machine/$part"; done
  local archive
  for archive in "$state"/archives/*.deb; do dpkg-deb --extract "$archive" "$machine"; done
  rm -rf "$state"
}

install_packages() {
  # pip accepts a wheel only if its exact platform tag is listed, so list every glibc up to that of Debian 12.
  local -a tags=(--platform manylinux2014_aarch64)
  local minor
  for minor in $(seq 17 36); do tags+=(--platform "manylinux_2_${minor}_aarch64"); done
  printf '%s\n' "$wanted" > "$lab/requirements.txt"
  pip_into "$python" --no-compile --only-binary=:all: --implementation cp --python-version $version "${tags[@]}" \
    --target "$packages" -r "$lab/requirements.txt"
  # Byte code is the same on every architecture; with code compiled here, an emulated start takes half the time.
  "$python" -m compileall -q -j 0 "$stdlib" "$packages" || say "some files have no byte code (harmless)"
}

describe_cpu() {
  # ONNX Runtime's CPU probe crashes when it reads an x86 /proc/cpuinfo, so the machine has one of an Arm core.
  mkdir -p "$machine/proc"
  local core
  # As many processors as /sys lists, whatever part of them this process may use: the probe assumes that both agree.
  for core in $(seq 0 $(($(nproc --all) - 1))); do
    printf '%s\t: %s\n' processor "$core" BogoMIPS 100.00 \
      Features 'fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp' \
      'CPU implementer' 0x41 'CPU architecture' 8 'CPU variant' 0x3 'CPU part' 0xd0c 'CPU revision' 1
    echo
  done > "$machine/proc/cpuinfo"
}

# variant NAME: a second machine that shares everything with the first one except /dev and /proc.
variant() {
  local other=$lab/machine-$1
  rm -rf "$other"; mkdir -p "$other/dev" "$other/proc"
  local part
  for part in usr bin sbin lib; do ln -s "$machine/$part" "$other/$part"; done
  echo "$other"
}

launcher() {
  local file=$lab/$1 root=$2
  # exec, so that a crash by a signal reaches the parent as such and not as 128+n; no core files, which qemu itself
  # would write into the current folder.
  cat > "$file" <<LAUNCHER
#!/bin/sh
export PYTHONDONTWRITEBYTECODE=1
ulimit -c 0
exec "$(command -v qemu-aarch64-static)" -L "$root" "$machine/usr/bin/python$version" "\$@"
LAUNCHER
  chmod +x "$file"
}

state=$(fingerprint "$wanted")
if is_stamped "$lab" "$state"; then
  say "already there: $lab"
else
  rm -rf "$lab"; mkdir -p "$lab"
  unpack_debian
  install_packages
fi

describe_cpu
mkdir -p "$machine/usr/lib/python3/dist-packages"
printf '%s\n' "$packages" "${source_roots[@]}" > "$machine/usr/lib/python3/dist-packages/lab.pth"
npu=$(variant fake-npu)
cp "$machine/proc/cpuinfo" "$npu/proc/cpuinfo"
: > "$npu/dev/fastrpc-cdsp"   # the device node of Qualcomm's DSP driver: the provider only checks that it exists
broken=$(variant broken)      # no proc/cpuinfo here
launcher python-arm64 "$machine"
launcher python-arm64-fake-npu "$npu"
launcher python-arm64-broken "$broken"

"$lab/python-arm64" -I -c '
import platform, onnxruntime, onnxruntime_qnn, qnnbridge_protocol
print(platform.machine(), platform.python_version(), onnxruntime.__version__, onnxruntime_qnn.__version__)'
echo "$state" > "$lab/.stamp"
