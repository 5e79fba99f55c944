"""`qnnbridge pull` and `models`, with a hub on loopback: the choice, complete downloads, and all of their
failures."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.fakes.commands import COMMAND, in_a_process
from tests.fakes.commands import qnnbridge as command
from tests.fakes.hub import TOKEN, FakeHub, commit_of, serving_hub

pytest.importorskip("huggingface_hub")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from tests.unit import epcontext_models

import qnnbridge
from qnnbridge_protocol.errors import BridgeError, HostNotFound, OptionError, PullFailed
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.shell import shell_word
from qnnbridge_tools import inspection
from qnnbridge_tools.hub import archive, choice, library, remote
from qnnbridge_tools.hub.pulling import PullRequest, PullResult, pull_model

MODELS = Path(__file__).parents[1] / "models"
FLOAT = (MODELS / "f.onnx").read_bytes()
QDQ = (MODELS / "q.onnx").read_bytes()
COMPILED = (MODELS / "compiled" / "good.onnx").read_bytes()
BINARY = (MODELS / "compiled" / "a_qnn.bin").read_bytes()
NAME = "tests/net"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """An empty hub, an empty folder for models, and a host with QNN 2.51 that simulates SoC 60."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))  # for child processes
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("QNNBRIDGE_MODELS_DIR", str(tmp_path / "models"))
    # Retries of huggingface_hub wait for seconds.
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    use_host(monkeypatch, "2.51.0.260929181845")
    with serving_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        yield served


def use_host(monkeypatch: pytest.MonkeyPatch, qnn_sdk: str) -> None:
    versions = {"onnxruntime": "1.31.1", "onnxruntime_qnn": "2.7.0", "qnn_sdk": qnn_sdk}
    found = inspection.Installation("python", versions, True)
    monkeypatch.setattr(inspection, "find_installation", lambda _python: found)


def pull(name: str = NAME, **options: Any) -> PullResult:
    return pull_model(PullRequest(name, **options))


def folder_of_models() -> Path:
    return Path(os.environ["QNNBRIDGE_MODELS_DIR"])


def finished() -> list[str]:
    """Return the names of the folders that look like complete models."""
    return [path.name for path in folder_of_models().glob("*--*/*") if not path.name.endswith(remote.PART)]


def zipped(files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda _: None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            change(info)
            packed.writestr(info, data)
    return made.getvalue()


def with_external_data(folder: Path, location: str = "weights.data") -> dict[str, bytes]:
    model = onnx.load_from_string(FLOAT)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    if location != "weights.data":
        model = onnx.load(folder / "m.onnx", load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        (folder / "m.onnx").write_bytes(model.SerializeToString())
    return {"model.onnx": (folder / "m.onnx").read_bytes(), "weights.data": (folder / "weights.data").read_bytes()}


def of_operator(operator: str, domain: str = "") -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], domain=domain)], "g", [x], [y])
    return bytes(helper.make_model(graph).SerializeToString())


# --- choice of the model ------------------------------------------------------------------------------------

VARIANTS = {
    "onnx/model.onnx": FLOAT,
    "onnx/model_qdq.onnx": QDQ,
    "onnx/model_quantized.onnx": of_operator("DynamicQuantizeLinear"),
    "onnx/model_fp16.onnx": FLOAT,
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "README.md": b"about",
    "pytorch_model.bin": b"not wanted",
}


def test_a_compiled_model_that_fits_is_preferred_to_quantised_and_float_ones(hub: FakeHub) -> None:
    hub.add(NAME, {**VARIANTS, "x-elite/model.onnx": COMPILED, "x-elite/a_qnn.bin": BINARY})
    done = pull()
    assert done.record.kind == "compiled"
    assert "QNN 2.51" in done.record.why
    assert done.path.read_bytes() == COMPILED
    assert (done.path.parent / "a_qnn.bin").read_bytes() == BINARY
    assert done.next_command.startswith("qnnbridge run ")
    assert {name for name, _ in done.not_taken} == {name for name in VARIANTS if name.endswith(".onnx")}


@pytest.mark.parametrize("embedded", [False, True])
def test_a_compiled_model_for_another_qnn_is_not_downloaded(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, embedded: bool
) -> None:
    """Check also models whose version is only in the header of the context binary, in a separate file or embedded."""
    model = epcontext_models.set_compatibility(epcontext_models.real(tmp_path), None)
    epcontext_models.edit(model, ep_sdk_version=None)
    if embedded:
        epcontext_models.embed(model, BINARY)
    files = {"x-elite/model.onnx": model.read_bytes(), "x-elite/a_qnn.bin": BINARY + bytes(400_000)}
    hub.add(NAME, {**VARIANTS, **(files if not embedded else {"x-elite/model.onnx": model.read_bytes()})})
    use_host(monkeypatch, "2.40.0.251030114326")
    done = pull()
    assert (done.record.kind, done.record.candidate) == ("qdq", "onnx/model_qdq.onnx")
    why = dict(done.not_taken)["x-elite/model.onnx"]
    assert "cannot run here" in why
    assert "2.40" in why
    # only parts of the file were read
    assert all(hub.downloads("x-elite/model.onnx"))
    assert all(hub.downloads("a_qnn.bin"))
    assert not list(done.folder.rglob("a_qnn.bin"))


