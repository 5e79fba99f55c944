"""How `qnnbridge.ort` comes to be what ``import onnxruntime`` gives: in this process, and in those it starts.

In this process a finder answers ``onnxruntime``. The modules are the same objects under both names, so that a
class is one class however it was imported; their ``__name__`` is onnxruntime's.
``importlib.metadata.version("onnxruntime")`` gives the version of the host's ONNX Runtime. Installed once; the
import lock of Python protects it.

Processes that this one starts find it by a folder on their path (`qnnbridge.ort._children`).

``python -m qnnbridge.ort._import_hook [-m] PROGRAM ARGS`` is for an interpreter that ignores ``PYTHONPATH``:
Windows' embeddable Python (its ``._pth`` file), and any under ``-I`` or ``-E``. The finder is then installed
from within; processes that the program starts have it only if they import `qnnbridge.dropin` themselves.

A program that `qnnbridge exec` runs may need a host where there is none, or none can be started. It cannot know
of that: its own lines are shown, down to the one that needed the host, and then the explained error, without the
frames of qnnbridge (`show_in_words`). Any other exception, and all of them with ``QNNBRIDGE_DEBUG=1``, is shown
as Python shows it. A hook that the program sets itself comes later and wins. Main thread.
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

# Of the package qnnbridge.
_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_NO_HOST: Final = (HostStartFailed, BreakerOpen)


def show_in_words() -> None:
    """From here on, in this process."""
    # A hook that was set before this one shows all other errors.
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
    """Whether a frame is of qnnbridge, or of Python's own import on the way to it."""
    import qnnbridge_os
    import qnnbridge_protocol

    folders = [_FOLDER, *(os.path.dirname(str(package.__file__)) for package in (qnnbridge_os, qnnbridge_protocol))]
    folders.append(os.environ.get(VARIABLE, folders[0]))
    return file.startswith("<frozen ") or any(file.startswith(folder + os.sep) for folder in folders)


# The package, the one that onnxruntime-qnn 2.x adds to it, and that of onnxruntime-genai.
_NAMES = {
    "onnxruntime": "qnnbridge.ort",
    "onnxruntime_qnn": "qnnbridge.ort._qnn_package",
    "onnxruntime_genai": "qnnbridge.genai",
}


class AlreadyImported(ImportError):
    """onnxruntime itself was imported first; its classes are in use and cannot be exchanged."""


def install() -> None:
    """Idempotent. Raises `AlreadyImported`."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    real = sys.modules.get("onnxruntime")
    if real is not None and real is not sys.modules.get("qnnbridge.ort"):
        raise AlreadyImported(
            "onnxruntime is imported already, so qnnbridge cannot take its place. "
            "Import qnnbridge.dropin before it, or start the program with `qnnbridge exec`."
        )
    from qnnbridge import ort

    # First, since an onnxruntime that is installed would be found by the path otherwise.
    sys.meta_path.insert(0, _Finder())
    ort.take_the_place()
    if os.environ.get(VARIABLE):  # a program that `qnnbridge exec` runs, or one that it started
        show_in_words()
    if not is_frozen():  # its own processes are itself again; any other Python lacks qnnbridge
        offer_to_children(os.environ)
        follow_children()


def target_of(name: str) -> str | None:
    """The module that answers for `name`; ``None`` for names that are not ONNX Runtime's."""
    first, dot, rest = name.partition(".")
    base = _NAMES.get(first)
    return None if base is None else base + dot + rest


class _Finder(DistributionFinder, importlib.abc.MetaPathFinder):
    # `python -m` runs this file as __main__, and an import makes a second module of it. This attribute marks the
    # finders of both; `isinstance` knows only those of its own module.
    is_stand_in = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Three cases. A name of onnxruntime that this package has: our module, one object under both names.
        # One that it lacks: plain Python of the host's installation (quantization, tools, transformers).
        # A name below qnnbridge.ort: an import by the package's own name.
        ours = target_of(fullname)
        if ours is None:
            return _by_our_name(fullname)
        own = _own(ours)
        if own is None:
            return _of_the_host(fullname)
        is_package = own.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(ours), origin=own.origin, is_package=is_package)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        # The name comes as the caller wrote it: `version("ONNXRuntime")` asks for the same package.
        asked = getattr(context, "name", None)
        # A search of all distributions finds the one in the folder for children, where that is on the path.
        all_of_them = asked is None and os.environ.get(VARIABLE) not in sys.path
        if all_of_them or (asked or "").lower().replace("_", "-") == "onnxruntime":
            yield _Metadata()


