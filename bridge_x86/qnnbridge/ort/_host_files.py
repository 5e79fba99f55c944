"""Modules of onnxruntime that are plain Python, from the host's own installation: ``onnxruntime.quantization``,
``onnxruntime.tools``, ``onnxruntime.transformers`` and what ``onnxruntime.capi`` has beside its bindings.

They are read, never written: no bytecode is left in the host's folder. What they import by the name ``onnxruntime``
is the drop-in, so their sessions run in the host. What else they need (onnx, sympy, torch) is the application's to
install; an `ImportError` names it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from qnnbridge._connect import default_host
from qnnbridge._launch.interpreter import find_host
from qnnbridge.ort._environment import host_version, package_folders
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.process_names import is_frozen

_log = logging.getLogger("qnnbridge.ort")

_PACKAGE = "onnxruntime"


def find(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of ``onnxruntime.<...>`` in the host's installation; ``None`` where it has no plain Python."""
    folder = _folder()
    if folder is None:
        return None
    parts = fullname.split(".")[1:]
    return _spec(fullname, os.path.join(folder, *parts))


def names() -> list[str]:
    """The packages of the host's onnxruntime."""
    folder = _folder()
    entries: Iterable[str] = () if folder is None else sorted(os.listdir(folder))
    return [name for name in entries if os.path.isfile(os.path.join(folder or "", name, "__init__.py"))]


_found: dict[str, str] = {}


def _folder() -> str | None:
    """Where the host has the package; by its files, or else by the host itself."""
    folder = _found.get(_PACKAGE)
    if folder is None:
        folder = next((path for path in _candidates() if os.path.isfile(os.path.join(path, "__init__.py"))), None)
        if folder is not None:
            _found[_PACKAGE] = folder
    return folder


def _candidates() -> Iterable[str]:
    try:
        for site in package_folders(find_host(None).path):
            path = os.path.join(site, _PACKAGE)
            if os.path.isdir(os.path.join(path, "capi")):
                yield path
        yield default_host().info.ort_folder
    except BridgeError:
        return


def _spec(fullname: str, path: str) -> importlib.machinery.ModuleSpec | None:
    package = os.path.join(path, "__init__.py")
    is_package = os.path.isfile(package)
    source = package if is_package else f"{path}.py"
    if is_package or os.path.isfile(source):
        return importlib.util.spec_from_file_location(
            fullname,
            source,
            loader=_Loader(fullname, source),
            submodule_search_locations=[path] if is_package else None,
        )
    if os.path.isdir(path):  # of modules, or of folders of such
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [path]
        return spec
    return None


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads; says what is missing."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Bytecode is not kept: the folder is the host's."""

    def exec_module(self, module: ModuleType) -> None:
        top = ".".join(self.name.split(".")[:2])
        if self.name == top:
            _log.info("%s is that of onnxruntime %s of the host (%s).", top, host_version(), self.path)
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if not missing or missing in (_PACKAGE, "qnnbridge") or getattr(error, "_explained", False):
                raise
            python = f"the Python of the application ({sys.executable})"
            where = "this frozen application" if is_frozen() else python
            missing_here = ModuleNotFoundError(
                f"No module named {error.name!r}: {self.name} of onnxruntime {host_version()} needs the package "
                f"{missing}, and {where} lacks it. {'Build it with that' if is_frozen() else 'Install it there'}.",
                name=error.name,
                path=error.path,
            )
            missing_here._explained = True  # type: ignore[attr-defined]
            raise missing_here from None
