"""Record the names in every module of an installed onnxruntime, with their kinds and arguments.

``python -m tests.dropin.ort_walk`` prints the walk of the module ``onnxruntime`` that this Python imports, as JSON.
With ``--record FOLDER...`` it walks the packages in these folders (``pip install --no-deps --target FOLDER
onnxruntime==1.27.0``) and writes them to `RECORDS`, which the tests and `ort_table` read. Only the standard
library.
"""

from __future__ import annotations

import importlib
import inspect
import json
import lzma
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "ort_names.json.xz"

# Packages of plain Python, which are loaded unchanged from the host's files.
FROM_FILES = ("quantization", "tools", "transformers")
# Members that are not public but make up a protocol.
SPECIAL = ("__array__", "__dlpack__", "__dlpack_device__", "__getitem__", "__iter__", "__len__")
_PLAIN = (str, int, float, bool, type(None))
_BINDINGS = "onnxruntime.capi.onnxruntime_pybind11_state"


def walk() -> dict[str, Any]:
    """Return the version, the names in each module, and the modules of `FROM_FILES`."""
    import onnxruntime

    folder = os.path.dirname(onnxruntime.__file__ or "")
    inside = sorted(_modules(folder))
    own = [name for name in inside if name.split(".")[1:2] not in [[part] for part in FROM_FILES]]
    return {
        "version": onnxruntime.__version__,
        "modules": walk_modules([*own, _BINDINGS, f"{_BINDINGS}.opkernel", f"{_BINDINGS}.schemadef"]),
        "files": [name for name in inside if name not in own],
    }


def walk_modules(names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: dict(_entries(_module(name))) for name in sorted(names)}


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:  # a class that the bindings create
        parent, _, last = name.rpartition(".")
        return getattr(importlib.import_module(parent), last)  # type: ignore[no-any-return]


def _modules(folder: str) -> Iterator[str]:
    for place, _, files in os.walk(folder):
        for file in files:
            if file.endswith(".py"):
                parts = os.path.relpath(os.path.join(place, file), os.path.dirname(folder))[:-3].split(os.sep)
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _entries(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name in dir(module):
        if name.startswith("_") and name != "__version__":
            continue
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            if value.__name__.startswith(("onnxruntime", "qnnbridge.ort")):
                yield name, {"kind": "module"}
        elif isinstance(value, type):
            if value.__module__.startswith("onnxruntime"):
                yield name, _class(value)
        elif isinstance(value, _PLAIN):
            yield name, {"kind": "value", "type": type(value).__name__}
        elif str(getattr(value, "__module__", "") or getattr(type(value), "__module__", "")).startswith(
            "onnxruntime"
        ):
            entry = {"kind": "function", "arguments": arguments(value)} if callable(value) else {"kind": "value"}
            yield name, {**entry, "module": getattr(value, "__module__", "")}


def _class(cls: type) -> dict[str, Any]:
    members = getattr(cls, "__members__", None)
    names = [n for n in dir(cls) if not n.startswith("_") or n in SPECIAL]
    if issubclass(cls, BaseException):
        names = [n for n in names if n not in dir(BaseException)]
    entry: dict[str, Any] = {"kind": "class", "module": cls.__module__, "members": {}}
    for name in names:
        if members is None or name not in members:
            entry["members"][name] = arguments(inspect.getattr_static(cls, name), bound=True)
    if members is not None:
        entry["enum"] = {name: int(getattr(member, "value", member)) for name, member in members.items()}
    if not members and not issubclass(cls, BaseException):
        entry["members"]["__init__"] = arguments(inspect.getattr_static(cls, "__init__"), bound=True)
    return entry


_SIGNATURE = re.compile(r"^(?:\d+\. )?\w*\((.*)\) -> ", re.MULTILINE)


def arguments(function: Any, *, bound: bool = False) -> list[str] | None:
    """Return the names of the parameters; ``None`` for an object that is not a function.

    A "=" marks a default. Positional-only parameters, and parameters of the bindings without a name, are "_"; "*" and
    "**" stand for any number of further ones.
    """
    if type(function).__name__ == "wrapper_descriptor":  # there is no constructor
        return []
    is_static = isinstance(function, staticmethod)
    function = getattr(function, "__func__", function)
    if isinstance(function, property) or not callable(function):
        return None
    text = getattr(function, "__doc__", None) or ""
    found = _SIGNATURE.search(text)
    if type(function).__name__ in ("builtin_function_or_method", "instancemethod") and found:
        names = [_bound_name(part) for part in _split(found[1])]
        return [name for name in names if name not in ("self", "self=")]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if bound and not is_static:
        parameters = parameters[1:]
    return [_name(parameter) for parameter in parameters]


def _name(parameter: inspect.Parameter) -> str:
    rest = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind)
    name = "_" if parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
    return rest or name + ("" if parameter.default is parameter.empty else "=")


def _bound_name(part: str) -> str:
    name = part.split(":")[0].strip()
    return ("_" if re.fullmatch(r"arg\d+", name) else name) + ("=" if " = " in part else "")


def _split(text: str) -> list[str]:
    """Split a signature into its parameters, whose annotations may contain commas."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def recorded() -> dict[str, dict[str, Any]]:
    """Return the recorded walks of all versions, oldest first."""
    walks: list[dict[str, Any]] = json.loads(lzma.decompress(RECORDS.read_bytes()))
    return {one["version"]: one for one in sorted(walks, key=lambda one: _number(one["version"]))}


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def record(folders: list[str]) -> None:
    walks = []
    for folder in folders:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, os.getcwd()))}
        ran = subprocess.run(
            [sys.executable, "-m", __spec__.name], env=environ, capture_output=True, text=True, check=True
        )
        walks.append(json.loads(ran.stdout))
    text = json.dumps(sorted(walks, key=lambda one: _number(one["version"])), sort_keys=True, separators=(",", ":"))
    RECORDS.write_bytes(lzma.compress(text.encode()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2:])
    else:
        print(json.dumps(walk(), sort_keys=True))
