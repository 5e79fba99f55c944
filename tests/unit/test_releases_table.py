"""The version table in the package: its format, and its contents where they can be checked without a network."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import sysconfig
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.model.releases import (
    SCHEMA_VERSION,
    Release,
    for_version,
    generated_on,
    load_releases,
    read_table,
    sdk_numbers,
    version_key,
)
from qnnbridge_os.programs import read_executable
from qnnbridge_tools.versions.fitness import platform_of_release


def only(version: str, platform: str) -> Release:
    (release,) = for_version(version, platform)
    return release


def test_every_release_is_listed_once_and_the_newest_first() -> None:
    names = [(release.version, release.platform) for release in load_releases()]
    assert len(set(names)) == len(names)
    versions = [version_key(version) for version, _ in names]
    assert versions == sorted(versions, reverse=True)


def test_every_platform_has_its_releases() -> None:
    found = {platform_of_release(release) for release in load_releases()}
    assert found == {"win_arm64", "win_amd64", "linux_x86_64", "linux_aarch64"}


@pytest.mark.parametrize("release", load_releases(), ids=lambda release: f"{release.version}-{release.platform}")
def test_a_release_has_all_its_fields(release: Release) -> None:
    assert release.wheels
    for wheel in release.wheels:
        assert (
            wheel.file == f"onnxruntime_qnn-{release.version}-{wheel.python}-{wheel.python}-{release.platform}.whl"
        )
        assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
        assert wheel.size_bytes > 1_000_000
    assert len({libraries.qnn_sdk for libraries in release.library_sets}) <= 1, "one release, one build"
    for libraries in release.library_sets:
        assert re.fullmatch(r"2\.\d+\.\d+\.\d{12}(_\d+)?", libraries.qnn_sdk)
        assert libraries.machine in ("ARM64", "ARM64X", "x64", "aarch64", "x86_64")
        assert "htp" in libraries.backends
        assert set(libraries.stubs) <= set(libraries.skels), "each stub has its skel"
        assert {"unknown"}.isdisjoint(libraries.machines.values())
        if libraries.backend_api is not None:  # known because this API has the same numbering as the SDK
            assert libraries.backend_api.split(".")[1] == str(sdk_numbers(libraries.qnn_sdk)[1])
    assert release.layout == ("1.x builtin" if release.version.startswith("1.") else "2.x plugin")


@pytest.mark.parametrize(
    ("version", "platform", "sdk", "stubs", "machines"),
    [
        ("1.20.0", "win_arm64", "2.27.0", (68, 73), {"ARM64"}),
        ("1.22.0", "win_amd64", "2.33.2", (73,), {"ARM64X"}),
        ("1.22.2", "win_amd64", "2.36.1", (), {"x64"}),
        ("1.23.2", "win_arm64", "2.37.1", (68, 73), {"ARM64"}),
        ("1.24.1", "win_arm64", "2.42.0", (68, 73, 81), {"ARM64"}),
        ("2.0.0", "win_amd64", "2.42.0", (73, 81), {"ARM64X"}),
        ("2.7.0", "win_amd64", "2.51.0", (73, 81), {"ARM64X", "x64"}),
        ("2.7.0", "manylinux_2_35_x86_64", "2.51.0", (), {"x86_64"}),
        ("2.7.0", "manylinux_2_34_aarch64", "2.51.0", (68, 69, 73, 75, 79, 81), {"aarch64"}),
    ],
)
def test_facts_read_from_wheels_by_other_means_are_in_the_table(
    version: str, platform: str, sdk: str, stubs: tuple[int, ...], machines: set[str]
) -> None:
    release = only(version, platform)
    assert release.qnn_sdk is not None
    assert release.qnn_sdk.startswith(f"{sdk}.")
    assert release.stubs == stubs
    assert {libraries.machine for libraries in release.library_sets} == machines


def test_the_installed_package_matches_the_table() -> None:
    """Compare every library of the package with its header, and the version of the build with its own text."""
    pytest.importorskip("onnxruntime_qnn")
    found = importlib.metadata.distribution("onnxruntime-qnn")
    machine = sysconfig.get_platform().replace("-", "_")
    (release,) = [
        release for release in for_version(found.version) if release.platform.endswith(machine.partition("_")[2])
    ]
    wheel = release.wheel_for(sys.version_info[:2])
    assert wheel is not None
    (libraries,) = release.library_sets
    folder = Path(str(found.locate_file(libraries.folder)))
    ends = (".so", ".dll", ".pyd")
    headers = {path.name: read_executable(path) for path in folder.iterdir() if path.name.endswith(ends)}
    read = {name: header.machine for name, header in headers.items() if header}
    own = {Path(path).name: machine for path, machine in wheel.own_libraries.items()}
    assert read == {**libraries.machines, **own}
    assert f"v{libraries.qnn_sdk}".encode() in (folder / "libQnnHtp.so").read_bytes()
    needs = [text for text in found.requires or () if re.match(r"onnxruntime\b(?!-)", text)]
    assert needs == [f"onnxruntime{release.ort_requirement}"]


@pytest.mark.simulator
def test_the_interface_of_the_installed_backend_matches_the_table() -> None:
    """The installed library shows its interface; the table has that of the same build for another processor."""
    import ctypes
    import subprocess

    package = pytest.importorskip("onnxruntime_qnn")
    release = for_version(importlib.metadata.version("onnxruntime-qnn"), "manylinux")[0]
    library = Path(package.__file__).with_name("libQnnHtp.so")
    code = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(library)!r})\n"
        "found, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()\n"
        "assert library.QnnInterface_getProviders(ctypes.byref(found), ctypes.byref(count)) == 0\n"
        "numbers = list((ctypes.c_uint32 * 10).from_address(found[0]))\n"
        "print('@@', *numbers[4:10])\n"
    )
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    numbers = told.stdout.partition("@@")[2].split()
    assert [release.core_api, release.backend_api] == [".".join(numbers[:3]), ".".join(numbers[3:6])]


def test_releases_have_the_sdk_that_was_found_in_them() -> None:
    found = {(release.version, sdk_numbers(release.qnn_sdk)[:2]) for release in load_releases() if release.qnn_sdk}
    assert {version for version, sdk in found if sdk == (2, 42)} == {
        "1.24.1",
        "1.24.2",
        "1.24.3",
        "1.24.4",
        "2.0.0",
    }
    assert ("2.7.0", (2, 51)) in found
    assert all(sdk != (2, 41) for _, sdk in found)


def test_releases_support_the_chips_whose_stubs_they_contain() -> None:
    newest_chip = {release.version for release in load_releases() if 81 in release.stubs}
    assert "1.24.1" in newest_chip
    assert "1.23.2" not in newest_chip
    oldest = [release.platform for release in load_releases() if 68 in release.stubs]
    assert oldest
    assert "win_amd64" not in oldest, "its stub is in the ARM64 wheels only"


def test_a_version_is_found_in_any_notation() -> None:
    assert for_version("2.7") == for_version("2.7.0") != ()
    assert for_version("9.9") == ()


def test_a_table_with_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has schema 99, not 1"):
        read_table({"schema": 99, "releases": []})


def test_the_file_is_written_in_the_order_that_the_generator_writes() -> None:
    from scripts.makers.releases import document_text

    text = resources.files("qnnbridge_host.model").joinpath("releases.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    assert document["schema"] == SCHEMA_VERSION
    assert text == document_text(document)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", generated_on())
