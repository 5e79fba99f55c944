"""Models that the command line names by folder: found by name, with their figures for /metrics."""

from __future__ import annotations

import collections
import dataclasses
import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.metrics_core import Metric

from qnnbridge_serve.errors import RETRY_AFTER_S, Refused
from qnnbridge_serve.options import ServeSessionOptions
from qnnbridge_serve.repository import NOT_YET, Loaded, Registry, summary_of
from qnnbridge_tools.host.metrics import counter, gauge, summary

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge.genai import Model, Tokenizer
    from qnnbridge.speech import Recognizer
    from qnnbridge_protocol.specs import Fallback
    from qnnbridge_tools.generation.measuring import Pace

# Number of the last answers from which quantiles are computed.
_RECENT: Final = 1000
_QUANTILES: Final = (0.5, 0.9, 0.99)
_FIRST_S: Final = "time_to_first_token_seconds"
_PER_S: Final = "tokens_per_second"


@dataclasses.dataclass(frozen=True, slots=True)
class FolderKind:
    """What models of one kind have in common.

    Args:
        text: What they are.
        metrics: Their metrics are qnnbridge_METRICS_...
        running: Help of the gauge of requests.
        ended: Help of the counter of requests.
        sums: Help of the other counters, by what follows the prefix.
        paces: Unit and help of the summaries of the last answers, likewise.
        outcomes: Ways to end that are shown before a request has ended so.
    """

    text: str
    metrics: str
    running: str
    ended: str
    sums: Mapping[str, str]
    paces: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    outcomes: Sequence[str] = ()


class FolderFigures:
    """What one model has done. Any thread."""

    def __init__(self, kind: FolderKind) -> None:
        self._lock = threading.Lock()
        self.running = 0
        self.outcomes: collections.Counter[str] = collections.Counter()
        # Prometheus sees no increase in a counter that appears with its first value.
        self.outcomes.update(dict.fromkeys(kind.outcomes, 0))
        self.sums: dict[str, float] = collections.defaultdict(float)
        self._recent: dict[str, collections.deque[float]] = collections.defaultdict(
            functools.partial(collections.deque, maxlen=_RECENT)
        )

    def begin(self) -> None:
        with self._lock:
            self.running += 1

    def end(self, outcome: str, sums: Mapping[str, float], pace: Pace | None = None) -> None:
        """outcome: how the request has ended. sums: what it adds to the counters."""
        with self._lock:
            self.running -= 1
            self.outcomes[outcome] += 1
            for name, value in sums.items():
                self.sums[name] += value
            paces = {} if pace is None else {_FIRST_S: pace.to_first_token_s, _PER_S: pace.tokens_per_second}
            for name, figure in paces.items():
                if figure is not None:
                    self._recent[name].append(figure)

    def quantiles(self, name: str) -> dict[float, float | None]:
        with self._lock:
            found = sorted(self._recent[name])
        if not found:
            return {}
        # `statistics.quantiles` needs two values before Python 3.13.
        if len(found) == 1:
            return dict.fromkeys(_QUANTILES, found[0])
        cuts = statistics.quantiles(found, n=100, method="inclusive")
        return {quantile: cuts[round(quantile * 100) - 1] for quantile in _QUANTILES}


