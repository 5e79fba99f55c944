"""Text and HTML representations of objects contain locally known facts, before, during and after their use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge._buckets.session import BucketedRunner
from tests.contract.small_models import CPU, MODELS, model, node, tensor

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODEL = MODELS / "mul_1.onnx"
X = np.arange(6, dtype=np.float32).reshape(3, 2)
ON_QNN = "<InferenceSession mul_1.onnx: 1 of 1 node on QNN (simulator), cache off, numbers "


def test_a_session_on_qnn_shows_nodes_cache_and_numbers(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, host=host, cache=False, verify="warn") as session:
        assert repr(session) == f"{ON_QNN}pending>"
        session.run(None, {session.get_inputs()[0].name: X})
        assert session.verify({session.get_inputs()[0].name: X})
        assert repr(session).startswith(f"{ON_QNN}agree on ")
        html = session._repr_html_()
    assert repr(session).startswith("<InferenceSession mul_1.onnx: closed, 1 of 1 node on QNN")
    for fact in repr(session).removeprefix("<InferenceSession mul_1.onnx: closed, ").removesuffix(">").split(", "):
        assert f"<li>{fact}</li>" in html
    assert "SNR" in html, "what the text leaves out is in the HTML"


def test_a_session_on_the_cpu_shows_that_nothing_is_on_qnn(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        text = "<InferenceSession mul_1.onnx: 0 of 1 node on QNN, 1 on the CPU, cache off>"
        assert repr(session) == text
        assert "&#9888;" not in session._repr_html_(), "the CPU was asked for"


def test_nodes_that_left_qnn_are_marked() -> None:
    moved = qnnbridge.Placement(qnn_nodes=3, cpu_nodes=1, backend="htp", cpu_list=(("<b>a</b>", "Mul"),))
    assert repr(moved) == "<Placement: 3 of 4 nodes on QNN, 1 on the CPU>"
    assert "&#9888; <b>3 of 4 nodes on QNN, 1 on the CPU</b>" in moved._repr_html_()
    assert "&lt;b&gt;a&lt;/b&gt; (Mul)" in moved._repr_html_()


def test_showing_a_session_sends_no_request_to_the_host(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        before = repr(session), session._repr_html_()
        host.restart()
        generation = host.stats.generation
        assert (repr(session), session._repr_html_()) == before
        assert host.stats.generation == generation
    host.start()  # close it, so that the next test is not blamed for the open session


def test_a_session_that_could_not_be_created_can_be_shown() -> None:
    unmade = object.__new__(qnnbridge.InferenceSession)
    assert repr(unmade) == "<InferenceSession: not open>"
    assert unmade._repr_html_() == '<div class="qnnbridge"><b>InferenceSession</b><ul><li>not open</li></ul></div>'
    half_made = object.__new__(qnnbridge.Host)
    assert repr(half_made) == "<Host: facts cannot be read (AttributeError)>"


def test_a_host_shows_its_state() -> None:
    host = qnnbridge.Host()
    assert repr(host) == "<Host: not started>"
    assert host.stats.generation == 0, "showing starts nothing"
    with host:
        info = host.info
        assert repr(host).startswith(f"<Host: running, generation 1, process {info.pid}, Python ")
        assert "onnxruntime-qnn" in repr(host)
        assert repr(info) in repr(host).replace("<Host: running, generation 1, ", "<HostInfo: ")
        assert os.path.dirname(sys.executable) not in host._repr_html_()
        os.kill(info.pid, 9)
        assert repr(host).startswith("<Host: "), "a death that no call has noticed yet"
        assert host.stats.generation == 1
        with pytest.raises(qnnbridge.errors.HostCrashed):
            host.ping(30)
        assert repr(host) == "<Host: not running, 1 crash>"
        host.start()
        assert repr(host) == "<Host: running, generation 2, 1 crash>"
    assert repr(host) == "<Host: closed, 1 crash>"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_session_in_a_fork_shows_what_it_knows_without_a_host(host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(MODEL, providers=CPU, host=host) as session:
        expected = repr(session)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, f"{session!r}\n{host!r}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        shown, of_host = os.read(read, 4096).decode().split("\n")
    os.close(read)
    os.close(write)
    assert shown == expected
    assert of_host.startswith("<Host: not running")


def test_a_session_with_buckets_can_be_shown_while_its_locks_are_held(host: qnnbridge.Host) -> None:
    free = model([node("Relu", ["x"], ["y"])], [tensor("x", ["n", 3])], [tensor("y", ["n", 3])])
    data = free.SerializeToString()
    with qnnbridge.InferenceSession(data, host=host, buckets={"n": [2, 4]}, pad=0) as session:
        text = repr(session)
        assert "1 of 2 buckets created" in text
        assert repr(session.buckets).startswith("<BucketStatus: 1 of 2 buckets created, ")
        runner = session._runner
        assert isinstance(runner, BucketedRunner)
        with runner._counting:
            assert repr(session) == text
    assert "closed" in repr(session)
    assert "1 of 2 buckets created" in repr(session)


def test_a_compilation_shows_its_result_without_folders(host: qnnbridge.Host, tmp_path: Path) -> None:
    made = qnnbridge.compile(MODEL, tmp_path / "out.onnx", host=host)
    assert repr(made).startswith("<CompileResult out.onnx: 1 of 1 node on QNN (simulator), numbers agree, ")
    assert str(tmp_path) not in repr(made) + made._repr_html_()
    with qnnbridge.InferenceSession(made.path, host=host) as session:
        assert str(tmp_path) not in repr(session) + session._repr_html_()
