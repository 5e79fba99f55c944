"""A package called ``onnxruntime`` for Python processes that this one starts.

A folder with two one-line packages and their metadata, first on ``PYTHONPATH``: what multiprocessing, subprocess
and any shell in between pass on. Kept in the user's cache, one folder per version, so that a process which
outlives its parent still finds it. A child without qnnbridge gets an `ImportError` that says so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping

import platformdirs

from qnnbridge_protocol._version import __version__

# Set where the drop-in is on; its value is the folder.
VARIABLE = "QNNBRIDGE_DROPIN"

_MODULE = '''"""Answered by qnnbridge, see `qnnbridge.dropin`."""
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


def offer_to_children(environ: MutableMapping[str, str]) -> None:
    """Put the folder first on the path of processes that are started with this environment."""
    folder = _made()
    path = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder]
    environ["PYTHONPATH"] = os.pathsep.join((folder, *path))
    environ[VARIABLE] = folder


def metadata_text() -> str:
    """The METADATA file of the package ``onnxruntime``."""
    from qnnbridge.ort._environment import host_version

    return f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {host_version()}\nSummary: Answered by qnnbridge.\n"


def _made() -> str:
    from qnnbridge.ort._environment import host_version

    version = host_version()
    base = os.environ.get("QNNBRIDGE_CACHE_DIR") or platformdirs.user_cache_dir("qnnbridge", False)
    folder = os.path.join(base, "dropin", f"{__version__}-{version or 'unknown'}")
    files = {
        os.path.join("onnxruntime", "__init__.py"): _MODULE,
        os.path.join("onnxruntime_qnn", "__init__.py"): _MODULE,
        os.path.join(f"onnxruntime-{version or '0'}.dist-info", "METADATA"): metadata_text(),
    }
    for name, text in files.items():
        _write(os.path.join(folder, name), text)
    return folder


def _write(path: str, text: str) -> None:
    """Whole or not at all: another process may be reading it, or writing the same."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
