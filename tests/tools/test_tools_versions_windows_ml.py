"""The releases of Windows ML's packages: read from wheels, joined, and shown for a computer."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from scripts.makers.windows_ml import make_table, read_wheel

from qnnbridge_host.model.releases import version_key
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.versions.fitness import HostMachine
from qnnbridge_tools.versions.packages import READER, RUNTIME, ml_releases, newest
from qnnbridge_tools.versions.view import windows_ml_text


def wheel(folder: Path, name: str, metadata: str, **files: str) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", metadata)
        archive.writestr("x-1.dist-info/WHEEL", name)
        for file, text in files.items():
            archive.writestr(file.replace("__", "/", 1) + ".py", text)
    return path


def test_the_wheels_of_a_release_are_read_and_merged(tmp_path: Path) -> None:
    paths = [
        wheel(
            tmp_path,
            f"windowsml-9.0.1-py3-none-{platform}.whl",
            "Name: windowsml\nRequires-Python: >=3.9\nProvides-Extra: with-ort\n"
            'Requires-Dist: onnxruntime-windowsml==9.9.1.2 ; extra == "with-ort"\n\n',
        )
        for platform in ("win_arm64", "win_amd64")
    ]
    paths += [
        wheel(
            tmp_path,
            f"onnxruntime_windowsml-9.9.1.2-{python}-{python}-win_arm64.whl",
            "Name: onnxruntime-windowsml\nRequires-Python: >=3.11\nRequires-Dist: numpy\n\n",
            onnxruntime____init__='"""Doc."""\n__version__ = "9.9.1"\n',
        )
        for python in ("cp312", "cp311")
    ]
    reader, runtime = make_table(map(read_wheel, paths))["releases"]
    assert (reader["package"], reader["onnxruntime"], reader["requires_python"]) == (READER, "9.9.1.2", ">=3.9")
    assert reader["platforms"] == ["win_amd64", "win_arm64"]
    assert (runtime["package"], runtime["onnxruntime"], runtime["python"]) == (RUNTIME, "9.9.1", ["cp311", "cp312"])
    assert len({one["sha256"] for one in (*reader["wheels"], *runtime["wheels"])}) == 4
    with pytest.raises(BridgeError, match="not named like a wheel"):
        read_wheel(wheel(tmp_path, "numpy-2.0-py3-none-win_arm64.whl", ""))


def test_the_table_names_the_newest_version_that_fits() -> None:
    keys = [(one.package, version_key(one.version)) for one in ml_releases()]
    assert len(set(keys)) == len(keys)
    for package in (READER, RUNTIME):
        versions = [key for name, key in keys if name == package]
        assert versions == sorted(versions, reverse=True)
        assert newest(package, "linux_x86_64") is None
    # 2.6 and 2.7 are candidates.
    assert {one.version for one in ml_releases()} >= {"2.5.96", "2.6.74rc0", "1.28.3.202610130701"}
    found = newest(READER, "win_arm64", (3, 12))
    assert found is not None
    assert (found.version, found.onnxruntime) == ("2.5.96", "1.28.3.202610130701")
    assert newest(READER, "win_arm64", (3, 8)) is None
    old = newest(RUNTIME, "win_amd64", (3, 10))
    assert old is not None
    assert old.onnxruntime == "1.23.5", "later ones have no wheel for 3.10"
    assert newest(RUNTIME, "win_arm64", (3, 15)) is None


def test_the_catalogue_is_mentioned_only_on_windows_computers() -> None:
    text = windows_ml_text(HostMachine("win_arm64", "ARM64", (3, 13)))
    assert "windowsml 2.5.96 reads the catalogue" in text
    assert "onnxruntime-windowsml 1.30.0.202609102321 contains onnxruntime 1.30.0" in text
    assert "(windowsml[with-ort] installs 1.28.3.202610130701)" in text
    assert windows_ml_text(HostMachine("linux_x86_64", "x64", (3, 13))) == ""
