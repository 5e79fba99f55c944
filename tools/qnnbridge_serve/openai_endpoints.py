"""The endpoints of OpenAI's interface for text: /v1/chat/completions, /v1/completions, /v1/responses."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from qnnbridge_serve import openai_forms as forms
from qnnbridge_serve import transport
from qnnbridge_serve.answering import ClientQueues, EventStream, GeneratedAnswer, first_item, whole_answer
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.json_reading import read_document, weight_of
from qnnbridge_serve.language_models import LanguageModels
from qnnbridge_serve.openai_answers import AnswerForm, MakeForm
from qnnbridge_serve.openai_forms import GenerationRequest, Kind
from qnnbridge_serve.openai_responses import read_response, renamed
from qnnbridge_serve.options import ServiceLimits
from qnnbridge_serve.responses import json_answer
from qnnbridge_serve.transport import Admission, Ticket, Workers, receive_body, time_left_s

# A prompt of a million tokens has less.
MOST_BYTES: Final = 16 * 1024**2
# What a body may become in memory: token ids are ten times as large as their digits.
WEIGHT: Final = 12
# Bodies up to this size are read at once: they wait for no larger ones.
QUICK_BYTES: Final = 64 * 1024

# Of the document of a body.
Reader = Callable[[Any], tuple[GenerationRequest, MakeForm]]


class LanguageService:
    """The endpoints as methods.

    Args:
        timeout_s: For one answer, from the last byte of its request on; ``None`` for no limit.
        slots: Generations at once.
        waiting: Requests that wait for their turn.
    """

    def __init__(self, models: LanguageModels, limits: ServiceLimits) -> None:
        self.models = models
        self._timeout_s = limits.answer_timeout_s
        self._most_bytes = min(limits.most_bytes, MOST_BYTES)
        self._admission = Admission(limits.in_all, max(4 * self._most_bytes, 256 * 1024**2))
        self._queues = ClientQueues(limits.threads, limits.queue)
        # Each waits in a thread of its own for its turn; an idle one has none.
        self._workers = Workers("language", limits.in_all)
        self._readers = Workers("language reader", 1)

    async def chat(self, request: Request) -> Response:
        return await self._complete(request, functools.partial(_generation, "chat"))

    async def text(self, request: Request) -> Response:
        return await self._complete(request, functools.partial(_generation, "text"))

    async def respond(self, request: Request) -> Response:
        try:
            return await self._complete(request, _response)
        except Refused as refused:
            raise renamed(refused) from None

    async def _complete(self, request: Request, reader: Reader) -> Response:
        encoding = transport.check_encoding(request.headers.get("content-encoding"))
        with contextlib.ExitStack() as place:
            ticket = place.enter_context(self._admission.enter())
            parts = await receive_body(request, ticket, self._most_bytes)
            ticket.take_place()
            arrived = time.monotonic()
            deadline = None if self._timeout_s is None else arrived + self._timeout_s
            read = functools.partial(self._read, parts, encoding, ticket, reader, deadline)
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
            return EventStream(answer, first, place.pop_all().close)

    def _read(
        self, parts: list[bytes], encoding: str | None, ticket: Ticket, reader: Reader, deadline: float | None
    ) -> tuple[GenerationRequest, MakeForm]:
        def take(size: int) -> None:
            time_left_s(deadline)
            ticket.unpack(size, self._most_bytes)

        body = b"".join(parts)
        if encoding is not None:
            body = transport.unpack(memoryview(body), take)
        ticket.unpack(weight_of(body), WEIGHT * self._most_bytes)
        return reader(read_document(body))


def _client(request: Request, asked: GenerationRequest) -> str:
    """Who takes turns: the machine, and whom it asks for."""
    machine = request.client.host if request.client is not None else ""
    return f"{machine} {asked.user}"


def _generation(kind: Kind, document: Any) -> tuple[GenerationRequest, MakeForm]:
    return forms.read_generation(document, kind), AnswerForm


def _response(document: Any) -> tuple[GenerationRequest, MakeForm]:
    read = read_response(document)
    return read.asked, read.form
