"""Transcripts as text, JSON and subtitles, in the forms that OpenAI's interface gives. Pure."""

from __future__ import annotations

import html
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from qnnbridge.speech import SpeechSegment, Transcript

SpeechFormat = Literal["text", "json", "verbose_json", "srt", "vtt"]
SPEECH_FORMATS: Final[tuple[SpeechFormat, ...]] = ("text", "json", "verbose_json", "srt", "vtt")
# These need segments with times: `transcribe(..., timestamps=True)`.
TIMED_FORMATS: Final = frozenset({"verbose_json", "srt", "vtt"})


def written(form: SpeechFormat, transcript: Transcript) -> str:
    """The whole transcript; it ends with a line's end."""
    if form == "json":
        return json.dumps(short_document(transcript), ensure_ascii=False) + "\n"
    if form == "verbose_json":
        return json.dumps(verbose_document(transcript), ensure_ascii=False) + "\n"
    if form == "text":
        return transcript.text + "\n"
    return "".join(subtitles(form, transcript.segments))


def short_document(transcript: Transcript) -> dict[str, Any]:
    return {"text": transcript.text}


def verbose_document(transcript: Transcript) -> dict[str, Any]:
    """OpenAI's, without what a greedy search does not give: seek, avg_logprob, no_speech_prob.

    `audio_rate` and `cut` are those of `Transcript`.
    """
    segments = [
        {
            "id": number,
            "start": one.start,
            "end": one.end,
            "text": one.text,
            "tokens": list(one.tokens),
            "temperature": 0.0,
            "compression_ratio": _compression(one.text),
        }
        for number, one in enumerate(transcript.segments)
    ]
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.duration,
        "text": transcript.text,
        "segments": segments,
        "audio_rate": transcript.audio_rate,
        "cut": transcript.cut,
    }


def text_pieces(segments: Iterable[SpeechSegment]) -> Iterator[str]:
    """What each segment adds to the text. All of them together are `Transcript.text`."""
    pieces = TextPieces()
    return filter(None, (pieces.add(segment.text) for segment in segments))


class TextPieces:
    """`text_pieces` for segments that are pushed."""

    def __init__(self) -> None:
        self._begun, self._held = False, ""

    def add(self, text: str) -> str:
        """What the text of a segment adds; may be nothing."""
        text = self._held + text
        text = text if self._begun else text.lstrip()
        piece = text.rstrip()
        self._held = text[len(piece) :]
        self._begun = self._begun or bool(piece)
        return piece


def subtitles(form: Literal["srt", "vtt"], segments: Iterable[SpeechSegment]) -> Iterator[str]:
    """The file, piece by piece: segments are taken when they are needed."""
    if form == "vtt":
        yield "WEBVTT\n\n"
    number = 0
    for segment in segments:
        text = " ".join(segment.text.split())  # an empty line would end the subtitle
        if not text:
            continue
        number += 1
        start = round(segment.start * 1000)
        end = max(round(segment.end * 1000), start + 1)  # players drop what has no length
        if form == "vtt":
            yield f"{_time(start, '.')} --> {_time(end, '.')}\n{html.escape(text, quote=False)}\n\n"
        else:
            yield f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text.replace('-->', '->')}\n\n"


def _time(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def _compression(text: str) -> float:
    """How often the text repeats itself: clients take high values for made-up text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0
