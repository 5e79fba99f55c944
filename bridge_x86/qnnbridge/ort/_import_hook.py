"""The import hook that makes ``import onnxruntime`` return `qnnbridge.ort`, in this process and its children.

In this process an import finder, installed once and protected by Python's import lock, resolves ``onnxruntime``. A
module is the same object under both names, so that a class is the same class however it was imported. The modules
have the ``__name__`` of onnxruntime's modules, and ``importlib.metadata`` returns the version of the host's ONNX
Runtime.

Child processes find the drop-in in a folder on their path (`qnnbridge.ort._children`).

``python -m qnnbridge.ort._import_hook [-m] PROGRAM ARGS`` serves interpreters that ignore ``PYTHONPATH``: Windows'
embeddable Python (because of its ``._pth`` file), and any Python with ``-I`` or ``-E``. This module then installs
the finder and runs the program; child processes have the drop-in only if they import `qnnbridge.dropin` themselves.

If a program under `qnnbridge exec` needs a host and no host can be started, the traceback shows only the program's
own frames, and then the error with cause and fix (`shorten_host_errors`). All other exceptions, and with
``QNNBRIDGE_DEBUG=1`` all exceptions, are shown as Python shows them. An exception hook that the program sets later
takes precedence. All functions must be called in the main thread.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType, TracebackType
from typing import Any, Final

from qnnbridge.ort._children import VARIABLE, follow_children, metadata_texts, offer_to_children
from qnnbridge_protocol.errors import BreakerOpen, BridgeError, HostStartFailed
from qnnbridge_protocol.process_names import is_frozen
from qnnbridge_protocol.visible import log_of

# Folder of the package qnnbridge.
_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_NO_HOST: Final = (HostStartFailed, BreakerOpen)


def shorten_host_errors() -> None:
    """Install an exception hook that prints errors of the host's start without qnnbridge's frames."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, _NO_HOST) or os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
            before(kind, error, trace)
            return
        frames = [frame for frame in traceback.extract_tb(trace) if not _is_ours(frame.filename)]
        if frames:
            print("Traceback (most recent call last):", file=sys.stderr)
            traceback.print_list(frames)
        print(f"Error: {error.shown()}", file=sys.stderr)

    sys.excepthook = hook


def _is_ours(file: str) -> bool:
    """Return whether a frame belongs to qnnbridge, or to Python's import system."""
    import qnnbridge_os
    import qnnbridge_protocol

    folders = [_FOLDER, *(os.path.dirname(str(package.__file__)) for package in (qnnbridge_os, qnnbridge_protocol))]
    folders.append(os.environ.get(VARIABLE, folders[0]))
    return file.startswith("<frozen ") or any(file.startswith(folder + os.sep) for folder in folders)


# The packages onnxruntime, onnxruntime_qnn (added by onnxruntime-qnn 2.x) and onnxruntime_genai.
_NAMES = {
    "onnxruntime": "qnnbridge.ort",
    "onnxruntime_qnn": "qnnbridge.ort._qnn_package",
    "onnxruntime_genai": "qnnbridge.genai",
}


class AlreadyImported(ImportError):
    """The real onnxruntime was imported before, so its classes are in use and cannot be replaced."""


