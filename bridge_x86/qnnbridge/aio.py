"""`InferenceSession` for asyncio.

>>> async with qnnbridge.aio.InferenceSession("model.onnx") as session: ...     outputs = await session.run(None,
{"x": x})

Runs are concurrent: each run waits in a thread (`qnnbridge.futures`), and the event loop is notified with
``call_soon_threadsafe``, so any event loop can be used. Cancelling a task stops the run in the host and returns
immediately, without leaving an incomplete message in the connection. A session may be used from several loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from qnnbridge._host import Host
from qnnbridge._inference_session import InferenceSession as Blocking
from qnnbridge._session.runs import ModelMetadata, NodeArg
from qnnbridge._threads import Background
from qnnbridge.futures import Future, start
from qnnbridge_protocol.errors import Closed
from qnnbridge_protocol.specs import Placement

_creations = Background("qnnbridge aio", threads=4)


class InferenceSession:
    """A session with the arguments of `qnnbridge.InferenceSession`. ``await`` or ``async with`` loads the model."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._arguments = arguments
        self._keywords = keywords
        self._session: Blocking | None = None

    async def open(self) -> InferenceSession:
        """Load the model if it is not loaded yet. Raise the errors of `qnnbridge.InferenceSession`."""
        if self._session is None:
            made: Future[Blocking] = Future()

            def make() -> None:
                try:
                    session = Blocking(*self._arguments, **self._keywords)
                except BaseException as error:  # noqa: BLE001 - raised in the awaiting task
                    _settle(made, error=error)
                else:
                    if not _settle(made, session):
                        session.close()  # the waiting task was cancelled, so nobody will use the session

            _creations.submit(make)
            self._session = await asyncio.wrap_future(made)
        return self

    def __await__(self) -> Generator[Any, None, InferenceSession]:
        return self.open().__await__()

    async def __aenter__(self) -> InferenceSession:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        **keywords: Any,
    ) -> list[Any]:
        """Run the model. Arguments, result and errors are the same as for `qnnbridge.InferenceSession.run`."""
        run = start(self._made, output_names, input_feed, run_options, **keywords)
        try:
            return await asyncio.wrap_future(run.future)
        except asyncio.CancelledError:
            # The CANCEL message may have to wait until another message is written, which must not block the loop's
            # thread.
            _creations.submit(run.stop)
            raise

    async def close(self) -> None:
        """Release the session in the host."""
        session, self._session = self._session, None
        if session is not None:
            closed: Future[None] = Future()

            def close() -> None:
                session.close()
                _settle(closed, None)

            _creations.submit(close)
            await asyncio.wrap_future(closed)

    @property
    def blocking(self) -> Blocking:
        """Synchronous session. Use only methods that return immediately: others block the event loop."""
        return self._made

    def get_inputs(self) -> list[NodeArg]:
        return self._made.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        return self._made.get_outputs()

    def get_modelmeta(self) -> ModelMetadata:
        return self._made.get_modelmeta()

    def get_providers(self) -> list[str]:
        return self._made.get_providers()

    @property
    def placement(self) -> Placement:
        return self._made.placement

    @property
    def host(self) -> Host:
        return self._made.host

    @property
    def _made(self) -> Blocking:
        if self._session is None:
            raise Closed(
                "The session is not open.",
                fix="Use `await session`, or `async with InferenceSession(...) as session`.",
            )
        return self._session


def _settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> bool:
    """Set the result or the error of a future. Return ``False`` if the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return False
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True


__all__ = ["InferenceSession"]
