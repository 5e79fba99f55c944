"""Find the labs and run programs in them. See README.md in this folder.

The tests of an absent lab are skipped with a reason; with QNNBRIDGE_REQUIRE_LABS=1, as in CI, they fail.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
PROGRAM_TIMEOUT_S = 90.0
# Error of Wine's CreateProcess for a child that ended before it reported to the Wine server (Windows never uses
# it): once in some thousand starts.
WINE_LOST_A_PROCESS = "WinError 1359"


def lab_folder() -> Path:
    return Path(os.environ.get("QNNBRIDGE_LAB_DIR") or CHECKOUT / ".lab")


def demand(path: str, script: str) -> Path:
    """Return a path in a lab; skip or fail the test if the lab is absent."""
    wanted = lab_folder() / path
    if wanted.exists():
        return wanted
    target = lab_folder() / path.split("/")[0]
    word = f"lab absent: {wanted} (set it up with: bash tests/labs/{script} {target})"
    if os.environ.get("QNNBRIDGE_REQUIRE_LABS") == "1":
        pytest.fail(word, pytrace=False)
    pytest.skip(word)


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """Outcome of a finished program."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def failed_by_wine(self) -> bool:
        """True if Wine, not the program, caused a failure. A report of facts contains the error text of Wine."""
        return WINE_LOST_A_PROCESS in self.stdout + self.stderr

    def json(self) -> dict[str, Any]:
        """Return the last line of the output as JSON, which is how the programs of the labs report."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}"
        report = json.loads(self.stdout.strip().splitlines()[-1])
        assert isinstance(report, dict)
        return report


def run_program(
    python: Path,
    *arguments: str | Path,
    timeout_s: float = PROGRAM_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
) -> Program:
    """A lab in which programs run with pipes as standard streams (a Windows program must not get files)."""
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, env=env
    )
    # Under Windows the native library writes UTF-16 among other text to stderr.
    return Program(
        done.returncode, done.stdout.decode("utf-8"), done.stderr.replace(b"\0", b"").decode("utf-8", "replace")
    )


class WindowsLab:
    """The Windows Python under Wine. Its Wine server runs from the first test that needs it to the last.

    Without a permanent server, each program would start one, which inherits the pipe, and the reader of the
    program's output would wait seconds for the server to end. Only this lab's own server is ended.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python-win"
        self._server = folder / "wineserver"

    def start(self) -> None:
        subprocess.run([self._server, "-p"], check=True, stdin=subprocess.DEVNULL, timeout=60)
        # The first process starts Wine's services, which keep its streams; so give it none.
        nothing = subprocess.DEVNULL
        subprocess.run(
            [self.python, "-c", ""], check=True, stdin=nothing, stdout=nothing, stderr=nothing, timeout=60
        )

    def stop(self) -> None:
        subprocess.run([self._server, "-k"], check=False, stdin=subprocess.DEVNULL, timeout=60)
        subprocess.run([self._server, "-w"], check=True, stdin=subprocess.DEVNULL, timeout=60)

    def run(self, script: Path, *arguments: str | Path, timeout_s: float = PROGRAM_TIMEOUT_S) -> Program:
        return run_under_wine(self.python, script, *arguments, timeout_s=timeout_s)


class WindowsArm64Lab:
    """The Windows ARM64 Python under Wine and qemu, in a machine of namespaces that ends with this process.

    The machine ends itself at a limit of processes, memory or time; see `windows_arm64_parts/machine.py`.
    """

    SCRIPT = "setup_windows_arm64.sh"
    # Timeout for compiling CPython on a busy machine.
    SET_UP_TIMEOUT_S = 1500.0
    # The start takes 3 s on an idle machine.
    START_TIMEOUT_S = 120.0
    END_TIMEOUT_S = 40.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        self.python_fake_npu = folder / "python-fake-npu"
        self._machine: subprocess.Popen[bytes] | None = None

    @classmethod
    def set_up(cls) -> WindowsArm64Lab:
        """Return the lab, once a set-up that may still run has ended."""
        folder = lab_folder() / "windows_arm64"
        if folder.is_dir():
            wait = ["flock", "--timeout", str(cls.SET_UP_TIMEOUT_S), f"{folder}.lock", "true"]
            if subprocess.run(wait, check=False).returncode != 0:
                pytest.fail(
                    f"the set-up of {folder} does not end within {cls.SET_UP_TIMEOUT_S:.0f} s", pytrace=False
                )
        demand("windows_arm64/.stamp", cls.SCRIPT)
        return cls(folder)

    def start(self) -> None:
        """Start the machine; start it a second time if it hangs, which Wine's first program did once on a busy
        machine.
        """
        why = self._why_not_started() and self._why_not_started()
        if why is not None:
            pytest.fail(why, pytrace=False)

    def _why_not_started(self) -> str | None:
        with tempfile.TemporaryFile() as said:
            self._machine = machine = subprocess.Popen(
                [self.folder / "machine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
            assert machine.stdout is not None
            ready, _, _ = select.select([machine.stdout], [], [], self.START_TIMEOUT_S)
            if ready and machine.stdout.readline() == b"ready\n":
                return None
            self.stop()
            said.seek(0)
            log = self.folder / "machine.log"
            words = [said.read().decode(errors="replace").strip()]
            words += log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
            code = machine.returncode
            return f"{self.folder}/machine does not start (exit code {code}): {'; '.join(words)}"

    def stop(self) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        try:
            machine.communicate(timeout=self.END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            machine.kill()
            machine.communicate()

    def run(
        self, script: Path, *arguments: str | Path, timeout_s: float = PROGRAM_TIMEOUT_S, npu: bool = False
    ) -> Program:
        python = self.python_fake_npu if npu else self.python
        return run_under_wine(python, script, *arguments, timeout_s=timeout_s)


def run_under_wine(python: Path, script: Path, *arguments: str | Path, timeout_s: float) -> Program:
    """Run a script. Arguments that are `Path`s are converted to Windows paths.

    A program that fails because Wine lost a process at its start runs a second time.
    """
    native = [windows_path(a) if isinstance(a, Path) else a for a in arguments]
    environment = windows_environment()
    run = partial(run_program, python, windows_path(script), *native, timeout_s=timeout_s, env=environment)
    ran = run()
    return run() if ran.failed_by_wine else ran


def windows_environment() -> dict[str, str]:
    """Return the environment of this process, with the product's folders as Windows paths."""
    env = dict(os.environ)
    for name in ("QNNBRIDGE_STATE_DIR", "QNNBRIDGE_CACHE_DIR", "QNNBRIDGE_RUNTIME_DIR"):
        env[name] = windows_path(Path(env[name]))
    return env


def windows_path(path: Path) -> str:
    """Return the path of a file of this machine as a Windows program under Wine sees it."""
    return "Z:" + str(path.resolve()).replace("/", "\\")