def test_another_chip_can_be_chosen(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "newer"
    folder.mkdir()
    newer = epcontext_models.set_compatibility(epcontext_models.real(folder), "v2:6:2.51.0:5.51.0:0:88:0:0")
    epcontext_models.retarget(folder / "a_qnn.bin", "SC8480XP", 81)
    hub.add(NAME, {"model.onnx": newer.read_bytes(), "a_qnn.bin": (folder / "a_qnn.bin").read_bytes()})
    with pytest.raises(OptionError, match="No model") as refused:
        pull()
    assert "V81" in refused.value.evidence[0]
    assert pull(soc_model="88").record.kind == "compiled"


def test_a_damaged_compiled_model_is_detected_after_the_download_and_the_next_is_used(hub: FakeHub) -> None:
    cut = BINARY[:-1000] + b"\0" * 500  # the header is complete
    hub.add(NAME, {"npu/model.onnx": COMPILED, "npu/a_qnn.bin": cut, "model_qdq.onnx": QDQ})
    done = pull()
    assert done.record.kind == "qdq"
    assert finished() == [done.folder.name]


def test_without_a_host_no_compiled_model_is_chosen(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"npu/model.onnx": COMPILED, "npu/a_qnn.bin": BINARY, "model.onnx": FLOAT})
    monkeypatch.setattr(inspection, "find_installation", lambda _python: HostNotFound("none"))
    assert pull().record.kind == "float"
    hub.add(NAME, {"npu/model.onnx": COMPILED, "npu/a_qnn.bin": BINARY})
    with pytest.raises(OptionError, match="No model") as refused:
        pull()
    assert "qnnbridge setup" in str(refused.value.fix)


@pytest.mark.parametrize(
    ("files", "kind", "chosen"),
    [
        (VARIANTS, "qdq", "onnx/model_qdq.onnx"),
        ({"model.onnx": FLOAT, "model_fp16.onnx": FLOAT}, "float", "model.onnx"),
        ({"model_fp16.onnx": FLOAT, "model_int8.onnx": of_operator("MatMulInteger")}, "half", "model_fp16.onnx"),
        ({"model_q4.onnx": of_operator("MatMulNBits", "com.microsoft")}, "other", "model_q4.onnx"),
        # The contents decide, since these file names are wrong.
        ({"model_int8.onnx": FLOAT, "model.onnx": QDQ}, "qdq", "model.onnx"),
    ],
)
def test_the_kind_of_a_model_is_read_from_the_file(
    hub: FakeHub, files: dict[str, bytes], kind: str, chosen: str
) -> None:
    hub.add(NAME, files)
    done = pull()
    assert (done.record.kind, done.record.candidate) == (kind, chosen)


