"""Gathers what `inspect` shows of a model: from its files, and from the packages that the host has installed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from qnnbridge_host.model.chips import CHIPS, chip_named
from qnnbridge_host.model.compatibility_check import Examination, examine
from qnnbridge_host.model.host_traits import HostTraits
from qnnbridge_host.model.scan import ModelScan, scan_model
from qnnbridge_protocol.errors import BridgeError, OptionError


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A file of tensors that the model names. size: in bytes, ``None`` if it is not there."""

    name: str
    size: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """examination, host: of a compiled model only. no_host: why there is none to hold the model against."""

    path: str
    scan: ModelScan
    data_files: tuple[DataFile, ...]
    examination: Examination | None = None
    host: HostTraits | None = None
    host_python: str | None = None
    no_host: BridgeError | None = None


def gather(model: Path, *, soc_model: str | None = None, host_python: str | None = None) -> Facts:
    """Raises what `scan_model` raises, `OptionError` for an unknown chip, `HostError` for a wrong `host_python`."""
    options = _options(soc_model)
    path = os.path.abspath(model)
    scan = scan_model(path)
    files = tuple(DataFile(name, _size(os.path.join(os.path.dirname(path), name))) for name in scan.external_files)
    if not scan.is_compiled:
        return Facts(path, scan, files)
    host: HostTraits | None = None
    python: str | None = None
    problem: BridgeError | None = None
    try:
        from qnnbridge._launch.interpreter import find_host

        python = find_host(host_python).path
        host = HostTraits.of_interpreter(python, options)
    except BridgeError as error:
        if host_python is not None:
            raise
        problem = error
    examination = examine(path, scan, host or HostTraits())
    return Facts(path, scan, files, examination, host, python, problem)


def _options(soc_model: str | None) -> dict[str, str]:
    if soc_model is None:
        return {}
    chip = chip_named(soc_model)
    if chip is None and not soc_model.strip().isdigit():
        known = ", ".join(f"{chip.name}={chip.number}" for chip in CHIPS)
        raise OptionError(
            f"--soc-model {soc_model!r} is neither a number nor the name of a chip.", fix=f"Known are {known}."
        )
    return {"soc_model": str(chip.number) if chip else soc_model.strip()}


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None
