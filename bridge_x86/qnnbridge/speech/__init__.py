"""Speech to text with Whisper: the encoder on the NPU, windows, cache and tokens in one call.

>>> from qnnbridge import speech
>>> with speech.load("whisper-base") as recognizer:
...     print(recognizer.transcribe("talk.wav").text)

Needs the packages of the extra ``speech``. docs/speech.md lists the layouts of folders.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._connect import chosen_host
from qnnbridge._platform._native import Lock
from qnnbridge.speech._audio import Audio, AudioReader
from qnnbridge.speech._decoders import WindowDecoder, run_bound
from qnnbridge.speech._features import HOP, RATE, Array, log_mel
from qnnbridge.speech._folder import (
    Vocabulary,
    WhisperSettings,
    chosen_language,
    find_files,
    load_tokenizer,
    read_settings,
    read_vocabulary,
)
from qnnbridge.speech._loading import Layout, SessionChoices, WhisperSessions, open_sessions
from qnnbridge.speech._rules import TokenRules, TokenSpan, spans_of
from qnnbridge_protocol.errors import Closed, OptionError
from qnnbridge_protocol.specs import Fallback, Placement

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._ort_value import OrtValue

__all__ = ["Recognizer", "SpeechSegment", "Transcript", "Transcription", "load"]

_log = logging.getLogger("qnnbridge.speech")

# Two windows in a row advance by no less: tiny times alone would mean fifty windows for each second.
_LEAST_ADVANCE_S = 1.0
Task = Literal["transcribe", "translate"]


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechSegment:
    """Words of a part of the audio. start, end: in seconds. tokens: those of the text and of its times."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Transcript:
    """All of a transcription.

    Args:
        language: its code, given or found out; ``None`` for a model that says none.
        duration: of the audio, in seconds.
        audio_rate: of the source, in Hz; others than 16000 were resampled.
        cut: windows whose text was longer than the decoder can take, so that words may be missing.
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
    """Load Whisper from a folder of optimum, onnxruntime-genai or AI Hub.

    Args:
        folder: with the ONNX files.
        tokenizer: a folder with tokenizer.json and the configurations; default `folder`.
        host: as for `InferenceSession`.
        provider: of the encoder, and of a decoder with fixed caches. Others run on the host's CPU.
        provider_options: of QNN.
        fallback: "cpu" lets nodes that QNN does not take run on the host's CPU.
        timeout: seconds for each session to be made, and for each call of one.

    Raises `NoSuchFile`, `GenerationFolderInvalid`, `GenerationUnsupported`, and what making sessions raises.
    """
    if provider not in ("qnn", "cpu"):
        raise OptionError(f"provider={provider!r} is not known.", fix='Give "qnn" or "cpu".')
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


class Recognizer:
    """A loaded Whisper. Made by `load`. Any thread; transcriptions may run side by side."""

    def __init__(
        self, sessions: WhisperSessions, tokenizer: Any, vocabulary: Vocabulary, settings: WhisperSettings
    ) -> None:
        self._sessions, self._tokenizer = sessions, tokenizer
        self._vocabulary, self._settings = vocabulary, settings
        self._closed = False

    @property
    def layout(self) -> Layout:
        """``separate`` or ``merged`` decoders of optimum, ``genai``, or ``fixed`` caches (AI Hub)."""
        return self._sessions.layout

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes; empty for a model of English alone."""
        return tuple(sorted(self._vocabulary.languages))

    @property
    def placement(self) -> dict[str, Placement]:
        """Where the nodes of ``encoder`` and ``decoder`` run."""
        return {"encoder": self._sessions.encoder.placement, "decoder": self._sessions.decoders[-1].placement}

    @property
    def window_s(self) -> float:
        """Seconds of audio that the model sees at once."""
        return self._sessions.frames * HOP / RATE

    def transcribe(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        task: Task = "transcribe",
        timestamps: bool = True,
    ) -> Transcript:
        """All segments of the audio; see `stream`."""
        with self.stream(
            audio, sampling_rate=sampling_rate, language=language, task=task, timestamps=timestamps
        ) as found:
            segments = tuple(found)
            return Transcript(found.language, task, found.position, segments, found.audio_rate, found.cut)

    def stream(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        task: Task = "transcribe",
        timestamps: bool = True,
    ) -> Transcription:
        """Segments as they are found, window by window.

        Args:
            audio: a path, an open file, or a numpy array of floats with one channel.
            sampling_rate: of an array, in Hz; default 16000.
            language: its code; default found out in the first window.
            task: "translate" gives English.
            timestamps: ``False`` gives one segment for each window, without times in it.

        Raises `OptionError` for audio that cannot be read and for a language or task that the model lacks.
        """
        if self._closed:
            raise Closed("The recognizer is closed.")
        chosen = chosen_language(self._vocabulary, language or self._settings.language)
        if task not in ("transcribe", "translate") or (task == "translate" and task not in self._vocabulary.tasks):
            raise OptionError(f"The model has no task {task!r:.40}.", fix='task="transcribe"')
        reader = AudioReader(audio, sampling_rate)
        if reader.rate != RATE:
            _log.info("audio of %d Hz is resampled to %d Hz", reader.rate, RATE)
        return Transcription(self, reader, chosen, task, timestamps)

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

    def _begin(self, samples: Array) -> dict[str, OrtValue]:
        from qnnbridge._ort_value import OrtValue
        from qnnbridge.speech._decoders import TYPES

        sessions = self._sessions
        node = sessions.encoder.get_inputs()[0]
        features = log_mel(samples, sessions.bins, sessions.frames).astype(TYPES[str(node.type)])
        value = OrtValue.ortvalue_from_numpy(features)
        return run_bound(sessions.encoder, {node.name: value}, dict.fromkeys(sessions.wanted))

    def _detect(self, encoded: dict[str, OrtValue]) -> str | None:
        languages = self._vocabulary.languages
        if not languages:
            return None
        scores = self._sessions.begin(encoded).step([self._vocabulary.start])
        return max(languages, key=lambda code: float(scores[languages[code]]))

    def _prompt(self, language: str | None, task: Task, timestamps: bool) -> list[int]:
        words = self._vocabulary
        prompt = [words.start]
        if words.languages and language is not None:
            prompt += [words.languages[language], words.tasks[task]]
        return prompt if timestamps else [*prompt, words.no_timestamps]

    def _tokens(self, decoder: WindowDecoder, prompt: list[int], timestamps: bool) -> tuple[list[int], bool]:
        """The tokens of a window, and whether the decoder was full before their end."""
        words, settings = self._vocabulary, self._settings
        first = words.no_timestamps + 1 if timestamps else None
        rules = TokenRules(words.end, settings.suppressed, settings.suppressed_first, first, settings.latest_first)
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
        first = self._vocabulary.no_timestamps + 1
        return str(self._tokenizer.decode([t for t in tokens if t < first], skip_special_tokens=True))


