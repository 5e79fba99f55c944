"""OpenAI's endpoints for JSON: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings.

A worker thread generates the answer of a language model or speech model; the event loop sends it. The worker never
waits for the client: parts that the client has not read stay in a queue, whose size is bounded because the context
of the model or the length of the audio limits the answer. So a client that does not read occupies neither a thread
nor the NPU. The server closes its connection after `pacing.STALL_TIMEOUT_S`.
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
from collections.abc import Callable, Coroutine, Iterable, Iterator
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
    """Last item in the queue of a complete answer. counts: passed to `Form.whole` or `Form.closing`."""

    counts: Any


# Item of an answer's queue: a part of the answer, `Ended`, or the error that ended the answer.
Item = Any

# `ClientQueues.turn`, bound to a client.
Turn = Callable[..., contextlib.AbstractContextManager[None]]


class ClientQueues:
    """Let clients take turns at generating: the client that has waited longest is next.

    Args:
        slots: maximum number of concurrent generations; the host alternates between them token by token.
        most_waiting: maximum number of waiting generations.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._shares = FairShare(slots, max(1, most_waiting))
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[Queue, int]] = {}

    @contextlib.contextmanager
    def turn(self, client: str, cancellation: Cancellation, *, again: bool = False) -> Iterator[None]:
        """Wait for the client's turn, and keep the turn within the ``with`` block.

        Raise `Busy` or `Cancelled`. again: see `FairShare.turn`.
        """
        with self._lock:
            # Keep a client only as long as it has requests, so that the number of clients stays bounded.
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
    """Answer that a worker generates. Created and read in the thread of the event loop."""

    def __init__(self, form: Form, figures: FolderFigures, deadline: float | None) -> None:
        self.form = form
        self._figures = figures
        self._pace = Pace()
        self._deadline = deadline
        self._cancellation = Cancellation()
        self._loop = asyncio.get_running_loop()
        # The queue is unbounded, because the worker must never wait for a client that does not read. The model's
        # context limits its size.
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._late = False
        self._begun = False
        # Whether a timeout error was sent to the client while native code is still working on the answer.
        self._overdue = False
        self._task: asyncio.Future[None] | None = None
        # Done when the client has closed its connection.
        self._watch: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(
        self, workers: Workers, queues: ClientQueues, client: str, gone: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        """Let a worker generate the answer. The worker also updates the metrics.

        gone: function whose coroutine ends when the client has closed its connection; the answer is then cancelled.
        """
        self._figures.begin()
        self._watch = self._loop.create_task(gone())
        self._watch.add_done_callback(self._stop_without_client)
        self._task = workers.start(functools.partial(self._work, queues, client))
        if self._deadline is not None:
            # The timer only limits the wait in the queue: a running generation checks the deadline itself.
            self._timer = self._loop.call_later(max(0.0, self._deadline - time.monotonic()), self._too_late)

    async def next(self) -> list[Item]:
        """Wait for an item. Return all items that have arrived."""
        items = [await self._items.get()]
        while not self._items.empty():
            items.append(self._items.get_nowait())
        return items

    @property
    def client_gone(self) -> bool:
        """True if the client has closed its connection."""
        return self._watch is not None and self._watch.done()

    def cancel(self) -> None:
        """End the answer before its next token."""
        self._cancellation.stop()

    async def end(self) -> None:
        """Wait until the worker ends, unless its deadline has passed."""
        if self._watch is not None:
            self._watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
        # Do not wait for work that continues after its deadline; it keeps its turn until it ends.
        if self._task is not None and not self._overdue:
            # Use `wait`, which does not raise the task's errors: the queue has already delivered them.
            await asyncio.wait({self._task})

    def _stop_without_client(self, watch: asyncio.Future[Any]) -> None:
        if not watch.cancelled():
            self.cancel()

    def _too_late(self) -> None:
        if not self._begun:  # a running generation observes the deadline itself
            self._late = True
            self._cancellation.stop()

    # --- the worker's thread ---

    def _work(self, queues: ClientQueues, client: str) -> None:
        """Generate the answer. Put exactly one last item into the queue in every case: a reader waits for it."""
        outcome, sums = "error", dict[str, float]()
        try:
            ended, counts = self._make(functools.partial(queues.turn, client, self._cancellation), sums)
            self._emit(Ended(counts))
            outcome = ended
        except Cancelled as error:
            outcome = "cancelled"
            self._emit(not_started() if self._late else error)
        except BaseException as error:  # noqa: BLE001 - passed on to the event loop
            if not self._overdue:
                self._emit(error)
        finally:
            self._figures.end(outcome, sums, self._pace)

    @abc.abstractmethod
    def _make(self, turn: Turn, sums: dict[str, float]) -> tuple[str, Any]:
        """Wait for a turn, generate the answer within it, and pass each part to `_emit`.

        Args:
            turn: returns a context manager for a turn.
            sums: dictionary to fill, even if the answer fails, with the amounts that are added to the metrics.

        Returns:
            Outcome, and the counts for `Ended`.
        """

    def _left(self) -> float | None:
        """Return the seconds until the deadline, at least 0.001, for a call that observes the deadline itself."""
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _emit(self, item: Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, because the server has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class GeneratedAnswer(WorkedAnswer):
    """Answer of a language model."""

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
            # Do not begin the next answer of a request after the deadline.
            time_left_s(self._deadline)
            # Wait for a turn before each answer, so that other clients need not wait for all answers of a request.
            with turn(again=number > 0), self._keeping_its_place(), contextlib.ExitStack() as held:
                self._begun = True
                # Render the prompt within the turn: native code in the host renders the chat template as well.
                choice = next(choices)

                def stop_with(stream: TextStream, held: contextlib.ExitStack = held) -> None:
                    held.callback(self._cancellation.on_stop(stream.cancel))

                opened = open_choice(
                    asked, self._model, choice, self._left(), stop_with, self._pool, self._cache_salt
                )
                stream = held.enter_context(opened)
                if choice.number == choice.prompt * asked.n:  # count each prompt once
                    prompt_tokens += stream.prompt_tokens
                    sums["prompt_tokens"] = prompt_tokens
                    cached_tokens += stream.cached_tokens
                    sums["cached_tokens"] = cached_tokens
                try:
                    for part in parts_of(asked, self._model, choice, stream, pace, self._left):
                        self._emit(part)
                finally:
                    sums["generated_tokens"] = pace.tokens
                    sums["host_restarts"] += stream.stats.restarts
            if stream.finish_reason == "cancelled":  # raise, so that the answer does not look complete
                raise Cancelled("The answer was cancelled.")
            outcome = stream.finish_reason or "error"
        return outcome, Counts(prompt_tokens, pace.tokens, cached_tokens)

    @contextlib.contextmanager
    def _keeping_its_place(self) -> Iterator[None]:
        """At the deadline, send an error to the client, but keep the turn until native code or its host ends."""
        try:
            yield
        except DeadlineExceeded as error:
            if error.details.get("state") == "still-running":
                self._overdue = True  # set this before the error is sent, because `end` checks it
                self._emit(error)
                from qnnbridge.genai._remote import end_overdue

                end_overdue(self._model.model.host)
            raise


async def whole_answer(answer: WorkedAnswer) -> Any:
    """Return the complete document of an answer. Raise `ClientGone`, or the error that ended the answer."""
    parts: list[Any] = []
    try:
        while not isinstance(parts[-1] if parts else None, (Ended, BaseException)):
            parts += await answer.next()
        if answer.client_gone:
            raise ClientGone
        item = parts.pop()
        if isinstance(item, BaseException):
            raise item
        # Format the document after the last item, because it contains the token counts and the finish reason.
        return answer.form.whole(parts, item.counts)
    finally:
        answer.cancel()
        await answer.end()


async def first_items(answer: WorkedAnswer) -> list[Item]:
    """Wait for the first items of a stream. Raise `ClientGone`, or an error that precedes the first part."""
    try:
        # Wait for the first part before sending the status: an earlier error can then have its own status (400,
        # 429, 503).
        items = await answer.next()
        if answer.client_gone:
            raise ClientGone
        if isinstance(items[0], BaseException):
            raise items[0]
        return items
    except BaseException:
        answer.cancel()
        await answer.end()
        raise


class EventStream(StreamingResponse):
    """Response that sends an answer as server-sent events.

    A client that does not read is disconnected by `pacing.StallWatch`.

    Args:
        answer: the answer.
        first: the first items, which were awaited before, so that an earlier error has its own status.
        close: called at the end of the answer, even after an error.
    """

    def __init__(self, answer: WorkedAnswer, first: list[Item], close: Callable[[], None]) -> None:
        # The second header keeps nginx from buffering the stream.
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        # StreamingResponse sets only the headers here. They have no Content-Length, so the server uses chunked
        # encoding.
        super().__init__((), headers=headers, media_type="text/event-stream")
        self._answer = answer
        self._first = first
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send)
        except asyncio.CancelledError:  # the server is ending and has waited long enough
            answer.cancel()
            ending = Refused(503, "The server is ending; this answer was not finished.")
            # The server has already waited for `--drain`, and the client may not be reading, so wait at most one
            # second for the error to be sent. Then close the connection without a last chunk, so that the client
            # notices the truncated answer.
            abort = (scope.get("extensions") or {}).get(ABORT, lambda: None)
            timer = asyncio.get_running_loop().call_later(ENDING_S, abort)
            try:
                await send(_body(answer.form.failure(ending), last=True))
            finally:
                timer.cancel()
        finally:
            answer.cancel()
            try:
                await answer.end()
            finally:
                self._close()

    async def _send_all(self, send: Send) -> None:
        form, items = self._answer.form, self._first
        events = form.opening()
        while not isinstance(items[-1], (Ended, BaseException)):
            # Send all parts that have arrived in one message, because each message is a separate write.
            await send(_body([*events, *(event for item in items for event in form.part(item))]))
            events, items = [], await self._answer.next()
        if self._answer.client_gone:
            return
        last = items.pop()
        events += [event for item in items for event in form.part(item)]
        # The status has already been sent, so an error becomes an event of the stream.
        if isinstance(last, Ended):
            events += form.closing(last.counts)
        else:
            log_unexpected("an answer", last)
            events += form.failure(refusal_of(last))
        await send(_body(events, last=True))


# Time limit in seconds at the end of the server: for sending the last event to a client that may not be reading.
ENDING_S: Final = 1.0


def _body(events: Iterable[bytes], *, last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"".join(events), "more_body": not last}


async def disconnected(receive: Receive) -> None:
    """Wait until the client closes its connection, after its request was received."""
    while (await receive())["type"] != "http.disconnect":
        pass


# Maximum size of a body. A prompt of a million tokens is smaller.
MOST_BYTES: Final = 16 * 1024**2
# Maximum memory of a parsed body, as a multiple of the body's maximum size: token ids take ten times as much memory
# as their digits.
WEIGHT: Final = 12
# Bodies up to this size are parsed immediately, so they do not wait for larger bodies.
QUICK_BYTES: Final = 64 * 1024

# Function that parses the JSON document of a request.
Reader = Callable[[Any], tuple[GenerationRequest, MakeForm]]


def _document(parts: list[bytes], encoding: str | None, ticket: Ticket, most: int, deadline: float | None) -> Any:
    """Return the JSON document of a body of at most `most` bytes. Raise `Refused`, `Busy` or `DeadlineExceeded`."""

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
    """Endpoints of language models. Timeouts begin with the last byte of a request."""

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
        # Each answer waits for its turn in its own thread. Idle threads end.
        self._workers = Workers("language", limits.in_all)
        # One thread is enough, because parsing JSON holds the GIL.
        self._readers = Workers("language reader", 1)

    def pool_row(self) -> dict[str, Any]:
        """Return the figures of the pool of generators, for `/status`."""
        return dataclasses.asdict(self._pool.stats)

    def families(self) -> Iterator[Metric]:
        """Yield the figures of the pool of generators, for /metrics, if there are language models."""
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
            answer.start(self._workers, self._queues, client, functools.partial(disconnected, request.receive))
            if not asked.stream:
                body = json.dumps(await whole_answer(answer)).encode()
                return PartedResponse(body, {}, "application/json", ticket, place.pop_all())
            first = await first_items(answer)
            # The ticket is released at the end of the stream, not at the end of this function.
            return EventStream(answer, first, place.pop_all().close)


def _client(request: Request, asked: GenerationRequest) -> str:
    """Return the key of a client in `ClientQueues`: its machine's address and the request's field `user`."""
    return f"{_machine(request)} {asked.user}"


def _machine(request: Request) -> str:
    return request.client.host if request.client is not None else ""


# --- /v1/embeddings ---

# Limit of OpenAI.
MOST_INPUTS: Final = 2048


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Parsed request. inputs: texts and lists of token ids. dimensions: ``None`` for all. packed: use base64."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None
    packed: bool


def read_embedding(document: Any) -> EmbeddingRequest:
    """Parse a request for embeddings. Raise `Refused` if it is invalid."""
    model = named_model(document)
    value: Any = document.get("input")
    several = isinstance(value, list) and bool(value) and all(isinstance(one, (str, list)) for one in value)
    given: list[Any] = value if several else [value]
    if len(given) > MOST_INPUTS:
        raise wrong(f"input has {len(given)} entries; the maximum is {MOST_INPUTS}.", "input")
    dimensions, form = document.get("dimensions"), document.get("encoding_format")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise wrong("dimensions has to be a positive integer.", "dimensions")
    if form not in (None, "float", "base64"):
        raise wrong('encoding_format must be "float" or "base64".', "encoding_format")
    return EmbeddingRequest(model, tuple(map(_input, given)), dimensions, form == "base64")


def _input(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        try:
            given.encode()
        except UnicodeEncodeError:
            raise wrong("input: an unpaired surrogate is not valid UTF-8.", "input") from None
        return given
    if isinstance(given, list) and given and all(type(one) is int and one >= 0 for one in given):
        return tuple(given)
    raise wrong(
        "input must be a non-empty string, a list of token ids, or a list of such strings or lists.", "input"
    )


def answer_document(asked: EmbeddingRequest, vectors: Array, tokens: int) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                # Send float32 in little-endian order on every machine, like OpenAI.
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
    """Endpoint for embeddings. Timeouts begin with the last byte of a request."""

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
        # Write the document here and not in the event loop, because this takes seconds for thousands of texts.
        return json.dumps(answer_document(asked, vectors, tokens)).encode()

    def _embed(self, asked: EmbeddingRequest, model: Embedder, deadline: float | None) -> tuple[Array, int]:
        texts = []
        for one in asked.inputs:
            time_left_s(deadline)
            texts.append(model.tokens(one) if isinstance(one, str) else model.given(one))
        found = model.embed(texts, lambda: time_left_s(deadline))
        vectors = np.ascontiguousarray(model.shortened(found, asked.dimensions))
        return vectors, sum(len(one.ids) for one in texts)
