"""Threads that do what would block the event loop: reading requests, running models, loading them.

They are daemon threads (`qnnbridge._background`): a native call that never returns does not keep the server from
ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from qnnbridge._background import Background
from qnnbridge_tools.serve.infer_reply import not_started

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Workers:
    """Jobs in the order of their arrival, `threads` at a time."""

    def __init__(self, name: str, threads: int) -> None:
        self._background = Background(f"qnnbridge serve {name}", threads)

    async def do(self, job: Callable[[], Result]) -> Result:
        """The job's result, or its error."""
        return await asyncio.wrap_future(self._submit(job))

    async def do_for(
        self, job: Callable[[], Result], deadline: float | None, gone: Callable[[], Awaitable[Any]]
    ) -> Result:
        """`do`, dropped if its turn has not come at the deadline (`time.monotonic`) or when the client is gone.

        A job that has begun is always waited for: it knows its deadline itself. gone: returns when the client is.
        """
        future = self._submit(job)
        result = asyncio.wrap_future(future)
        watch = asyncio.ensure_future(gone())
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            await asyncio.wait({result, watch}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not result.done() and future.cancel():
                raise ClientGone if watch.done() else not_started()
            return await result
        finally:
            watch.cancel()

    def _submit(self, job: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._background.submit(work)
        return future
