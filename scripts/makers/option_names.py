"""Find QNN's option names in the wheels of every release, and write option_names.json.

``python -m scripts.makers.option_names`` downloads one wheel for each release and platform from 1.20 on, one at a
time (about 6 GB). It also prints strings in the newest libraries that look like option names but are missing in the
tables of `qnn_options`, for a person to review. ``--verify`` prints the differences and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_host.engine.qnn_options import DYNAMIC_OPTIONS, PROVIDER_OPTIONS, RUN_OPTIONS
from qnnbridge_host.model import option_names
from qnnbridge_host.model.releases import is_final, load_releases, version_key
from scripts.makers import wheels

TABLE = Path(option_names.__file__).with_name("option_names.json")
NAMES = (*PROVIDER_OPTIONS, *RUN_OPTIONS, *DYNAMIC_OPTIONS)
OLDEST = (1, 20)
# Up to 1.20 the provider was part of ONNX Runtime's own library.
_LIBRARY = re.compile(r"(providers_qnn|onnxruntime_pybind11_state)[^/]*\.(dll|so|pyd)$")
_PROVIDERS_OWN = "providers_qnn"
_TEXT = re.compile(rb"(?<![ -~])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![ -~])")
_LIKE_AN_OPTION = re.compile(r"(enable|disable|htp|qnn|dump|skip|profiling|offload|vtcm|rpc|soc|extended|genie)_")

Found = dict[tuple[int, int], dict[str, set[str]]]


def system_of(platform: str) -> str:
    return "windows" if platform.startswith("win") else "linux"


def wanted() -> Iterator[tuple[str, wheels.WheelTarget]]:
    """Yield each final release once for each of its platforms, with the first Python version that has a wheel."""
    for release in load_releases():
        numbers = version_key(release.version)[0]
        if is_final(release.version) and (*numbers, 0)[:2] >= OLDEST:
            python = release.wheels[0].python
            yield release.version, wheels.WheelTarget(family_of(release.platform), f"{python[2]}.{python[3:]}")


def family_of(platform: str) -> str:
    """Return the key of `wheels.FAMILIES`: ``linux_x86_64`` for ``manylinux_2_34_x86_64``."""
    return re.sub(r"^(?:many)?linux_(?:\d+_\d+_)?", "linux_", platform)


def libraries_in(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if _LIBRARY.search(name) and b"htp_performance_mode" in (data := archive.read(name)):
                yield name, data


def read_all() -> tuple[Found, set[str], str]:
    """Read one wheel per release and platform.

    Returns:
        The option names in each release and system, unknown strings of the newest release that look like options,
        and the newest release.
    """
    found: Found = {}
    unknown: set[str] = set()
    seen, targets = set(), list(wanted())
    newest = max((version for version, _ in targets), key=version_key)
    for version, target in targets:
        if (version, target.family) in seen:
            continue
        seen.add((version, target.family))
        print(f"{version} {target.family}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="qnnbridge-wheels-") as folder:
            for name, data in libraries_in(wheels.download(version, target, Path(folder))):
                release = (*version_key(version)[0], 0)[:2]
                here = {option for option in NAMES if option_names.contains(data, option)}
                systems = found.setdefault((release[0], release[1]), {})
                systems.setdefault(system_of(target.family), set()).update(here)
                if version == newest and _PROVIDERS_OWN in name:
                    texts = {match.decode() for match in _TEXT.findall(data)}
                    unknown |= {text for text in texts if _LIKE_AN_OPTION.match(text)} - set(NAMES)
    return found, unknown, newest


def document(found: Found, newest: str, generated: str) -> dict[str, Any]:
    """Return the table: for each option name and system, the first release since which every release contains the
    name, or "all" if every release contains it."""
    options: dict[str, dict[str, str]] = {}
    for name in sorted(NAMES):
        for system in option_names.SYSTEMS:
            releases = sorted(release for release, systems in found.items() if system in systems)
            since = _first_of_all_later(releases, {r for r in releases if name in found[r][system]})
            if since is not None:
                text = option_names.ALL if since == releases[0] else ".".join(map(str, since))
                options.setdefault(name, {})[system] = text
        if len(name) <= option_names.WHOLE_BYTES and "windows" in options.get(name, {}):
            # Short names cannot be found reliably on Linux, and all are older than the first wheel for Linux.
            options[name].setdefault("linux", option_names.ALL)
    return {"schema": 1, "generated": generated, "newest": newest, "options": options}


def _first_of_all_later(releases: list[tuple[int, int]], having: set[tuple[int, int]]) -> tuple[int, int] | None:
    first = None
    for release in reversed(releases):
        if release not in having:
            break
        first = release
    return first


def differences(stated: Mapping[str, Any], made: Mapping[str, Any]) -> Iterable[str]:
    for name in sorted(stated["options"].keys() | made["options"].keys()):
        left, right = stated["options"].get(name), made["options"].get(name)
        if left != right:
            yield f"{name}: the table has {left}, the wheels {right}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.makers.option_names", description=__doc__)
    parser.add_argument("--verify", action="store_true", help="print the differences and write nothing")
    verify = parser.parse_args().verify
    found, unknown, newest = read_all()
    made = document(found, newest, datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    for text in sorted(unknown):
        print(f"not in the tables: {text}")
    if verify:
        lines = list(differences(json.loads(TABLE.read_text("utf-8")), made))
        print("\n".join([*lines, f"{len(made['options'])} options, {len(lines)} differences."]))
        return 1 if lines else 0
    TABLE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8", newline="\n")
    print(f"{TABLE}: {len(made['options'])} options.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
