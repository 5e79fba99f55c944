"""Context binaries that a function of the application has: written beside a copy of the model, for its session.

QNN reads files only. The folder lives as long as the session; one that a dead host left is removed by the next host
that needs one. Any thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.errors import InvalidArgument, RemoteOSError

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.calls_back import CallsBack

# Name of the function on the wire.
CONTEXT_READ: Final = "ep_context_read"
_PREFIX: Final = "qnnbridge-context-"


class ContextFolder:
    """The model and its context binaries, removed with the object at the latest. path: of the .onnx file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._remove = weakref.finalize(self, shutil.rmtree, os.path.dirname(path), ignore_errors=True)

    def release(self, *, remove: bool = False) -> None:
        """remove: for what other holders may keep; the folder has one holder."""
        self._remove()


def fetch_contexts(source: ModelSource, calls_back: CallsBack) -> ContextFolder | None:
    """Ask the function for each context binary that the model names; ``None`` if it names none."""
    scan = source.scan
    owners = [node for node in scan.ep_contexts if node.owns_blob and not node.embedded] if scan is not None else []
    names = list(dict.fromkeys(node.cache_path for node in owners if node.cache_path))
    if scan is None or not names:
        return None
    _sweep()
    stem = os.path.basename(source.path) if source.path is not None else "model.onnx"
    # With the number of this process, which the `_sweep` of a later host looks at.
    made = ContextFolder(os.path.join(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"), stem))
    folder = os.path.dirname(made.path)
    try:
        # QNN looks for the binaries beside the .onnx file only, so a copy of that comes here.
        if source.path is not None:
            shutil.copyfile(source.path, made.path)
            for name in scan.external_files:  # weights of nodes on the CPU
                beside = os.path.join(os.path.dirname(source.path), name)
                if name not in names and os.path.basename(name) == name and os.path.exists(beside):
                    shutil.copyfile(beside, os.path.join(folder, name))
        else:
            with open(made.path, "wb") as file:
                file.write(source.data or b"")
        for name in names:
            # Bytes of the function must not be written to another folder.
            if os.path.basename(name) != name or name in ("", ".", ".."):
                raise InvalidArgument(f"The model names {name!r} as a context binary, which is no file name.")
            values = calls_back.call(CONTEXT_READ, {"name": name}).values
            if len(values) != 1 or not hasattr(values[0], "tobytes"):
                raise calls_back.nonsense(CONTEXT_READ, "no bytes")
            with open(os.path.join(folder, name), "wb") as file:
                file.write(values[0].tobytes())
    except OSError as error:
        made.release()
        raise RemoteOSError(f"A context binary cannot be written: {error}.", details={"type": "OSError"}) from None
    except BaseException:
        made.release()
        raise
    return made


def _sweep() -> None:
    """Remove folders of hosts that are gone."""
    root = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            pid = name[len(_PREFIX) :].partition("-")[0] if name.startswith(_PREFIX) else ""
            # If another process has the number by now, the folder only stays longer.
            if pid.isdecimal() and int(pid) != os.getpid() and not _alive(int(pid)):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def _alive(pid: int) -> bool:
    import psutil

    return bool(psutil.pid_exists(pid))
