"""The models for speech of `qnnbridge serve --speech`: loading, names, figures for /metrics."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from qnnbridge_serve.folder_models import FolderModels
from qnnbridge_serve.options import ServeSessionOptions
from qnnbridge_serve.repository import summary_of
from qnnbridge_tools.host.metrics import counter, gauge

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge.speech import Recognizer


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechModel:
    """A loaded model that turns speech into text."""

    name: str
    recognizer: Recognizer

    def close(self) -> None:
        self.recognizer.close()


class SpeechFigures:
    """What one model for speech has done. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.running = 0
        self.audio_s = 0.0
        self.work_s = 0.0

    def begin(self) -> None:
        with self._lock:
            self.running += 1

    def end(self, outcome: str, audio_s: float, work_s: float) -> None:
        """audio_s: of which the words are found. work_s: that it took, without the wait for its turn."""
        with self._lock:
            self.running -= 1
            self.outcomes[outcome] += 1
            self.audio_s += audio_s
            self.work_s += work_s


class SpeechModels(FolderModels[SpeechModel]):
    """All models for speech, with their figures.

    Args:
        folders: By name, in the order of the command line.
    """

    def __init__(self, folders: Mapping[str, Path], options: ServeSessionOptions, host: Host) -> None:
        def load(name: str, folder: Path) -> tuple[SpeechModel, str]:
            from qnnbridge import speech

            found = speech.load(
                folder,
                host=host,
                provider="qnn" if options.providers[:1] == ("QNNExecutionProvider",) else "cpu",
                provider_options=options.provider_options,
                fallback=options.fallback,
            )
            placed = ", ".join(f"{part} {summary_of(one)}" for part, one in found.placement.items())
            return SpeechModel(name, found), f"{found.layout} layout, {placed}"

        super().__init__("speech model", folders, load)
        self.figures = {name: SpeechFigures() for name in folders}

    def families(self) -> Iterator[Metric]:
        """For /metrics."""
        rows = [({"model": name}, figures) for name, figures in self.figures.items()]
        yield gauge(
            "qnnbridge_speech_requests_running",
            "Transcriptions that run or wait for their turn.",
            [(labels, one.running) for labels, one in rows],
        )
        yield counter(
            "qnnbridge_speech_requests",
            "Transcriptions that have ended, by how.",
            [({**labels, "outcome": how}, n) for labels, one in rows for how, n in sorted(one.outcomes.items())],
        )
        yield counter(
            "qnnbridge_speech_audio_seconds",
            "Seconds of audio that were transcribed.",
            [(labels, one.audio_s) for labels, one in rows],
        )
        yield counter(
            "qnnbridge_speech_work_seconds",
            "Seconds that transcriptions took, without the wait for their turn.",
            [(labels, one.work_s) for labels, one in rows],
        )
