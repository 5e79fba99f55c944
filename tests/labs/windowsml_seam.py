"""Import the real ``windowsml._bindings`` on Linux with a replacement of its library.

The replacement's functions are C functions created by ctypes, so that the wheel's declarations of arguments and
results apply to every call as for the DLL. The file ``WINDOWSML_TABLE`` defines the content of the catalogue::

    {"create": 0, "providers": [{"name": ..., "version": ..., "package": ..., "library": ..., "state": 0,
     "certification": 1, "ready": 0, "progress": [0.5, 1.0], "library_after": ..., "seconds": 0.1}]}

``create``, ``enumerate`` and ``ready`` are HRESULTs. ``seconds``: the time to get ready; ``"hang"`` means
forever. Calls are appended to ``WINDOWSML_TABLE`` + ".calls".
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "WINDOWSML_TABLE"
E_NOTIMPL = -2147467263
E_ABORT = -2147467260
E_PENDING = -2147483638

ENUMERATED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PROGRESSED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_double)


class Hresult(ctypes.c_int):
    """Replacement of ``ctypes.HRESULT``, which only Windows has: a negative result raises `OSError`."""

    @staticmethod
    def _check_retval_(result: Any) -> int:
        number = int(result.value)
        if number < 0:
            raise OSError(number & 0xFFFFFFFF, f"[stand-in] 0x{number & 0xFFFFFFFF:08X}")
        return number


class Block(ctypes.Structure):
    """The layout of ``WinMLAsyncBlock``."""

    _fields_ = [("context", ctypes.c_void_p), ("callback", ctypes.c_void_p), ("progress", ctypes.c_void_p)]


class StandIn:
    """Replacement of the DLL. Handles are positions in the table, starting at 1."""

    def __init__(self, names: Sequence[str]) -> None:
        self.table: dict[str, Any] = json.loads(Path(os.environ[VARIABLE]).read_text("utf-8"))
        self.ready: dict[int, int] = {}
        self.running: dict[int, tuple[threading.Thread, threading.Event, list[int]]] = {}
        for name in names:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Any:
        known: dict[str, tuple[Callable[..., int | None], Sequence[Any]]] = {
            "WinMLEpCatalogCreate": (self.create, [ctypes.c_void_p]),
            "WinMLEpCatalogRelease": (lambda _handle: None, [ctypes.c_void_p]),
            "WinMLEpCatalogEnumProviders": (self.enumerate, [ctypes.c_void_p] * 3),
            "WinMLEpGetReadyState": (self.state, [ctypes.c_void_p] * 2),
            "WinMLEpGetCertification": (self.certification, [ctypes.c_void_p] * 2),
            "WinMLEpEnsureReadyAsync": (self.ensure, [ctypes.c_void_p] * 2),
            "WinMLAsyncGetStatus": (self.status, [ctypes.c_void_p, ctypes.c_int]),
            "WinMLAsyncCancel": (self.cancel, [ctypes.c_void_p]),
            "WinMLAsyncClose": (self.close, [ctypes.c_void_p]),
        }
        text = re.fullmatch(r"WinMLEpGet(Name|Version|PackageFamilyName|LibraryPath|PackageRootPath)(Size)?", name)
        if text is not None and text[2]:
            known[name] = (lambda handle, out: self.size(text[1], handle, out), [ctypes.c_void_p] * 2)
        elif text is not None:
            known[name] = (
                lambda handle, room, buffer, used: self.text(text[1], handle, room, buffer, used),
                [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p],
            )
        function, arguments = known.get(name, (lambda *_: E_NOTIMPL, []))
        void = name.endswith(("Release", "Close"))

        def logged(*given: Any) -> int | None:
            with open(os.environ[VARIABLE] + ".calls", "a", encoding="utf-8") as log:
                log.write(name + "\n")
            return function(*given)

        return ctypes.CFUNCTYPE(None if void else ctypes.c_int, *arguments)(logged)

    def _provider(self, handle: int) -> dict[str, Any]:
        provider: dict[str, Any] = self.table["providers"][handle - 1]
        return provider

    def create(self, out: int) -> int:
        if self.table.get("create", 0) < 0:
            return int(self.table["create"])
        ctypes.c_void_p.from_address(out).value = 0x1000
        return 0

    def enumerate(self, _catalog: int, callback: int, context: int | None) -> int:
        if self.table.get("enumerate", 0) < 0:
            return int(self.table["enumerate"])
        for handle in range(1, len(self.table["providers"]) + 1):
            if not ENUMERATED(callback)(handle, None, context):
                break
        return 0

    def _text_of(self, which: str, handle: int) -> bytes:
        provider = self._provider(handle)
        fields = {"Name": "name", "Version": "version", "PackageFamilyName": "package", "LibraryPath": "library"}
        found = provider.get(fields.get(which, "root"), "")
        if which == "LibraryPath" and handle in self.ready:
            found = provider.get("library_after", found)
        return str(found).encode() + b"\0"

    def size(self, which: str, handle: int, out: int) -> int:
        ctypes.c_size_t.from_address(out).value = len(self._text_of(which, handle))
        return 0

    def text(self, which: str, handle: int, room: int, buffer: int, used: int) -> int:
        content = self._text_of(which, handle)
        assert room >= len(content), f"{which}: {room} bytes for {len(content)}"
        ctypes.memmove(buffer, content, len(content))
        ctypes.c_size_t.from_address(used).value = len(content)
        return 0

    def state(self, handle: int, out: int) -> int:
        ctypes.c_int.from_address(out).value = 0 if handle in self.ready else self._provider(handle).get("state", 0)
        return 0

    def certification(self, handle: int, out: int) -> int:
        ctypes.c_int.from_address(out).value = self._provider(handle).get("certification", 1)
        return 0

    def ensure(self, handle: int, block: int) -> int:
        provider = self._provider(handle)
        if provider.get("refused", 0) < 0:
            return int(provider["refused"])
        asked, stop = Block.from_address(block), threading.Event()
        result = [int(provider.get("ready", 0))]

        def work() -> None:
            for part in provider.get("progress", ()):
                if asked.progress:
                    PROGRESSED(asked.progress)(block, part)
            hangs = provider.get("seconds") == "hang"
            if stop.wait(None if hangs else float(provider.get("seconds", 0))):
                result[0] = E_ABORT
            elif result[0] >= 0:
                self.ready[handle] = 1
            COMPLETED(asked.callback)(block)

        thread = threading.Thread(target=work, daemon=True)
        self.running[block] = (thread, stop, result)
        thread.start()
        return 0

    def status(self, block: int, wait: int) -> int:
        thread, _, result = self.running[block]
        if wait:
            thread.join()
        return E_PENDING if thread.is_alive() else result[0]

    def cancel(self, block: int) -> int:
        if not self.table.get("deaf"):
            self.running[block][1].set()
        return 0

    def close(self, block: int) -> None:
        self.running.pop(block)


class _Loader(importlib.machinery.SourceFileLoader):
    """Run the wheel's module with replacements of the parts of ctypes that only Windows has."""

    def exec_module(self, module: ModuleType) -> None:
        names = re.findall(r"= _dll\.(\w+)", Path(self.path).read_text("utf-8"))
        made = {"WinDLL": lambda _path: StandIn(names), "WINFUNCTYPE": ctypes.CFUNCTYPE, "HRESULT": Hresult}
        platform = sys.platform
        for name, value in made.items():
            setattr(ctypes, name, value)
        sys.platform = "win32"  # the wheel refuses all other systems
        try:
            super().exec_module(module)
        finally:
            sys.platform = platform
            for name in made:
                delattr(ctypes, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "windowsml._bindings" or VARIABLE not in os.environ:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