def test_a_float_model_is_printed_with_the_command_that_prepares_it(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": (MODELS / "rnet.onnx").read_bytes()})
    done = command("pull", NAME)
    assert done.returncode == 0, done.output
    line = next(line for line in done.stdout.splitlines() if "qnnbridge prepare" in line)
    assert "--dim" in line
    assert "float" in done.stdout


def test_large_weights_are_not_downloaded_to_learn_the_kind(hub: FakeHub) -> None:
    """Visiting all weights would take a request each."""
    weights = [
        helper.make_tensor(f"w{n}", TensorProto.FLOAT, [100_000], bytes(400_000), raw=True) for n in range(60)
    ]
    model = onnx.load_from_string(QDQ)
    model.graph.initializer.extend(weights)
    hub.add(NAME, {"model.onnx": model.SerializeToString(), "model_fp16.onnx": FLOAT})
    assert choice.find_candidates(remote.Hub(), remote.Hub().repository(NAME, None), (), None)[0].kind == "qdq"
    # Each request is a redirect, followed by the content of at most 24 blocks.
    assert len(hub.downloads("/model.onnx")) <= 2 * 24


# --- further files, names, revisions -----------------------------------------------------------------------


def test_only_external_data_and_tokenizers_are_downloaded_with_the_model(hub: FakeHub, tmp_path: Path) -> None:
    made = {f"onnx/{name}": data for name, data in with_external_data(tmp_path / "source").items()}
    others = {name: data for name, data in VARIANTS.items() if not name.endswith(".onnx")}
    hub.add(NAME, {**others, **made, "onnx/other.data": b"not named", "other/vocab.txt": b"of another"})
    done = pull()
    found = {path.relative_to(done.folder).as_posix() for path in done.folder.rglob("*") if path.is_file()}
    own = {library.RECORD, ".qnnbridge-folder"}
    assert found - own == {"onnx/model.onnx", "onnx/weights.data", "config.json", "tokenizer.json"}
    onnx.load(done.path)


@pytest.mark.parametrize("location", ["missing.data", "../weights.data", "C:weights.data", "nul"])
def test_a_model_that_references_a_missing_file_is_refused(hub: FakeHub, tmp_path: Path, location: str) -> None:
    hub.add(NAME, with_external_data(tmp_path / "source", location))
    with pytest.raises(OptionError, match="No model") as refused:
        pull()
    assert "it needs the file" in refused.value.evidence[0]
    assert not library.pulled()


def test_a_folder_for_text_generation_is_downloaded_completely(hub: FakeHub) -> None:
    config: dict[str, Any] = {"model": {"type": "llama", "decoder": {"filename": "model.onnx"}}}
    files = {"model.onnx": FLOAT, "tokenizer.json": b"{}", "vocab.bin": b"1"}
    on_qnn = json.loads(json.dumps(config))
    on_qnn["model"]["decoder"]["session_options"] = {"provider_options": [{"qnn": {}}]}
    on_cuda = json.dumps(on_qnn).replace("qnn", "cuda").encode()
    hub.add(
        NAME,
        {
            **{f"gpu/{name}": data for name, data in files.items()},
            "gpu/genai_config.json": on_cuda,
            **{f"cpu/{name}": data for name, data in files.items()},
            "cpu/genai_config.json": json.dumps(config).encode(),
            **{f"npu/{name}": data for name, data in files.items()},
            "npu/genai_config.json": json.dumps(on_qnn).encode(),
            "README.md": b"about",
        },
    )
    done = pull()
    assert done.record.kind == "generation"
    assert done.path.name == "npu"
    assert sorted(path.name for path in done.path.iterdir()) == sorted([*files, "genai_config.json"])
    assert done.next_command.startswith("qnnbridge chat ")
    assert "cuda" in dict(done.not_taken)["gpu"]
    hub.add(NAME, {name: data for name, data in hub.repos[NAME].files.items() if not name.startswith("npu/")})
    assert pull().path.name == "cpu"
    hub.add(
        NAME,
        {
            f"cpu/{name}": data
            for name, data in {**files, "genai_config.json": json.dumps(config).encode()}.items()
            if name != "model.onnx"
        },
    )
    with pytest.raises(OptionError, match="No model"):
        pull()
    packed = {
        f"llm/{name}": data for name, data in {**files, "genai_config.json": json.dumps(config).encode()}.items()
    }
    hub.add(NAME, {"llm.zip": zipped(packed)})
    done = pull()
    assert (done.record.kind, done.path.name) == ("generation", "llm")


def test_a_revision_is_given_by_name_by_commit_or_after_the_repository_name(hub: FakeHub) -> None:
    old = {"model.onnx": QDQ}
    hub.add(NAME, {"model.onnx": FLOAT}, older={"v1.0": old})
    assert pull().path.read_bytes() == FLOAT
    assert pull(revision="v1.0").path.read_bytes() == QDQ
    assert not pull(f"{NAME}@v1.0").is_new
    assert pull(revision=commit_of(old)).record.commit == commit_of(old)
    assert pull(f"{hub.endpoint}/{NAME}/tree/v1.0").record.commit == commit_of(old)
    with pytest.raises(OptionError, match="no revision"):
        pull(revision="v9")
    with pytest.raises(OptionError, match="Two revisions"):
        pull(f"{NAME}@v1.0", revision="main")


def test_files_are_selected_by_name_and_by_pattern(hub: FakeHub) -> None:
    hub.add(NAME, {**VARIANTS, "npu/model.bin": BINARY})
    assert pull(files=("onnx/model.onnx",)).record.kind == "float"
    assert pull(files=("onnx/*qdq*",)).record.candidate == "onnx/model_qdq.onnx"
    done = pull(files=("npu/model.bin",))
    assert done.path.read_bytes() == BINARY
    assert done.next_command.startswith("qnnbridge wrap ")
    with pytest.raises(OptionError, match="does not contain"):
        pull(files=("nothing.onnx",))


def test_several_models_are_not_guessed_and_their_parts_can_be_selected(hub: FakeHub) -> None:
    parts = {"onnx/encoder_model.onnx": FLOAT, "onnx/decoder_model_merged.onnx": QDQ}
    hub.add(
        NAME,
        {
            **parts,
            "onnx/decoder_model.onnx": QDQ,
            "onnx/decoder_model_fp16.onnx": QDQ,
            "onnx/encoder_model_fp16.onnx": FLOAT,
            "tokenizer.json": b"{}",
        },
    )
    with pytest.raises(OptionError, match="several models") as refused:
        pull()
    words = str(refused.value.fix).partition("qnnbridge ")[2].split()
    done = command(*words, "--json")
    assert done.returncode == 0, done.output
    folder = Path(json.loads(done.stdout)["path"])
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found - {library.RECORD, ".qnnbridge-folder"} == {*parts, "tokenizer.json"}


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("model.onnx", "model"),
        ("fp32/MobileNet-v2_w8a8.onnx", "mobilenet-v2"),
        ("resnet-50_fp16.onnx", "resnet-50"),
        ("a/yolo_qdq.onnx", "yolo"),
        ("net-onnx-float.zip", "net"),
        ("net-precompiled_qnn_onnx-w8a16-qualcomm_snapdragon_x_elite.zip", "net"),
        ("quantized.onnx", "model"),
        ("decoder_model_merged_q4f16.onnx", "decoder_model_merged"),
    ],
)
def test_variants_of_one_model_have_the_same_base_name(name: str, base: str) -> None:
    assert choice.base_of(name) == base


# --- archives ----------------------------------------------------------------------------------------------


def test_an_archive_is_unpacked_and_judged_before_it_is_downloaded(hub: FakeHub) -> None:
    fitting = zipped({"job/model.onnx": COMPILED, "job/a_qnn.bin": BINARY, "job/metadata.json": b"{}"})
    hub.add(
        NAME, {"net-onnx-float.zip": zipped({"net/model.onnx": FLOAT}), "net-qnn-snapdragon_x_elite.zip": fitting}
    )
    done = pull()
    assert (done.record.kind, done.record.candidate) == ("compiled", "net-qnn-snapdragon_x_elite.zip")
    assert done.path == done.folder / "net-qnn-snapdragon_x_elite" / "job" / "model.onnx"
    assert not list(done.folder.rglob("*.zip"))
    assert hub.downloads("net-onnx-float.zip") == [one for one in hub.downloads("net-onnx-float.zip") if one]


def link(info: zipfile.ZipInfo) -> None:
    if info.filename == "a":
        info.external_attr = (stat.S_IFLNK | 0o777) << 16


