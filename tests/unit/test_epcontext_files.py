"""Incomplete files of a compiled model are reported before QNN reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qnnbridge_host.model.compatibility import HostTraits, check_compiled
from qnnbridge_host.model.manifest import manifest_path, write_manifest
from qnnbridge_host.model.scan import Verdict, scan_model

onnx = pytest.importorskip("onnx")

from tests.unit import epcontext_models as models  # noqa: E402

SIMULATOR = HostTraits("1.31.1", "2.7.0", "2.51.0", simulator=True, soc_model=60, htp_arch=73)


def judge(path: Path, host: HostTraits = SIMULATOR) -> Verdict:
    return check_compiled(path, scan_model(path), host)


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("name", "binary", "beside"),
    [
        ("good.onnx", "a_qnn.bin", "a_qnn.bin"),
        ("F.onnx", "F_qnn.bin", "F_qnn.bin"),
        ("pnet60.onnx", "pnet60_qnn.bin", "a_qnn.bin"),
    ],
)
def test_a_complete_compiled_model_is_ok(name: str, binary: str, beside: str, tmp_path: Path) -> None:
    shutil.copy(models.COMPILED / name, tmp_path)
    shutil.copy(models.COMPILED / binary, tmp_path / beside)
    verdict = judge(tmp_path / name)
    assert (verdict.level, verdict.reason, verdict.notes) == ("ok", "", ())


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda binary: binary.unlink(), "its context binary a_qnn.bin is missing"),
    "empty": (lambda binary: binary.write_bytes(b""), "its context binary a_qnn.bin is empty"),
    "cut off by a byte": (lambda binary: os.truncate(binary, 73727), "its context binary a_qnn.bin is cut off"),
    "cut off in the middle": (lambda binary: os.truncate(binary, 30000), "its context binary a_qnn.bin is cut off"),
    "longer": (
        lambda binary: binary.write_bytes(binary.read_bytes() + b"\r\n"),
        "its context binary a_qnn.bin has bytes after its end",
    ),
    "a Git LFS pointer": (
        lambda binary: binary.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"),
        "its context binary a_qnn.bin is a Git LFS pointer",
    ),
    "a web page": (
        lambda binary: binary.write_text("<!DOCTYPE html><title>404</title>"),
        "its context binary a_qnn.bin is a text",
    ),
    "of another model": (
        lambda binary: shutil.copy(models.COMPILED / "F_qnn.bin", binary),
        "its context binary a_qnn.bin belongs to another model",
    ),
    "a folder": (lambda binary: (binary.unlink(), binary.mkdir()), "a_qnn.bin is not a file"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_faults_of_a_model_without_a_manifest_are_reported(case: str, tmp_path: Path) -> None:
    path = models.real(tmp_path)
    do, words = DAMAGE[case]
    do(tmp_path / "a_qnn.bin")
    verdict = judge(path)
    assert verdict.level == "cannot run here"
    assert words in verdict.reason
    assert verdict.fix


def test_an_unreadable_context_binary_is_reported(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    (tmp_path / "a_qnn.bin").unlink()
    os.symlink("a_qnn.bin", tmp_path / "a_qnn.bin")  # a link to itself; permissions do not stop an administrator
    assert "cannot be read" in judge(path).reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/a_qnn.bin", "absolute"),
        ("C:\\a_qnn.bin", "absolute"),
        ("\\a_qnn.bin", "absolute"),
        ("C:a_qnn.bin", "drive"),
        ("\\\\server\\a_qnn.bin", "network"),
        ("../a_qnn.bin", "leads out"),
        ("sub\\..\\a_qnn.bin", "leads out"),
        ("NUL", "device"),
    ],
)
def test_a_context_binary_outside_of_the_folder_is_never_opened(name: str, words: str, tmp_path: Path) -> None:
    verdict = judge(models.edit(models.real(tmp_path), ep_cache_context=name))
    assert verdict.level == "cannot run here"
    assert words in verdict.reason
    assert "its own folder" in (verdict.cause or "")


def test_the_verdict_for_two_dots_in_a_file_name_suggests_a_rename(tmp_path: Path) -> None:
    path = models.edit(models.real(tmp_path), ep_cache_context="a..b_qnn.bin")
    (tmp_path / "a_qnn.bin").rename(tmp_path / "a..b_qnn.bin")
    verdict = judge(path)
    assert "two dots in a row, which QNN treats as leaving" in verdict.reason
    assert "Rename the original model" in (verdict.fix or "")


def test_a_link_to_a_file_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = models.real(tmp_path / "model")
    shutil.move(tmp_path / "model" / "a_qnn.bin", tmp_path / "real.bin")
    os.symlink(tmp_path / "real.bin", tmp_path / "model" / "a_qnn.bin")
    verdict = judge(path)
    assert verdict.level == "cannot run here"
    assert "link to" in verdict.reason
    assert "its own folder" in (verdict.cause or "")


def test_the_links_in_the_cache_of_a_model_hub_are_accepted(tmp_path: Path) -> None:
    """`huggingface_hub` keeps all files in ``blobs``, and makes a folder of links for each revision."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots" / "main").mkdir(parents=True)
    made = models.real(tmp_path / "blobs")
    for name in (made.name, "a_qnn.bin"):
        (tmp_path / "blobs" / name).rename(tmp_path / "blobs" / f"hash-of-{name}")
        os.symlink(tmp_path / "blobs" / f"hash-of-{name}", tmp_path / "snapshots" / "main" / name)
    assert judge(tmp_path / "snapshots" / "main" / made.name).level == "ok"


