"""OpenAI's /v1/embeddings: requests read, the endpoint."""

from __future__ import annotations

import base64
import dataclasses
import functools
import time
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from qnnbridge_serve import transport
from qnnbridge_serve.embeddings import Array, Embedder, EmbeddingModels
from qnnbridge_serve.errors import wrong
from qnnbridge_serve.json_reading import read_document, weight_of
from qnnbridge_serve.openai_endpoints import MOST_BYTES, WEIGHT
from qnnbridge_serve.options import ServiceLimits
from qnnbridge_serve.responses import json_answer
from qnnbridge_serve.transport import Admission, Ticket, Workers, receive_body, time_left_s

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
    if not isinstance(document, dict):
        raise wrong("The request is no JSON object.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model has to name one of the models of /v1/models.", "model")
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
    """The endpoint as a method.

    Args:
        timeout_s: For one request, from its last byte on; ``None`` for no limit.
        threads: Requests at once.
        waiting: Requests that wait.
    """

    def __init__(self, models: EmbeddingModels, limits: ServiceLimits) -> None:
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
            deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
            work = functools.partial(self._work, parts, encoding, ticket, deadline)
            return json_answer(await self._workers.do_for(work, deadline, request.receive))

    def _work(self, parts: list[bytes], encoding: str | None, ticket: Ticket, deadline: float | None) -> Any:
        def take(size: int) -> None:
            time_left_s(deadline)
            ticket.unpack(size, self._most_bytes)

        body = b"".join(parts)
        if encoding is not None:
            body = transport.unpack(memoryview(body), take)
        ticket.unpack(weight_of(body), WEIGHT * self._most_bytes)
        asked = read_embedding(read_document(body))
        model = self.models.get(asked.model)
        figures = self.models.figures[model.name]
        figures.begin()
        ok, tokens = False, 0
        try:
            vectors, tokens = self._embed(asked, model, deadline)
            ok = True
        finally:
            figures.end(ok=ok, texts=len(asked.inputs) if ok else 0, tokens=tokens)
        return answer_document(asked, vectors, tokens)

    def _embed(self, asked: EmbeddingRequest, model: Embedder, deadline: float | None) -> tuple[Array, int]:
        texts = []
        for one in asked.inputs:
            time_left_s(deadline)
            texts.append(model.tokens(one) if isinstance(one, str) else model.given(one))
        found = model.embed(texts, lambda: time_left_s(deadline))
        vectors = np.ascontiguousarray(model.shortened(found, asked.dimensions))
        return vectors, sum(len(one.ids) for one in texts)