def by_bzip2(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_BZIP2


HOSTILE = {
    "out of the folder": zipped({"m.onnx": FLOAT, "../evil.onnx": b"x"}),
    "absolute": zipped({"m.onnx": FLOAT, "/tmp/evil": b"x"}),
    "a drive": zipped({"m.onnx": FLOAT, "C:evil": b"x"}),
    "by backslashes": zipped({"m.onnx": FLOAT, "a\\..\\..\\evil": b"x"}),
    "a device": zipped({"m.onnx": FLOAT, "data/NUL.txt": b"x"}),
    "a forbidden character": zipped({"m.onnx": FLOAT, "what?.txt": b"x"}),
    "a dot at the end": zipped({"m.onnx": FLOAT, "data./x": b"x"}),
    "two names that Windows takes for one": zipped({"m.onnx": FLOAT, "A.txt": b"x", "a.TXT": b"y"}),
    "a link": zipped({"m.onnx": FLOAT, "a": b"/etc"}, link),
    "a bomb": zipped({"m.onnx": FLOAT, "zeros": bytes(60_000_000)}),
    "another compression": zipped({"m.onnx": FLOAT, "a": b"x"}, by_bzip2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_before_its_download(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.add(NAME, {"net.zip": HOSTILE[name]})
    with pytest.raises(OptionError, match="No model"):
        pull()
    assert not finished()
    assert all(hub.downloads("net.zip"))
    # Unpacking itself also refuses such an archive.
    (tmp_path / "net.zip").write_bytes(HOSTILE[name])
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError):
        archive.unpack(tmp_path / "net.zip", tmp_path / "out", "net.zip")
    assert not list((tmp_path / "out").iterdir())


def test_an_archive_with_a_damaged_file_leaves_no_file(hub: FakeHub) -> None:
    packed = bytearray(zipped({"model.onnx": FLOAT, "weights.data": os.urandom(20_000)}))
    packed[-12_000] ^= 255  # the hub's checksum is that of the damaged archive
    hub.add(NAME, {"net.zip": bytes(packed)})
    with pytest.raises(OptionError, match="No model") as refused:
        pull()
    assert "cannot be unpacked" in refused.value.evidence[0]
    assert not library.pulled()


@pytest.mark.parametrize("damage", ["contents", "name"])
def test_an_archive_with_a_damaged_header_is_refused(hub: FakeHub, damage: str) -> None:
    packed = bytearray(zipped({"mödel.onnx": FLOAT}))
    if damage == "contents":
        at = packed.index("mödel.onnx".encode()) + len("mödel.onnx".encode())
        packed[at : at + 40] = b"\xff" * 40
    else:
        packed = packed.replace("ö".encode(), b"\xff\xff")
    hub.add(NAME, {"net.zip": bytes(packed)})
    with pytest.raises(OptionError, match="No model") as refused:
        pull()
    assert "cannot be read" in refused.value.evidence[0]


@pytest.mark.parametrize("name", ["aux.onnx", "what?.onnx", "model .onnx/model.onnx", "a:b.onnx"])
def test_a_name_that_windows_forbids_is_refused_on_every_system(hub: FakeHub, name: str) -> None:
    hub.add(NAME, {name: FLOAT})
    if name.startswith("model "):  # a blank inside is allowed, one at the end of a folder is not
        name = "model /model.onnx"
        hub.add(NAME, {name: FLOAT})
    with pytest.raises(OptionError, match="cannot be written"):
        pull()
    assert not finished()


# --- failures ----------------------------------------------------------------------------------------------


def test_an_interrupted_download_continues_where_it_stopped(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_large_weights()
    hub.add(NAME, {"model.onnx": data})
    # Reading parts of the model has ended when its content is requested without an end.
    faults = itertools.chain(["cut"], itertools.repeat("drop"))
    hub.fault = lambda _m, path: next(faults) if path.startswith("/content/") and not peeking(hub) else None
    # The client writes chunks of this size, and loses the rest of a chunk with the connection.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 65536)
    with pytest.raises(PullFailed, match="broke") as failed:
        pull()
    assert failed.value.details["reason"] == "network"
    assert "continues" in str(failed.value.fix)
    assert not finished()
    left = next(folder_of_models().rglob(f"model.onnx{remote.PART}")).stat().st_size
    assert 0 < left < len(data)
    hub.fault = lambda _method, _path: None
    hub.requests.clear()
    assert pull().path.read_bytes() == data
    assert f"bytes={left}-" in hub.downloads("model.onnx")


def peeking(hub: FakeHub) -> bool:
    last = hub.requests[-1][2]
    return bool(last) and not last.endswith("-")


def with_large_weights() -> bytes:
    model = onnx.load_from_string(FLOAT)
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.FLOAT, [500_000], os.urandom(2_000_000), raw=True)
    )
    return bytes(model.SerializeToString())


def test_one_interruption_is_survived_within_the_pull(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 65536)
    data = with_large_weights()
    hub.add(NAME, {"model.onnx": data})
    cuts = iter(["cut", "cut"])
    hub.fault = lambda _m, path: next(cuts, None) if path.startswith("/content/") and not peeking(hub) else None
    assert pull().path.read_bytes() == data
    assert next(cuts, None) is None


def test_a_file_too_large_for_one_answer_is_downloaded_in_parts_although_the_hub_offers_xet(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that offers Xet also redirects to plain ranges, which need no further package."""
    monkeypatch.setattr(remote, "_MOST_BYTES", 700)
    # More than huggingface_hub itself is willing to request at once.
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 800)
    hub.most = 800
    assert len(QDQ) > 2 * 700
    hub.add(NAME, {"model.onnx": QDQ})
    monkeypatch.setattr(choice, "_variants", lambda _hub, repository, _names, _judge: [whole(repository)])
    assert pull().path.read_bytes() == QDQ
    assert hub.downloads("model.onnx")[-1] == f"bytes={len(QDQ) // 700 * 700}-"
    assert not [path for _, path, _, _ in hub.requests if "xet" in path]


def whole(repository: remote.HubRepository) -> choice.PullCandidate:
    (file,) = repository.files.values()
    return choice.PullCandidate(file.name, "qdq", "quantised", (file.name,), file.size)


def test_a_file_larger_than_the_disk_is_refused_before_the_download(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "weights.bin": bytes(10)}, sizes={"weights.bin": 400 * 1000**4})
    with pytest.raises(PullFailed, match=r"too little space: 372529\.0 GiB are needed, and .* are free\.") as info:
        pull(files=("model.onnx", "weights.bin"))
    assert info.value.details["reason"] == "disk"
    assert hub.downloads("weights.bin") == []
    assert finished() == []


def test_a_server_without_ranges_works_too(hub: FakeHub) -> None:
    hub.ranges = False
    hub.add(NAME, {"model.onnx": FLOAT, "model_qdq.onnx": QDQ, "config.json": b"{}"})
    assert pull().path.read_bytes() == QDQ


def test_a_server_without_ranges_does_not_fill_the_memory(hub: FakeHub) -> None:
    hub.ranges = False
    hub.add(NAME, {"model.onnx": bytes(30_000_000) + b"the end"})
    asked = remote.Hub()
    repository = asked.repository(NAME, None)
    tracemalloc.start()
    try:
        assert asked.read(repository, "model.onnx", 30_000_000, 7) == b"the end"
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["model.onnx", "config.json"])
def test_wrong_bytes_are_detected_and_not_kept(hub: FakeHub, name: str) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "config.json": b'{"model_type": "net"}'})
    hub.fault = lambda method, path: (
        "swap" if method == "GET" and path.endswith(name) and not peeking(hub) else None
    )
    with pytest.raises(PullFailed, match="damaged") as failed:
        pull()
    assert failed.value.details == {"reason": "damaged", "file": name}
    assert not finished()
    hub.fault = lambda _method, _path: None
    assert pull().path.read_bytes() == FLOAT


def test_a_gated_model_needs_the_token_which_no_other_server_gets(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "config.json": b"{}"}, gated=True)
    with pytest.raises(PullFailed, match="gated") as failed:
        pull()
    assert failed.value.details["reason"] == "gated"
    assert f"{hub.endpoint}/{NAME}" in str(failed.value.fix)
    assert not finished()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert pull().is_new
    # Through the API, and not to the servers of the contents.
    assert {one[3] for one in hub.requests if one[1].startswith("/content/")} == {""}
    assert TOKEN in {one[3] for one in hub.requests}
    assert TOKEN not in (pull().folder / library.RECORD).read_text()
    assert TOKEN not in repr(PullRequest(NAME, token=TOKEN))


def test_a_password_in_the_address_of_the_hub_is_not_shown(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    named = hub.endpoint.replace("://", "://ann:s3cr3t@p@")
    assert remote.without_login(named) == hub.endpoint
    monkeypatch.setenv("HF_ENDPOINT", named)
    hub.fault = lambda _method, _path: "drop"
    with pytest.raises(PullFailed, match="cannot be reached") as failed:
        pull()
    assert "s3cr3t" not in str(failed.value) + str(failed.value.fix)
    assert remote.Hub().endpoint == hub.endpoint


def test_a_hub_may_request_a_wait_until_a_date(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    hub.fault = lambda _method, _path: 429
    with pytest.raises(PullFailed) as failed:
        pull()
    assert "Wait 7 seconds" in str(failed.value.fix)
    hub.retry_after = "Wed, 21 Oct 2026 07:28:00 GMT"
    with pytest.raises(PullFailed) as failed:
        pull()
    assert "Wait some minutes" in str(failed.value.fix)


def test_the_hub_answers_the_same_for_unknown_and_private_names(hub: FakeHub) -> None:
    hub.add("tests/own", {"model.onnx": FLOAT}, private=True)
    for name in ("tests/nothing", "tests/own"):
        with pytest.raises(OptionError, match="shows no model repository") as refused:
            pull(name)
        assert "hf auth login" in str(refused.value.fix)
    assert pull("tests/own", token=TOKEN).is_new
    with pytest.raises(PullFailed, match="token"):
        pull("tests/own", token="hf_wrong")


@pytest.mark.parametrize("name", ["a/b/c", "", "../x", "a b/c", "/", ".", str(MODELS)])
def test_an_invalid_name_is_refused_without_a_request(hub: FakeHub, name: str) -> None:
    with pytest.raises(OptionError, match="not the name"):
        pull(name)
    assert not hub.requests


@pytest.mark.parametrize(("status", "reason"), [(403, "refused"), (429, "limited"), (500, "network")])
@pytest.mark.parametrize("place", ["/api/", "/resolve/"])
def test_an_http_status_becomes_one_sentence_with_the_fix(
    hub: FakeHub, status: int, reason: str, place: str
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    hub.fault = lambda _method, path: status if place in path else None
    with pytest.raises(PullFailed) as failed:
        pull()
    assert failed.value.details["reason"] == reason
    assert failed.value.message.count(".") <= 2
    assert failed.value.fix
    assert status != 429 or "7 seconds" in str(failed.value.fix)
    assert not finished()


def test_without_network_the_pulled_model_is_used_and_another_is_refused(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    path = pull().path
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.fault = lambda _method, _path: 503
    again = pull()
    assert (again.path, again.is_new) == (path, False)
    assert "is used" in again.notes[0]
    with pytest.raises(PullFailed, match="HTTP 503"):
        pull("tests/other")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PullFailed, match="cannot be reached") as failed:
        pull("tests/other")
    assert "HTTPS_PROXY" in str(failed.value.fix)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(PullFailed) as failed:
        pull("tests/other")
    assert "HTTP_PROXY" in str(failed.value.fix)


def test_an_invalid_address_of_the_hub_is_reported(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example.org")
    with pytest.raises(PullFailed, match=r'HF_ENDPOINT is "hub\.example\.org", which is not the address') as failed:
        pull()
    assert "https://" in str(failed.value.fix)


def test_a_refusal_names_the_proxy_if_there_is_one(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy refuses like a hub, but only a hub gives a reason."""
    hub.add(NAME, {"model.onnx": FLOAT})
    hub.fault = lambda _method, _path: 403
    with pytest.raises(PullFailed, match=r"refuses tests/net without a token \(HTTP 403\)"):
        pull()
    # The proxy answers 403 to any address.
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    with pytest.raises(PullFailed, match="The hub or the proxy refuses") as failed:
        pull()
    assert "HTTP_PROXY" in str(failed.value.fix)


def test_a_hub_without_error_codes_reports_an_unknown_name_too(hub: FakeHub) -> None:
    with pytest.raises(OptionError, match="shows no model repository gpt2"):
        pull("gpt2")


@pytest.mark.parametrize("code", [errno.EFBIG, errno.EACCES])
def test_the_fix_for_a_folder_that_the_user_chose_names_its_option(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Set the folder by the option and by its variable. Neither leaves a partial folder before the download."""
    hub.add(NAME, {"model.onnx": FLOAT})

    def refused(*_arguments: Any, **_options: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(remote.Hub, "download", refused)
    for output, way in ((tmp_path / "mine", "--output DIR"), (None, "QNNBRIDGE_MODELS_DIR")):
        with pytest.raises(PullFailed) as failed:
            pull(output=output)
        assert way in str(failed.value.fix)
        assert ("4 GiB" in str(failed.value.fix)) == (code == errno.EFBIG)
    assert not [*tmp_path.rglob(f"*{remote.PART}")]


def test_offline_mode_sends_no_request(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    with pytest.raises(PullFailed, match="--offline") as failed:
        pull(offline=True)
    assert failed.value.details["reason"] == "offline"
    path = pull().path
    hub.requests.clear()
    assert pull(offline=True).path == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull().path == path
    with pytest.raises(PullFailed, match="HF_HUB_OFFLINE"):
        pull(revision="v9")
    assert not hub.requests


def test_insufficient_space_is_reported_before_the_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "net.zip": zipped({"model.onnx": QDQ, "more.data": os.urandom(100_000)})})
    usage = shutil.disk_usage(folder_of_models().parent)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=16 * 1024 * 1024 + 1000))
    for files in (("model.onnx",), ("net.zip",)):
        hub.requests.clear()
        with pytest.raises(PullFailed, match="too little space") as failed:
            pull(files=files)
        assert failed.value.details["reason"] == "disk"
        assert all(hub.downloads(files[0]))
    assert not finished()


def test_a_disk_that_fills_up_is_reported_too(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})

    def full(*_arguments: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(PullFailed, match="too little space"):
        pull()


def test_a_read_only_folder_and_a_file_in_its_place_are_refused(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", Path("/proc/nowhere")) if os.name == "posix" else (tmp_path / "file",):
        monkeypatch.setenv("QNNBRIDGE_MODELS_DIR", str(place))
        with pytest.raises(BridgeError) as failed:
            pull()
        assert "QNNBRIDGE_MODELS_DIR" in str(failed.value.fix)


def test_folders_of_other_programs_are_not_changed(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "file").write_bytes(b"own")
    with pytest.raises(OptionError, match="did not pull"):
        pull(output=tmp_path / "own")
    monkeypatch.setenv("QNNBRIDGE_MODELS_DIR", str(tmp_path / "own"))
    with pytest.raises(BridgeError) as failed:
        pull()
    assert "QNNBRIDGE_MODELS_DIR" in str(failed.value.fix)
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["file"]
    assert not library.pulled()


def test_the_user_can_choose_the_folder(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, {"model.onnx": FLOAT}, older={"v1": {"model.onnx": QDQ}})
    (tmp_path / "out").mkdir()
    done = pull(output=tmp_path / "out")
    assert done.path == tmp_path / "out" / "model.onnx"
    assert not pull(output=tmp_path / "out").is_new
    assert not pull(output=tmp_path / "out", offline=True).is_new
    with pytest.raises(OptionError, match="contains"):
        pull(output=tmp_path / "out", revision="v1")
    assert done.path.read_bytes() == FLOAT
    assert sorted(path.name for path in tmp_path.iterdir() if "part" in path.name) == []


def test_pulls_into_two_folders_do_not_share_a_partial_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    stages: list[Path] = []
    download = remote.Hub.download

    def noting(self: remote.Hub, repository: Any, file: Any, folder: Path) -> None:
        stages.append(folder)
        download(self, repository, file, folder)

    monkeypatch.setattr(remote.Hub, "download", noting)
    for name in ("one", "two"):
        assert pull(output=tmp_path / name).is_new
    assert len({*stages}) == 2
    assert {one.parent for one in stages} == {tmp_path}


@needs.posix
def test_a_folder_has_one_lock_under_all_its_names(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    with library.locked(tmp_path / "real" / "out"), pytest.raises(PullFailed, match="being pulled"):
        with library.locked(tmp_path / "alias" / "out", wait=False):
            pass


def test_files_with_the_names_of_internal_files_are_not_downloaded(hub: FakeHub) -> None:
    names = (library.RECORD, library.RECORD.upper(), f"model.onnx{remote.PART}", ".qnnbridge-folder")
    hub.add(NAME, {"model.onnx": FLOAT, **dict.fromkeys(names, b"{}")})
    for name in names:
        with pytest.raises(OptionError, match="does not contain"):
            pull(files=("model.onnx", name))
    done = pull()
    assert done.path.read_bytes() == FLOAT
    assert done.record.repository == NAME


def test_a_record_cannot_refer_to_a_file_outside_of_its_folder(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    folder = pull(output=tmp_path / "out").folder
    (tmp_path / "other.onnx").write_bytes(FLOAT)
    record = json.loads((folder / library.RECORD).read_text())
    for entry in ("../other.onnx", str(tmp_path / "other.onnx")):
        (folder / library.RECORD).write_text(json.dumps({**record, "entry": entry}))
        assert library.read_record(folder) is None


def test_a_partial_folder_is_not_a_model_even_if_its_record_is_written(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    done = pull()
    os.rename(done.folder, f"{done.folder}{remote.PART}")
    assert [one.record for one in library.pulled()] == [None]
    with pytest.raises(PullFailed, match="was not pulled"):
        pull(offline=True)
    assert pull().path == done.path


def test_the_name_of_a_revision_is_quoted_in_a_suggested_command(hub: FakeHub) -> None:
    files = {"encoder.onnx": FLOAT, "head.onnx": FLOAT}
    hub.add(NAME, files, older={"a;b": files})
    with pytest.raises(OptionError, match="several models") as refused:
        pull(revision="a;b")
    assert shell_word(f"{NAME}@a;b") in str(refused.value.fix)
    assert shell_word("a;b") != "a;b"


def test_a_repository_without_onnx_files_is_refused(hub: FakeHub) -> None:
    hub.add(NAME, {"model.safetensors": b"x", "config.json": b"{}"})
    with pytest.raises(OptionError, match="no ONNX model") as refused:
        pull()
    assert "export" in str(refused.value.fix)
    hub.add(NAME, {"npu/model.bin": BINARY})
    with pytest.raises(OptionError, match="no ONNX model") as refused:
        pull()
    assert "--file npu/model.bin" in str(refused.value.fix)
    hub.add(NAME, {"model.onnx": b"<html>an error page</html>"})
    with pytest.raises(OptionError, match="No model"):
        pull()


def test_two_simultaneous_pulls_download_once(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": with_large_weights()})
    done: list[PullResult] = []
    threads = [threading.Thread(target=lambda: done.append(pull())) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len({one.path for one in done}) == 1
    assert len(done) == 4
    assert sum(one.is_new for one in done) == 1
    assert hub.downloads("model.onnx").count("") == 2  # the redirect and the content


# --- commands and function ----------------------------------------------------------------------------------


def test_models_lists_shows_and_removes_pulled_models(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "config.json": b"{}"})
    hub.add("tests/other", {"model.onnx": QDQ})
    assert "No models" in command("models").stdout
    first, second = pull(), pull("tests/other")
    stranger = folder_of_models() / "stranger" / "folder"
    stranger.mkdir(parents=True)
    (stranger / "file").write_bytes(b"x")
    listed = json.loads(command("models", "list", "--json").stdout)
    assert [one["repository"] for one in listed["models"]] == [NAME, "tests/other"]
    shown = command("models", "show", "net").stdout
    assert first.record.commit in shown
    assert "config.json" in shown
    assert command("models", "show", "nothing").returncode == 2
    assert command("models", "remove").returncode == 2
    assert command("models", "remove", NAME).returncode == 0
    assert not first.folder.exists()
    assert second.path.exists()
    assert command("models", "remove", "--all").returncode == 0
    assert not library.pulled()
    assert (stranger / "file").exists()


def test_a_name_that_several_owners_use_removes_nothing(hub: FakeHub) -> None:
    for name in ("ann/net", "bob/net"):
        hub.add(name, {"model.onnx": FLOAT})
        pull(name)
    refused = command("models", "remove", "net")
    assert refused.returncode == 2
    assert "ann/net, bob/net" in refused.stderr
    assert len(library.pulled()) == 2
    assert command("models", "remove", "bob/net").returncode == 0
    assert [one.repository for one in library.pulled()] == ["ann/net"]


def test_a_partial_download_is_listed_and_removed(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    faults = iter(["cut", *["drop"] * 30])
    hub.fault = lambda _m, path: next(faults) if path.startswith("/content/") and not peeking(hub) else None
    with pytest.raises(PullFailed):
        pull()
    assert "unfinished" in command("models").stdout
    assert command("models", "show", NAME).returncode == 2
    assert command("models", "remove", NAME).returncode == 0
    assert "No models" in command("models").stdout


def test_a_model_that_is_being_pulled_is_not_removed(hub: FakeHub) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    done = pull()
    with library.locked(done.folder):
        assert command("models", "remove", NAME).returncode == 1
    os.rename(done.folder, f"{done.folder}{remote.PART}")
    (done.folder.with_name(done.folder.name + remote.PART) / library.RECORD).unlink()
    with library.locked(done.folder):
        removed = command("models", "remove", NAME)
    assert removed.returncode == 1
    assert "being pulled" in removed.stderr
    assert [path.name for path in done.folder.parent.iterdir()] == [done.folder.name + remote.PART]


def test_a_removal_that_fails_can_be_repeated(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    pull()

    def half(folder: Path) -> None:
        (folder / ".qnnbridge-folder").unlink()
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(library.shutil, "rmtree", half)
        with pytest.raises(PullFailed, match="cannot be removed"):
            library.remove(library.pulled()[0])
    assert [one.record for one in library.pulled()] == [None]
    assert command("models", "remove", NAME).returncode == 0
    assert not list(folder_of_models().glob("*--*"))


def test_the_list_survives_files_that_disappear(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "config.json": b"{}"})
    done = pull()
    status = os.lstat

    def gone(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("config.json"):
            raise FileNotFoundError(path)
        return status(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", gone)
        assert library.PulledFolder(done.folder, done.record).size > len(FLOAT)


@needs.posix
def test_links_are_neither_listed_nor_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    elsewhere = pull(output=tmp_path / "elsewhere")
    (folder_of_models() / "tests--linked").symlink_to(tmp_path)
    owner = folder_of_models() / "tests--net"
    owner.mkdir()
    (owner / "linked").symlink_to(elsewhere.folder)
    (owner / f"linked{remote.PART}").symlink_to(elsewhere.folder)
    assert not library.pulled()
    assert command("models", "remove", "--all").returncode == 0
    assert elsewhere.path.exists()


@pytest.mark.process
@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs Python 3.11: older ones import from the current folder first"
)
def test_files_in_the_current_folder_do_not_reach_the_pulling_process(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, {"model.onnx": FLOAT})
    (tmp_path / "typer.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert Path(qnnbridge.pull(NAME)).read_bytes() == FLOAT


@pytest.mark.process
def test_the_function_returns_the_path_and_raises_the_errors(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, {"model.onnx": FLOAT, "model_qdq.onnx": QDQ}, gated=True)
    with pytest.raises(PullFailed, match="gated") as failed:
        qnnbridge.pull(NAME, file="model.onnx")
    assert failed.value.details["reason"] == "gated"
    path = qnnbridge.pull(NAME, file="model.onnx", output=tmp_path / "out", token=TOKEN)
    assert path == str(tmp_path / "out" / "model.onnx")
    assert qnnbridge.pull(NAME, offline=True, file=["model.onnx"], output=tmp_path / "out") == path
    with pytest.raises(OptionError, match="not the name"):
        qnnbridge.pull("--help")


def test_a_missing_package_is_named_with_its_extra(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    done = command("pull", NAME)
    assert done.returncode == 1
    assert install_command("hub", python=sys.executable) in done.stderr


@pytest.mark.process
def test_the_commands_import_no_hub_library_before_they_need_it(hub: FakeHub) -> None:
    """`models` works without the extra, and every command line imports the module of the commands."""
    done = in_a_process("models", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "qnnbridge_tools.hub.library" in done.stderr
    assert "huggingface_hub" not in done.stderr


@needs.posix
@pytest.mark.process
def test_a_killed_pull_leaves_nothing_that_appears_complete_and_the_next_continues(hub: FakeHub) -> None:
    data = with_large_weights()
    hub.add(NAME, {"config.json": b"{}", "model.onnx": data})
    ours = threading.Event()

    def kill(_method: str, path: str) -> None:
        if path.startswith("/content/") and not peeking(hub) and not ours.is_set():
            ours.set()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

    hub.fault = kill
    process = subprocess.Popen([*COMMAND, "pull", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.wait(60) == -signal.SIGKILL
    assert not finished()
    assert [one.record for one in library.pulled()] == [None]
    assert pull().path.read_bytes() == data
    assert [one.record is None for one in library.pulled()] == [False]


# --- with the host of this computer ---------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.simulator
def test_a_name_is_pulled_prepared_and_verified(hub: FakeHub, tmp_path: Path) -> None:
    """Pull a float model by name, run the command that pull prints, and compare the results."""
    pytest.importorskip("onnxruntime_qnn")
    hub.add(NAME, {"model.onnx": FLOAT, "config.json": b"{}"})
    done = in_a_process("pull", NAME)
    assert done.returncode == 0, done.stderr
    words = shlex.split(next(line for line in done.stdout.splitlines() if "next" in line))
    assert words[:3] == ["next", "qnnbridge", "prepare"]
    words[words.index("-o") + 1] = str(tmp_path / "prepared")
    prepared = in_a_process(*words[2:])
    assert prepared.returncode == 0, prepared.stderr
    files = {
        f"x-elite/{path.relative_to(tmp_path / 'prepared').as_posix()}": path.read_bytes()
        for path in (tmp_path / "prepared").rglob("*")
        if path.is_file()
    }
    hub.add("tests/prepared", {**files, "model.onnx": FLOAT, "README.md": b"about"})
    done = in_a_process("pull", "tests/prepared", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "prepared"
    assert "its model for this host" in found["why"]
    ran = in_a_process(*shlex.split(found["next"])[1:])
    assert ran.returncode == 0, ran.stderr
    x = np.load(MODELS / "x.npz")
    with qnnbridge.InferenceSession(found["path"]) as session:
        expected = onnxruntime.InferenceSession(FLOAT).run(None, {"x": x["x"]})[0]
        assert session.placement.qnn_nodes
        np.testing.assert_allclose(
            session.run(None, {"x": x["x"]})[0], expected, atol=0.05 * np.abs(expected).max()
        )
    hub.add("tests/compiled", {"model.onnx": COMPILED, "a_qnn.bin": BINARY, "model_qdq.onnx": QDQ})
    for options in ((), ("--file", "model_qdq.onnx")):
        done = in_a_process("pull", "tests/compiled", "--json", *options)
        ran = in_a_process(*shlex.split(json.loads(done.stdout)["next"])[1:])
        assert ran.returncode == 0, ran.stderr
    del files[next(name for name in files if name.endswith(".bin"))]
    hub.add("tests/prepared", {**files, "net.onnx": FLOAT})
    done = in_a_process("pull", "tests/prepared")
    assert done.returncode == 2
    assert "the repository has no such file" in done.stderr
