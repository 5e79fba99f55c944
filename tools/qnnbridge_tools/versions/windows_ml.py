"""The releases of Windows ML's two packages, read from their wheels: `windowsml`, which reads the catalogue of
Windows, and `onnxruntime-windowsml`, an onnxruntime for its providers.

``python -m qnnbridge_tools.versions.windows_ml FOLDER`` makes the table from the wheels in a folder, where pip has
put them (`pip download --no-deps --only-binary :all: --platform win_arm64 --python-version 3.13 windowsml`).
No wheel is installed or loaded. Pure functions besides.
"""

from __future__ import annotations

import dataclasses
import email
import functools
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.releases import is_final, satisfies, version_key
from qnnbridge_protocol.errors import BridgeError

READER: Final = "windowsml"
RUNTIME: Final = "onnxruntime-windowsml"
TABLE: Final = Path(__file__).with_name("windows_ml.json")
_NAME = re.compile(
    r"(?P<package>windowsml|onnxruntime_windowsml)-(?P<version>[^-]+)-(?P<python>[^-]+)-[^-]+-(?P<platform>win_\w+)\.whl"
)


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
    return tuple(map(_release, json.loads(TABLE.read_text("utf-8"))["releases"]))


def _release(entry: Mapping[str, Any]) -> MlRelease:
    fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in entry.items()}
    return MlRelease(**fields)


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


def read_wheel(path: Path) -> dict[str, Any]:
    """An entry of the table with one wheel. Raises `BridgeError` for a file that is none of these wheels."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise BridgeError(f"{path.name} is not named like a wheel of {READER} or {RUNTIME}.")
    with zipfile.ZipFile(path) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(metadata))
        package = str(message["Name"])
        if package == RUNTIME:
            text, pattern = archive.read("onnxruntime/__init__.py").decode("utf-8"), r'^__version__ = "([^"]+)"'
        else:
            text, pattern = "\n".join(message.get_all("Requires-Dist") or ()), rf"^{RUNTIME}==([^;\s]+)"
        ort = re.search(pattern, text, re.MULTILINE)
    return {
        "package": package,
        "version": found["version"],
        "platforms": [found["platform"]],
        "python": [found["python"]],
        "requires_python": str(message["Requires-Python"] or ""),
        "onnxruntime": ort[1] if ort else None,
        "wheels": [
            {
                "file": path.name,
                "size_bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
        ],
    }


def make_table(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The document of entries with one wheel each; those of a release become one."""
    joined: dict[str, dict[str, Any]] = {}
    lists = ("platforms", "python", "wheels")
    for entry in entries:
        key = json.dumps({**entry, **dict.fromkeys(lists)}, sort_keys=True)
        before = joined.setdefault(key, {**entry, **{name: [] for name in lists}})
        for name in lists:
            before[name] += [one for one in entry[name] if one not in before[name]]
    releases = sorted(joined.values(), key=lambda one: version_key(one["version"]), reverse=True)
    for release in releases:
        release["platforms"].sort()
        release["python"].sort()
        release["wheels"].sort(key=lambda wheel: wheel["file"])
    return {"releases": sorted(releases, key=lambda one: one["package"], reverse=True)}


if __name__ == "__main__":
    made = make_table(read_wheel(path) for path in sorted(Path(sys.argv[1]).glob("*.whl")))
    TABLE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8", newline="\n")
