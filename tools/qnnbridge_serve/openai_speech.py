"""OpenAI's /v1/audio/transcriptions and /v1/audio/translations: parsing forms, answers and endpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from qnnbridge_protocol.errors import OptionError
from qnnbridge_serve import transport
from qnnbridge_serve.errors import Refused, error_text, wrong
from qnnbridge_serve.http_protocol import json_answer
from qnnbridge_serve.openai_answers import DONE, event
from qnnbridge_serve.openai_endpoints import (
    ClientQueues,
    EventStream,
    Turn,
    WorkedAnswer,
    disconnected,
    first_items,
    whole_answer,
)
from qnnbridge_serve.openai_forms import error_document
from qnnbridge_serve.options import ServiceLimits
from qnnbridge_serve.repository import FolderFigures, FolderModels, SpeechModel
from qnnbridge_serve.transport import Admission, Workers, body_parts, deadline_after
from qnnbridge_tools.transcribe import (
    SPEECH_FORMATS,
    SpeechFormat,
    TextPieces,
    short_document,
    verbose_document,
    written,
)

if TYPE_CHECKING:
    from qnnbridge.speech import SpeechSegment, Transcript
    from qnnbridge_serve.form_reading import FormReader

Task = Literal["transcribe", "translate"]

# Number of bytes of a body to collect in memory before a thread writes them to disk.
_BATCH_BYTES: Final = 1024**2
_MEDIA: Final[Mapping[str, str]] = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}
# Header with the number of audio windows in which words may be missing (`Transcript.cut`). Among the formats, only
# verbose_json has this number in its body.
CUT_HEADER: Final = "qnnbridge-cut"
# Unsupported fields that would change the text. Other unknown fields are ignored.
_UNSERVED: Final = ("prompt", "keywords", "languages", "include", "known_speaker_names", "known_speaker_references")


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Parsed form. language: ``None`` to detect the language."""

    model: str
    task: Task
    language: str | None
    form: SpeechFormat
    stream: bool


def read_speech(texts: Mapping[str, Sequence[str]], task: Task) -> SpeechRequest:
    """Parse the fields of a form. Raise `Refused` if they are invalid. texts: texts of the fields by name."""
    for field in _UNSERVED:
        if any(texts.get(field, ())):
            raise wrong(f"{field} is not supported here; leave it out.", field)
    model = _one(texts, "model")
    if not model:
        raise wrong("model must be the name of a model that /v1/models lists.", "model")
    _check_temperature(_one(texts, "temperature"))
    for one in texts.get("timestamp_granularities", ()):
        if one != "segment":
            raise wrong(
                'timestamp_granularities can only contain "segment": this server does not compute times of words.',
                "timestamp_granularities",
            )
    wanted = _one(texts, "response_format") or "json"
    form = next((one for one in SPEECH_FORMATS if one == wanted), None)
    if form is None:
        raise wrong(f"response_format must be one of {', '.join(SPEECH_FORMATS)}.", "response_format")
    stream = (_one(texts, "stream") or "false").lower()
    if stream not in ("true", "false", "1", "0"):
        raise wrong("stream must be true or false.", "stream")
    if stream in ("true", "1") and form not in ("json", "text"):
        raise wrong("stream=true requires response_format json or text.", "stream")
    return SpeechRequest(model, task, _one(texts, "language") or None, form, stream in ("true", "1"))


def _one(texts: Mapping[str, Sequence[str]], field: str) -> str:
    found = texts.get(field, ())
    if len(found) > 1:
        raise wrong(f"{field} is given {len(found)} times.", field)
    return found[0].strip() if found else ""


def _check_temperature(text: str) -> None:
    with contextlib.suppress(ValueError):
        if not text or float(text) == 0:
            return
    raise wrong(
        "temperature must be 0 or be left out: the server takes the most likely token at each step.",
        "temperature",
    )


class SpeechForm:
    """Format of a speech model's answer: `parts` are segments, and `counts` is the transcript."""

    def __init__(self, form: SpeechFormat) -> None:
        self._form = form
        self._pieces = TextPieces()

    def whole(self, parts: Sequence[SpeechSegment], counts: Transcript) -> Response:
        headers = {CUT_HEADER: str(counts.cut)} if counts.cut else {}
        if self._form in _MEDIA:
            return Response(written(self._form, counts), 200, headers, _MEDIA[self._form])
        document = short_document(counts) if self._form == "json" else verbose_document(counts)
        return json_answer(document, headers=headers)

    def opening(self) -> list[bytes]:
        return []

    def part(self, part: SpeechSegment) -> list[bytes]:
        piece = self._pieces.add(part.text)
        return [event({"type": "transcript.text.delta", "delta": piece})] if piece else []

    def closing(self, counts: Transcript) -> list[bytes]:
        return [event({"type": "transcript.text.done", "text": counts.text}), DONE]

    def failure(self, refused: Refused) -> list[bytes]:
        return [event(error_document(refused))]


