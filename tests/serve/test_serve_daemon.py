"""A server that uses the daemon of applications: the daemon survives the server, and the server survives the
daemon."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import serve_models as models
from serving import END_TIMEOUT_S, Answer, serving
from tests import needs
from tests.genai.tiny_decoders import Sizes, write_model

import qnnbridge
from qnnbridge_protocol.errors import HostError

pytestmark = needs.posix

SHARED = ("--provider", "cpu", "--http", "127.0.0.1:0")
X = {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [5, -7]}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime folder for a separate daemon, which ends with the test."""
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path / "run"))
    yield
    with contextlib.suppress(HostError), qnnbridge.connect(start=False) as host:
        daemon = psutil.Process(status(host)["daemon"]["pid"])
        host.call({"op": "daemon.stop", "drain_s": 0})
        daemon.wait(END_TIMEOUT_S)


def status(host: qnnbridge.Host) -> dict[str, Any]:
    return dict(host.call({"op": "daemon.status"}, timeout=30).header["status"])


def outputs_of(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return list(answer.document["outputs"][0]["data"])


@pytest.fixture
def same(tmp_path: Path) -> Path:
    return models.write_identity(tmp_path / "same.onnx", models.ELEMENTS["INT32"])


def test_the_daemon_is_started_used_and_left_running(daemon: None, same: Path) -> None:
    with serving(*SHARED, "--model", f"same={same}") as server:
        assert outputs_of(server.infer("same", X)) == [5, -7]
        metrics = server.ask("GET", "/metrics")
        assert metrics.headers["content-type"].startswith("application/openmetrics-text")
        assert "qnnbridge_host_running 1.0\n" in metrics.body.decode()
        assert metrics.body.endswith(b"# EOF\n")
        with qnnbridge.connect(start=False) as host:
            told = status(host)
            assert [client["pid"] for client in told["clients"] if client["sessions"]] == [server.process.pid]
            assert told["totals"]["sessions_created"] == 1
            options: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "fallback": "error"}
            with qnnbridge.InferenceSession(str(same), **options, host=host):
                assert status(host)["totals"]["sessions_shared"] == 1
        assert psutil.Process(server.process.pid).children() == []
        assert server.end() == 0
    with qnnbridge.connect(start=False) as host:
        assert status(host)["daemon"]["pid"] == told["daemon"]["pid"]
        assert [client for client in status(host)["clients"] if client["sessions"]] == []


def test_clients_notice_neither_a_crash_of_the_npu_host_nor_of_the_daemon(daemon: None, same: Path) -> None:
    with serving(*SHARED, "--model", f"same={same}") as server:
        with qnnbridge.connect(start=False) as host:
            first = status(host)
            psutil.Process(first["host"]["pid"]).kill()
            assert outputs_of(server.infer("same", X)) == [5, -7]
            second = status(host)
        assert second["host"]["pid"] != first["host"]["pid"]
        assert second["daemon"]["pid"] == first["daemon"]["pid"]

        killed = psutil.Process(second["daemon"]["pid"])
        killed.kill()
        wait_for(killed)
        assert outputs_of(server.infer("same", X)) == [5, -7]
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.end(signal.SIGINT) == 0


def wait_for(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.wait(END_TIMEOUT_S)


def test_text_is_generated_in_the_daemon_and_survives_a_crash_of_its_host(daemon: None, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    openai = pytest.importorskip("openai")
    folder = write_model(tmp_path / "long", "dynamic", sizes=Sizes(context=3000))
    with serving("--http", "127.0.0.1:0", "--llm", f"long={folder}", "--keep-generators", "0") as server:
        client = openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=60)
        asked = {"model": "long", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2900}
        truth = client.chat.completions.create(**asked).choices[0].message.content
        told = ""
        with (
            qnnbridge.connect(start=False) as host,
            client.chat.completions.create(**asked, stream=True) as stream,
        ):
            for number, part in enumerate(stream):
                told += part.choices[0].delta.content or ""
                if number == 3:
                    assert sum(one["kv_bytes"] for one in status(host)["clients"]) == 4 * 3000 * 16 * 4
                    psutil.Process(status(host)["host"]["pid"]).kill()
        assert told == truth
        # Otherwise the answer was complete when the host crashed, and nothing is shown.
        text = server.ask("GET", "/metrics").body.decode()
        assert "qnnbridge_host_running 1.0\n" in text
        assert 'qnnbridge_llm_generated_tokens_total{model="long"} 5800.0\n' in text
        assert 'qnnbridge_llm_host_restarts_total{model="long"} 1.0\n' in text
        assert text.count("# EOF\n") == 1
        client.close()
        assert server.end() == 0
    with qnnbridge.connect(start=False) as host:
        assert sum(one["kv_bytes"] for one in status(host)["clients"]) == 0
