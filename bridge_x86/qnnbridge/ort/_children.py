"""Processes that a program with the drop-in starts, and those that it waits for.

Processes that this one starts get a folder with three one-line packages and the metadata of ``onnxruntime``,
first on ``PYTHONPATH``: multiprocessing, subprocess and any shell in between pass that on. The folder is kept in
the user's cache, one per version, so that a process which outlives its parent still finds it; where the cache
cannot be written, in the user's runtime folder. Without any folder the drop-in works in this process only, and a
log line says so once. A child without qnnbridge gets an `ImportError` that says so.

A program may start Python with an environment of its own (``env={}``), or replace ``PYTHONPATH``. With
onnxruntime installed the child finds it all the same, so `subprocess.Popen` is wrapped: a child that is this
Python, or a script for it, gets the folder and the variables of qnnbridge in addition. Other programs get exactly
what the program gives.

On Linux the functions of `os` that wait for any child leave out the host (`qnnbridge_os._posix_waits`).
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

# Set where the drop-in is on; its value is the folder.
VARIABLE: Final = "QNNBRIDGE_DROPIN"
# The value where no folder can be written: this was reported, and the processes of the program do not try again.
NO_FOLDER: Final = "none"
_OURS: Final = "QNNBRIDGE_"

_MODULE: Final = '''"""Answered by qnnbridge, see `qnnbridge.dropin`."""
import importlib
import sys
del sys.modules[__name__]  # what follows puts another module there
try:
    import qnnbridge.dropin
except ModuleNotFoundError as error:
    raise ImportError(
        f"{__name__} is answered by qnnbridge here, and this Python ({sys.executable}) lacks it: {error}. "
        "Install qnnbridge there, or unset PYTHONPATH for that process."
    ) from None
importlib.import_module(__name__)
'''
_PACKAGES: Final = ("onnxruntime", "onnxruntime_qnn", "onnxruntime_genai")

_WRITE_TRIES: Final = 20
_WRITE_INTERVAL_S: Final = 0.05


# --- the folder on PYTHONPATH ------------------------------------------------------------------------------------


def offer_to_children(environ: MutableMapping[str, str]) -> bool:
    """Put the folder first on the path of processes that are started with this environment.

    Returns False if there is none, since no folder can be written.
    """
    if environ.get(VARIABLE) == NO_FOLDER:
        return False
    folder = _made(environ)
    environ[VARIABLE] = folder or NO_FOLDER
    if folder is not None:
        # An empty entry means the current folder of the child, which the program did not ask for.
        path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
        environ["PYTHONPATH"] = os.pathsep.join((folder, *path))
    return folder is not None


def metadata_texts() -> dict[str, str]:
    """Return the files of the ``dist-info`` folder of the package ``onnxruntime``, by name."""
    from qnnbridge.ort._environment import host_distribution, host_version

    hosts = host_distribution("onnxruntime")
    requires = "".join(f"Requires-Dist: {one}\n" for one in (hosts and hosts.requires) or ())
    head = f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {host_version()}\nSummary: Answered by qnnbridge.\n"
    return {"METADATA": head + requires, "top_level.txt": "onnxruntime\n"}


def _contents() -> dict[str, str]:
    """Return the texts of the folder's files, by their paths in it."""
    from qnnbridge.ort._environment import host_version

    info = f"onnxruntime-{host_version() or '0'}.dist-info"
    contents = {f"{name}/__init__.py": _MODULE for name in _PACKAGES}
    contents |= {f"{info}/{name}": text for name, text in metadata_texts().items()}
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*contents, f"{info}/RECORD"))
    return contents


def _made(environ: Mapping[str, str]) -> str | None:
    """Return the folder, written if need be; ``None`` if it cannot be written anywhere."""
    from qnnbridge.ort._environment import host_version

    contents = _contents()
    given = environ.get(VARIABLE)
    if given and all(_has(os.path.join(given, name), text) for name, text in contents.items()):
        return given
    problems: list[str] = []
    for base in _bases(problems):
        # The version is a part of the name: a program that lives long keeps the folder of its own version.
        folder = os.path.join(base, "dropin", f"{__version__}-{host_version() or 'unknown'}")
        try:
            for name, text in contents.items():
                _write(os.path.join(folder, name), text)
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
            continue
        return folder
    _log.warning(
        "No folder can be written for the drop-in (%s): processes that this program starts use the onnxruntime "
        "that is installed for them. Set QNNBRIDGE_CACHE_DIR to a folder that can be written.",
        "; ".join(problems),
    )
    return None


def _bases(problems: list[str]) -> Iterator[str]:
    """Yield folders to write to, in the order of preference."""
    yield os.fspath(cache_dir())
    # Python imports from there: it must be a folder that no other user can have filled.
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
    """Write the whole file or nothing: another process may be reading it, or writing the same."""
    for tries_left in reversed(range(_WRITE_TRIES)):
        if _has(path, text):
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            files.write_whole(path, text.encode())
            return
        except PermissionError:
            # Windows replaces no file that another process has open. A folder without rights has no such file.
            if not tries_left or not os.path.exists(path):
                raise
            sleep(_WRITE_INTERVAL_S)


# --- processes with an environment that the program makes ---------------------------------------------------------


def follow_children() -> None:
    """Give the drop-in to Python processes that the program starts with an environment of its own. Idempotent."""
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
            start(self, *args, **kwargs)  # raises the same error, with Python's own words
            return
        given = call.arguments
        env = _completed(given.get("env"), given["args"], given.get("executable"), shell=bool(given.get("shell")))
        if env is not None:
            given["env"] = env
        start(*call.args, **call.kwargs)

    init._before_qnnbridge = start  # type: ignore[attr-defined]
    return init


def _completed(env: Any, arguments: Any, executable: Any, *, shell: bool) -> dict[str, str] | None:
    """Return the environment with the drop-in; ``None`` if the child gets what is given."""
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
        # An isolated Python, as the host, reads no PYTHONPATH.
        if any(word in ("-I", "-E") for word in itertools.takewhile(lambda word: word.startswith("-"), options)):
            return None
    except (TypeError, ValueError, AttributeError, OSError):
        return None  # `Popen` says what is wrong with it
    for name, value in os.environ.items():
        if name.startswith(_OURS):
            made.setdefault(name, value)
    path = [entry for entry in made.get("PYTHONPATH", "").split(os.pathsep) if entry]
    made["PYTHONPATH"] = os.pathsep.join((folder, *path))
    return made


def _is_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Return whether the program is the interpreter of this process, or a script that it runs."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    # By the folder: interpreters of virtual environments are links to the same file, and have other packages.
    here = Path(os.path.abspath(sys.executable)).parent
    path = Path(os.path.abspath(found))
    if path.name.lower().startswith("python"):
        return path.parent == here
    with open(path, "rb") as file:
        first = file.readline(512)
    interpreter = first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else ""
    return bool(interpreter) and Path(interpreter).parent == here
