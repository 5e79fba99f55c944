"""The text in which a compiled model says what it was made with and for.

Since ONNX Runtime 1.23 it is in the model's metadata. It has two forms; the fields are separated by colons:

    6:2.48.40:5.48.0:0.0.0:68:0     backend, SDK, backend API, context blob, architecture, runtime driver
    v2:6:2.51.0:5.51.0:0:60:0:0     backend, SDK, backend API, architectures, chips, VTCM, runtime driver

In the second form architectures, chips and VTCM are lists of equal length, separated by commas; 0 means that none
was named. It mirrors the options of the compiler, not what came of them, and nothing protects it. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from qnnbridge_host.model.chips import chip_label, chip_of

METADATA_KEY: Final = "ep_compatibility_info.QNNExecutionProvider"

HTP_BACKEND: Final = 6
_BACKENDS: Final = {HTP_BACKEND: "HTP backend"}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a context binary was made for. 0 means that the compiler was not told."""

    arch: int = 0
    soc_model: int = 0
    vtcm_mb: int = 0

    @property
    def known_arch(self) -> int | None:
        """The chip decides, where both were said and contradict each other."""
        chip = chip_of(self.soc_model)
        return chip.arch if chip else self.arch or None

    @property
    def label(self) -> str:
        """``SoC 88 (V81)``, ``V73`` or ``no chip named``."""
        arch = self.known_arch
        if self.soc_model:
            return f"SoC {self.soc_model} (V{arch})" if arch else f"SoC {self.soc_model}"
        return f"V{arch}" if arch else "no chip named"


@dataclasses.dataclass(frozen=True, slots=True)
class Compatibility:
    """form: 1 or 2. context_blob: only in the first form. user_driver: made on the runtime driver (HNRD)."""

    text: str
    form: int
    backend: int
    sdk: str
    backend_api: str
    targets: tuple[Target, ...]
    user_driver: bool
    context_blob: str | None = None

    @property
    def words(self) -> tuple[str, str]:
        """The fields for a person: what it was made with, and what for."""
        backend = _BACKENDS.get(self.backend, f"backend {self.backend}")
        made_with = f"{backend}, QNN SDK {self.sdk}, backend API {self.backend_api}"
        if self.context_blob is not None:
            made_with += f", context blob {self.context_blob}"
        driver = (
            "made on the system's runtime driver (HNRD)" if self.user_driver else "not on a runtime driver (HNRD)"
        )
        return made_with, f"for {', '.join(_target_words(target) for target in self.targets)}; {driver}"


def parse(text: str) -> Compatibility | None:
    """``None`` for what has neither of the two forms."""
    fields = text.strip().split(":")
    try:
        if fields[0] == "v2" and len(fields) == 8:
            return _second(text, fields)
        if len(fields) == 6:
            return _first(text, fields)
    except ValueError:
        pass
    return None


def of_metadata(metadata: Mapping[str, str]) -> Compatibility | None:
    """What a model's metadata holds of it."""
    return parse(metadata.get(METADATA_KEY, ""))


def _first(text: str, fields: list[str]) -> Compatibility:
    backend, sdk, api, blob, arch, driver = fields
    return Compatibility(text, 1, int(backend), sdk, api, (Target(_number(arch)),), driver == "1", blob)


def _second(text: str, fields: list[str]) -> Compatibility:
    _, backend, sdk, api, archs, socs, vtcms, driver = fields
    columns = [[_number(item) for item in column.split(",")] for column in (archs, socs, vtcms)]
    targets = tuple(Target(*row) for row in zip(*columns, strict=True))
    return Compatibility(text, 2, int(backend), sdk, api, targets, driver == "1")


def _number(text: str) -> int:
    """Architectures are also written with a letter ("v73")."""
    return int(text.strip().lstrip("vV") or "0")


def _target_words(target: Target) -> str:
    words = chip_label(target.soc_model) if target.soc_model else "no chip named"
    if target.arch:
        words += f", architecture V{target.arch} asked for"
    return words + (f", {target.vtcm_mb} MB of VTCM" if target.vtcm_mb else "")
