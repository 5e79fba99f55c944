"""The source of a session, with all its files, so that a change is detected before wrong results occur."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import needs

from qnnbridge_host.cache.files import read_json
from qnnbridge_host.model.manifest import SUFFIX, read_manifest
from qnnbridge_host.model.source import _CHUNK_BYTES, _FEW_BYTES, ModelSource, hash_file, open_again
from qnnbridge_protocol.errors import ContextUnusable, InvalidArgument, InvalidProtobuf, ModelChanged, NoSuchFile

onnx = pytest.importorskip("onnx")


def model_with(*locations: str) -> bytes:
    tensors = []
    for index, location in enumerate(locations):
        tensor = onnx.TensorProto(name=f"w{index}", data_type=1, dims=[2], data_location=1)
        tensor.external_data.add(key="location", value=location)
        tensors.append(tensor)
    return bytes(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], tensors)).SerializeToString())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "w.bin").write_bytes(b"12345678")
    (tmp_path / "sub" / "v.bin").write_bytes(b"abcdefgh")
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with("w.bin", "sub/v.bin"))
    return path


def rewrite(path: Path, data: bytes) -> None:
    """Write other bytes with another time, as a program does that runs later."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def again(source: ModelSource, folder: Path | None = None) -> ModelSource:
    """Return the source from which a session of the model is created a second time."""
    identity = source.identity
    given = source.path if source.path is not None else source.data
    return open_again(given, None if folder is None else str(folder), None, identity.fingerprint, identity.files)


def test_a_source_lists_the_files_of_the_model_by_absolute_paths(model: Path, tmp_path: Path) -> None:
    assert ModelSource.open(model).files == (str(tmp_path / "w.bin"), str(tmp_path / "sub/v.bin"))


@pytest.mark.parametrize("name", ["m.onnx", "w.bin", "sub/v.bin"])
def test_a_changed_file_is_named(model: Path, tmp_path: Path, name: str) -> None:
    source = ModelSource.open(model)
    again(source)
    changed = tmp_path / name
    rewrite(changed, changed.read_bytes()[:-1] + b"X")
    with pytest.raises(ModelChanged, match=changed.name) as caught:
        again(source)
    assert caught.value.details["path"] == str(changed)


@pytest.mark.parametrize("name", ["m.onnx", "w.bin"])
def test_a_file_whose_timestamp_alone_changed_counts_as_unchanged(model: Path, tmp_path: Path, name: str) -> None:
    source = ModelSource.open(model)
    rewrite(tmp_path / name, (tmp_path / name).read_bytes())
    again(source)


def test_a_deleted_file_is_named(model: Path, tmp_path: Path) -> None:
    source = ModelSource.open(model)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelChanged, match=r"w\.bin.*cannot be read any more"):
        again(source)


