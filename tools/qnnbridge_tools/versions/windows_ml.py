"""The releases of Windows ML's two packages, read from their wheels: `windowsml`, which reads the catalogue of
Windows, and `onnxruntime-windowsml`, an onnxruntime for its providers.

`scripts/makers/windows_ml.py` makes the table. Pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.releases import is_final, satisfies
from qnnbridge_protocol.field_types import read_document

READER: Final = "windowsml"
RUNTIME: Final = "onnxruntime-windowsml"
TABLE: Final = Path(__file__).with_name("windows_ml.json")


@dataclasses.dataclass(frozen=True, slots=True)
class MlRelease:
    """One release. python: tags of its wheels, ``py3`` for every one that `requires_python` allows.

    onnxruntime: the release of it that it is, or the onnxruntime-windowsml that its extra ``with-ort`` installs.
    """

    package: str
    version: str
    platforms: tuple[str, ...]
    python: tuple[str, ...]
    requires_python: str
    onnxruntime: str | None
    wheels: tuple[dict[str, Any], ...]

    def has_wheel_for(self, platform: str, python: tuple[int, int] | None) -> bool:
        if platform not in self.platforms:
            return False
        if python is None:
            return True
        if self.requires_python and not satisfies("{}.{}".format(*python), self.requires_python):
            return False
        return bool({"py3", "cp{}{}".format(*python)} & set(self.python))


@functools.cache
def ml_releases() -> tuple[MlRelease, ...]:
    """All in the table, by package, the newest first."""
    entries = json.loads(TABLE.read_text("utf-8"))["releases"]
    return tuple(read_document(MlRelease, entry, "a release") for entry in entries)


def newest(package: str, platform: str, python: tuple[int, int] | None = None) -> MlRelease | None:
    """The newest final release with a wheel for this interpreter."""
    return next(
        (
            one
            for one in ml_releases()
            if one.package == package and is_final(one.version) and one.has_wheel_for(platform, python)
        ),
        None,
    )
