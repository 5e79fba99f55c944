"""The drop-in in child processes: make child processes import the drop-in, and hide the host process from functions
that wait for any child.

A folder with three one-line packages and the metadata of ``onnxruntime`` is put first on ``PYTHONPATH``;
multiprocessing, subprocess and shells pass that variable on to child processes. There is one folder per version in
the user's cache, so that a child process that outlives its parent can still use it. If the cache is not writable,
the folder is in the user's runtime folder. If neither is writable, the drop-in works in this process only, and a
warning is logged once. In a child process whose Python lacks qnnbridge, the import raises an `ImportError` with
this reason.

A program may start Python with another environment (``env={}``), or replace ``PYTHONPATH``. The child would then
import an installed onnxruntime. `subprocess.Popen` is therefore wrapped: if the child is the Python of this
process, or a script for that Python, the folder and the variables of qnnbridge are added to its environment. Other
programs get exactly the environment that the program passes.

On Linux the functions of `os` that wait for any child ignore the host (`qnnbridge_os._posix_waits`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_os import files
from qnnbridge_os.native import sleep
from qnnbridge_os.private import default_runtime_folder, make_private_folder, why_not_private
from qnnbridge_protocol import __version__
from qnnbridge_protocol.settings import cache_dir
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.ort")

# Environment variable with the path of the drop-in's folder. It is set if the drop-in is enabled.
VARIABLE: Final = "QNNBRIDGE_DROPIN"
# Value of the variable if no folder is writable. Child processes then do not try again or repeat the warning.
NO_FOLDER: Final = "none"
_OURS: Final = "QNNBRIDGE_"

_MODULE: Final = '''"""Provided by qnnbridge, see `qnnbridge.dropin`."""
import importlib
import sys
del sys.modules[__name__]  # the imports below add the module of qnnbridge
try:
    import qnnbridge.dropin
except ModuleNotFoundError as error:
    raise ImportError(
        f"qnnbridge provides {__name__} here, but this Python ({sys.executable}) lacks qnnbridge: {error}. "
        "Install qnnbridge there, or unset PYTHONPATH for that process."
    ) from None
importlib.import_module(__name__)
'''
_PACKAGES: Final = ("onnxruntime", "onnxruntime_qnn", "onnxruntime_genai")

_WRITE_TRIES: Final = 20
_WRITE_INTERVAL_S: Final = 0.05


# --- the folder on PYTHONPATH ------------------------------------------------------------------------------------


def offer_to_children(environ: MutableMapping[str, str]) -> bool:
    """Put the drop-in's folder first on the ``PYTHONPATH`` of `environ`; return False if no folder is writable."""
    if environ.get(VARIABLE) == NO_FOLDER:
        return False
    folder = _made(environ)
    environ[VARIABLE] = folder or NO_FOLDER
    if folder is not None:
        # Drop empty entries, because Python reads them as the child's working folder.
        path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
        environ["PYTHONPATH"] = os.pathsep.join((folder, *path))
    return folder is not None


def metadata_texts() -> dict[str, str]:
    """Return the contents of the files in the ``dist-info`` folder of the package ``onnxruntime``, by file name."""
    from qnnbridge.ort._environment import host_distribution, host_version

    hosts = host_distribution("onnxruntime")
    requires = "".join(f"Requires-Dist: {one}\n" for one in (hosts and hosts.requires) or ())
    head = f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {host_version()}\nSummary: Provided by qnnbridge.\n"
    return {"METADATA": head + requires, "top_level.txt": "onnxruntime\n"}


def _contents() -> dict[str, str]:
    """Return the contents of the folder's files, by relative path."""
    from qnnbridge.ort._environment import host_version

    info = f"onnxruntime-{host_version() or '0'}.dist-info"
    contents = {f"{name}/__init__.py": _MODULE for name in _PACKAGES}
    contents |= {f"{info}/{name}": text for name, text in metadata_texts().items()}
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*contents, f"{info}/RECORD"))
    return contents