def test_a_context_binary_in_a_subfolder_is_accepted(tmp_path: Path) -> None:
    path = models.edit(models.real(tmp_path), ep_cache_context="sub/a_qnn.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "a_qnn.bin").rename(tmp_path / "sub" / "a_qnn.bin")
    assert judge(path).level == "ok"


def test_a_file_name_that_onnx_runtime_treats_as_another_format_is_refused(tmp_path: Path) -> None:
    path = models.real(tmp_path).rename(tmp_path / "good.ort")
    assert "its name ends in .ort" in judge(path).reason
    assert "Rename it to good.onnx" in (judge(path).fix or "")


# --- embedded --------------------------------------------------------------------------------------------


def test_an_embedded_context_binary_is_checked_too(tmp_path: Path) -> None:
    data = (models.COMPILED / "a_qnn.bin").read_bytes()
    path = models.embed(models.real(tmp_path), data)
    (tmp_path / "a_qnn.bin").unlink()
    assert judge(path).level == "ok"
    assert check_compiled(path.read_bytes(), scan_model(path.read_bytes()), SIMULATOR).level == "ok"
    assert "its embedded context binary is cut off" in judge(models.embed(path, data[:-1])).reason
    other = (models.COMPILED / "F_qnn.bin").read_bytes()
    assert "belongs to another model" in judge(models.embed(path, other)).reason


@pytest.mark.parametrize("mode", [None, 1])
def test_a_path_in_place_of_an_embedded_context_binary_is_refused(mode: int | None, tmp_path: Path) -> None:
    verdict = judge(models.edit(models.real(tmp_path), embed_mode=mode))
    assert "contains no context binary" in verdict.reason
    assert "'a_qnn.bin'" in (verdict.cause or "")


def test_an_embedded_context_binary_in_place_of_a_path_is_refused(tmp_path: Path) -> None:
    data = (models.COMPILED / "a_qnn.bin").read_bytes()
    verdict = judge(models.edit(models.real(tmp_path), embed_mode=0, ep_cache_context=data))
    assert verdict.level == "cannot run here"
    assert "it is empty" in verdict.reason


# --- the nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", [0, 2, -1])
def test_without_a_main_node_there_is_no_context_binary(main: int, tmp_path: Path) -> None:
    verdict = judge(models.edit(models.real(tmp_path), main_context=main))
    assert "none of its compiled parts owns a context binary" in verdict.reason


def test_a_node_without_the_attribute_is_a_main_node(tmp_path: Path) -> None:
    assert judge(models.edit(models.real(tmp_path), main_context=None)).level == "ok"


@pytest.mark.parametrize("source", ["OpenVINOExecutionProvider", None])
def test_a_model_of_another_provider_cannot_run_on_this_host(source: str | None, tmp_path: Path) -> None:
    verdict = judge(models.edit(models.real(tmp_path), source=source))
    assert verdict.level == "cannot run here"
    assert (source or "an unnamed execution provider") in verdict.reason


def test_the_short_provider_name_qnn_is_accepted(tmp_path: Path) -> None:
    assert judge(models.edit(models.real(tmp_path), source="QNN")).level == "ok"


def with_part(path: Path, **attributes: object) -> Path:
    """Add one more part in the same context binary, as QNN writes it."""
    model = onnx.load(path)
    (main,) = (node for node in model.graph.node if node.op_type == "EPContext")
    names = [attribute.s for attribute in main.attribute if attribute.name == "partition_name"]
    part = models.context_node(names[0].decode(), main_context=0, ep_cache_context=None, **attributes)
    model.graph.node.append(part)
    return models.save(model, path)


def test_a_secondary_part_needs_no_context_binary(tmp_path: Path) -> None:
    assert judge(with_part(models.real(tmp_path))).level == "ok"


def test_a_part_that_is_not_in_the_context_binary_is_reported(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    model = onnx.load(path)
    model.graph.node.append(models.context_node("lost_part", main_context=0, ep_cache_context=None))
    verdict = judge(models.save(model, path))
    assert "belongs to another model" in verdict.reason
    assert any("lost_part" in line for line in verdict.evidence)


def test_embedded_parts_load_only_in_newer_releases(tmp_path: Path) -> None:
    path = with_part(
        models.embed(models.real(tmp_path), (models.COMPILED / "a_qnn.bin").read_bytes()), embed_mode=1
    )
    assert judge(path).level == "ok"
    assert "31977" in judge(path).notes[0]
    old = HostTraits("1.26.0", "2.6.0", "2.51.0", simulator=True, soc_model=60, htp_arch=73)
    verdict = judge(path, old)
    assert verdict.level == "recompile recommended"
    assert "embed_mode 0" in (verdict.fix or "")


def test_a_shared_context_binary_crashes_the_simulator_and_works_on_an_npu(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    binary = tmp_path / "a_qnn.bin"
    # A second graph in the free space after the description, and weights in the table of contents.
    change(binary, 2000, b"QNNExecutionProvider_QNNExecutionProvider_5557084727266556725_1_0\0")
    assert judge(path).level == "ok", "several graphs without common weights run on the simulator"
    change(binary, 4200, b"WEIGHTS/0\0")
    verdict = judge(path)
    assert verdict.level == "cannot run here"
    assert "shared with other models" in verdict.reason
    npu = judge(path, HostTraits("1.31.1", "2.7.0", "2.51.0", simulator=False, soc_model=60, htp_arch=73))
    assert npu.level == "ok"
    assert "copy and delete them together" in npu.notes[0]


# --- with a manifest -------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = models.real(tmp_path)
    write_manifest(tmp_path, "good.onnx", ["a_qnn.bin"])
    return path


def test_unchanged_files_are_ok(recorded: Path) -> None:
    assert judge(recorded).level == "ok"


@pytest.mark.parametrize("at", [34993, 36906, 35278, 0, 73727])
def test_a_changed_byte_is_detected(at: int, recorded: Path) -> None:
    """At the first three positions the change crashes QNN when the model is loaded or run, or hangs it; see
    tests/fault.
    """
    binary = recorded.parent / "a_qnn.bin"
    change(binary, at, bytes([binary.read_bytes()[at] ^ 0xFF]))
    verdict = judge(recorded)
    assert verdict.level == "cannot run here"
    assert "a_qnn.bin differs from the manifest" in verdict.reason
    assert "recompile" in (verdict.fix or "")


def test_a_zeroed_page_is_detected(recorded: Path) -> None:
    change(recorded.parent / "a_qnn.bin", 45056, bytes(4096))
    assert "contents have changed" in (judge(recorded).cause or "")


def test_a_changed_model_file_is_detected(recorded: Path) -> None:
    models.edit(recorded, ep_sdk_version="v2.50.0.1")
    assert "good.onnx differs from the manifest" in judge(recorded).reason


@pytest.mark.parametrize("name", ["a_qnn.bin", "good.onnx"])
def test_another_size_is_detected_without_a_hash(name: str, recorded: Path) -> None:
    scan = scan_model(recorded)
    (recorded.parent / name).write_bytes((recorded.parent / name).read_bytes() + b"\0")
    hashed: list[str] = []

    def hash_of(path: str) -> str:
        hashed.append(os.path.basename(path))
        return models.sha256(Path(path))

    verdict = check_compiled(recorded, scan, SIMULATOR, hash_of=hash_of)
    assert "the manifest records" in (verdict.cause or "")
    assert name not in hashed


def test_a_missing_file_is_detected(recorded: Path) -> None:
    (recorded.parent / "a_qnn.bin").unlink()
    assert "its file a_qnn.bin is missing" in judge(recorded).reason


def test_a_context_binary_that_the_manifest_does_not_list_is_refused(recorded: Path) -> None:
    write_manifest(recorded.parent, "good.onnx")
    assert "is not listed in its manifest" in judge(recorded).reason


def test_a_damaged_manifest_is_reported(recorded: Path) -> None:
    Path(manifest_path(recorded)).write_text("{")
    verdict = judge(recorded)
    assert verdict.level == "cannot run here"
    assert "good.qnnbridge.json" in verdict.reason


def test_the_manifest_of_another_model_is_not_used(recorded: Path) -> None:
    other = recorded.with_name("other.onnx")
    shutil.copy(recorded, other)
    shutil.copy(manifest_path(recorded), manifest_path(other))
    verdict = judge(other)
    assert verdict.level == "ok"
    assert "belongs to good.onnx and was ignored" in verdict.notes[0]
