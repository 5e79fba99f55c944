"""Execute a plan: create the environment, install packages, start a host, and write the configuration.

If a step fails or is interrupted, its programs and their children are ended, the environment is removed and the
configuration is restored.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge._launch import DROPPED, Surroundings
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.setup_host.bring_python import BroughtPython
from qnnbridge_tools.setup_host.environment import (
    FREE_SPACE,
    FULL_BYTES,
    RECORD,
    NewEnvironment,
    SetupFailed,
    failed,
    free_bytes,
    not_made,
    not_written,
    remove,
)
from qnnbridge_tools.setup_host.plan import SetupPlan, cannot_extend, read_config, with_host
from qnnbridge_tools.setup_host.this_machine import ask, install_text
from qnnbridge_tools.versions.packages import is_network_trouble, unreachable

if TYPE_CHECKING:
    from qnnbridge import HostInfo

if sys.platform == "win32":

    def _end_tree(process: subprocess.Popen[str]) -> None:
        import psutil

        # List the children before killing the parent, because they cannot be found afterwards.
        try:
            started = psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            started = []
        process.kill()
        for child in started:
            try:
                child.kill()
            except psutil.Error:  # the process has ended by itself
                continue

else:

    def _end_tree(process: subprocess.Popen[str]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the process group that `start_new_session` created
        except ProcessLookupError:
            pass


# Number of kept output lines: the error is in the last lines, but building a package prints thousands before.
KEPT_LINES = 200


class _HeldInterrupt:
    """Delay Ctrl+C until `let_through`, because an interruption during `Popen` would leave a child with an unknown
    pid.
    """

    def __init__(self) -> None:
        self._came = False
        self._holds = threading.current_thread() is threading.main_thread()  # other threads do not receive Ctrl+C
        if self._holds:
            self._handler = signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: Any) -> None:
        self._came = True

    def let_through(self) -> None:
        if self._holds:
            self._holds = False
            signal.signal(signal.SIGINT, self._handler)
        if self._came:
            self._came = False
            raise KeyboardInterrupt


def run_program(
    command: Sequence[str], environ: Mapping[str, str], detail: Callable[[str], None], timeout_s: float
) -> tuple[int, list[str]]:
    """Run a program and return its exit code and the last lines of its output.

    After an interruption or a timeout, child processes are ended as well: children of venv and pip would otherwise
    continue to write into a folder that is being removed.
    """
    interrupt = _HeldInterrupt()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            text=True,
            encoding="utf-8",
            errors="replace",
            # On POSIX, Ctrl+C in the terminal then reaches only this process, which ends the whole group.
            start_new_session=True,
        )
    except BaseException:
        interrupt.let_through()
        raise
    assert process.stdout is not None
    lines: list[str] = []
    # Use another thread for the timeout, because the loop below blocks while reading.
    timer = threading.Timer(timeout_s, _end_tree, (process,))
    timer.daemon = True
    is_done = False
    try:
        interrupt.let_through()
        timer.start()
        for line in process.stdout:
            detail(line.rstrip())
            lines.append(line.rstrip())
            del lines[:-KEPT_LINES]
        code = process.wait()
        is_done = True
    finally:
        timer.cancel()
        if not is_done:
            _end_tree(process)
            process.stdout.read()  # reading ends when no process has the pipe open
            process.wait()
        process.stdout.close()
    return code, lines


# Time limit for pip, long enough to download onnxruntime-qnn over a slow connection. A pip that takes longer is
# considered hung and is ended.
INSTALL_TIMEOUT_S = 3600.0
CONFIG_TIMEOUT_S = 60.0
SHOWN_LINES = 8

# pip's settings for the installation folder, which are ignored. Its other settings (index, proxy, certificate) are
# kept.
_PIP_PLACES = frozenset(
    {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON"}
)

Say = Callable[[str], None]


def carry_out(plan: SetupPlan, say: Say, detail: Say) -> HostInfo:
    """Execute the plan and return the report of the new host.

    Args:
        plan: the plan.
        say: called with each step.
        detail: called with each line of output of the programs.
    """
    if plan.brought is not None and plan.brought.commands:
        _bring(plan.brought, say, detail)
    with NewEnvironment(plan.folder, replace=plan.replaces_environment) as made:
        say(f"Making the environment {plan.folder}")
        _run("environment", plan.commands[0], detail, plan.folder)
        say(f"Installing {plan.choice.release.name if plan.choice else 'ONNX Runtime'} and the host")
        _run("install", plan.commands[1], detail, plan.folder)
        for command in plan.commands[2:]:
            say("Downloading Windows' provider for QNN")
            _run("download", command, detail, plan.folder)
        say("Starting the new host")
        # Check the host before writing the configuration, which must only contain a host that can start.
        info = check_host(plan.python, plan.variables)
        if plan.config is not None:
            say(f"Writing {plan.config}")
        # If writing the record or `made.keep` fails, `_configured` restores the configuration.
        record = {"qnnbridge": __version__, "base": plan.candidate.path}
        with _configured(plan):
            (plan.folder / RECORD).write_text(json.dumps(record), "utf-8")
            made.keep()
    return info


def _bring(brought: BroughtPython, say: Say, detail: Say) -> None:
    """Download a Python. If a later step fails, a complete download is kept for the next set-up."""
    # A killed set-up may have left an incomplete download; uv and the install manager then start again.
    remove(brought.folder)
    say(f"Downloading {brought.text}")
    try:
        brought.folder.mkdir(parents=True)
        (brought.folder / RECORD).write_text(json.dumps({"qnnbridge": __version__}), "utf-8")
        for command in brought.commands:
            _run("python", command, detail, brought.folder)
        answer = ask(brought.candidate.path)
        if isinstance(answer, str):
            raise failed(
                "python",
                f"The downloaded Python {brought.candidate.path} cannot be used: it {answer}.",
                fix=f"Update {brought.by} and run this command again. {install_text(Surroundings.current())}",
            )
    except OSError as error:
        remove(brought.folder)
        raise not_made(brought.folder, error.strerror or str(error)) from error
    except BaseException:
        remove(brought.folder)
        raise
    remove(brought.scratch)


def check_host(python: Path, variables: Mapping[str, str] | None = None) -> HostInfo:
    """Start a host with this interpreter, let it load ONNX Runtime, close it, and return what it reported."""
    from qnnbridge import Host

    try:
        with Host(python=str(python), env=dict(variables or {})) as host:
            return host.info
    except BridgeError as error:
        raise failed(
            "check",
            "The new host does not start.",
            cause=error.message if error.cause is None else f"{error.message} {error.cause}",
            fix=error.fix or "Run `qnnbridge doctor`: it examines this computer.",
            evidence=error.evidence,
        ) from error


@contextlib.contextmanager
def _configured(plan: SetupPlan) -> Iterator[None]:
    """Write the new host into the configuration; restore the file if the body of the `with` statement fails."""
    file = plan.config
    if file is None:
        yield
        return
    before = file.read_bytes() if file.exists() else None
    # Read the file again, because the user or another program may have changed it since the plan was made.
    text = with_host(read_config(file), plan.host_settings)
    if text is None:
        raise cannot_extend(file, str(plan.python))
    try:
        write_text(file, text)
    except OSError as error:
        raise not_written(file, error.strerror or str(error)) from error
    try:
        yield
    except BaseException:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
        raise


def write_text(file: Path, text: str) -> None:
    """Replace the contents of a file, or keep the old contents on failure. If the file is a link, its target is
    replaced.
    """
    file = Path(os.path.realpath(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    # Create the new file in the same folder, because renaming only works within a file system.
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        # Copy the old file's mode: `mkstemp` creates a file that only its owner can read.
        if file.exists():
            os.chmod(name, file.stat().st_mode & 0o777)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def setup_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for venv and pip, without variables of the running interpreter's environment."""
    # PYTHONUTF8=1, because `run_program` reads UTF-8. PYTHONSAFEPATH=1, because otherwise files such as typing.py
    # in the current folder replace Python's own modules.
    return {
        name: value
        for name, value in base.items()
        if name.upper() not in DROPPED
        and name.upper() not in _PIP_PLACES
        # Conda also sets variables with the prefix "_CE_".
        and not name.upper().startswith(("PYTHON", "CONDA_", "_CE_"))
    } | {"PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


def pip_environment(python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` changed so that this interpreter's pip ignores installation folders in its configuration
    files.
    """
    listing = (python, "-m", "pip", "config", "list")
    # Set PIP_USER=0: with `user = yes` in a configuration file, `pip config list` otherwise reads only the user's
    # file.
    asked = {**environ, "PIP_USER": "0"}
    code, lines = run_program(listing, asked, lambda _line: None, CONFIG_TIMEOUT_S)
    # Lines like: install.index-url='https://...'
    settings = {name: text for name, _, text in (line.partition("=") for line in lines)} if code == 0 else {}
    files: dict[str, str] = {}
    # Read the settings for all commands first, so that settings for `install` override them.
    for section in ("global.", "install."):
        for name in filter(lambda name: name.startswith(section), settings):
            variable = f"PIP_{name.removeprefix(section).upper().replace('-', '_')}"
            with contextlib.suppress(ValueError, SyntaxError):
                files[variable] = str(ast.literal_eval(settings[name]))
    if not _PIP_PLACES & files.keys():
        return dict(environ)
    # No option or variable can cancel a target folder set in pip's configuration files. So make pip ignore these
    # files, and pass their other settings as variables.
    kept = {name: value for name, value in files.items() if name not in _PIP_PLACES}
    return {**kept, **environ, "PIP_CONFIG_FILE": os.devnull}


def _run(step: str, command: Sequence[str], detail: Say, folder: Path) -> None:
    environ = setup_environment(os.environ)
    try:
        if step == "install":
            environ = pip_environment(command[0], environ)
        code, lines = run_program(command, environ, detail, INSTALL_TIMEOUT_S)
    except OSError as error:
        raise failed(step, f"{command[0]} cannot be started.", cause=str(error)) from error
    if code != 0:
        raise _why(step, code, lines, free_bytes(folder))


def _why(step: str, code: int, lines: Sequence[str], free: int | None) -> BridgeError:
    output_lines = [line for line in lines if line.strip()]
    # Check this first: pip reports "no matching distribution" even if the index cannot be reached.
    if step == "install" and is_network_trouble("\n".join(output_lines)):
        return unreachable("\n".join(output_lines))
    if step == "python":
        return _not_brought(code, output_lines, free)
    if step == "download":
        return _not_downloaded(code, output_lines)
    errors = [line for line in output_lines if line.lower().startswith("error")] or output_lines
    message = {
        "environment": "The environment cannot be created.",
        "install": "The packages of the host cannot be installed.",
    }[step]
    return SetupFailed(
        message,
        cause=f"{'pip' if step == 'install' else 'venv'} ended with exit code {code}. Nothing is left behind.",
        fix=FREE_SPACE if free is not None and free < FULL_BYTES else _fix(output_lines),
        evidence=errors[-SHOWN_LINES:],
        details={"step": step, "exit_code": code},
    )


def _not_downloaded(code: int, lines: Sequence[str]) -> BridgeError:
    """Return the error of the download. The last line of the output contains it, unless the program was
    killed.
    """
    try:
        wire = json.loads(lines[-1])["error"]
        cause, fix = f"{wire['message']} {wire.get('cause') or ''}".strip(), wire.get("fix")
    except (LookupError, TypeError, ValueError):
        cause, fix = f"The program ended with exit code {code}.", None
    again = "The host can also be set up without --download."
    return SetupFailed(
        "Windows' provider for QNN cannot be downloaded.",
        cause=f"{cause} Nothing is left behind.",
        fix=f"{fix} {again}" if fix else again,
        evidence=lines[-SHOWN_LINES:],
        details={"step": "download", "exit_code": code},
    )


# Substrings of network error messages of uv, the install manager and pip, in lower case.
_UNREACHABLE = (
    "error sending request",
    "dns error",
    "failed to lookup",
    "timed out",
    "proxy",
    "urlopen",
    "0x80072",
)


def _not_brought(code: int, lines: Sequence[str], free: int | None) -> BridgeError:
    text = "\n".join(lines).lower()
    by_hand = install_text(Surroundings.current())
    if (free is not None and free < FULL_BYTES) or "os error 28" in text or "os error 112" in text:
        fix: str | None = FREE_SPACE
    elif "os error 13" in text or "os error 5)" in text:
        fix = "Choose a folder that you may write to with --dir."
    elif is_network_trouble(text) or any(word in text for word in _UNREACHABLE):
        fix = (
            "Check the network, and the proxy in HTTPS_PROXY; or name a mirror in UV_PYTHON_INSTALL_MIRROR, or a "
            f"folder with the downloads as --from FOLDER. By hand: {by_hand}"
        )
    else:
        fix = _fix(lines) or by_hand
    return SetupFailed(
        "Python cannot be downloaded.",
        cause=f"The program that downloads Python ended with exit code {code}. Nothing is left behind.",
        fix=fix,
        evidence=lines[-SHOWN_LINES:],
        details={"step": "python", "exit_code": code},
    )


def _fix(lines: Sequence[str]) -> str | None:
    text = "\n".join(lines).lower()
    # 28 is ENOSPC, and 112 is ERROR_DISK_FULL of Windows.
    if "no space left" in text or "errno 28" in text or "winerror 112" in text:
        return FREE_SPACE
    # Check qnnbridge before other packages: an index may have it, but not in this version.
    if "qnnbridge==" in text and ("no matching distribution" in text or "could not find a version" in text):
        return "The index does not have this version of qnnbridge: give its wheel or its checkout with --from."
    if "no matching distribution" in text or "could not find a version" in text:
        return "The index lacks the package, or cannot be reached; `pip config list` shows which index pip uses."
    # 13 is EACCES, and 5 is ERROR_ACCESS_DENIED of Windows.
    if "permission denied" in text or "errno 13" in text or "winerror 5" in text:
        return "Choose a folder that you may write to with --dir."
    return None
