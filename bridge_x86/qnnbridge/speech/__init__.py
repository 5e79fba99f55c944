"""Speech to text with Whisper: one call transcribes a recording, with the encoder on the NPU.

>>> from qnnbridge import speech
>>> with speech.load("whisper-base") as recognizer:
...     print(recognizer.transcribe("talk.wav").text)

Requires the packages of the extra ``speech``. docs/speech.md lists the supported layouts of folders.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._host import chosen_host
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.speech._audio import HOP, RATE, Array, Audio, AudioReader, log_mel
from qnnbridge.speech._decoders import (
    TimeLeft,
    TokenRules,
    TokenSpan,
    WindowDecoder,
    run_bound,
    spans_of,
    unlimited,
)
from qnnbridge.speech._folder import (
    Layout,
    SessionChoices,
    Vocabulary,
    WhisperSessions,
    WhisperSettings,
    chosen_language,
    find_files,
    load_tokenizer,
    open_sessions,
    read_settings,
    read_vocabulary,
)
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import Cancelled, Closed, DeadlineExceeded, OptionError
from qnnbridge_protocol.shown import Shown, beginning, counted, more
from qnnbridge_protocol.specs import Fallback, Placement
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._values.ort_value import OrtValue
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.shown import Fact

__all__ = ["Recognizer", "SpeechSegment", "Transcript", "Transcription", "load"]

_log = log_of("qnnbridge.speech")

# Minimum number of seconds between the starts of two consecutive windows. Without the minimum, a model that
# predicts very small times could cause fifty windows per second of audio.
_LEAST_ADVANCE_S = 1.0
# The timeout of a call may expire slightly before the deadline of the transcription. If the difference is at most
# this many seconds, report that the transcription missed its deadline.
_SOON_S = 0.05
Task = Literal["transcribe", "translate"]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class SpeechSegment(Shown):
    """The text of one part of the audio.

    Attributes:
        start, end: times in seconds.
        tokens: tokens of the text, including time tokens (predicted times).
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{self.start:.2f} to {self.end:.2f} s", ""
        yield beginning(self.text), ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Transcript(Shown):
    """Result of a transcription.

    Attributes:
        language: language code, as passed or detected; ``None`` if the model does not report a language.
        duration: duration of the audio in seconds.
        audio_rate: sampling rate of the source in Hz. If it is not 16000, the audio was resampled.
        cut: number of windows whose text was too long for the decoder, so that words may be missing.
    """

    language: str | None
    task: Task
    duration: float
    segments: tuple[SpeechSegment, ...]
    audio_rate: int
    cut: int

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{self.duration:.1f} s in {counted(len(self.segments), 'segment')}", ""
        if self.language:
            yield f"{self.task} {self.language}", ""
        if self.cut:
            yield f"{counted(self.cut, 'window')} cut off", "problem"
        yield beginning(self.text), ""
        yield from more(f"{one.start:.2f} to {one.end:.2f} s: {one.text}" for one in self.segments)


def load(
    folder: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    host: Host | Literal["daemon"] | None = None,
    provider: Literal["qnn", "cpu"] = "qnn",
    provider_options: Mapping[str, str] | None = None,
    fallback: Fallback = "error",
    timeout: float | None = None,
) -> Recognizer:
    """Load a Whisper model that optimum, onnxruntime-genai or AI Hub exported to a folder.

    Args:
        folder: folder with the ONNX files.
        tokenizer: folder with tokenizer.json and the configurations; default: `folder`.
        host: host process, as in `InferenceSession`.
        provider: execution provider of the encoder, and of a decoder with fixed caches. Other decoders run on the
            host's CPU.
        provider_options: options of QNN.
        fallback: "cpu" runs nodes that QNN does not support on the host's CPU.
        timeout: time limit in seconds for the creation of each session, and for each call of a session.

    Raises:
        NoSuchFile, GenerationFolderInvalid, GenerationUnsupported: the folder contains no supported Whisper model.
        BridgeError: a session cannot be created.
    """
    if provider not in ("qnn", "cpu"):
        raise OptionError(f"provider={provider!r} is not a valid value.", fix='Pass "qnn" or "cpu".')
    place = Path(os.path.abspath(os.fsdecode(folder)))
    texts = Path(os.path.abspath(os.fsdecode(tokenizer))) if tokenizer is not None else place
    files = find_files(place)
    reader = load_tokenizer(texts)
    settings = read_settings(place, texts)
    vocabulary = read_vocabulary(reader, settings.config.get("is_multilingual"))
    choices = SessionChoices(
        chosen_host(host), f"{provider.upper()}ExecutionProvider", dict(provider_options or {}), fallback, timeout
    )
    return Recognizer(open_sessions(files, settings, choices), reader, vocabulary, settings)