class Transcription:
    """Segments of one audio, in order; an iterator. Made by `Recognizer.stream`.

    language: known from the first segment on. position: seconds of audio that are done. cut: as in `Transcript`.
    """

    def __init__(
        self, recognizer: Recognizer, audio: AudioReader, language: str | None, task: Task, timestamps: bool
    ) -> None:
        self.language, self.audio_rate, self.cut = language, audio.rate, 0
        self._recognizer, self._audio = recognizer, audio
        self._task, self._timestamps = task, timestamps
        self._lock = Lock()
        self._found = self._segments()

    @property
    def position(self) -> float:
        return self._audio.passed / RATE

    def __iter__(self) -> Iterator[SpeechSegment]:
        return self

    def __next__(self) -> SpeechSegment:
        with self._lock:
            return next(self._found)

    def _segments(self) -> Iterator[SpeechSegment]:
        owner, audio = self._recognizer, self._audio
        size = owner._sessions.frames * HOP
        least = round(_LEAST_ADVANCE_S * RATE)
        before = size
        while (samples := audio.window(size)).size:
            encoded = owner._begin(samples)
            if self.language is None:
                self.language = owner._detect(encoded)
            prompt = owner._prompt(self.language, self._task, self._timestamps)
            tokens, full = owner._tokens(owner._sessions.begin(encoded), prompt, self._timestamps)
            here, spent = audio.passed, samples.size
            spans = [TokenSpan(0, None, tuple(tokens))]
            if self._timestamps:
                spans, step = spans_of(tokens, owner._vocabulary.no_timestamps + 1)
                if step is not None:  # the rest is heard again, with what follows it
                    spent = min(max(1, step) * 2 * HOP, spent)
                if max(spent, before) < least and step is not None:  # the rest stays here
                    done = sum(len(span.tokens) for span in spans)
                    if len(tokens) > done + 1:  # one alone is a time
                        spans.append(TokenSpan(step, None, tuple(tokens[done:])))
                    spent = samples.size
            before = spent
            if full and spent == samples.size:
                self.cut += 1
                _log.warning("a window at %.2f s has more text than the decoder can take", here / RATE)
            audio.advance(spent)
            last = here + samples.size
            for span in spans:
                end = last if span.end is None else min(last, here + span.end * 2 * HOP)
                start = min(end, here + span.start * 2 * HOP)
                if span.tokens:
                    yield SpeechSegment(
                        round(start / RATE, 2), round(end / RATE, 2), owner._text(span.tokens), span.tokens
                    )

    def close(self) -> None:
        """Give back the audio's file. Idempotent."""
        self._audio.close()

    def __enter__(self) -> Transcription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
