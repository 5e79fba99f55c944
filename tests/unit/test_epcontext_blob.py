"""The metadata of context binaries, read from context binaries that QNN wrote."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_host.model.context_binary import BlobTarget, blob_facts, read_blob

COMPILED = Path(__file__).parents[1] / "models" / "compiled"
BINARIES = sorted(COMPILED.glob("*.bin"))
DATA = (COMPILED / "a_qnn.bin").read_bytes()
GRAPH = "QNNExecutionProvider_QNNExecutionProvider_10254387147049496059_1_0"


@pytest.mark.parametrize("path", BINARIES, ids=lambda path: path.name)
def test_a_real_context_binary_records_sdk_chip_graphs_and_its_size(path: Path) -> None:
    with path.open("rb") as file:
        facts = read_blob(file)
    assert (facts.kind, facts.is_whole, facts.sdk) == ("context", True, "2.51.0.260929181845")
    assert facts.targets == (BlobTarget("SC8380XP", 73),)
    assert facts.vtcm_mb == 8
    assert facts.described
    assert len(facts.graphs) == 1


def test_the_graphs_have_the_names_of_the_parts_in_the_model() -> None:
    assert blob_facts(DATA, len(DATA)).graphs == (GRAPH,)


def test_a_context_binary_inside_of_another_file_is_read() -> None:
    file = io.BytesIO(b"before" + DATA + b"behind")
    assert read_blob(file, 6, len(DATA)) == blob_facts(DATA, len(DATA))


@pytest.mark.parametrize("size", [100, len(DATA) // 2, len(DATA) - 1, len(DATA) + 1])
def test_a_size_other_than_the_recorded_one_is_detected(size: int) -> None:
    data = (DATA + b"\0")[:size]
    assert read_blob(io.BytesIO(data)).is_whole is False


def test_a_context_binary_compiled_without_a_chip_records_the_architecture_only() -> None:
    data = DATA.replace(b"soc_type=SC8380XP;arch=73", b"soc_type=UNKNOWN_S;arch=68")
    assert blob_facts(data, len(data)).targets == (BlobTarget(None, 68),)


def test_a_context_binary_for_several_chips_is_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "several.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("htp.cache.sc8380xp.0", DATA)
        archive.writestr("htp.cache.sc8480xp.0", DATA.replace(b"SC8380XP;arch=73", b"SC8480XP;arch=81"))
    with path.open("rb") as file:
        facts = read_blob(file)
    assert (facts.kind, facts.is_whole) == ("several contexts", True)
    assert facts.targets == (BlobTarget("SC8380XP", 73), BlobTarget("SC8480XP", 81))
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb") as file:
        assert read_blob(file).is_whole is False


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "text"),
        (b"<html>", "text"),
        (b"\0" * 5000, "unknown"),
        (b"\x02\x00\x00\x00" * 500, "unknown"),
        (DATA[:16], "unknown"),
    ],
)
def test_a_file_that_is_not_a_context_binary_is_recognised_or_unknown(data: bytes, kind: str) -> None:
    facts = blob_facts(data, len(data))
    assert facts.kind == kind
    assert facts.is_whole is None


def test_the_header_alone_is_sufficient() -> None:
    size = len(DATA) * 1000
    assert blob_facts(DATA[:30_000], size).sdk == "2.51.0.260929181845"


@given(st.binary(max_size=200), st.integers(0, 2000))
def test_no_damaged_header_raises(data: bytes, at: int) -> None:
    broken = DATA[:at] + data + DATA[at + len(data) : 4000]
    blob_facts(broken, len(broken))
