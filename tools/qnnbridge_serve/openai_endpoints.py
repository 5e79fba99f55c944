"""OpenAI's endpoints for JSON: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings.

A worker's thread makes an answer of a language model, or of one that hears; the event loop sends it. The worker
never waits for the client: what the client has not read stays in a queue, which the context of the model or the
length of the audio bounds. So a client that does not read keeps neither a thread nor the NPU; it is cut off after
`STALL_TIMEOUT_S`.
"""

from __future__ import annotations

import abc
import asyncio
import base64
import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from qnnbridge_daemon.fair_share import Cancellation, FairShare, Queue
from qnnbridge_protocol.errors import Cancelled, DeadlineExceeded
from qnnbridge_serve import transport
from qnnbridge_serve.embeddings import Array, Embedder
from qnnbridge_serve.errors import Refused, refusal_of, wrong
from qnnbridge_serve.http_protocol import ABORT, PartedResponse, log_unexpected
from qnnbridge_serve.json_reading import read_document, weight_of
from qnnbridge_serve.openai_answers import (
    AnswerForm,
    Counts,
    Form,
    MakeForm,
    choices_of,
    open_choice,
    parts_of,
)
from qnnbridge_serve.openai_forms import GenerationRequest, named_model, owner_of, read_generation
from qnnbridge_serve.openai_media import check_media
from qnnbridge_serve.openai_responses import read_response, renamed
from qnnbridge_serve.openai_stored import StoredResponses
from qnnbridge_serve.options import MediaLimits, ServiceLimits
from qnnbridge_serve.pacing import STALL_TIMEOUT_S
from qnnbridge_serve.repository import FolderFigures, FolderModels, LanguageModel, pool_families
from qnnbridge_serve.transport import (
    Admission,
    ClientGone,
    Ticket,
    Workers,
    deadline_after,
    not_started,
    receive_body,
    time_left_s,
)
from qnnbridge_tools.generation.measuring import Pace

if TYPE_CHECKING:
    from qnnbridge.genai import GeneratorPool, TextStream


# --- one answer ---


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The last item of an answer. counts: for the end of its form."""

    counts: Any


# A part of the answer, its end, or the error that ended it.
Item = Any

# `ClientQueues.turn` of one client.
Turn = Callable[..., contextlib.AbstractContextManager[None]]


class ClientQueues:
    """Generations take turns by client: of several that wait, the client that has waited longest is next.

    Args:
        slots: Generations at once; these take turns token by token in the host.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._shares = FairShare(slots, max(1, most_waiting))
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[Queue, int]] = {}

    @contextlib.contextmanager
    def turn(self, client: str, cancellation: Cancellation, *, again: bool = False) -> Iterator[None]:
        """Raises `Busy`, `Cancelled`. again: see `FairShare.turn`."""
        with self._lock:
            # A client exists as long as one of its requests does: nothing is kept of those that have gone.
            queue, users = self._clients.get(client) or (self._shares.join(), 0)
            self._clients[client] = (queue, users + 1)
        try:
            with self._shares.turn(queue, cancellation, again=again):
                yield
        finally:
            with self._lock:
                _, users = self._clients[client]
                if users == 1:
                    del self._clients[client]
                    self._shares.leave(queue)
                else:
                    self._clients[client] = (queue, users - 1)


