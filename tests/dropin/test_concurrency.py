"""Sessions under thread pools, an event loop, a web server with threads, and forks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import os
import socketserver
import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import qnnbridge
import qnnbridge.aio
import qnnbridge.futures
import qnnbridge.ort as ort
from tests import needs
from tests.dropin.wrong_uses import MUL

WEIGHTS = np.arange(1, 7, dtype=np.float32).reshape(3, 2)


def feed(number: float) -> dict[str, np.ndarray]:
    return {"X": np.full((3, 2), number, np.float32)}


def test_a_thread_pool_gets_the_right_results() -> None:
    session = ort.InferenceSession(MUL)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: session.run(None, feed(n))[0], range(200)))
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, WEIGHTS * number)


def test_futures_carry_results_and_errors() -> None:
    session = ort.InferenceSession(MUL)
    futures = [qnnbridge.futures.submit(session, None, feed(n)) for n in range(50)]
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(60)[0], WEIGHTS * number)
    with pytest.raises(ValueError, match="Required inputs"):
        qnnbridge.futures.submit(session, None, {}).result(60)


def test_the_run_options_of_a_future_stop_its_run() -> None:
    session = ort.InferenceSession(MUL)
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        qnnbridge.futures.submit(session, None, feed(1), options).result(60)
    options.terminate = False
    assert len(qnnbridge.futures.submit(session, None, feed(1), options).result(60)) == 1
    assert not options._flag._listeners


def test_an_event_loop_awaits_many_runs_at_once() -> None:
    async def main() -> list[list[np.ndarray]]:
        async with qnnbridge.aio.InferenceSession(MUL, providers=["CPUExecutionProvider"]) as session:
            return await asyncio.gather(*(session.run(None, feed(n)) for n in range(100)))

    for number, result in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(result[0], WEIGHTS * number)


def test_a_cancelled_task_leaves_the_session_usable() -> None:
    async def main() -> np.ndarray:
        session = await qnnbridge.aio.InferenceSession(MUL, providers=["CPUExecutionProvider"])
        tasks = [asyncio.create_task(session.run(None, feed(n))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        gone = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, (asyncio.CancelledError, list)) for one in gone)
        result = (await session.run(None, feed(3)))[0]
        await session.close()
        return result

    np.testing.assert_array_equal(asyncio.run(main()), WEIGHTS * 3)


def test_a_session_that_is_not_open_raises_an_error() -> None:
    async def main() -> None:
        await qnnbridge.aio.InferenceSession(MUL).run(None, feed(1))

    with pytest.raises(qnnbridge.errors.Closed, match="not open"):
        asyncio.run(main())


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Threaded(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


def test_a_web_server_with_sixteen_threads_answers_all() -> None:
    session = ort.InferenceSession(MUL)

    def application(environ: dict[str, str], start_response: Callable[..., object]) -> list[bytes]:
        number = float(environ["QUERY_STRING"])
        body = session.run(None, feed(number))[0].tobytes()
        start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
        return [body]

    server = _Threaded(("127.0.0.1", 0), _Quiet)
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def ask(number: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        try:
            connection.request("GET", f"/?{number}")
            return connection.getresponse().read()
        finally:
            connection.close()

    try:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(160)))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    for number, answer in enumerate(answers):
        assert answer == (WEIGHTS * number).tobytes()


@needs.posix
def test_a_session_made_before_a_fork_works_in_each_worker() -> None:
    """`gunicorn --preload` works in this way: it loads the model once, and its workers are forks of that process."""
    session = ort.InferenceSession(MUL)
    session.run(None, feed(1))
    children = []
    for number in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(3):
                    np.testing.assert_array_equal(session.run(None, feed(number + 2))[0], WEIGHTS * (number + 2))
                session.host.close()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    np.testing.assert_array_equal(session.run(None, feed(2))[0], WEIGHTS * 2)


def test_a_session_cannot_be_pickled_as_in_onnxruntime() -> None:
    import pickle

    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(ort.InferenceSession(MUL))