class FolderModels(Registry[Loaded]):
    """Models of one kind, with their figures.

    Args:
        folders: By name, in the order of the command line.
        opener: Of name and folder. Raises `BridgeError`.
    """

    def __init__(
        self, kind: FolderKind, folders: Mapping[str, Path], opener: Callable[[str, Path], Loaded]
    ) -> None:
        super().__init__(folders, lambda name: opener(name, folders[name]))
        self._kind = kind
        self.kind = kind.text
        self.created = int(time.time())
        self.figures = {name: FolderFigures(kind) for name in folders}

    @property
    def names(self) -> Sequence[str]:
        """Of those that are loaded."""
        with self._lock:
            return [name for name, entry in self._entries.items() if entry.current is not None]

    @property
    def wanted(self) -> bool:
        """Whether the command line names any."""
        return bool(self._entries)

    def get(self, name: str) -> Loaded:
        """Raises `Refused`."""
        entry = self._entries.get(name)
        if entry is None:
            # OpenAI's status and code: its libraries raise NotFoundError for it.
            raise Refused(
                404,
                f"The model {name[:80]!r} does not exist here, or is no {self.kind}.",
                field="model",
                reason="model_not_found",
            )
        with self._lock:
            current, state, reason = entry.current, entry.state, entry.reason
        if current is not None:
            return current.loaded
        if state != "LOADING" and reason != NOT_YET:
            raise Refused(503, f"The model {name} is not ready: {reason}", field="model")
        raise Refused(503, f"The model {name} is being loaded.", {"retry-after": str(RETRY_AFTER_S)}, field="model")

    def described(self, name: str) -> dict[str, Any]:
        """As /v1/models lists it."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "qnnbridge",
            "kind": self.kind,
        }

    def why_not_ready(self) -> str | None:
        if not self.wanted or (self.names and not self.starting):
            return None
        return f"a {self.kind} is still being loaded" if self.starting else f"no {self.kind} is loaded"

    def families(self) -> Iterator[Metric]:
        """For /metrics."""
        kind, prefix = self._kind, f"qnnbridge_{self._kind.metrics}"
        rows = [({"model": name}, figures) for name, figures in self.figures.items()]
        yield gauge(f"{prefix}_requests_running", kind.running, [(labels, one.running) for labels, one in rows])
        yield counter(
            f"{prefix}_requests",
            kind.ended,
            # Sorted: an exposition that did not change is the same text.
            [({**labels, "outcome": how}, n) for labels, one in rows for how, n in sorted(one.outcomes.items())],
        )
        for name, text in kind.sums.items():
            yield counter(f"{prefix}_{name}", text, [(labels, one.sums[name]) for labels, one in rows])
        for name, (unit, text) in kind.paces.items():
            values = [(labels, one.quantiles(name)) for labels, one in rows]
            yield summary(f"{prefix}_{name}", text, values, unit)


# --- language models ---

LANGUAGE: Final = FolderKind(
    "language model",
    "llm",
    running="Requests that are being answered or wait for their turn.",
    ended="Requests that have ended, by how.",
    sums={
        "prompt_tokens": "Tokens of prompts.",
        "generated_tokens": "Tokens generated.",
        "host_restarts": "Answers that went on in a new host process.",
    },
    paces={
        _FIRST_S: (
            "seconds",
            f"From a request to its first token, waiting included; of the last {_RECENT}.",
        ),
        _PER_S: ("", f"Of an answer after its first token; of the last {_RECENT} answers."),
    },
)


@dataclasses.dataclass(frozen=True, slots=True)
class LanguageModel:
    """A loaded model that writes text."""

    name: str
    model: Model
    tokenizer: Tokenizer
    summary: str

    def close(self) -> None:
        self.model.close()


def language_models(folders: Mapping[str, Path], host: Host, fallback: Fallback) -> FolderModels[LanguageModel]:
    """Those of `qnnbridge serve --llm`."""

    def load(name: str, folder: Path) -> LanguageModel:
        from qnnbridge.genai import Model, Tokenizer

        model = Model(folder, host=host, fallback=fallback)
        try:
            words = f"{model.info.layout} layout, context of {model.info.context_length} tokens"
            return LanguageModel(name, model, Tokenizer(model), words)
        except BaseException:
            model.close()
            raise

    return FolderModels(LANGUAGE, folders, load)


# --- models for speech ---

SPEECH: Final = FolderKind(
    "speech model",
    "speech",
    running="Transcriptions that run or wait for their turn.",
    ended="Transcriptions that have ended, by how.",
    sums={
        "audio_seconds": "Seconds of audio that were transcribed.",
        "work_seconds": "Seconds that transcriptions took, without the wait for their turn.",
    },
)


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechModel:
    """A loaded model that turns speech into text."""

    name: str
    recognizer: Recognizer
    summary: str

    def close(self) -> None:
        self.recognizer.close()


def speech_models(
    folders: Mapping[str, Path], options: ServeSessionOptions, host: Host
) -> FolderModels[SpeechModel]:
    """Those of `qnnbridge serve --speech`."""

    def load(name: str, folder: Path) -> SpeechModel:
        from qnnbridge import speech

        found = speech.load(
            folder,
            host=host,
            provider="qnn" if options.provider == "qnn" else "cpu",
            provider_options=options.provider_options,
            fallback=options.fallback,
        )
        placed = ", ".join(f"{part} {summary_of(one)}" for part, one in found.placement.items())
        return SpeechModel(name, found, f"{found.layout} layout, {placed}")

    return FolderModels(SPEECH, folders, load)