def install() -> None:
    """Install the finder, in this process and for its children. Idempotent.

    Raises:
        AlreadyImported: if the real onnxruntime was imported before.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    real = sys.modules.get("onnxruntime")
    if real is not None and real is not sys.modules.get("qnnbridge.ort"):
        raise AlreadyImported(
            "The real onnxruntime is already imported, so qnnbridge cannot replace it. "
            "Import qnnbridge.dropin before onnxruntime, or start the program with `qnnbridge exec`."
        )
    from qnnbridge import ort

    # Insert the finder at the start, because otherwise the path finder would find an installed onnxruntime.
    sys.meta_path.insert(0, _Finder())
    ort.adopt_onnxruntime_names()
    if os.environ.get(VARIABLE):  # `qnnbridge exec` has started this program or its parent
        shorten_host_errors()
    if not is_frozen():  # a child of a frozen application runs the application, not Python
        offer_to_children(os.environ)
        follow_children()


def target_of(name: str) -> str | None:
    """Return the module of qnnbridge for a module name; ``None`` if `name` is not a module of ONNX Runtime."""
    first, dot, rest = name.partition(".")
    base = _NAMES.get(first)
    return None if base is None else base + dot + rest


class _Finder(DistributionFinder, importlib.abc.MetaPathFinder):
    # `python -m` runs this file as __main__, and an import creates a second module from it. This attribute
    # identifies the finders of both modules; `isinstance` would only recognize a finder of the same module.
    is_stand_in = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # There are three cases. If this package has the module, return it: one object under both names. Otherwise
        # load Python source from the host's installation (quantization, tools, transformers). The third case is a
        # module below qnnbridge.ort, imported by the package's own name.
        ours = target_of(fullname)
        if ours is None:
            return _by_our_name(fullname)
        own = _own(ours)
        if own is None:
            return _of_the_host(fullname)
        is_package = own.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(ours), origin=own.origin, is_package=is_package)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        # Normalize the name: `version("ONNXRuntime")` refers to the same package.
        asked = getattr(context, "name", None)
        # If the folder for child processes is on the path, Python's own search of all distributions already finds
        # the metadata there.
        all_of_them = asked is None and os.environ.get(VARIABLE) not in sys.path
        if all_of_them or (asked or "").lower().replace("_", "-") == "onnxruntime":
            yield _Metadata()


def _of_the_host(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module of the host's onnxruntime; ``None`` if the host's onnxruntime lacks it.

    Raises:
        ModuleNotFoundError: if the host's installation is not found.
    """
    if _folder() is None:
        from qnnbridge.ort._errors import missing

        parent, _, name = fullname.rpartition(".")
        raise ModuleNotFoundError(str(missing(parent, name)), name=fullname)
    return find_in_host(fullname)


