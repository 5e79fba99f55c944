"""`qnnbridge transcribe`: speech to text with Whisper, printed segment by segment during recognition."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import output
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import (
    AsJson,
    Fallback,
    HostPython,
    Overwrite,
    ProviderName,
    ProviderOptions,
    Timeout,
)

if TYPE_CHECKING:
    from qnnbridge.speech import Recognizer, SpeechSegment, Transcript, Transcription


# --- transcripts in the formats of OpenAI's interface ---

SpeechFormat = Literal["text", "json", "verbose_json", "srt", "vtt"]
SPEECH_FORMATS: Final[tuple[SpeechFormat, ...]] = ("text", "json", "verbose_json", "srt", "vtt")
# These formats need segments with times: `transcribe(..., timestamps=True)`.
TIMED_FORMATS: Final = frozenset({"verbose_json", "srt", "vtt"})


def written(form: SpeechFormat, transcript: Transcript) -> str:
    """Return the whole transcript, ending with a line break."""
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
    """Return OpenAI's document, without the fields that a greedy search does not produce.

    The missing fields are seek, avg_logprob and no_speech_prob. `audio_rate` and `cut` have the same meaning as
    in `Transcript`.
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
    """Yield the text that each segment adds. All pieces together are `Transcript.text`."""
    pieces = TextPieces()
    return filter(None, (pieces.add(segment.text) for segment in segments))


class TextPieces:
    """Does the work of `text_pieces` for segments that arrive one at a time."""

    def __init__(self) -> None:
        self._begun, self._held = False, ""

    def add(self, text: str) -> str:
        """Return the text that a segment adds; it may be empty."""
        text = self._held + text
        # Whisper's texts begin with a space, which separates segments and is not part of the whole text.
        text = text if self._begun else text.lstrip()
        piece = text.rstrip()
        # Keep trailing spaces until more text arrives, because `Transcript.text` does not end with a space.
        self._held = text[len(piece) :]
        self._begun = self._begun or bool(piece)
        return piece


def subtitles(form: Literal["srt", "vtt"], segments: Iterable[SpeechSegment]) -> Iterator[str]:
    """Yield the subtitle file piece by piece: segments are read only when they are needed."""
    if form == "vtt":
        yield "WEBVTT\n\n"
    number = 0
    for segment in segments:
        text = " ".join(segment.text.split())  # an empty line would end the subtitle
        if not text:
            continue
        number += 1
        # Round to milliseconds first: rounding each part separately could result in 60 seconds or 1000
        # milliseconds.
        start = round(segment.start * 1000)
        end = max(round(segment.end * 1000), start + 1)  # players skip subtitles without a duration
        # WebVTT contains markup, so & and < are escaped; in SubRip only the arrow has a meaning.
        if form == "vtt":
            yield f"{_time(start, '.')} --> {_time(end, '.')}\n{html.escape(text, quote=False)}\n\n"
        else:
            yield f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text.replace('-->', '->')}\n\n"


