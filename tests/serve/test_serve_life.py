"""Life cycle of the server: access, requests while models run and load, a crash of the host, and the end."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import serve_models as models
from serving import PRIVATE, Answer, Server, refused, serving, starting
from tests import needs

from qnnbridge_protocol.installing import install_command

# Processor time of the host after which a count certainly runs; nothing else there takes as much.
STARTED_S = 0.2

# Processor time of a count that the test must observe while it runs, and that is then answered. If the count ends
# before the test observes it, a longer one is made.
WORK_S = 0.6

FOREVER = 2**40
WAIT_TIMEOUT_S = 60.0


def counting(server: Server, times: int, **fields: Any) -> Answer:
    return server.infer("counter", {"name": "times", "datatype": "INT64", "shape": [], "data": [times]}, **fields)


@contextlib.contextmanager
def counting_meanwhile(server: Server, times: int, **fields: Any) -> Iterator[tuple[Future[Answer], int]]:
    """Yield a request on which the host works when the block starts, and how far it counts, at least `times`."""
    host = server.host()
    with ThreadPoolExecutor(1) as pool:
        answer = None
        while answer is None or answer.done():
            if answer is not None and answer.result().status == 200:
                times *= 2
            before = _processor_s(host)
            answer = pool.submit(counting, server, times, **fields)
            until(lambda answer=answer, before=before: answer.done() or _processor_s(host) > before + STARTED_S)
            assert not answer.done() or answer.result().status in (200, 504), answer.result()
        yield answer, times


def asked_and_left_waiting(server: Server) -> socket.socket:
    """Return a connection that has sent a request."""
    host, port = server.address.split(":")
    body = json.dumps({"inputs": [{"name": "times", "datatype": "INT64", "shape": [], "data": [1]}]})
    connection = socket.create_connection((host, int(port)), timeout=WAIT_TIMEOUT_S)
    connection.sendall(
        f"POST /v2/models/counter/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def _processor_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_TIMEOUT_S
    nothing = threading.Event()
    while not happened():
        assert time.monotonic() < give_up
        nothing.wait(0.01)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_counter(tmp_path_factory.mktemp("counter") / "counter.onnx")


@pytest.fixture(scope="module")
def work(server: Server) -> int:
    """Number up to which counting takes `WORK_S` on this machine: machines differ by more than a factor of ten."""
    host = server.host()

    def counted_s(times: int) -> float:
        before = _processor_s(host)
        assert counting(server, times).status == 200
        return _processor_s(host) - before

    times, took_s = 10_000, 0.0
    while took_s < STARTED_S:
        times *= 2
        took_s = min(counted_s(times) for _ in range(3))  # the host may have other work at the same time
    return int(times * WORK_S / took_s)


# --- while a model runs ---------------------------------------------------------------------------------------


def test_health_and_other_models_are_served_while_a_model_runs(server: Server) -> None:
    for timeout_s in (1, 5, 45):  # on a busy machine the others take longer
        with counting_meanwhile(server, FOREVER, parameters={"timeout": timeout_s * 1_000_000}) as (answer, _):
            assert server.ask("GET", "/v2/health/live").status == 200
            assert server.ask("GET", "/v2/health/ready").status == 200
            assert server.ask("GET", "/v2/models/counter/ready").status == 200
            x = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [5]}
            assert server.infer("same-INT32", x).document["outputs"][0]["data"] == [5]
            meanwhile = not answer.done()
        assert answer.result().status == 504
        if meanwhile:
            break
    assert meanwhile


def test_the_timeout_of_a_request_is_respected(server: Server) -> None:
    begun = time.monotonic()
    answer = counting(server, FOREVER, parameters={"timeout": 300_000})
    assert answer.status == 504
    assert answer.headers["qnnbridge-error"] == "call.DeadlineExceeded"
    assert "the request's parameter timeout" in answer.error
    assert "on_deadline" not in answer.error
    assert answer.error
    assert time.monotonic() - begun > 0.3
    # The host has stopped counting: the next request is quick.
    assert counting(server, 7).document["outputs"][0]["data"] == [21]


def test_clients_that_send_slowly_take_no_slot_from_others(counter: Path) -> None:
    limits = ("--threads", "1", "--queue", "1")
    with serving(*PRIVATE, "--model", f"counter={counter}", *limits) as server, contextlib.ExitStack() as stack:
        host, port = server.address.split(":")
        for announced in sorted((256 * 1024**2, 1024**2, 1024, 100, 20) * 8, reverse=True):
            slow = stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_TIMEOUT_S))
            head = f"POST /v2/models/counter/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}"
            slow.sendall(f"{head}\r\n\r\n{{".encode())
        # Connections are accepted in the order of arrival, so this one is the last.
        for _ in range(5):
            assert counting(server, 7).document["outputs"][0]["data"] == [21]


def test_too_many_requests_are_refused_and_queued_ones_keep_their_deadlines(counter: Path) -> None:
    limits = ("--threads", "1", "--queue", "1", "--timeout", "0", "--drain", "1")
    short = {"timeout": 200_000}
    with serving(*PRIVATE, "--model", f"counter={counter}", *limits) as server, ThreadPoolExecutor(1) as pool:
        before = _processor_s(server.host())
        running = pool.submit(counting, server, FOREVER)
        until(lambda: _processor_s(server.host()) > before + STARTED_S)
        waiting = counting(server, 1, parameters=short)
        assert (waiting.status, waiting.headers["qnnbridge-error"]) == (504, "call.DeadlineExceeded")
        assert "timed out while it waited for its turn" in waiting.error

        queued = asked_and_left_waiting(server)
        third = counting(server, 1, parameters=short)
        while third.status == 504:  # the third request arrived before the queued one, and took its slot
            if select.select([queued], [], [], 0)[0]:
                assert b" 429 " in queued.recv(64)
                queued.close()
                queued = asked_and_left_waiting(server)
            third = counting(server, 1, parameters=short)
        assert (third.status, third.headers["qnnbridge-error"]) == (429, "call.Busy")
        assert third.headers["retry-after"] == "1"
        assert "--queue" in third.error
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.ask("GET", "/v2/models/counter").status == 200
        assert not select.select([queued], [], [], 0)[0]

        queued.close()  # the disconnected client's slot is free for others
        until(lambda: counting(server, 1, parameters=short).status == 504)
        assert not running.done()
        server.end()
        assert running.result().status == 503


def test_a_request_survives_a_crash_of_the_host(counter: Path, work: int) -> None:
    with serving(*PRIVATE, "--model", f"counter={counter}") as server:
        killed = server.host()
        with counting_meanwhile(server, work) as (answer, times):
            killed.kill()
            result = answer.result()
        assert result.status == 200, result.body
        assert result.document["outputs"][0]["data"] == [3 * times]
        assert server.host().pid != killed.pid
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.end() == 0


@needs.posix
def test_a_model_that_crashes_the_host_repeatedly_is_refused_with_the_cause(counter: Path, tmp_path: Path) -> None:
    same = models.write_identity(tmp_path / "same.onnx", models.ELEMENTS["INT32"])
    x = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    with serving(*PRIVATE, "--model", f"counter={counter}", "--model", f"same={same}") as server:
        for timeout_s in (2, 60):  # the request is repeated in the next host, and its waiting ends
            assert server.infer("same", x).status == 200  # the host runs and has loaded everything
            with counting_meanwhile(server, FOREVER, parameters={"timeout": timeout_s * 1_000_000}) as (answer, _):
                server.host().send_signal(signal.SIGSEGV)
                result = answer.result()
        assert (result.status, result.headers["qnnbridge-error"]) == (503, "model.Quarantined")
        assert "Cause: " in result.error
        assert counting(server, 1).headers["qnnbridge-error"] == "model.Quarantined"
        assert server.infer("same", x).document["outputs"][0]["data"] == [5]


# --- the end --------------------------------------------------------------------------------------------------


@needs.posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_are_answered_before_the_server_ends(counter: Path, work: int, number: int) -> None:
    with serving(*PRIVATE, "--model", f"counter={counter}") as server:
        host = server.host()
        with counting_meanwhile(server, work) as (answer, times):
            code = server.end(number)
        assert answer.result().document["outputs"][0]["data"] == [3 * times]
        assert code == 0
        assert server.errors() == ""
        assert not host.is_running()
        host_address, port = server.address.split(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host_address, int(port)), timeout=5)


@needs.posix
def test_a_request_that_takes_too_long_does_not_prevent_the_server_from_ending(counter: Path) -> None:
    with serving(*PRIVATE, "--model", f"counter={counter}", "--drain", "1", "--timeout", "0") as server:
        host = server.host()
        with ThreadPoolExecutor(1) as pool:
            before = _processor_s(host)
            request = pool.submit(counting, server, FOREVER)
            until(lambda: _processor_s(host) > before + STARTED_S)
            assert server.end() == 0
            answer = request.result()
            assert (answer.status, "The server is ending" in answer.error) == (503, True)
        assert not host.is_running()


# --- loading and unloading models -------------------------------------------------------------------------------


def test_models_are_unloaded_and_loaded_again(counter: Path, work: int, tmp_path: Path) -> None:
    same = models.write_identity(tmp_path / "same.onnx", models.ELEMENTS["INT32"])
    x = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    with serving(*PRIVATE, "--model", f"counter={counter}", "--model", f"same={same}") as server:

        def index(**wanted: Any) -> dict[str, tuple[str, str]]:
            told = server.ask("POST", "/v2/repository/index", wanted).document
            return {entry["name"]: (entry["state"], entry["reason"]) for entry in told}

        assert index() == {"counter": ("READY", ""), "same": ("READY", "")}
        meanwhile, times = False, work
        while not meanwhile:  # repeat with a longer count if it ended before the others had their answers
            assert server.ask("POST", "/v2/repository/models/counter/load", {}).status == 200
            with counting_meanwhile(server, times) as (answer, times):
                assert server.ask("POST", "/v2/repository/models/counter/unload", b"").status == 200
                assert counting(server, 1).status == 503
                meanwhile = not answer.done()
            assert answer.result().document["outputs"][0]["data"] == [3 * times]
            times *= 4
        assert index()["counter"] == ("UNAVAILABLE", "unloaded")
        assert index(ready=True) == {"same": ("READY", "")}
        assert server.ask("GET", "/v2/models/counter/ready").status == 400
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.infer("same", x).status == 200
        assert server.ask("POST", "/v2/repository/models/counter/load", {}).status == 200
        assert counting(server, 4).document["outputs"][0]["data"] == [12]

        # A new file replaces the old one when it is loaded; a broken file does not.
        models.write_identity(same, models.ELEMENTS["FP32"])
        assert server.ask("POST", "/v2/repository/models/same/load", {}).status == 200
        assert server.ask("GET", "/v2/models/same").document["inputs"][0]["datatype"] == "FP32"
        same.write_bytes(b"no model")
        failed = server.ask("POST", "/v2/repository/models/same/load", {})
        assert failed.status == 400
        assert "not a valid ONNX model" in failed.error
        assert index()["same"][1].startswith("loading it again failed: ")
        floats = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}
        assert server.infer("same", floats).document["outputs"][0]["data"] == [0.5]
        same.unlink()
        gone = server.ask("POST", "/v2/repository/models/same/load", {})
        assert (gone.status, gone.headers["qnnbridge-error"]) == (404, "ort.NoSuchFile")
        assert "its file cannot be read" in gone.error
        assert "Fix: Put the file back" in gone.error
        assert str(tmp_path) not in gone.error
        assert server.infer("same", floats).status == 200
        inline = {"parameters": {"config": "{}", "file:1/model.onnx": "AAAA"}}
        assert server.ask("POST", "/v2/repository/models/same/load", inline).status == 400


def test_a_model_that_cannot_be_loaded_fails_the_start(counter: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    ended = refused(*PRIVATE, "--model", f"counter={counter}", "--model", f"broken={broken}")
    assert ended.returncode == 2
    assert "Model broken: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_with_keep_going_the_other_models_are_served(counter: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    named = ("--model", f"counter={counter}", "--model", f"broken={broken}")
    with serving(*PRIVATE, *named, "--keep-going", "--no-model-control") as server:
        assert counting(server, 2).status == 200
        assert server.ask("GET", "/v2/health/ready").status == 200
        answer = server.infer("broken", {"name": "x"})
        assert answer.status == 503
        assert "The model broken is not ready" in answer.error
        forbidden = server.ask("POST", "/v2/repository/models/counter/unload", b"")
        assert (forbidden.status, "--no-model-control" in forbidden.error) == (403, True)
        assert counting(server, 2).status == 200


def slow_python(folder: Path, gate: Path) -> Path:
    """Return an interpreter that waits until a file exists before it starts Python."""
    program = folder / "slow_python"
    program.write_text(f'#!/bin/sh\nwhile [ ! -e "{gate}" ]; do sleep 0.05; done\nexec "{sys.executable}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@needs.posix
def test_the_server_can_be_ended_while_models_are_loaded(counter: Path, tmp_path: Path) -> None:
    program = slow_python(tmp_path, tmp_path / "never")
    with starting(*PRIVATE, "--model", f"counter={counter}", "--host-python", program) as server:
        until(lambda: server.ask("POST", "/v2/repository/index").document[0]["state"] == "LOADING")
        assert server.end() == 0
        assert server.errors() == ""


@needs.posix
def test_the_server_is_live_and_not_ready_while_models_are_loaded(counter: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = slow_python(tmp_path, gate)
    with starting(*PRIVATE, "--model", f"counter={counter}", "--host-python", program) as server:
        try:
            assert server.ask("GET", "/v2/health/live").status == 200
            waiting = server.ask("GET", "/v2/health/ready")
            assert (waiting.status, "still being loaded" in waiting.error) == (400, True)
            refusal = counting(server, 1)
            assert (refusal.status, refusal.headers["retry-after"]) == (503, "1")
        finally:
            gate.touch()
        server.wait_until_ready()
        assert server.ask("GET", "/v2/health/ready").status == 200


# --- access -----------------------------------------------------------------------------------------------------


def token_file(folder: Path, text: str = "0123456789abcdef0123456789abcdef\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_server_with_a_token_serves_only_requests_with_the_token(counter: Path, tmp_path: Path) -> None:
    options = ("--model", f"counter={counter}", "--token-file", token_file(tmp_path))
    with serving(*PRIVATE, *options) as server:
        for path in ("/v2", "/v2/models/counter", "/v2/models/counter/ready", "/v2/nothing"):
            without = server.ask("GET", path)
            assert (without.status, without.headers["www-authenticate"]) == (401, "Bearer")
            assert "Authorization: Bearer" in without.error
        for wrong in (
            "Bearer 0123456789abcdef0123456789abcdeg",
            "Bearer",
            "Basic 0123456789abcdef0123456789abcdef",
            "Bearer ü",
        ):
            answer = server.ask("GET", "/v2", None, {"Authorization": wrong})
            assert (answer.status, answer.error) == (401, "The token is wrong.")
        right = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
        assert server.ask("GET", "/v2", None, {**right, "Host": "served.example"}).status == 200
        body = {"inputs": [{"name": "times", "datatype": "INT64", "shape": [], "data": [2]}]}
        assert server.ask("POST", "/v2/models/counter/infer", body, right).document["outputs"][0]["data"] == [6]
        assert server.ask("POST", "/v2/models/counter/infer", body).status == 401
        # A request like that of a load balancer.
        assert server.ask("GET", "/v2/health/live").status == 200
        assert server.ask("GET", "/v2/health/ready").status == 200


def test_triton_s_client_shows_a_token(counter: Path, tmp_path: Path) -> None:
    pytest.importorskip("tritonclient.http")
    import numpy as np
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    options = ("--model", f"counter={counter}", "--token-file", token_file(tmp_path))
    with serving(*PRIVATE, *options) as server, triton.InferenceServerClient(server.address) as client:
        times = triton.InferInput("times", [], "INT64").set_data_from_numpy(np.array(3, np.int64))
        with pytest.raises(InferenceServerException, match="A token is needed"):
            client.infer("counter", [times])
        headers = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
        assert int(client.infer("counter", [times], headers=headers).as_numpy("y")) == 9


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_are_served_only_with_a_token(counter: Path, address: str) -> None:
    ended = refused("--host", "private", "--http", address, "--model", f"counter={counter}")
    assert ended.returncode == 2
    assert "can be reached from other machines" in ended.stderr
    assert "--token-file" in ended.stderr


@needs.posix
def test_a_token_file_that_others_can_read_is_refused(counter: Path, tmp_path: Path) -> None:
    options = (*PRIVATE, "--model", f"counter={counter}", "--token-file", token_file(tmp_path, mode=0o640))
    ended = refused(*options)
    assert ended.returncode == 2
    assert "its mode is 0640" in ended.stderr
    assert "chmod 600" in ended.stderr


def test_an_address_that_is_in_use_is_reported(counter: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        ended = refused("--host", "private", "--http", f"127.0.0.1:{port}", "--model", f"counter={counter}")
    assert ended.returncode == 1
    assert "Another program listens on this address" in ended.stderr


def test_without_its_packages_the_command_names_the_extra(counter: Path) -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from qnnbridge_tools.__main__ import main\n"
        f"sys.argv = ['qnnbridge', 'serve', '--model', {f'counter={counter}'!r}]\n"
        "sys.exit(main())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert install_command("serve", python=sys.executable) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_command_line_loads_neither_the_server_nor_numpy() -> None:
    # The command is looked up, which imports it, but not run.
    program = (
        "import qnnbridge_tools.cli as cli, typer.main, sys, json; typer.main.get_command(cli.app).commands['serve']; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout))
    assert "qnnbridge_serve.server" in loaded
    assert not loaded & {"uvicorn", "starlette", "numpy", "asyncio", "qnnbridge_serve.repository"}
