"""Versions of packages in the host's Python, from the metadata files beside it; no process is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import DistributionFinder, MetadataPathFinder

from qnnbridge._launch.interpreter import find_host
from qnnbridge_protocol.errors import BridgeError

# Which is ONNX Runtime itself up to 1.x, and a plugin beside it from 2.0 on.
QNN_1X = "onnxruntime-qnn"


def host_package_version(name: str) -> str | None:
    """``None`` where the files do not tell: no interpreter, or one that keeps its packages in an unusual place."""
    try:
        python = find_host(None).path
    except BridgeError:
        return None
    # Files only: another finder may be the drop-in, which asks here.
    where = DistributionFinder.Context(path=list(_folders(python)))
    installed = MetadataPathFinder.find_distributions(where)
    found: dict[str, str] = {}
    for one in installed:  # the first on the path is the one that is imported
        found.setdefault(_normal(one.metadata["Name"] or ""), one.version)
    version = found.get(_normal(name))
    if version is None and name == "onnxruntime":
        builtin = found.get(QNN_1X, "")
        version = builtin if builtin.startswith("1.") else None
    return version


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _folders(python: str) -> Iterator[str]:
    """Where that interpreter has its packages: of the virtual environment it stands in, or its own."""
    import sys

    if os.path.realpath(python) == os.path.realpath(sys.executable) and _same_folder(python, sys.executable):
        stand_in = os.environ.get("QNNBRIDGE_DROPIN")
        yield from (entry for entry in sys.path if entry and entry != stand_in)
        return
    for prefix in (os.path.dirname(os.path.dirname(python)), os.path.dirname(python)):
        yield os.path.join(prefix, "Lib", "site-packages")
        library = os.path.join(prefix, "lib")
        if os.path.isdir(library):
            yield from (
                os.path.join(library, entry, "site-packages")
                for entry in sorted(os.listdir(library))
                if entry.startswith("python3")
            )


def _same_folder(one: str, other: str) -> bool:
    return os.path.dirname(os.path.abspath(one)) == os.path.dirname(os.path.abspath(other))


__all__ = ["host_package_version"]
