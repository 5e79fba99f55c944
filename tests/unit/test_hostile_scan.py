"""Files that are no models cost no more than it takes to see that: what is read is counted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

import qnnbridge
from qnnbridge_host.model import protobuf, scan
from qnnbridge_host.model.node_graph import read_graph
from qnnbridge_protocol.errors import InvalidProtobuf

GOOD = helper.make_model(
    helper.make_graph(
        [helper.make_node("Neg", [f"x{i}"], [f"x{i + 1}"], name=f"n{i}") for i in range(1000)],
        "g",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("x1000", TensorProto.FLOAT, [1])],
    ),
    ir_version=8,
).SerializeToString()


class Counted(io.BytesIO):
    """Counts the bytes that are read."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize(
    ("begins", "words"), [(b"", "consists of zeros"), (GOOD, "ends in zeros")], ids=["all", "end"]
)
def test_zeros_are_refused_at_the_first_of_them(begins: bytes, words: str) -> None:
    file = Counted(begins + bytes(50_000_000))
    with pytest.raises(InvalidProtobuf, match=words) as caught:
        scan.scan_open(file, count_nodes=True)
    assert caught.value.evidence == (f"zeros from byte {len(begins)} of {len(begins) + 50_000_000} on",)
    assert file.bytes_read < 2 * len(begins) + 100_000


def test_a_hole_in_the_middle_of_weights_is_no_fault_of_the_model() -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1000], bytes(4000), raw=True)
    model = helper.make_model(
        helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [], [weights])
    )
    assert scan.scan_model(model.SerializeToString()).node_count == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x08\x00" * 200_000, id="unknown numbers"),
        pytest.param(b"\x3a\x80\xb5\x18" + b"\x0a\x00" * 200_000, id="empty nodes"),
        pytest.param(b"\x62\x00" * 200_000, id="empty fields"),
    ],
)
def test_the_fields_of_a_walk_are_limited(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 100_000)
    with pytest.raises(InvalidProtobuf, match="fields"):
        scan.scan_model(data)


def test_the_limit_is_far_above_what_models_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk that looks into each node, a hundred of which are a thousandth of the largest models."""
    nodes = [
        helper.make_node(
            "Conv", [f"x{i}", f"w{i}", f"b{i}"], [f"x{i + 1}"], name=f"n{i}", strides=[1, 1], pads=[0] * 4
        )
        for i in range(100)
    ]
    infos = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1, 3, "h"]) for i in range(101)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[-1:], value_info=infos[1:-1]))
    data = model.SerializeToString()
    monkeypatch.setattr(
        protobuf, "MAX_FIELDS", protobuf.MAX_FIELDS // 10_000
    )  # for 100 nodes in place of a million
    read_graph(io.BytesIO(data), len(data), {})
    assert scan.scan_model(data).node_count == 100


@pytest.mark.process
def test_a_session_does_not_hash_gigabytes_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "zeros.onnx"
    path.touch()
    os.truncate(path, 3 << 30)  # sparse
    with qnnbridge.Host() as host:
        process = host.info.pid
        before = _seconds(process)
        with pytest.raises(InvalidProtobuf, match="consists of zeros"):
            qnnbridge.InferenceSession(path, host=host)
        assert _seconds(process) - before < 3  # it was 8 to hash it, and quarter of an hour to read it


def _seconds(pid: int) -> float:
    import psutil

    return float(sum(psutil.Process(pid).cpu_times()[:2]))


@pytest.mark.process
def test_inspect_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "zeros.onnx"
    path.write_bytes(bytes(1_000_000))
    command: Any = [sys.executable, "-m", "qnnbridge_tools", "inspect", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode
    assert "consists of zeros" in told.stderr + told.stdout
    assert "Download or copy the model again" in told.stderr + told.stdout