def test_the_fingerprint_covers_the_data_and_not_the_path(model: Path, tmp_path: Path) -> None:
    first = ModelSource.open(model).fingerprint
    other = tmp_path / "copy"
    (other / "sub").mkdir(parents=True)
    for name in ("m.onnx", "w.bin", "sub/v.bin"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    assert ModelSource.open(other / "m.onnx").fingerprint == first
    (other / "sub/v.bin").write_bytes(b"abcdefgX")
    assert ModelSource.open(other / "m.onnx").fingerprint != first


def test_the_fingerprint_of_a_model_without_other_files_is_its_own_hash(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "m.onnx"
    path.write_bytes(model_with())
    assert ModelSource.open(path).fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert ModelSource.open(path.read_bytes()).fingerprint == ModelSource.open(path).fingerprint


def test_a_missing_file_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    """The file may be replaced by initializers that are given as values; then it is not needed later either."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with("w.bin"))
    source = ModelSource.open(path)
    assert source.files == (str(tmp_path / "w.bin"),)
    (tmp_path / "w.bin").write_bytes(b"12345678")
    again(source)


@needs.posix
def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.bin")
    (tmp_path / "m.onnx").write_bytes(model_with("w.bin"))
    again(ModelSource.open(tmp_path / "m.onnx"))


def test_a_model_given_as_bytes_has_its_files_in_the_current_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = ModelSource.open(model.read_bytes())
    assert source.path is None
    assert source.files == (str(tmp_path / "w.bin"), str(tmp_path / "sub/v.bin"))
    monkeypatch.chdir("/")
    rewrite(tmp_path / "w.bin", b"1234567X")
    with pytest.raises(ModelChanged, match=r"w\.bin"):
        again(source, tmp_path)
    assert ModelSource.open(model.read_bytes(), folder=str(tmp_path)).files == source.files


@needs.posix
def test_a_path_that_is_not_unicode_is_refused_with_an_explanation(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.onnx"
    with open(path, "wb") as file:
        file.write(model_with())
    with pytest.raises(InvalidArgument, match=r"m\\udcff\.onnx is not valid Unicode") as caught:
        ModelSource.open(os.fsdecode(path))
    assert "Rename" in (caught.value.fix or "")
    assert str(caught.value).encode("utf-8")


def test_a_path_inside_of_the_model_that_is_not_unicode_is_refused_too(tmp_path: Path) -> None:
    data = model_with("wXY.bin").replace(b"wXY.bin", b"w\xff\xfe.bin")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(InvalidArgument):
        ModelSource.open(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("given", "error"),
    [("nowhere.onnx", NoSuchFile), ("a\0b.onnx", NoSuchFile), (".", InvalidProtobuf), (3, TypeError)],
)
def test_a_file_that_is_not_a_model_is_refused(
    given: Any, error: type[Exception], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        ModelSource.open(given)


def test_a_source_can_be_pickled(model: Path) -> None:
    source = ModelSource.open(model)
    assert pickle.loads(pickle.dumps(source)) == source


@pytest.mark.process
def test_importing_the_source_does_not_load_openssl() -> None:
    code = "import sys, qnnbridge_host.model.source; assert 'hashlib' not in sys.modules and '_hashlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- the hash: SHA-256, whatever implementation computes it ---

SIZES = [0, 1, 63, 64, 4096, _FEW_BYTES, _FEW_BYTES + 1, 2 * _CHUNK_BYTES + 3]


@pytest.mark.parametrize("loaded", [True, False], ids=["with OpenSSL", "without OpenSSL"])
@pytest.mark.parametrize("size", SIZES)
def test_the_hash_of_a_file_equals_that_of_hashlib(
    size: int, loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    file = tmp_path / "model.onnx"
    file.write_bytes(data[:size])
    expected = hashlib.sha256(data[:size]).hexdigest()
    if not loaded:
        monkeypatch.delitem(sys.modules, "hashlib")
    assert hash_file(file) == expected
    assert ("hashlib" in sys.modules) == (loaded or size > _FEW_BYTES)


def test_a_model_as_bytes_has_the_fingerprint_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hashlib")
    file = tmp_path / "model.onnx"
    file.write_bytes(b"no model, but bytes")
    assert ModelSource.open(file).fingerprint == ModelSource.open(file.read_bytes()).fingerprint


def test_an_unreadable_file_counts_as_changed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelSource.open(str(model))

    def fails(_path: str) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("qnnbridge_host.model.source.hash_file", fails)
    with pytest.raises(ModelChanged, match="Input/output error"):
        source.check_unchanged()


@needs.posix
@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_manifest_does_not_block(tmp_path: Path) -> None:
    """No process writes to the pipe: opening it as a file would block forever."""
    pipe = tmp_path / "manifest.json"
    os.mkfifo(pipe)
    reads: tuple[Any, ...] = (read_json, hash_file, ModelSource.open)
    for read in reads:
        with pytest.raises((OSError, NoSuchFile)):
            read(pipe)
    with pytest.raises(ContextUnusable):
        read_manifest(pipe.rename(tmp_path / f"m{SUFFIX}"))
