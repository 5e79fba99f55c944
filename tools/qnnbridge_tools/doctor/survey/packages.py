"""What an interpreter has installed: distributions against their RECORD, modules, folders of QNN libraries.

Only file names and small files are read; nothing is imported. Libraries are hashed in a complete survey only.
"""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Iterator, Sequence
from typing import Final

from qnnbridge_tools.doctor.facts import Answer, Distribution, Packages, QnnSet, Wrong
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.survey.qnn_files import survey_set

QNN: Final = "onnxruntime-qnn"
RUNTIMES: Final = re.compile(r"^(?:onnxruntime(?:-(?!genai|extensions)[a-z]+)?|ort-nightly(?:-[a-z]+)?)$")
"""Distributions that bring the module onnxruntime (or are onnxruntime-qnn)."""

_OTHERS: Final = ("numpy", "msgpack", "qnnbridge", "onnx")
_CHECKED: Final = ("numpy", "msgpack", "qnnbridge")
_MODULES: Final = ("qnnbridge_host", "qnnbridge_protocol", "msgpack", "numpy", "onnxruntime", "onnxruntime_qnn")
_DIST_INFO: Final = re.compile(r"^(?P<name>[A-Za-z0-9]+(?:[._-][A-Za-z]+)*)-(?P<version>\d[^-]*)\.dist-info$")
_ASSIGNMENT: Final = re.compile(r"""^(\w+)\s*=\s*['"]([^'"]*)['"]""", re.MULTILINE)
_NATIVE: Final = re.compile(r"\.(?:dll|pyd|cat|so(?:\.[\d.]+)?)$", re.IGNORECASE)
_MAX_WRONG: Final = 20


def survey_packages(machine: Machine, answer: Answer, *, complete: bool) -> Packages:
    """Of the interpreter that gave the answer."""
    folders = tuple(dict.fromkeys(answer.path))
    paths = paths_of(machine.system)
    distributions = tuple(_distributions(machine, folders, complete))
    runtime = _module(machine, folders, "onnxruntime")
    plugin = _module(machine, folders, "onnxruntime_qnn")
    capi = paths.join(runtime, "capi") if runtime else None
    built = _constants(machine, capi) if capi else {}
    plugin_built = _constants(machine, plugin) if plugin else {}
    places = [place for place in (capi, *_plugin_folders(machine, plugin)) if place]
    found = (survey_set(machine, place, complete=complete) for place in places)
    sets = tuple(one for one in found if one is not None and (one.of("backend") or one.of("provider")))
    state = next((n for n in machine.names(capi or "") if n.startswith("onnxruntime_pybind11_state")), None)
    library = machine.library(paths.join(capi, state), version=False) if capi and state else None
    return Packages(
        distributions=distributions,
        runtime=runtime,
        runtime_package=built.get("package_name"),
        runtime_version=built.get("__version__"),
        runtime_machine=library.machine if library else None,
        plugin=plugin,
        plugin_sdk=plugin_built.get("qnn_version"),
        loaded=loaded_folder(machine.system, answer, capi, plugin, sets),
        sets=sets,
        runtime_folder_has_qnn=any(one.folder == capi for one in sets),
        modules=tuple(name for name in _MODULES if _module(machine, folders, name)),
    )


def loaded_folder(
    system: str, answer: Answer, capi: str | None, plugin: str | None, sets: Sequence[QnnSet]
) -> str | None:
    """The folder whose libraries would be loaded: the choice that onnxruntime_qnn's own platform_loader makes."""
    if plugin is None:
        return next((one.folder for one in sets if one.folder == capi), None)
    if not any("libs" in one.folder[len(plugin) :] for one in sets if one.folder.startswith(plugin)):
        return plugin
    on_arm = answer.machine.lower() in ("arm64", "aarch64")
    name = ("arm64ec" if answer.env_machine.upper() == "AMD64" else "arm64") if on_arm else "amd64"
    return str(paths_of(system).join(plugin, "libs", name))


def _plugin_folders(machine: Machine, plugin: str | None) -> Iterator[str]:
    if plugin is None:
        return
    yield plugin
    libraries = paths_of(machine.system).join(plugin, "libs")
    for name in machine.names(libraries):
        yield paths_of(machine.system).join(libraries, name)


def _module(machine: Machine, folders: Sequence[str], name: str) -> str | None:
    paths = paths_of(machine.system)
    for folder in folders:
        if machine.kind(paths.join(folder, name, "__init__.py")) == "file":
            return str(paths.join(folder, name))
    return None


def _constants(machine: Machine, folder: str) -> dict[str, str]:
    text = text_of(machine, paths_of(machine.system).join(folder, "build_and_package_info.py"), 1 << 16)
    return dict(_ASSIGNMENT.findall(text.replace("\r", ""))) if text else {}


# --- distributions ---------------------------------------------------------------------------------------


def _distributions(machine: Machine, folders: Sequence[str], complete: bool) -> Iterator[Distribution]:
    for folder in folders:
        for entry in machine.names(folder):
            match = _DIST_INFO.match(entry)
            if match is None:
                continue
            name = re.sub(r"[._-]+", "-", match["name"]).lower()
            if RUNTIMES.match(name) or name in _OTHERS:
                yield _distribution(machine, folder, entry, name, match["version"], complete)


def _distribution(
    machine: Machine, folder: str, entry: str, name: str, version: str, complete: bool
) -> Distribution:
    paths = paths_of(machine.system)
    wheel = text_of(machine, paths.join(folder, entry, "WHEEL"), 1 << 16) or ""
    record = text_of(machine, paths.join(folder, entry, "RECORD"), 1 << 22)
    checked = bool(RUNTIMES.match(name)) or name in _CHECKED
    wrong = _wrong_files(machine, folder, record, complete and bool(RUNTIMES.match(name))) if checked else ()
    return Distribution(
        name,
        version,
        folder,
        tags=tuple(re.findall(r"^Tag:\s*(\S+)", wheel, re.MULTILINE)),
        has_record=record is not None,
        wrong=tuple(wrong)[:_MAX_WRONG],
    )


def _wrong_files(machine: Machine, folder: str, record: str | None, hashes: bool) -> Iterator[Wrong]:
    """Files that are missing, and libraries of another size or, if asked for, with other contents."""
    paths = paths_of(machine.system)
    for row in csv.reader((record or "").splitlines()):
        if len(row) < 3 or not row[2].isdigit() or row[0].startswith("..") or row[0].endswith(".pyc"):
            continue
        name, expected = row[0], int(row[2])
        path = paths.normpath(paths.join(folder, name))
        native = _NATIVE.search(name) is not None
        if not native and not name.endswith(".py"):
            continue
        size = machine.size(path)
        if size is None:
            yield Wrong(name, "missing", expected)
        elif native and size != expected:
            yield Wrong(name, "size", expected, size)
        elif native and hashes and row[1].startswith("sha256=") and machine.sha256(path) != _hex(row[1][7:]):
            yield Wrong(name, "hash", expected, size)


def _hex(text: str) -> str:
    """RECORD has hashes in base64 without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
