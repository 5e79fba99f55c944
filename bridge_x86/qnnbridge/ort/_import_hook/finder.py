"""Answers ``import onnxruntime`` with `qnnbridge.ort`, in this process.

The modules are the same objects under both names, so that a class is one class however it was imported. Installed
packages are asked for their metadata too (``importlib.metadata.version("onnxruntime")``): the version is that of
the host's ONNX Runtime. Installed once; the import lock of Python protects it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from qnnbridge.ort._import_hook import children, uncaught

# The package, and the one that onnxruntime-qnn 2.x adds to it.
_NAMES = {"onnxruntime": "qnnbridge.ort", "onnxruntime_qnn": "qnnbridge.ort._qnn_package"}


class AlreadyImported(ImportError):
    """onnxruntime itself was imported first; its classes are in use and cannot be exchanged."""


def install() -> None:
    """Idempotent. Raises `AlreadyImported`."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    real = sys.modules.get("onnxruntime")
    if real is not None and getattr(real, "__name__", "") != "qnnbridge.ort":
        raise AlreadyImported(
            "onnxruntime is imported already, so qnnbridge cannot take its place. "
            "Import qnnbridge.dropin before it, or start the program with `qnnbridge exec`."
        )
    sys.meta_path.insert(0, _Finder())
    if os.environ.get(children.VARIABLE):  # a program that `qnnbridge exec` runs, or one that it started
        uncaught.show_in_words()
    children.offer_to_children(os.environ)


def target_of(name: str) -> str | None:
    """The module that answers for `name`; ``None`` for names that are not ONNX Runtime's."""
    first, dot, rest = name.partition(".")
    base = _NAMES.get(first)
    return None if base is None else base + dot + rest


class _Finder(DistributionFinder, importlib.abc.MetaPathFinder):
    is_stand_in = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = target_of(fullname)
        if ours is None:
            _refuse_submodule(fullname, path)
            return None
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:
            found = None
        if found is None:
            parent, _, name = fullname.rpartition(".")
            raise _not_there(parent, name)
        is_package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(ours), origin=found.origin, is_package=is_package)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        asked = getattr(context, "name", None)
        if asked is None or asked.lower().replace("_", "-") == "onnxruntime":
            yield _Metadata()


def _refuse_submodule(fullname: str, path: Sequence[str] | None) -> None:
    """``from onnxruntime import quantization`` looks for a module under the name that ours has itself."""
    parent, _, name = fullname.rpartition(".")
    if parent == "qnnbridge.ort" and importlib.machinery.PathFinder.find_spec(fullname, path) is None:
        raise _not_there("onnxruntime", name)


def _not_there(parent: str, name: str) -> ModuleNotFoundError:
    from qnnbridge.ort._missing import missing

    return ModuleNotFoundError(str(missing(parent, name)), name=f"{parent}.{name}")


class _Loader(importlib.abc.Loader):
    """Hands out a module that has another name of its own."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import machinery has put the other one there


class _Metadata(Distribution):
    """Of the package ``onnxruntime``, as the host has it."""

    def read_text(self, filename: str) -> str | None:
        return children.metadata_text() if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        from pathlib import Path

        import qnnbridge

        return Path(os.path.dirname(os.path.dirname(qnnbridge.__file__))) / path