class SpeechAnswer(WorkedAnswer):
    """Running transcription. audio: file with the audio, which the caller closes after `end`."""

    def __init__(
        self,
        asked: SpeechRequest,
        model: SpeechModel,
        figures: FolderFigures,
        audio: IO[bytes],
        deadline: float | None,
    ) -> None:
        super().__init__(SpeechForm(asked.form), figures, deadline)
        self._asked, self._model, self._audio = asked, model, audio

    def _make(self, turn: Turn, sums: dict[str, float]) -> tuple[str, Transcript]:
        asked = self._asked
        with turn():
            self._begun = True
            # Measure the time from here, without the wait for the turn.
            begun = time.monotonic()
            segments = []
            try:
                with self._model.recognizer.stream(
                    self._audio,  # type: ignore[arg-type]
                    language=asked.language,
                    task=asked.task,
                    timeout=self._left(),
                ) as found:
                    ends = self._cancellation.on_stop(found.cancel)
                    try:
                        for segment in found:
                            segments.append(segment)
                            self._emit(segment)
                        return "ok", found.transcript(segments)
                    finally:
                        sums["audio_seconds"] = found.position
                        ends()
            except OptionError as error:  # the audio or the language is not supported
                raise wrong(error_text(error), code=error.code) from error
            finally:
                sums["work_seconds"] = time.monotonic() - begun


class SpeechService:
    """Endpoints for speech. Timeouts begin with the last byte of a request."""

    def __init__(self, models: FolderModels[SpeechModel], limits: ServiceLimits) -> None:
        self.models = models
        self._timeout_s = limits.answer_timeout_s
        self._most_bytes = limits.most_bytes
        self._admission = Admission(limits.in_all, max(4 * limits.most_bytes, 1024**3))
        self._queues = ClientQueues(limits.threads, limits.queue)
        # Each answer waits for its turn in its own thread. Idle threads end.
        self._workers = Workers("speech", limits.in_all)
        self._readers = Workers("speech reader", 2)

    async def transcribe(self, request: Request) -> Response:
        return await self._answer(request, "transcribe")

    async def translate(self, request: Request) -> Response:
        return await self._answer(request, "translate")

    async def _answer(self, request: Request, task: Task) -> Response:
        if not self.models.wanted:
            raise Refused(
                404,
                "No model for speech is served here; start the server with --speech NAME=FOLDER.",
                field="model",
                reason="model_not_found",
            )
        from qnnbridge_serve.form_reading import FormReader, boundary_of

        if transport.check_encoding(request.headers.get("content-encoding")) is not None:
            raise wrong(
                "Send a form with a file without Content-Encoding: the server does not decompress forms.",
                status=415,
            )
        form = FormReader(boundary_of(request.headers.get("content-type")), "file")
        with contextlib.ExitStack() as place:
            place.callback(form.close)
            ticket = place.enter_context(self._admission.enter())
            await self._receive(request, form, ticket)
            ticket.take_place()
            deadline = deadline_after(self._timeout_s)
            asked = read_speech(form.texts, task)
            model = self.models.get(asked.model)
            if form.file is None:
                raise wrong("The field file with the audio is missing.", "file")
            if not form.file_bytes:
                raise wrong("The file is empty.", "file")
            answer = SpeechAnswer(asked, model, self.models.figures[model.name], form.file, deadline)
            client = request.client.host if request.client is not None else ""
            answer.start(self._workers, self._queues, client, functools.partial(disconnected, request.receive))
            if not asked.stream:
                return await whole_answer(answer)  # type: ignore[no-any-return]
            first = await first_items(answer)
            # The form is closed at the end of the stream, because its file is read until then.
            return EventStream(answer, first, place.pop_all().close)

    async def _receive(self, request: Request, form: FormReader, ticket: transport.Ticket) -> None:
        """Receive the form, and write it to disk batch by batch."""
        batch, size = [], 0
        # Use `aclosing`: after an error in the loop, the generator must end its timer immediately, not when Python
        # collects it.
        async with contextlib.aclosing(body_parts(request, ticket, self._most_bytes)) as parts:
            async for part in parts:
                batch.append(part)
                size += len(part)
                if size >= _BATCH_BYTES:
                    await self._readers.do(functools.partial(form.write, b"".join(batch)))
                    batch, size = [], 0
        if size:
            await self._readers.do(functools.partial(form.write, b"".join(batch)))
        # `end` is fast enough for the event loop: it checks a flag, and seeks to the beginning of the file.
        form.end()