def _of_the_host(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """``None`` for a module that the host's onnxruntime lacks. Raises `ModuleNotFoundError` if there is no host."""
    if _folder() is None:
        from qnnbridge.ort._errors import missing

        parent, _, name = fullname.rpartition(".")
        raise ModuleNotFoundError(str(missing(parent, name)), name=fullname)
    return find_in_host(fullname)


def _own(ours: str) -> importlib.machinery.ModuleSpec | None:
    """A module of this package, as the other finders have it: in a frozen application there are no files."""
    # Without the parent's path a finder would search `sys.path`, and find a program's own quantization.py.
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
    """An import below ``qnnbridge.ort``: a module of ours, or one of the host under the name of ours."""
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


# Where our packages have their modules, by name, if their `__path__` is the one of onnxruntime in the host.
_own_paths: dict[str, list[str]] = {}


class _Loader(importlib.abc.Loader):
    """Hands out a module that has another name of its own."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        # Kept before Python sets its own: `importlib.reload` looks for a module by the name in its spec.
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec, module.__spec__ = module.__spec__, self._own_spec  # the import machinery has put the other one there
        if spec is None or spec.name.startswith("qnnbridge."):
            return
        module.__name__ = spec.name
        module.__package__ = spec.parent
        if spec.name == "onnxruntime":
            _show_as_package(module)


def _show_as_package(module: ModuleType) -> None:
    """Let programs that look into the package find what onnxruntime has: its modules, and those of its classes."""
    hosts = next(_installed(), None)
    if hosts is not None:
        _own_paths.setdefault("qnnbridge.ort", list(module.__path__))
        module.__path__ = [hosts]
    for name in ("build_and_package_info", "onnxruntime_pybind11_state", "onnxruntime_inference_collection"):
        importlib.import_module(f"onnxruntime.capi.{name}")


class _Metadata(Distribution):
    """Metadata of the package ``onnxruntime`` in the host: its files are the host's."""

    def __init__(self) -> None:
        from qnnbridge.ort._environment import host_distribution

        self._hosts = host_distribution("onnxruntime")

    def read_text(self, filename: str) -> str | None:
        # None: `importlib.metadata` takes it for a file that the package lacks.
        own = metadata_texts().get(filename)
        return own if own is not None or self._hosts is None else self._hosts.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        from pathlib import Path

        return Path(_FOLDER).parent / path if self._hosts is None else self._hosts.locate_file(path)


# --- modules of onnxruntime that are plain Python ---
#
# ``onnxruntime.quantization``, ``onnxruntime.tools``, ``onnxruntime.transformers`` and what ``onnxruntime.capi``
# has beside its bindings come from the host's own installation. They are read, never written: no bytecode is left
# in the host's folder. What they import by the name ``onnxruntime`` is the drop-in, so their sessions run in the
# host. What else they need (onnx, sympy, torch) is the application's to install; an `ImportError` names it.

_log = log_of("qnnbridge.ort")


def find_in_host(fullname: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of ``onnxruntime.<...>`` in the host's installation; ``None`` where it has no plain Python."""
    folder = _folder()
    if folder is None:
        return None
    parts = fullname.split(".")[1:]
    return _spec(fullname, os.path.join(folder, *parts))


_ort_folder: str | None = None


def _folder() -> str | None:
    """Where the host has the package; by its files, or else by the host itself."""
    global _ort_folder
    # Only a success is kept: a host that cannot start now may be there at the next import.
    if _ort_folder is None:
        _ort_folder = next(_installed(), None) or _of_running_host()
    return _ort_folder


def _installed() -> Iterator[str]:
    """Yield folders of the package in the host's installation, as far as files show them."""
    from qnnbridge._launch import find_host
    from qnnbridge.ort._environment import package_folders

    try:
        python = find_host(None).path
    except BridgeError:
        return
    for site in package_folders(python):
        path = os.path.join(site, "onnxruntime")
        # The stand-in package of the drop-in has the same name and no capi.
        if os.path.isdir(os.path.join(path, "capi")) and os.path.isfile(os.path.join(path, "__init__.py")):
            yield path


def _of_running_host() -> str | None:
    """Ask the host itself, which is started for it."""
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
    if os.path.isdir(path):  # of modules, or of folders of such
        # A loader of None makes it a namespace package, as Python's own finder does for such a folder.
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [path]
        return spec
    return None


class _HostLoader(importlib.machinery.SourceFileLoader):
    """Reads; says what is missing."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Bytecode is not kept: the folder is the host's."""

    def exec_module(self, module: ModuleType) -> None:
        from qnnbridge.ort._environment import host_version

        top = ".".join(self.name.split(".")[:2])
        # One line for onnxruntime.quantization, and none for each of its modules.
        if self.name == top:
            _log.info("%s is that of onnxruntime %s of the host (%s).", top, host_version(), self.path)
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            # An import within an import passes through a loader for each module. The innermost one explains it.
            if not missing or missing in ("onnxruntime", "qnnbridge") or getattr(error, "_explained", False):
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


def main() -> None:
    install()
    arguments = sys.argv[1:]
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else arguments
    folder = os.getcwd() if is_module else os.path.dirname(os.path.abspath(arguments[0]))
    # An isolated interpreter has put no folder of this module first.
    sys.path[: 0 if getattr(sys.flags, "safe_path", sys.flags.isolated) else 1] = [folder]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
