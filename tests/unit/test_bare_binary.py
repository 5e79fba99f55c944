"""Files that are context binaries instead of models are detected; other files get an explained error."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from qnnbridge_host.model.compatibility import HostTraits, examine
from qnnbridge_host.model.context_files import facts_of, look_at_binary, sketch
from qnnbridge_protocol.errors import BridgeError, ContextUnusable, InvalidProtobuf, NoSuchFile, OptionError

MODELS = Path(__file__).parents[1] / "models"
RELEASES = MODELS / "compiled" / "releases"
DATA = (RELEASES / "2.7.0_qnn.bin").read_bytes()
SDK = {"2.3.0": "2.47", "2.4.0": "2.48", "2.5.0": "2.49", "2.6.0": "2.50", "2.7.0": "2.51"}
HOST = HostTraits("1.32.0", "2.7.0", "2.51.0", simulator=True, soc_model=60, htp_arch=73)


def saved(folder: Path, data: bytes, name: str = "model.bin") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("release", SDK)
def test_the_header_of_each_release_is_read(release: str) -> None:
    facts = look_at_binary(str(RELEASES / f"{release}_qnn.bin"))
    # QNN 2.47 has no such table of contents.
    assert (facts.kind, facts.is_whole, facts.shares_weights) == (
        "context",
        True,
        None if release == "2.3.0" else False,
    )
    assert str(facts.sdk).startswith(f"{SDK[release]}.")


def test_common_weights_are_distinguished_from_several_graphs() -> None:
    two, shared = (look_at_binary(str(RELEASES / f"{name}_qnn.bin")) for name in ("two_graphs", "shared"))
    assert (len(two.graphs), two.shares_weights) == (2, False)
    assert (len(shared.graphs), shared.shares_weights) == (2, True)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", InvalidProtobuf, "is empty"),
        (b"<!doctype html><html>", InvalidProtobuf, "is not a context binary: it is a text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", InvalidProtobuf, "Git LFS pointer"),
        (DATA[:-1], ContextUnusable, "is cut off"),
        (DATA[:1000], ContextUnusable, "is cut off"),
        (DATA + b"\0", ContextUnusable, "has bytes after its end"),
        ((MODELS / "f.onnx").read_bytes(), OptionError, "is an ONNX model"),
    ],
)
def test_a_file_that_is_not_a_context_binary_is_refused_with_cause_and_fix(
    data: bytes, error: type[BridgeError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as refused:
        look_at_binary(saved(tmp_path, data))
    assert refused.value.fix
    assert refused.value.cause or error is OptionError


@pytest.mark.parametrize("first", ["dlc.metadata", "htp.cache.sc8380xp.0", "model.params"])
def test_a_dlc_is_recognised_and_genie_is_named(first: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(first, DATA)
    with pytest.raises(InvalidProtobuf, match="is not a context binary: it is a DLC") as refused:
        look_at_binary(str(path))
    assert "Genie" in str(refused.value.cause)


@pytest.mark.parametrize("name", ["", "not there.bin"])
def test_a_folder_and_a_missing_file_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        look_at_binary(str(tmp_path / name))


def test_another_format_is_unknown_and_no_session_accepts_it(tmp_path: Path) -> None:
    path = saved(tmp_path, bytes(range(1, 256)) * 40)
    assert look_at_binary(path).kind == "unknown"
    assert facts_of(path) is None
    assert facts_of(str(tmp_path)) is None


def judged(name: str, host: HostTraits = HOST) -> str:
    path = str(RELEASES / name)
    return examine(path, sketch(path, look_at_binary(path)), host).verdict.message


def test_chip_and_sdk_are_judged_from_the_header_alone() -> None:
    assert judged("2.3.0_qnn.bin") == "ok"
    assert "cannot run" in judged("2.7.0_qnn.bin", HostTraits("1.32.0", "2.4.0", "2.48.0", simulator=True))
    old = HostTraits("1.32.0", "2.7.0", "2.51.0", simulator=False, soc_model=30, htp_arch=68)
    assert "cannot run" in judged("2.7.0_qnn.bin", old)
    assert "common weights" in judged("shared_qnn.bin")
    assert judged("two_graphs_qnn.bin") == "ok"
