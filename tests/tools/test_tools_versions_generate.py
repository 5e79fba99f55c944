"""The generator of the version table: reading wheels, joining what was read, comparing, and a real wheel of the
index.

The wheels that are created here contain the headers of real libraries.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from scripts.makers import releases as generate
from scripts.makers import wheels
from scripts.makers.wheels import WheelReader
from tests import needs
from typer.testing import CliRunner

from qnnbridge_host.model.releases import read_table
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.versions.packages import IndexUnreachable

HEADERS = Path(__file__).parents[1] / "unit" / "data" / "executables"
BUILD = "2.51.0.260929181845"
METADATA = "Metadata-Version: 2.1\nName: onnxruntime-qnn\nVersion: 9.0.0\nRequires-Dist: onnxruntime>=1.24.2\nRequires-Dist: numpy\n\n"

# The smallest ones on the index, 85 MB in all: without libraries, a 1.x with them, a 2.x.
VERIFIED_WHEELS = (("1.17.3", "win_arm64", "3.11"), ("1.18.1", "win_arm64", "3.11"), ("2.0.0", "win_arm64", "3.14"))


def resource(version: str) -> bytes:
    """Return a version resource of a PE file."""
    return "ProductVersion".encode("utf-16-le") + b"\0\0\0\0" + version.encode("utf-16-le") + b"\0\0"


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            archive.writestr(file, data)
    return path


def plugin_wheel(folder: Path, python: str = "cp313", **more: bytes) -> Path:
    """Write a wheel for win_amd64 with both sets of libraries."""
    x64, arm64x, arm64ec = ((HEADERS / f"{name}.dll").read_bytes() for name in ("x64", "arm64x", "arm64ec"))
    files = {
        "onnxruntime_qnn/libs/amd64/QnnHtp.dll": x64 + resource(BUILD),
        "onnxruntime_qnn/libs/amd64/onnxruntime_providers_qnn.dll": x64,
        "onnxruntime_qnn/libs/arm64ec/QnnHtp.dll": arm64x + resource(BUILD),
        "onnxruntime_qnn/libs/arm64ec/QnnHtpV73Stub.dll": arm64x,
        "onnxruntime_qnn/libs/arm64ec/QnnGpu.dll": arm64x,
        "onnxruntime_qnn/libs/arm64ec/onnxruntime_providers_qnn.dll": arm64ec,
        "onnxruntime_qnn/libs/arm64ec/libQnnHtpV73Skel.so": (HEADERS / "hexagon.so").read_bytes(),
        "onnxruntime_qnn/libs/arm64ec/libqnnhtpv73.cat": b"signed",
        "onnxruntime_qnn-9.0.0.dist-info/METADATA": METADATA.encode(),
        "onnxruntime_qnn-9.0.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n",
        **{file.replace("__", "/").replace("_DOT_", "."): data for file, data in more.items()},
    }
    return make_wheel(folder, f"onnxruntime_qnn-9.0.0-{python}-{python}-win_amd64.whl", files)


# --- reading ---------------------------------------------------------------------------------------


def test_a_wheel_with_two_sets_of_libraries_is_read(tmp_path: Path) -> None:
    wheel = plugin_wheel(tmp_path)
    (release,) = read_table(generate.make_document([WheelReader().read(wheel)], "2026-01-01"))
    assert (release.version, release.platform, release.layout) == ("9.0.0", "win_amd64", "2.x plugin")
    assert release.ort_requirement == ">=1.24.2"
    simulator, npu = release.library_sets
    assert (simulator.folder, simulator.machine, simulator.is_simulator) == (
        "onnxruntime_qnn/libs/amd64",
        "x64",
        True,
    )
    assert (npu.machine, npu.stubs, npu.skels, npu.catalogs) == ("ARM64X", (73,), (73,), (73,))
    assert npu.backends == ("htp", "gpu")
    assert npu.machines["onnxruntime_providers_qnn.dll"] == "ARM64EC"
    assert npu.machines["libQnnHtpV73Skel.so"] == "hexagon"
    assert release.qnn_sdk == BUILD
    assert release.wheels[0].sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert release.wheels[0].requires == ("numpy", "onnxruntime>=1.24.2")


def test_a_wheel_that_contains_onnxruntime_names_its_version(tmp_path: Path) -> None:
    files = {
        "onnxruntime/__init__.py": b'"""Doc."""\n__version__ = "1.23.2"\n',
        "onnxruntime/capi/QnnHtp.dll": (HEADERS / "arm64.dll").read_bytes()
        + resource("2.37.1.250807093845_124904"),
        "onnxruntime_qnn-1.23.2.dist-info/METADATA": b"Name: onnxruntime-qnn\n\n",
    }
    wheel = make_wheel(tmp_path, "onnxruntime_qnn-1.23.2-cp313-cp313-win_arm64.whl", files)
    (release,) = read_table(generate.make_document([WheelReader().read(wheel)], "2026-01-01"))
    assert (release.layout, release.ort_requirement) == ("1.x builtin", "==1.23.2")
    assert release.qnn_sdk == "2.37.1.250807093845_124904"


def test_a_library_for_one_python_does_not_create_another_release(tmp_path: Path) -> None:
    own = {"onnxruntime_qnn__libs__amd64__libDlModelToolsPy312_DOT_pyd": (HEADERS / "x64.dll").read_bytes()}
    reader = WheelReader()
    entries = [reader.read(plugin_wheel(tmp_path, "cp312", **own)), reader.read(plugin_wheel(tmp_path, "cp313"))]
    (release,) = read_table(generate.make_document(entries, "2026-01-01"))
    assert release.python_tags == ("cp312", "cp313")
    assert release.wheels[0].own_libraries == {"onnxruntime_qnn/libs/amd64/libDlModelToolsPy312.pyd": "x64"}
    assert release.wheels[1].own_libraries == {}


def test_a_wheel_with_other_contents_is_another_release(tmp_path: Path) -> None:
    more = {"onnxruntime_qnn__libs__amd64__QnnCpu_DOT_dll": (HEADERS / "x64.dll").read_bytes()}
    reader = WheelReader()
    entries = [reader.read(plugin_wheel(tmp_path, "cp312", **more)), reader.read(plugin_wheel(tmp_path, "cp313"))]
    assert len(generate.make_document(entries, "2026-01-01")["releases"]) == 2


def test_an_unrelated_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="not named like a wheel"):
        WheelReader().read(make_wheel(tmp_path, "numpy-2.0-cp313-cp313-win_arm64.whl", {}))


def test_a_backend_without_a_build_is_refused(tmp_path: Path) -> None:
    files = {
        "onnxruntime_qnn/QnnHtp.dll": (HEADERS / "x64.dll").read_bytes(),
        "onnxruntime_qnn-9.0.0.dist-info/METADATA": METADATA.encode(),
    }
    wheel = make_wheel(tmp_path, "onnxruntime_qnn-9.0.0-cp313-cp313-win_amd64.whl", files)
    with pytest.raises(BridgeError, match="The QNN build of onnxruntime_qnn/QnnHtp cannot be read"):
        WheelReader().read(wheel)


def test_the_interface_is_read_only_if_it_is_unambiguous(tmp_path: Path) -> None:
    header = (HEADERS / "aarch64.so").read_bytes()
    told = struct.pack("<6I", 2, 34, 0, 5, 45, 0)
    library = tmp_path / "libQnnHtp.so"
    library.write_bytes(header + told)
    assert wheels.interface_of(library) == ("2.34.0", "5.45.0")
    library.write_bytes(header + told + b"between" + told)
    assert wheels.interface_of(library) == ("2.34.0", "5.45.0")
    library.write_bytes(header + told + struct.pack("<6I", 2, 35, 0, 5, 46, 0))
    assert wheels.interface_of(library) is None
    library.write_bytes(header)
    assert wheels.interface_of(library) is None


def test_the_build_is_read_from_a_resource_or_else_from_the_text(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(b"x v2.36.1.250708151608_123266\0 y")
    assert wheels.build_of(library) == "2.36.1.250708151608_123266"
    library.write_bytes(b"v2.36.1.250708151608_123266 v2.40.0.250708151608_1")
    assert wheels.build_of(library) is None, "two builds in one file: no answer is better than a guess"
    library.write_bytes(b"v2.36.1.250708151608_1" + resource(BUILD))
    assert wheels.build_of(library) == BUILD


def test_an_interface_is_known_for_all_libraries_of_the_same_build(tmp_path: Path) -> None:
    windows = WheelReader().read(plugin_wheel(tmp_path))
    linux = copy.deepcopy(windows)
    linux["platform"] = "manylinux_2_34_aarch64"
    linux["library_sets"] = [{**linux["library_sets"][1], "core_api": "2.40.0", "backend_api": "5.51.0"}]
    other = copy.deepcopy(windows)
    other["version"] = "8.0.0"
    other["library_sets"][0]["qnn_sdk"] = other["library_sets"][1]["qnn_sdk"] = "2.50.0.260101000000"
    read = read_table(generate.make_document([windows, linux, other], "2026-01-01"))
    assert [release.backend_api for release in read] == ["5.51.0", "5.51.0", None]


# --- comparing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("qnn_sdk", "2.50.0.1", 'library_sets[0].qnn_sdk: the table has "2.50.0.1", the wheel "2.51'),
        ("stubs", [68], "library_sets[0].stubs: the table has [68], the wheel []"),
    ],
)
def test_a_difference_names_its_location(tmp_path: Path, key: str, value: Any, told: str) -> None:
    found = WheelReader().read(plugin_wheel(tmp_path))
    stated = copy.deepcopy(found)
    stated["library_sets"][0][key] = value
    (line,) = generate.differences(stated, found)
    assert line.startswith(told)


def test_equal_data_has_no_difference_and_a_missing_part_is_one(tmp_path: Path) -> None:
    found = WheelReader().read(plugin_wheel(tmp_path))
    assert list(generate.differences(copy.deepcopy(found), found)) == []
    less = copy.deepcopy(found)
    del less["library_sets"][1]
    assert len(list(generate.differences(less, found))) == 1


def test_a_selection_of_wheels_can_only_be_verified() -> None:
    result = CliRunner().invoke(generate_app(), ["1.18.1"])
    assert result.exit_code == 2
    assert "Only --verify accepts a selection of wheels" in result.output


def generate_app() -> Any:
    import typer

    app = typer.Typer()
    app.command()(generate.run)
    return app


# --- the index -------------------------------------------------------------------------------------


def test_an_index_that_does_not_answer_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setattr(wheels, "PIP_RETRIES", "1")
    with pytest.raises(IndexUnreachable) as raised:
        wheels.published(wheels.WheelTarget("win_arm64", "3.13"))
    assert any("onnection" in line for line in raised.value.evidence)


@pytest.mark.parametrize(("version", "family", "python"), needs.some(VERIFIED_WHEELS))
def test_the_table_equals_the_contents_of_the_wheels_in_the_index(
    version: str, family: str, python: str, tmp_path: Path
) -> None:
    target = wheels.WheelTarget(family, python)
    try:
        found = WheelReader().read(wheels.download(version, target, tmp_path))
    except IndexUnreachable as error:
        pytest.skip(f"no package index: {error.evidence[-1:] or error.message}")
    table = json.loads(generate.default_table().read_text("utf-8"))
    stated = generate.by_file(table["releases"])[found["wheels"][0]["file"]]
    generate.take_over_interfaces(stated, found)
    assert list(generate.differences(stated, found)) == []
    assert found["wheels"][0]["sha256"] == hashlib.sha256(next(tmp_path.iterdir()).read_bytes()).hexdigest()


def test_a_table_that_disagrees_with_a_wheel_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the whole check, with pip and a folder of wheels as the index: each line reports one wrong entry."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    made = generate.make_document(
        [WheelReader().read(plugin_wheel(folder, python)) for python in ("cp312", "cp313")], "2026-01-01"
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    wanted = [("9.0.0", wheels.WheelTarget("win_amd64", python)) for python in ("3.12", "3.13")]

    (release,) = made["releases"]
    release["library_sets"][1]["stubs"] = [68, 73]
    release["wheels"] = [{**release["wheels"][0], "sha256": "0" * 64}]
    release["wheels"].append({**release["wheels"][0], "file": "onnxruntime_qnn-8.0.0-cp312-cp312-win_amd64.whl"})
    lines = list(generate.verify(made, wanted, is_all=True))
    assert [line.partition(": ")[0].split("-")[1:3] for line in lines] == [
        ["9.0.0", "cp312"],
        ["9.0.0", "cp312"],
        ["9.0.0", "cp313"],
        ["8.0.0", "cp312"],
    ]
    told = "\n".join(lines)
    assert "library_sets[1].stubs: the table has [68, 73], the wheel [73]" in told
    assert 'wheels[0].sha256: the table has "000' in told
    assert "is not in the table" in told
    assert "is in the table, but not on the index" in told
