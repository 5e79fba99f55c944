"""OpenAI's endpoints for JSON: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from qnnbridge_serve import transport
from qnnbridge_serve.answering import ClientQueues, EventStream, GeneratedAnswer, first_item, whole_answer
from qnnbridge_serve.embeddings import Array, Embedder
from qnnbridge_serve.errors import Refused, wrong
from qnnbridge_serve.folder_models import FolderModels, LanguageModel
from qnnbridge_serve.http_protocol import json_answer
from qnnbridge_serve.json_reading import read_document, weight_of
from qnnbridge_serve.openai_answers import AnswerForm, MakeForm
from qnnbridge_serve.openai_forms import GenerationRequest, named_model, read_generation
from qnnbridge_serve.openai_responses import read_response, renamed
from qnnbridge_serve.options import ServiceLimits
from qnnbridge_serve.transport import Admission, Ticket, Workers, deadline_after, receive_body, time_left_s

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

    def __init__(self, models: FolderModels[LanguageModel], limits: ServiceLimits) -> None:
        self.models = models
        self._timeout_s = limits.answer_timeout_s
        self._most_bytes = min(limits.most_bytes, MOST_BYTES)
        self._admission = Admission(limits.in_all, max(4 * self._most_bytes, 256 * 1024**2))
        self._queues = ClientQueues(limits.threads, limits.queue)
        # Each waits in a thread of its own for its turn; an idle one has none.
        self._workers = Workers("language", limits.in_all)
        # Reading JSON is work of Python, which holds its lock: more threads would not be faster.
        self._readers = Workers("language reader", 1)

    async def chat(self, request: Request) -> Response:
        return await self._complete(request, lambda document: (read_generation(document, "chat"), AnswerForm))

    async def text(self, request: Request) -> Response:
        return await self._complete(request, lambda document: (read_generation(document, "text"), AnswerForm))

    async def respond(self, request: Request) -> Response:
        try:
            return await self._complete(request, read_response)
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
            answer = GeneratedAnswer(asked, model, self.models.figures[model.name], deadline, form)
            answer.start(self._workers, self._queues, _client(request, asked))
            if not asked.stream:
                return json_answer(await whole_answer(answer, request.receive))
            first = await first_item(answer, request.receive)
            # The ticket is given back at the end of the stream, and not at the end of this function.
            return EventStream(answer, first, place.pop_all().close)


def _client(request: Request, asked: GenerationRequest) -> str:
    """Who takes turns: the machine, and whom it asks for."""
    machine = request.client.host if request.client is not None else ""
    return f"{machine} {asked.user}"


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
        with self._admission.enter() as ticket:
            parts = await receive_body(request, ticket, self._most_bytes)
            ticket.take_place()
            deadline = deadline_after(self._timeout_s)
            work = functools.partial(self._work, parts, encoding, ticket, deadline)
            return json_answer(await self._workers.do_for(work, deadline, request.receive))

    def _work(self, parts: list[bytes], encoding: str | None, ticket: Ticket, deadline: float | None) -> Any:
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
        return answer_document(asked, vectors, tokens)

    def _embed(self, asked: EmbeddingRequest, model: Embedder, deadline: float | None) -> tuple[Array, int]:
        texts = []
        for one in asked.inputs:
            time_left_s(deadline)
            texts.append(model.tokens(one) if isinstance(one, str) else model.given(one))
        found = model.embed(texts, lambda: time_left_s(deadline))
        vectors = np.ascontiguousarray(model.shortened(found, asked.dimensions))
        return vectors, sum(len(one.ids) for one in texts)