def _own(ours: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module of this package, obtained from the other finders; ``None`` if the package lacks
    the module.

    Other finders are needed because frozen applications have no files.
    """
    # Without the parent's path a finder would search `sys.path` and might find the program's own quantization.py.
    parent = ours.rpartition(".")[0]
    path = _own_paths.get(parent) or getattr(sys.modules.get(parent), "__path__", None)
    for finder in sys.meta_path:
        if getattr(finder, "is_stand_in", False) or path is None:
            continue
        spec = finder.find_spec(ours, path)
        if spec is not None:
            return spec
    return None


def _by_our_name(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec for an import below ``qnnbridge.ort``: a module of this package or of the host."""
    base, _, rest = fullname.partition("qnnbridge.ort.")
    if base or not rest:
        return None
    own = _own(fullname)
    if own is not None:
        return own
    name = f"onnxruntime.{rest}"
    spec = _of_the_host(name)
    if spec is None:
        return None
    is_package = spec.submodule_search_locations is not None
    return importlib.machinery.ModuleSpec(fullname, _Loader(name), origin=spec.origin, is_package=is_package)


# Original `__path__` of each package of qnnbridge whose `__path__` has been set to the host's onnxruntime, by
# package name.
_own_paths: dict[str, list[str]] = {}


class _Loader(importlib.abc.Loader):
    """Loader that returns the module of qnnbridge for a module name of onnxruntime."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        # Save the spec before Python replaces it: `importlib.reload` finds a module by the name in its spec.
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec, module.__spec__ = module.__spec__, self._own_spec  # undo the import system's change
        if spec is None or spec.name.startswith("qnnbridge."):
            return
        module.__name__ = spec.name
        module.__package__ = spec.parent
        if spec.name == "onnxruntime":
            _show_as_package(module)


def _show_as_package(module: ModuleType) -> None:
    """Make submodules available as in ``onnxruntime``: set the package's path to the host's installation and import
    the modules that ``onnxruntime`` imports."""
    hosts = next(_installed(), None)
    if hosts is not None:
        _own_paths.setdefault("qnnbridge.ort", list(module.__path__))
        module.__path__ = [hosts]
    for name in ("build_and_package_info", "onnxruntime_pybind11_state", "onnxruntime_inference_collection"):
        importlib.import_module(f"onnxruntime.capi.{name}")


class _Metadata(Distribution):
    """Metadata of the package ``onnxruntime``. Its files are the files of the host's installation."""

    def __init__(self) -> None:
        from qnnbridge.ort._environment import host_distribution

        self._hosts = host_distribution("onnxruntime")

    def read_text(self, filename: str) -> str | None:
        # `importlib.metadata` treats None as a missing file.
        own = metadata_texts().get(filename)
        return own if own is not None or self._hosts is None else self._hosts.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        from pathlib import Path

        return Path(_FOLDER).parent / path if self._hosts is None else self._hosts.locate_file(path)


# --- modules of onnxruntime that are plain Python ---
#
# ``onnxruntime.quantization``, ``onnxruntime.tools``, ``onnxruntime.transformers`` and the Python modules of
# ``onnxruntime.capi`` are loaded from the host's installation. No bytecode is written to the host's folder. These
# modules import the drop-in under the name ``onnxruntime``, so their sessions run in the host. The application must
# install their other dependencies (onnx, sympy, torch); the `ImportError` for a missing dependency contains its
# name.

_log = log_of("qnnbridge.ort")


def find_in_host(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of the module ``onnxruntime.<...>`` in the host's installation; ``None`` if the
    installation has no such Python source."""
    folder = _folder()
    if folder is None:
        return None
    parts = fullname.split(".")[1:]
    return _spec(fullname, os.path.join(folder, *parts))


_ort_folder: str | None = None


def _folder() -> str | None:
    """Return the folder of the host's onnxruntime. Search the folders of the host's Python; if that fails, ask the
    running host."""
    global _ort_folder
    # Cache only a success, because a host that cannot start now may be available at the next import.
    if _ort_folder is None:
        _ort_folder = next(_installed(), None) or _of_running_host()
    return _ort_folder


def _installed() -> Iterator[str]:
    """Yield folders of onnxruntime in the host's installation, found without starting the host."""
    from qnnbridge._launch import find_host
    from qnnbridge.ort._environment import package_folders

    try:
        python = find_host(None).path
    except BridgeError:
        return
    for site in package_folders(python):
        path = os.path.join(site, "onnxruntime")
        # The package of the drop-in has the same name, but has no folder capi.
        if os.path.isdir(os.path.join(path, "capi")) and os.path.isfile(os.path.join(path, "__init__.py")):
            yield path


def _of_running_host() -> str | None:
    """Return the folder that the host reports. Start the host if necessary."""
    from qnnbridge._host import default_host

    try:
        folder = default_host().info.ort_folder
    except BridgeError:
        return None
    return folder if os.path.isfile(os.path.join(folder, "__init__.py")) else None


def _spec(fullname: str, path: str) -> importlib.machinery.ModuleSpec | None:
    package = os.path.join(path, "__init__.py")
    is_package = os.path.isfile(package)
    source = package if is_package else f"{path}.py"
    if is_package or os.path.isfile(source):
        return importlib.util.spec_from_file_location(
            fullname,
            source,
            loader=_HostLoader(fullname, source),
            submodule_search_locations=[path] if is_package else None,
        )
    if os.path.isdir(path):
        # The folder has no __init__.py. Without a loader the module becomes a namespace package, as with Python's
        # own finder.
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [path]
        return spec
    return None


class _HostLoader(importlib.machinery.SourceFileLoader):
    """Loader of the host's source files that writes no bytecode and explains missing dependencies."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Do not write bytecode, because the folder belongs to the host."""

    def exec_module(self, module: ModuleType) -> None:
        from qnnbridge.ort._environment import host_version

        top = ".".join(self.name.split(".")[:2])
        # Log one line for onnxruntime.quantization, and nothing for its submodules.
        if self.name == top:
            _log.info("%s is loaded from onnxruntime %s of the host (%s).", top, host_version(), self.path)
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            # In nested imports the error passes through one loader per module. Only the innermost loader explains
            # it.
            if not missing or missing in ("onnxruntime", "qnnbridge") or getattr(error, "_explained", False):
                raise
            python = f"the Python of the application ({sys.executable})"
            where = "this frozen application" if is_frozen() else python
            missing_here = ModuleNotFoundError(
                f"No module named {error.name!r}: {self.name} of onnxruntime {host_version()} needs the package "
                f"{missing}, and {where} lacks it. {'Add it to the build' if is_frozen() else 'Install it there'}.",
                name=error.name,
                path=error.path,
            )
            missing_here._explained = True  # type: ignore[attr-defined]
            raise missing_here from None


def main() -> None:
    install()
    arguments = sys.argv[1:]
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else arguments
    folder = os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0]))
    # Replace the first entry, this module's folder, by the program's folder. An isolated interpreter has not added
    # this module's folder, so insert an entry.
    sys.path[: 0 if getattr(sys.flags, "safe_path", sys.flags.isolated) else 1] = [folder]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
