"""Exercise every win_arm64 wheel of onnxruntime-qnn on Windows on Arm, as far as possible without an NPU.

``python -m tests.labs.windows_arm64_wheels`` (from the root of the checkout, ten minutes) downloads the wheels that
the lab's Python can import, runs `wheel_steps.py` with each in the lab, and writes `windows_arm64_wheels.json` next
to this file; a release 2.x runs with several onnxruntime. With versions as arguments only these are run again.
`test_windows_arm64_wheels.py` compares the data with doctor and `versions`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.labs.labs import CHECKOUT, HERE, WindowsArm64Lab, lab_folder

from qnnbridge_host.model.releases import load_releases, version_key

DATA = HERE / "windows_arm64_wheels.json"
MODEL = CHECKOUT / "tools" / "qnnbridge_tools" / "doctor" / "assets" / "probe.onnx"
OLDEST = "1.20.0"
PYTHON = (3, 11)
# For the plugins: a version that all of them support, and the newest.
ONNXRUNTIMES = ("1.24.4", "1.32.0")
PIP_TIMEOUT_S = 600.0
WHEEL_TIMEOUT_S = 600.0


def wanted(versions: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield pairs of a release and the onnxruntime that it runs with; a release 1.x contains onnxruntime."""
    for release in load_releases():
        if release.platform != "win_arm64" or release.wheel_for(PYTHON) is None:
            continue
        if version_key(release.version) < version_key(OLDEST) or (versions and release.version not in versions):
            continue
        if release.layout == "1.x builtin":
            yield release.version, None
        else:
            yield from ((release.version, one) for one in ONNXRUNTIMES)


def unpacked(requirement: str, folder: Path) -> Path:
    """Return the folder of the wheel's contents, which is downloaded once."""
    target = folder / requirement
    if not target.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        selection = ["--platform", "win_arm64", "--python-version", "{}.{}".format(*PYTHON), "--dest", str(target)]
        subprocess.run([*command, *selection, requirement], check=True, timeout=PIP_TIMEOUT_S)
        for wheel in target.glob("*.whl"):
            with zipfile.ZipFile(wheel) as content:
                content.extractall(target)
            wheel.unlink()
    return target


def run_wheel(lab: WindowsArm64Lab, version: str, onnxruntime: str | None, folder: Path) -> dict[str, Any]:
    """Run `wheel_steps.py` and return its findings."""
    folders = [unpacked(f"onnxruntime-qnn=={version}", folder)]
    if onnxruntime is not None:
        folders.append(unpacked(f"onnxruntime=={onnxruntime}", folder))
    return lab.run(HERE / "wheel_steps.py", MODEL, *folders, timeout_s=WHEEL_TIMEOUT_S, npu=True).json()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of onnxruntime-qnn; all if none is given")
    parser.add_argument("--lab", type=Path, default=lab_folder() / "windows_arm64", help="folder of the lab")
    parser.add_argument("--wheels", type=Path, help="folder that keeps unpacked wheels for the next run")
    options = parser.parse_args()
    known = json.loads(DATA.read_text("utf-8"))["wheels"] if DATA.exists() else []
    rows = {(row["version"], row["onnxruntime"]): row for row in known}
    lab = WindowsArm64Lab(options.lab)
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="windows-arm64-wheels-"))
        for name in ("STATE", "CACHE", "RUNTIME"):
            os.environ[f"QNNBRIDGE_{name}_DIR"] = os.path.join(temporary, name.lower())
        stack.callback(lab.stop)
        lab.start()
        folder = options.wheels or Path(temporary)
        for version, onnxruntime in wanted(options.versions):
            steps = run_wheel(lab, version, onnxruntime, folder.resolve())
            rows[version, onnxruntime] = {"version": version, "onnxruntime": onnxruntime, "steps": steps}
            print(version, onnxruntime or "", "done", file=sys.stderr, flush=True)
            document = {
                "measured": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                "on": "CPython 3.11 for Windows ARM64 under Wine 10 under qemu-user, an NPU in name only, no driver",
                "wheels": sorted(rows.values(), key=_order),
            }
            DATA.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 0


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return version_key(row["version"]), version_key(row["onnxruntime"] or "0")


if __name__ == "__main__":
    sys.exit(main())
