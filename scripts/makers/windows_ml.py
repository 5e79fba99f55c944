"""Generate the table of Windows ML's releases from wheels that pip has downloaded to a folder:

    pip download --no-deps --only-binary :all: --platform win_arm64 --python-version 3.13 windowsml
    python -m scripts.makers.windows_ml FOLDER

No wheel is installed or loaded.
"""

from __future__ import annotations

import email
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qnnbridge_host.model.releases import version_key
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.versions.packages import READER, RUNTIME, TABLE

_NAME = re.compile(
    r"(?P<package>windowsml|onnxruntime_windowsml)-(?P<version>[^-]+)-(?P<python>[^-]+)-[^-]+-(?P<platform>win_\w+)\.whl"
)


def read_wheel(path: Path) -> dict[str, Any]:
    """Return a table entry with one wheel. Raise `BridgeError` for a file that is not a wheel of Windows ML."""
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
    """Return the document for entries with one wheel each; entries of the same release are merged."""
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