class WorkedAnswer(abc.ABC):
    """One answer under way. Made and read in the event loop's thread."""

    def __init__(self, form: Form, figures: FolderFigures, deadline: float | None) -> None:
        self.form = form
        self._figures = figures
        self._pace = Pace()
        self._deadline = deadline
        self._cancellation = Cancellation()
        self._loop = asyncio.get_running_loop()
        # Not bounded: the worker must never wait for a client that does not read. The model's context bounds
        # it.
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._late = False
        self._begun = False
        # Whether the client has its error while native code goes on.
        self._overdue = False
        self._task: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, workers: Workers, queues: ClientQueues, client: str) -> None:
        """Let a worker make it, which ends the figures of the request."""
        self._figures.begin()
        self._task = asyncio.ensure_future(workers.do(functools.partial(self._work, queues, client)))
        if self._deadline is not None:
            # For the time in the queue only: once begun, the generation has the deadline itself.
            self._timer = self._loop.call_later(max(0.0, self._deadline - time.monotonic()), self._too_late)

    async def next(self) -> Item:
        return await self._items.get()

    def cancel(self) -> None:
        """End it before its next token."""
        self._cancellation.stop()

    def client_gone(self, watch: asyncio.Future[Any]) -> None:
        """`cancel`, unless it is the watch that was cancelled."""
        if not watch.cancelled():
            self.cancel()

    async def end(self) -> None:
        """Wait for the worker."""
        if self._timer is not None:
            self._timer.cancel()
        # Work that goes on after its deadline keeps its place among the others, and not the answer waiting.
        if self._task is not None and not self._overdue:
            # `wait` does not raise what the task raised: errors have gone through the queue.
            await asyncio.wait({self._task})

    def _too_late(self) -> None:
        if not self._begun:  # afterwards the stream keeps the deadline itself
            self._late = True
            self._cancellation.stop()

    # --- the worker's thread ---

    def _work(self, queues: ClientQueues, client: str) -> None:
        """Exactly one last item in each case: a reader waits for it."""
        outcome, sums = "error", dict[str, float]()
        try:
            ended, counts = self._make(functools.partial(queues.turn, client, self._cancellation), sums)
            self._tell(Ended(counts))
            outcome = ended
        except Cancelled as error:
            outcome = "cancelled"
            self._tell(not_started() if self._late else error)
        except BaseException as error:  # noqa: BLE001 - passed on to the event loop
            if not self._overdue:
                self._tell(error)
        finally:
            self._figures.end(outcome, sums, self._pace)

    @abc.abstractmethod
    def _make(self, turn: Turn, sums: dict[str, float]) -> tuple[str, Any]:
        """Make the answer within turns and `_tell` each part. Returns how it ended, and the counts for `Ended`.

        sums: gets what the answer adds to the figures, also of one that fails.
        """

    def _left(self) -> float | None:
        """Seconds until the deadline, for the call that keeps it from now on."""
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _tell(self, item: Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class GeneratedAnswer(WorkedAnswer):
    """An answer of a language model."""

    def __init__(
        self,
        asked: GenerationRequest,
        model: LanguageModel,
        figures: FolderFigures,
        deadline: float | None,
        make_form: MakeForm = AnswerForm,
        pool: GeneratorPool | None = None,
        cache_salt: str = "",
        media: MediaLimits | None = None,
    ) -> None:
        super().__init__(make_form(asked, int(time.time()), model.model.info.fingerprint), figures, deadline)
        self.asked = asked
        self._model = model
        self._pool = pool
        self._cache_salt = cache_salt
        self._media = media

    def _make(self, turn: Turn, sums: dict[str, float]) -> tuple[str, Counts]:
        asked, pace, outcome = self.asked, self._pace, "error"
        sums |= {"prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0, "host_restarts": 0}
        prompt_tokens = cached_tokens = 0
        choices = choices_of(asked, self._model, self._left, self._media)
        for number in range(max(1, len(asked.prompts)) * asked.n):
            self._begun = False
            # Between two answers of one request: the next is not begun when the time is over.
            time_left_s(self._deadline)
            # A turn for each of its answers: a request for many keeps no other client waiting for all of them.
            with turn(again=number > 0), self._keeping_its_place(), contextlib.ExitStack() as held:
                self._begun = True
                # Within the turn: the chat template is native code, too.
                choice = next(choices)

                def stop_with(stream: TextStream, held: contextlib.ExitStack = held) -> None:
                    held.callback(self._cancellation.on_stop(stream.cancel))

                opened = open_choice(
                    asked, self._model, choice, self._left(), stop_with, self._pool, self._cache_salt
                )
                stream = held.enter_context(opened)
                if choice.number == choice.prompt * asked.n:  # a prompt counts once
                    prompt_tokens += stream.prompt_tokens
                    sums["prompt_tokens"] = prompt_tokens
                    cached_tokens += stream.cached_tokens
                    sums["cached_tokens"] = cached_tokens
                try:
                    for part in parts_of(asked, self._model, choice, stream, pace, self._left):
                        self._tell(part)
                finally:
                    sums["generated_tokens"] = pace.tokens
                    sums["host_restarts"] += stream.stats.restarts
            if stream.finish_reason == "cancelled":  # what came so far is no whole answer
                raise Cancelled("The answer was cancelled.")
            outcome = stream.finish_reason or "error"
        return outcome, Counts(prompt_tokens, pace.tokens, cached_tokens)

    @contextlib.contextmanager
    def _keeping_its_place(self) -> Iterator[None]:
        """Answer at the deadline, and keep the turn until native code has ended, or its host."""
        try:
            yield
        except DeadlineExceeded as error:
            if error.details.get("state") == "still-running":
                self._overdue = True  # before the answer: `end` asks for it
                self._tell(error)
                from qnnbridge.genai._remote import end_overdue

                end_overdue(self._model.model.host)
            raise


async def whole_answer(answer: WorkedAnswer, gone: Callable[[], Awaitable[Any]]) -> Any:
    """An answer without a stream, as its form has it. Raises `ClientGone`, and what the work raised."""
    parts: list[Any] = []
    watch = asyncio.ensure_future(gone())
    watch.add_done_callback(answer.client_gone)
    try:
        while not isinstance(item := await answer.next(), (Ended, BaseException)):
            parts.append(item)
        # The client is gone: nobody reads the answer.
        if watch.done():
            raise ClientGone
        if isinstance(item, BaseException):
            raise item
        # Only after the last item: the form needs the counts and the reason of the end.
        return answer.form.whole(parts, item.counts)
    finally:
        watch.cancel()
        answer.cancel()
        await answer.end()


async def first_item(answer: WorkedAnswer, gone: Callable[[], Awaitable[Any]]) -> Item:
    """What a stream begins with. Raises `ClientGone`, and what the work raised before its first piece."""
    watch, coming = asyncio.ensure_future(gone()), asyncio.ensure_future(answer.next())
    try:
        # The status is sent after the first piece: an error before it can still have its own (400, 429, 503).
        await asyncio.wait({watch, coming}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            raise ClientGone
        item = coming.result()
        if isinstance(item, BaseException):
            raise item
        return item
    except BaseException:
        answer.cancel()
        await answer.end()
        raise
    finally:
        watch.cancel()
        coming.cancel()


class EventStream(StreamingResponse):
    """An answer as server-sent events. `close` is called at its end, however it ends.

    Args:
        first: The first item, which has come already: an error before it has a status of its own.
    """

    def __init__(self, answer: WorkedAnswer, first: Item, close: Callable[[], None]) -> None:
        # The second header keeps nginx from collecting the stream before it passes it on.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        # Only its head is starlette's, which has no length: the server sends it in chunks.
        super().__init__((), headers=headers, media_type="text/event-stream")
        self._answer = answer
        self._first = first
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        watch = asyncio.ensure_future(_gone(receive))
        watch.add_done_callback(answer.client_gone)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send, watch)
        except asyncio.CancelledError:  # by the server, which has waited for it long enough
            answer.cancel()
            ending = Refused(503, "The server is ending; this answer was not finished.")
            # One second: the server has waited for `--drain` already, and the client may not be reading.
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await self._send(send, b"".join(answer.form.failure(ending)), last=True, timeout_s=1.0)
        except (asyncio.TimeoutError, TimeoutError):
            # The connection is closed without an end of the chunks, so that the client sees that the answer
            # is cut off.
            (scope.get("extensions") or {}).get(ABORT, lambda: None)()
        finally:
            watch.cancel()
            answer.cancel()
            try:
                await answer.end()
            finally:
                self._close()

    async def _send_all(self, send: Send, watch: asyncio.Future[None]) -> None:
        form = self._answer.form
        await self._send(send, b"".join(form.opening()))
        item: Item = self._first
        while not isinstance(item, (Ended, BaseException)):
            await self._send(send, b"".join(form.part(item)))
            item = await self._answer.next()
        if watch.done():
            return
        # The status is long sent: an error becomes an event of the stream.
        if isinstance(item, Ended):
            await self._send(send, b"".join(form.closing(item.counts)), last=True)
        else:
            log_unexpected("an answer", item)
            await self._send(send, b"".join(form.failure(refusal_of(item))), last=True)

    async def _send(self, send: Send, data: bytes, *, last: bool = False, timeout_s: float | None = None) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": not last}
        # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that meets the end of what it waits for
        # (python/cpython#86296), and an answer of many short messages would go on after the server's end.
        sending = asyncio.ensure_future(send(message))
        try:
            await asyncio.wait({sending}, timeout=timeout_s or STALL_TIMEOUT_S)
            if not sending.done():
                raise TimeoutError
            sending.result()
        finally:
            sending.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# A prompt of a million tokens has less.
MOST_BYTES: Final = 16 * 1024**2
# What a body may become in memory: token ids are ten times as large as their digits.
WEIGHT: Final = 12
# Bodies up to this size are read at once: they wait for no larger ones.
QUICK_BYTES: Final = 64 * 1024

# Of the document of a body.
Reader = Callable[[Any], tuple[GenerationRequest, MakeForm]]


def _document(parts: list[bytes], encoding: str | None, ticket: Ticket, most: int, deadline: float | None) -> Any:
    """The JSON document that a body of at most `most` bytes is. Raises `Refused`, `Busy` and `DeadlineExceeded`."""

    def take(size: int) -> None:
        time_left_s(deadline)
        ticket.unpack(size, most)

    body = b"".join(parts)
    if encoding is not None:
        body = transport.unpack(memoryview(body), take)
    ticket.unpack(weight_of(body), WEIGHT * most)
    return read_document(body)


# --- /v1/chat/completions, /v1/completions, /v1/responses ---


class LanguageService:
    """The endpoints as methods. A time limit counts from the last byte of a request on."""

    def __init__(self, models: FolderModels[LanguageModel], limits: ServiceLimits, media: MediaLimits) -> None:
        self.models = models
        self._media = media
        self._timeout_s = limits.answer_timeout_s
        from qnnbridge.genai import GeneratorPool

        self._pool = GeneratorPool(limits.kept, limits.kept_bytes)
        self._stored = StoredResponses(limits.kept_responses)
        self._most_bytes = min(limits.most_bytes, MOST_BYTES)
        self._admission = Admission(limits.in_all, max(4 * self._most_bytes, 256 * 1024**2))
        self._queues = ClientQueues(limits.threads, limits.queue)
        # Each waits in a thread of its own for its turn; an idle one has none.
        self._workers = Workers("language", limits.in_all)
        # Reading JSON is work of Python, which holds its lock: more threads would not be faster.
        self._readers = Workers("language reader", 1)

    def pool_row(self) -> dict[str, Any]:
        """Return the figures of kept generators for `/status`."""
        return dataclasses.asdict(self._pool.stats)

    def families(self) -> Iterator[Metric]:
        """Yield the figures of kept generators for /metrics, if there are language models."""
        if self.models.wanted:
            yield from pool_families(self._pool.stats)

    async def chat(self, request: Request) -> Response:
        return await self._complete(request, lambda document: (read_generation(document, "chat"), AnswerForm))

    async def text(self, request: Request) -> Response:
        return await self._complete(request, lambda document: (read_generation(document, "text"), AnswerForm))

    async def respond(self, request: Request) -> Response:
        read = functools.partial(read_response, stored=self._stored, machine=_machine(request))
        try:
            return await self._complete(request, read)
        except Refused as refused:
            raise renamed(refused) from None

    async def _complete(self, request: Request, reader: Reader) -> Response:
        encoding = transport.check_encoding(request.headers.get("content-encoding"))
        with contextlib.ExitStack() as place:
            ticket = place.enter_context(self._admission.enter())
            parts = await receive_body(request, ticket, self._most_bytes)
            ticket.take_place()
            deadline = deadline_after(self._timeout_s)

            def read() -> tuple[GenerationRequest, MakeForm]:
                return reader(_document(parts, encoding, ticket, self._most_bytes, deadline))

            if encoding is None and sum(map(len, parts)) <= QUICK_BYTES:
                asked, form = read()
            else:
                asked, form = await self._readers.do_for(read, deadline, request.receive)
            model = self.models.get(asked.model)
            check_media(asked.media, model.name, model.model.info.modalities, self._media)
            figures, client = self.models.figures[model.name], _client(request, asked)
            owner = owner_of(_machine(request), asked)
            answer = GeneratedAnswer(asked, model, figures, deadline, form, self._pool, owner, self._media)
            answer.start(self._workers, self._queues, client)
            if not asked.stream:
                body = json.dumps(await whole_answer(answer, request.receive)).encode()
                return PartedResponse(body, {}, "application/json", ticket, place.pop_all())
            first = await first_item(answer, request.receive)
            # The ticket is given back at the end of the stream, and not at the end of this function.
            return EventStream(answer, first, place.pop_all().close)


def _client(request: Request, asked: GenerationRequest) -> str:
    """Return the client that takes turns: the machine and its field `user`."""
    return f"{_machine(request)} {asked.user}"


def _machine(request: Request) -> str:
    return request.client.host if request.client is not None else ""


# --- /v1/embeddings ---

# OpenAI's own.
MOST_INPUTS: Final = 2048


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request, read. inputs: texts and lists of token ids. dimensions: ``None`` for all."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None
    packed: bool


def read_embedding(document: Any) -> EmbeddingRequest:
    """Raises `Refused`."""
    model = named_model(document)
    value: Any = document.get("input")
    several = isinstance(value, list) and bool(value) and all(isinstance(one, (str, list)) for one in value)
    given: list[Any] = value if several else [value]
    if len(given) > MOST_INPUTS:
        raise wrong(f"input has {len(given)} entries; {MOST_INPUTS} are the most.", "input")
    dimensions, form = document.get("dimensions"), document.get("encoding_format")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise wrong("dimensions has to be a positive integer.", "dimensions")
    if form not in (None, "float", "base64"):
        raise wrong('encoding_format is "float" or "base64".', "encoding_format")
    return EmbeddingRequest(model, tuple(map(_input, given)), dimensions, form == "base64")


def _input(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise wrong("input: half a surrogate pair is no text in UTF-8.", "input") from None
        return given
    if isinstance(given, list) and given and all(type(one) is int and one >= 0 for one in given):
        return tuple(given)
    raise wrong("input has to be a text that is not empty, a list of token ids, or a list of these.", "input")


def answer_document(asked: EmbeddingRequest, vectors: Array, tokens: int) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                # As OpenAI: float32, little-endian, whatever this machine has.
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if asked.packed
                else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ],
        "model": asked.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


class EmbeddingService:
    """The endpoint as a method. A time limit counts from the last byte of a request on."""

    def __init__(self, models: FolderModels[Embedder], limits: ServiceLimits) -> None:
        self.models = models
        self._timeout_s = limits.timeout_s
        self._most_bytes = min(limits.most_bytes, MOST_BYTES)
        self._admission = Admission(limits.in_all, 8 * self._most_bytes)
        self._workers = Workers("embeddings", limits.threads)

    async def embed(self, request: Request) -> Response:
        encoding = transport.check_encoding(request.headers.get("content-encoding"))
        with contextlib.ExitStack() as place:
            ticket = place.enter_context(self._admission.enter())
            parts = await receive_body(request, ticket, self._most_bytes)
            ticket.take_place()
            deadline = deadline_after(self._timeout_s)
            work = functools.partial(self._work, parts, encoding, ticket, deadline)
            body = await self._workers.do_for(work, deadline, request.receive)
            return PartedResponse(body, {}, "application/json", ticket, place.pop_all())

    def _work(self, parts: list[bytes], encoding: str | None, ticket: Ticket, deadline: float | None) -> bytes:
        asked = read_embedding(_document(parts, encoding, ticket, self._most_bytes, deadline))
        model = self.models.get(asked.model)
        figures = self.models.figures[model.name]
        figures.begin()
        ok, tokens = False, 0
        try:
            vectors, tokens = self._embed(asked, model, deadline)
            ok = True
        finally:
            sums = {"texts": len(asked.inputs) if ok else 0, "tokens": tokens}
            figures.end("ok" if ok else "error", sums)
        # Here and not in the event loop: vectors of thousands of texts take seconds to write.
        return json.dumps(answer_document(asked, vectors, tokens)).encode()

    def _embed(self, asked: EmbeddingRequest, model: Embedder, deadline: float | None) -> tuple[Array, int]:
        texts = []
        for one in asked.inputs:
            time_left_s(deadline)
            texts.append(model.tokens(one) if isinstance(one, str) else model.given(one))
        found = model.embed(texts, lambda: time_left_s(deadline))
        vectors = np.ascontiguousarray(model.shortened(found, asked.dimensions))
        return vectors, sum(len(one.ids) for one in texts)
