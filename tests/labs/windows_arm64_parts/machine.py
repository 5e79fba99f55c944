"""Run the machine of the Windows ARM64 lab: namespaces in which the kernel starts ARM64 programs by qemu.

    machine.py LAB PROGRAM [ARGUMENT...]

Starts as the first process of new user, mount and pid namespaces (`LAB/machine` does that), runs the Wine server
and PROGRAM, prints "ready" and waits for the end of its input. When the machine ends, in whatever way, the kernel
ends every process of the namespaces and removes the mounts. Programs enter by `LAB/run`.

The machine ends itself, with the reason on stderr, when a limit is reached. Environment: LAB_PROCESSES,
LAB_MEMORY_MB, LAB_SECONDS.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

# A run of the tests has about fifteen processes at a time; a fault of the lab may start processes without end.
MAX_PROCESSES = int(os.environ.get("LAB_PROCESSES", "120"))
MAX_MEMORY_MB = int(os.environ.get("LAB_MEMORY_MB", "6000"))
MAX_SECONDS = float(os.environ.get("LAB_SECONDS", "2400"))
INTERVAL_S = 0.2
START_TIMEOUT_S = 300.0
END_TIMEOUT_S = 20.0
PAGE = os.sysconf("SC_PAGE_SIZE")

EXIT_UNSUITABLE, EXIT_CEILING = 69, 70

# 64-bit little-endian ELF programs and libraries for ARM64. P: argv[0] is kept; F: qemu is opened now, not at each
# start.
MAGIC = rb"\x7fELF\x02\x01\x01\x00" + rb"\x00" * 8 + rb"\x02\x00\xb7\x00"
MASK = rb"\xff" * 7 + rb"\x00" + rb"\xff" * 8 + rb"\xfe\xff\xff\xff"


def leave(code: int, text: str) -> NoReturn:
    print(f"Windows ARM64 lab: {text}", file=sys.stderr, flush=True)
    os._exit(code)


def mount(kind: str, where: Path) -> str:
    """Mount a file system. Return "", or the reason of the failure."""
    where.mkdir(exist_ok=True)
    command = ["mount", "-t", kind, kind, str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"


def prepare(lab: Path) -> None:
    binfmt = lab / "binfmt"
    if why := mount("binfmt_misc", binfmt):
        leave(EXIT_UNSUITABLE, f"this kernel has no binfmt_misc in user namespaces (it needs Linux 6.7): {why}")
    rule = b":aarch64:M::" + MAGIC + b":" + MASK + b":" + os.fsencode(lab / "qemu-aarch64") + b":PF"
    try:
        (binfmt / "register").write_bytes(rule)
    except OSError as error:
        leave(EXIT_UNSUITABLE, f"the kernel does not take qemu for ARM64 programs: {error}")
    # Process ids of this namespace, which the Wine server looks up.
    if why := mount("proc", Path("/proc")):
        leave(EXIT_UNSUITABLE, f"/proc cannot be mounted in a pid namespace: {why}")
    # The folder of the Wine server's socket, so that nothing of it remains.
    if why := mount("tmpfs", Path("/tmp/.wine-0")):
        leave(EXIT_UNSUITABLE, f"a tmpfs cannot be mounted: {why}")


def processes() -> tuple[int, int]:
    """Return the number of processes, and the bytes that they do not share."""
    count = used = 0
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            count += 1
            try:
                fields = Path(f"/proc/{entry}/statm").read_bytes().split()
            except OSError:
                continue
            used += (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0
    return count, used


class Watch:
    """End the machine at a limit."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def look(self) -> None:
        count, used = processes()
        if count > MAX_PROCESSES:
            leave(EXIT_CEILING, f"ended at {count} processes (at most {MAX_PROCESSES} are allowed)")
        if used > MAX_MEMORY_MB << 20:
            leave(EXIT_CEILING, f"ended at {used >> 20} MB of memory (at most {MAX_MEMORY_MB} are allowed)")
        if time.monotonic() - self._began > MAX_SECONDS:
            leave(EXIT_CEILING, f"ended after {MAX_SECONDS:.0f} s, which is its time")


def reap() -> dict[int, int]:
    """Collect the exit codes of ended processes; orphans of the namespace are children of this process."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def spawn(lab: Path, *command: str) -> int:
    """Start a program with new streams, since Wine's services keep those of the program that starts them."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    log = os.open(lab / "machine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    actions = [(os.POSIX_SPAWN_DUP2, stream, fd) for fd, stream in enumerate((nothing, nothing, log))]
    try:
        return os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    finally:
        os.close(nothing)
        os.close(log)


def run(lab: Path, watch: Watch, seconds: float, *command: str) -> int | None:
    """Return the exit code of a program; ``None`` if it does not end in time."""
    pid = spawn(lab, *command)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended = reap()
        if pid in ended:
            return ended[pid]
        watch.look()
        time.sleep(INTERVAL_S / 4)
    return None


def main() -> None:
    lab, program = Path(sys.argv[1]), sys.argv[2:]
    # Until the namespace has its own /proc, this is the pid outside of the namespace.
    number = os.readlink("/proc/self")
    (lab / "machine.log").unlink(missing_ok=True)
    prepare(lab)
    signal.signal(signal.SIGTERM, lambda *_: leave(0, "ended by a signal"))
    watch = Watch()
    server = str(lab / "root/usr/lib/wine/wineserver64")
    keeper = spawn(lab, server, "--foreground", "--persistent")
    code = run(lab, watch, START_TIMEOUT_S, *program)
    if code != 0:
        said = f"does not end within {START_TIMEOUT_S:.0f} s" if code is None else f"ends with {code}"
        log = (lab / "machine.log").read_text(errors="replace").strip().splitlines()[-1:]
        leave(EXIT_UNSUITABLE, f"its first program {said}: {' '.join([*program, *log])}")
    half = lab / "machine.pid.half"
    half.write_text(number)
    half.rename(lab / "machine.pid")
    print("ready", flush=True)
    while not select.select([0], [], [], INTERVAL_S)[0] or os.read(0, 4096):
        watch.look()
        if keeper in reap():
            leave(EXIT_UNSUITABLE, "the Wine server has ended")
    (lab / "machine.pid").unlink(missing_ok=True)
    # The server writes the registry when it ends.
    run(lab, watch, END_TIMEOUT_S, server, "--kill")


if __name__ == "__main__":
    main()