class Recognizer(Shown):
    """A loaded Whisper model, returned by `load`. Thread-safe; several transcriptions may run at the same time."""

    def __init__(
        self, sessions: WhisperSessions, tokenizer: Any, vocabulary: Vocabulary, settings: WhisperSettings
    ) -> None:
        self._sessions, self._tokenizer = sessions, tokenizer
        self._vocabulary, self._settings = vocabulary, settings
        self._closed = False

    def _shown_facts(self) -> Iterator[Fact]:
        if self._closed:
            yield "closed", ""
        yield f"layout {self.layout}", ""
        yield counted(len(self.languages), "language") if self.languages else "English", ""
        for role, placement in self.placement.items():
            for fact, weight in placement._shown_facts():
                yield f"{role}: {fact}", weight
        for role, numbers in self.verified.items():
            if numbers.state != "off":
                for fact, weight in numbers._shown_facts():
                    yield f"{role}: {fact}", weight

    @property
    def layout(self) -> Layout:
        """Layout of the folder: ``separate`` or ``merged`` (optimum), ``genai``, or ``fixed`` (AI Hub)."""
        return self._sessions.layout

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes; empty for an English-only model."""
        return tuple(sorted(self._vocabulary.languages))

    @property
    def placement(self) -> dict[str, Placement]:
        """Placement of the nodes of the models ``encoder`` and ``decoder``."""
        return {"encoder": self._sessions.encoder.placement, "decoder": self._sessions.decoders[-1].placement}

    @property
    def verified(self) -> dict[str, NumbersReport]:
        """Reports of the comparison of ``encoder`` and ``decoder`` with the CPU, for models that were compared."""
        return {"encoder": self._sessions.encoder.verified, "decoder": self._sessions.decoders[-1].verified}

    @property
    def window_s(self) -> float:
        """Seconds of audio that the model processes at once."""
        return self._sessions.frames * HOP / RATE

    def transcribe(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        task: Task = "transcribe",
        timestamps: bool = True,
        timeout: float | None = None,
    ) -> Transcript:
        """Return all segments of the audio; see `stream` for the arguments."""
        with self.stream(
            audio,
            sampling_rate=sampling_rate,
            language=language,
            task=task,
            timestamps=timestamps,
            timeout=timeout,
        ) as found:
            return found.transcript(found)

    def stream(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        task: Task = "transcribe",
        timestamps: bool = True,
        timeout: float | None = None,
    ) -> Transcription:
        """Return an iterator over the segments, which processes the audio window by window.

        Args:
            audio: a path, an open file, or a numpy array of floats with one channel.
            sampling_rate: sampling rate of an array in Hz; default: 16000.
            language: language code; by default it is detected in the first window.
            task: "translate" returns English text.
            timestamps: ``False`` returns one segment per window, without times inside the window.
            timeout: time limit in seconds for the whole transcription; default: no limit. The iterator raises
                `DeadlineExceeded`.

        Raises:
            OptionError: the audio cannot be read, or the model does not support the language or task.
        """
        if self._closed:
            raise Closed("The recognizer is closed.")
        deadline = deadline_after(timeout)
        chosen = chosen_language(self._vocabulary, language or self._settings.language)
        if task not in ("transcribe", "translate") or (task == "translate" and task not in self._vocabulary.tasks):
            raise OptionError(f"The model does not support the task {task!r:.40}.", fix='task="transcribe"')
        reader = AudioReader(audio, sampling_rate)
        if reader.rate != RATE:
            _log.info("audio of %d Hz is resampled to %d Hz", reader.rate, RATE)
        return Transcription(self, reader, chosen, task, timestamps, deadline)

    def close(self) -> None:
        """Release the sessions. Idempotent."""
        self._closed = True
        self._sessions.close()

    def __enter__(self) -> Recognizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- one window ---

    def _begin(self, samples: Array, left: TimeLeft = unlimited) -> dict[str, OrtValue]:
        from qnnbridge._values.ort_value import OrtValue
        from qnnbridge.speech._decoders import TYPES

        sessions = self._sessions
        node = sessions.encoder.get_inputs()[0]
        features = log_mel(samples, sessions.bins, sessions.frames).astype(TYPES[str(node.type)])
        value = OrtValue.ortvalue_from_numpy(features)
        return run_bound(sessions.encoder, {node.name: value}, dict.fromkeys(sessions.wanted), left)

    def _detect(self, encoded: dict[str, OrtValue], left: TimeLeft = unlimited) -> str | None:
        languages = self._vocabulary.languages
        if not languages:
            return None
        # After the start token Whisper predicts the language, so compare only the scores of the language tokens.
        # Use a separate decoder, because the prompt of the transcription also begins with the start token, and a
        # cache must not contain that token twice.
        scores = self._sessions.begin(encoded, left).step([self._vocabulary.start])
        return max(languages, key=lambda code: float(scores[languages[code]]))

    def _prompt(self, language: str | None, task: Task, timestamps: bool) -> list[int]:
        words = self._vocabulary
        prompt = [words.start]
        if words.languages and language is not None:
            prompt += [words.languages[language], words.tasks[task]]
        return prompt if timestamps else [*prompt, words.no_timestamps]

    def _tokens(self, decoder: WindowDecoder, prompt: list[int], timestamps: bool) -> tuple[list[int], bool]:
        """Return the tokens of a window, and whether the decoder was full before the text ended."""
        words, settings = self._vocabulary, self._settings
        first = words.no_timestamps + 1 if timestamps else None
        rules = TokenRules(words.end, settings.suppressed, settings.suppressed_first, first, settings.latest_first)
        # The decoder's shapes and the model's configuration both limit the number of tokens; the smaller limit
        # applies.
        most = min(decoder.positions, settings.positions) - len(prompt)
        scores = decoder.step(prompt)
        chosen: list[int] = []
        while True:
            token = rules.choose(scores, chosen)
            if token == words.end:
                return chosen, False
            chosen.append(token)
            if len(chosen) >= most:
                return chosen, True
            scores = decoder.step([token])

    def _text(self, tokens: tuple[int, ...]) -> str:
        # Token ids from `first` on are time tokens.
        first = self._vocabulary.no_timestamps + 1
        return str(self._tokenizer.decode([t for t in tokens if t < first], skip_special_tokens=True))


class Transcription(Shown):
    """Iterator over the segments of an audio, in order. Returned by `Recognizer.stream`.

    Attributes:
        language: language code; available from the first segment on.
        position: seconds of audio that have been processed.
        cut: as in `Transcript`.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        audio: AudioReader,
        language: str | None,
        task: Task,
        timestamps: bool,
        deadline: float | None = None,
    ) -> None:
        self.language, self.audio_rate, self.cut = language, audio.rate, 0
        self._recognizer, self._audio = recognizer, audio
        self._task, self._timestamps = task, timestamps
        self._deadline, self._cancelled = deadline, False
        self._lock = renew_in_forks(Lock())
        self._found = self._segments()

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{self.position:.1f} s done", ""
        if self.language:
            yield f"{self._task} {self.language}", ""
        if self._cancelled:
            yield "cancelled", ""
        if self.cut:
            yield f"{counted(self.cut, 'window')} cut off", "problem"

    @property
    def position(self) -> float:
        return self._audio.passed / RATE

    def __iter__(self) -> Iterator[SpeechSegment]:
        return self

    def __next__(self) -> SpeechSegment:
        # Without the lock, Python would raise ValueError if two threads use the generator at the same time.
        with self._lock:
            try:
                return next(self._found)
            except DeadlineExceeded as error:  # a call of a session used up the remaining time
                if self._deadline is not None and time.monotonic() > self._deadline - _SOON_S:
                    raise self._too_late() from error
                raise

    def _segments(self) -> Iterator[SpeechSegment]:
        owner, audio = self._recognizer, self._audio
        size = owner._sessions.frames * HOP
        least = round(_LEAST_ADVANCE_S * RATE)
        # `before` is the advance of the previous window. The first window has none, so start with a whole
        # window: a single short advance is allowed.
        before = size
        while (samples := audio.window(size)).size:
            # At the end of the audio `samples` is shorter; `log_mel` fills the window with silence.
            encoded = owner._begin(samples, self._left)
            if self.language is None:
                self.language = owner._detect(encoded, self._left)
            prompt = owner._prompt(self.language, self._task, self._timestamps)
            decoder = owner._sessions.begin(encoded, self._left)
            tokens, full = owner._tokens(decoder, prompt, self._timestamps)
            here, spent = audio.passed, samples.size
            # Without time tokens the whole window is one segment, and the next window begins after it.
            spans = [TokenSpan(0, None, tuple(tokens))]
            if self._timestamps:
                spans, step = spans_of(tokens, owner._vocabulary.no_timestamps + 1)
                if step is not None:  # the rest of the window is processed again with the next window
                    # A time token counts steps of 20 ms, which are two frames of the features.
                    spent = min(max(1, step) * 2 * HOP, spent)
                # Two short advances in a row show that the predicted times are too small. Use the remaining tokens
                # as the text of the rest of the window.
                if max(spent, before) < least and step is not None:  # the rest of the window is not processed again
                    done = sum(len(span.tokens) for span in spans)
                    if len(tokens) > done + 1:  # a single remaining token can only be a time token
                        spans.append(TokenSpan(step, None, tuple(tokens[done:])))
                    spent = samples.size
            before = spent
            # If the decoder was full, text is lost only if the next window begins after the end of this window.
            # Otherwise the rest is processed again.
            if full and spent == samples.size:
                self.cut += 1
                _log.warning("a window at %.2f s has more text than fits into the decoder", here / RATE)
            # Advance before the segments are yielded, so that `position` includes this window when the caller
            # receives them.
            audio.advance(spent)
            last = here + samples.size
            for span in spans:
                # Predicted times may be in the silence after the audio. No segment ends later than the audio.
                end = last if span.end is None else min(last, here + span.end * 2 * HOP)
                start = min(end, here + span.start * 2 * HOP)
                if span.tokens:
                    yield SpeechSegment(
                        round(start / RATE, 2), round(end / RATE, 2), owner._text(span.tokens), span.tokens
                    )

    def transcript(self, segments: Iterable[SpeechSegment]) -> Transcript:
        """Run the transcription to its end and return the result. `segments` is the iterator over all its
        segments."""
        found = tuple(segments)  # read the segments first: `language` is known only after the first one
        return Transcript(self.language, self._task, self.position, found, self.audio_rate, self.cut)

    def cancel(self) -> None:
        """Stop before the next token, from any thread: the iterator raises `Cancelled`."""
        self._cancelled = True

    def _left(self) -> float | None:
        if self._cancelled:
            raise Cancelled("The transcription was cancelled.")
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"The time limit of the transcription expired after {self.position:.0f} s of the audio.",
            fix="Increase timeout=, or pass shorter audio.",
            details={"state": "stopped"},
        )

    def close(self) -> None:
        """Close the audio file. Idempotent."""
        self._audio.close()

    def __enter__(self) -> Transcription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