def _made(environ: Mapping[str, str]) -> str | None:
    """Return the drop-in's folder; create it if it is missing. Return ``None`` if no location is writable."""
    from qnnbridge.ort._environment import host_version

    contents = _contents()
    given = environ.get(VARIABLE)
    if given and all(_has(os.path.join(given, name), text) for name, text in contents.items()):
        return given
    problems: list[str] = []
    for base in _bases(problems):
        # The name contains the version, so that a long-running program keeps the folder of its own version.
        folder = os.path.join(base, "dropin", f"{__version__}-{host_version() or 'unknown'}")
        try:
            for name, text in contents.items():
                _write(os.path.join(folder, name), text)
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
            continue
        return folder
    _log.warning(
        "No folder is writable for the drop-in (%s): processes that this program starts use their installed "
        "onnxruntime. Set QNNBRIDGE_CACHE_DIR to a writable folder.",
        "; ".join(problems),
    )
    return None


def _bases(problems: list[str]) -> Iterator[str]:
    """Yield candidates for the parent folder in order of preference. For an unsafe folder, append the reason to
    `problems` instead."""
    yield os.fspath(cache_dir())
    # Python imports code from the folder, so no other user may have write access to it.
    runtime = default_runtime_folder()
    try:
        make_private_folder(runtime)
        problem = why_not_private(runtime)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is None:
        yield os.fspath(runtime)
    else:
        problems.append(f"{runtime}: {problem}")


def _has(path: str, text: str) -> bool:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return file.read() == text
    return False


def _write(path: str, text: str) -> None:
    """Write the file atomically: another process may be reading it, or writing the same text."""
    for tries_left in reversed(range(_WRITE_TRIES)):
        if _has(path, text):
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            files.write_whole(path, text.encode())
            return
        except PermissionError:
            # Windows cannot replace a file that another process has open. If the file does not exist, the folder is
            # not writable, and another attempt is useless.
            if not tries_left or not os.path.exists(path):
                raise
            sleep(_WRITE_INTERVAL_S)


# --- child processes with an environment from the program ---------------------------------------------------------


def follow_children() -> None:
    """Wrap `subprocess.Popen` so that Python processes with a custom environment get the drop-in. Idempotent."""
    if sys.platform == "linux":
        from qnnbridge_os._posix_waits import hide_hosts

        hide_hosts()
    start = subprocess.Popen.__init__
    if not hasattr(start, "_before_qnnbridge"):
        subprocess.Popen.__init__ = _following(start)  # type: ignore[method-assign]


def _following(start: Any) -> Any:
    signature = inspect.signature(start)

    @functools.wraps(start)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            call = signature.bind(self, *args, **kwargs)
        except TypeError:
            start(self, *args, **kwargs)  # let Python raise its own error for invalid arguments
            return
        given = call.arguments
        env = _completed(given.get("env"), given["args"], given.get("executable"), shell=bool(given.get("shell")))
        if env is not None:
            given["env"] = env
        start(*call.args, **call.kwargs)

    init._before_qnnbridge = start  # type: ignore[attr-defined]
    return init


def _completed(env: Any, arguments: Any, executable: Any, *, shell: bool) -> dict[str, str] | None:
    """Return the child's environment with the drop-in added; ``None`` if `env` must be passed unchanged."""
    folder = os.environ.get(VARIABLE)
    if shell or not folder or folder == NO_FOLDER:
        return None
    try:
        made = {
            os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()
        }
        if folder in made.get("PYTHONPATH", "").split(os.pathsep) and VARIABLE in made:
            return None
        words = [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else list(arguments)
        first, *options = map(os.fsdecode, words)
        if not _is_this_python(os.fsdecode(executable or first), made):
            return None
        # An isolated Python, such as the host, ignores PYTHONPATH.
        if any(word in ("-I", "-E") for word in itertools.takewhile(lambda word: word.startswith("-"), options)):
            return None
    except (TypeError, ValueError, AttributeError, OSError):
        return None  # the arguments are invalid, and `Popen` raises the error
    for name, value in os.environ.items():
        if name.startswith(_OURS):
            made.setdefault(name, value)
    path = [entry for entry in made.get("PYTHONPATH", "").split(os.pathsep) if entry]
    made["PYTHONPATH"] = os.pathsep.join((folder, *path))
    return made


def _is_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Return whether `program` is the interpreter of this process, or a script for that interpreter."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    # Compare folders and not files: interpreters of virtual environments link to the same file but have different
    # packages.
    here = Path(os.path.abspath(sys.executable)).parent
    path = Path(os.path.abspath(found))
    if path.name.lower().startswith("python"):
        return path.parent == here
    with open(path, "rb") as file:
        first = file.readline(512)
    interpreter = first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else ""
    return bool(interpreter) and Path(interpreter).parent == here