def _time(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


def _compression(text: str) -> float:
    """Return the compression ratio of the text: clients treat text with a high ratio as invented."""
    # Use the formula of Whisper, whose own decoding treats a ratio above 2.4 as a failure.
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


# --- the command ----------------------------------------------------------------------------------------

_SUFFIXES: Mapping[SpeechFormat, str] = {
    "text": ".txt",
    "json": ".json",
    "verbose_json": ".json",
    "srt": ".srt",
    "vtt": ".vtt",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of the speech: en, de, ... Default: detected.")
    ] = None
    task: Annotated[
        Literal["transcribe", "translate"], typer.Option("--task", help="translate: write English text.")
    ] = "transcribe"
    timestamps: Annotated[
        bool,
        typer.Option(
            "--timestamps/--no-timestamps",
            help="Add time stamps. Without time stamps, each segment is 30 seconds long.",
        ),
    ] = True
    form: Annotated[SpeechFormat, typer.Option("--format", help="Output format.")] = "text"


@command
def transcribe(
    *,
    files: Annotated[tuple[Path, ...], typer.Argument(metavar="FILE...", help="Audio: WAV, FLAC, OGG, MP3.")],
    model: Annotated[
        Path,
        typer.Option(
            "--model", metavar="FOLDER", help="Folder of a Whisper model: encoder, decoder, tokenizer.json."
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of tokenizer.json, if it is not the model's folder."),
    ] = None,
    order: _Order,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A file, or a folder for NAME.txt, .srt, ...; in UTF-8."
        ),
    ] = None,
    overwrite: Overwrite = False,
    provider: ProviderName = "qnn",
    provider_options: ProviderOptions,
    fallback: Fallback = "error",
    timeout: Timeout = None,
    shared: Annotated[bool, typer.Option("--daemon", help="Use the daemon's host.")] = False,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Transcribe audio files. Text appears as soon as it is recognised."""
    import qnnbridge
    from qnnbridge.speech._audio import AudioReader
    from qnnbridge_tools import reporting

    if order.form in TIMED_FORMATS and not order.timestamps:
        raise OptionError(f"--format {order.form} needs times.", fix="Omit --no-timestamps.")
    if len(files) > 1 and target is None and not as_json and order.form != "text":
        raise OptionError(
            f"Several files cannot be written as one {order.form} document.", fix="Give a folder: -o FOLDER"
        )
    if order.language is not None and not order.language.strip():
        raise OptionError("--language is empty.", fix="Omit it to detect the language.")
    targets = _targets(files, target, order.form, overwrite)
    for file in files:
        AudioReader(file).close()  # report an unreadable file before the model is loaded
    with (
        qnnbridge.connect(python=host_python) if shared else qnnbridge.Host(host_python) as host,
        _loaded(
            model,
            tokenizer=tokenizer,
            host=host,
            provider=provider,
            provider_options=provider_options,
            fallback=fallback,
            timeout=timeout,
        ) as recognizer,
    ):
        done: list[dict[str, Any]] = []
        for file, place in zip(files, targets, strict=True):
            if len(files) > 1 and place is None and not as_json:
                print(f"{'' if not done else chr(10)}==> {output.visible(file)} <==")
            done.append(_transcribe(recognizer, file, place, order, quiet=as_json))
        if as_json:
            output.print_json(
                {
                    "model": str(model),
                    "layout": recognizer.layout,
                    "placement": {name: one.to_wire() for name, one in recognizer.placement.items()},
                    "files": done,
                    "host": reporting.host_document(host.info),
                    "application": reporting.application_document(),
                }
            )


def _loaded(model: Path, **options: Any) -> Recognizer:
    from qnnbridge import speech
    from qnnbridge_tools.stages import waiting

    with waiting("loading", model.name):
        return speech.load(model, **options)


def _transcribe(
    recognizer: Recognizer, file: Path, place: OutputFile | None, order: _Order, *, quiet: bool
) -> dict[str, Any]:
    """Transcribe one file and return its part of the JSON document. quiet: print nothing to stdout."""
    from qnnbridge.speech._audio import RATE

    begun = time.monotonic()
    with (
        recognizer.stream(file, language=order.language, task=order.task, timestamps=order.timestamps) as found,
        _writer(place, quiet) as write,
    ):
        segments: list[SpeechSegment] = []
        # Show progress only if the text is not printed on the same terminal.
        shows = sys.stderr is not None and sys.stderr.isatty() and (place is not None or not output.is_terminal())
        for piece in _pieces(order, found, segments, file.name if shows else None):
            write(piece)
        transcript = _whole(order, found, segments)
    if not quiet and transcript.audio_rate != RATE:
        print(f"Note: {output.visible(file)} has {transcript.audio_rate} Hz; resampled to {RATE}.", file=sys.stderr)
    spent = time.monotonic() - begun
    written_to = str(place.path) if place is not None else None
    return {"file": str(file), "written": written_to, "seconds": spent, **verbose_document(transcript)}


def _pieces(order: _Order, found: Transcription, segments: list[SpeechSegment], shown: str | None) -> Iterator[str]:
    """Yield the output in pieces, as early as its format permits."""
    coming = _kept(found, segments, shown)
    if order.form == "text":
        yield from text_pieces(coming)
        yield "\n"
    elif order.form == "srt" or order.form == "vtt":
        yield from subtitles(order.form, coming)
    else:
        # JSON is one document: none of it can be written before the end.
        for _ in coming:
            pass
        yield written(order.form, _whole(order, found, segments))


def _kept(found: Transcription, segments: list[SpeechSegment], shown: str | None) -> Iterator[SpeechSegment]:
    """Yield the segments and append them to `segments`. shown: the name for a progress line."""
    try:
        for segment in found:
            segments.append(segment)
            if shown is not None:
                done = int(found.position)
                print(
                    f"\r{output.visible(shown)}: {done // 60}:{done % 60:02}", end="", file=sys.stderr, flush=True
                )
            yield segment
    finally:
        # End the progress line after an error, too, so that the message begins on a new line.
        if shown is not None and segments:
            print(file=sys.stderr)


def _whole(order: _Order, found: Transcription, segments: Sequence[SpeechSegment]) -> Transcript:
    from qnnbridge.speech import Transcript

    return Transcript(found.language, order.task, found.position, tuple(segments), found.audio_rate, found.cut)


@contextlib.contextmanager
def _writer(place: OutputFile | None, quiet: bool) -> Iterator[Callable[[str], object]]:
    """Write pieces to stdout, or to a file that is renamed to its final name at the end."""
    if place is None:
        yield (lambda _piece: None) if quiet else _to_stdout
        return
    with place.opened() as file:
        yield lambda piece: file.write(piece.encode("utf-8", "backslashreplace"))


def _to_stdout(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _targets(
    files: Sequence[Path], target: Path | None, form: SpeechFormat, overwrite: bool
) -> list[OutputFile | None]:
    """Return the file for the transcript of each audio file. Raise `OptionError` for a wrong target."""
    if target is None:
        return [None] * len(files)
    is_folder = os.path.isdir(target) or len(files) > 1 or str(target).endswith(("/", os.sep))
    places = [target / (file.stem + _SUFFIXES[form]) if is_folder else target for file in files]
    names = [os.path.normcase(place.name) for place in places]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(
            f"The transcripts of two files would be written to {target / twice}.", fix="Transcribe them separately."
        )
    if is_folder and target.exists() and not target.is_dir():
        raise OptionError(f"{target} is not a folder.", fix="Give a folder for several files: -o FOLDER")
    return [OutputFile(place, overwrite=overwrite, inputs=files) for place in places]
