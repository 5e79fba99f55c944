"""The models for text generation of `qnnbridge serve --llm`: loading, names, figures for /metrics."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import Metric

from qnnbridge_serve.folder_models import FolderModels
from qnnbridge_tools.host.metrics import counter, gauge, summary

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge.genai import Model, Tokenizer
    from qnnbridge_protocol.specs import Fallback
    from qnnbridge_tools.generation.pace import Pace

# Number of the last answers from which quantiles are computed.
_RECENT: Final = 1000
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclasses.dataclass(frozen=True, slots=True)
class LanguageModel:
    """One that is loaded."""

    name: str
    model: Model
    tokenizer: Tokenizer

    def close(self) -> None:
        self.model.close()


class GenerationFigures:
    """What one model has done. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self.restarts = 0
        self.running = 0
        self._first_s: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self._per_s: collections.deque[float] = collections.deque(maxlen=_RECENT)

    def begin(self) -> None:
        with self._lock:
            self.running += 1

    def end(self, outcome: str, prompt: int, pace: Pace, restarts: int) -> None:
        """outcome: the finish reason, or "error"."""
        with self._lock:
            self.running -= 1
            self.outcomes[outcome] += 1
            self.prompt_tokens += prompt
            self.answer_tokens += pace.tokens
            self.restarts += restarts
            if pace.to_first_token_s is not None:
                self._first_s.append(pace.to_first_token_s)
            if pace.tokens_per_second is not None:
                self._per_s.append(pace.tokens_per_second)

    def first_s(self) -> dict[float, float | None]:
        return self._quantiles(self._first_s)

    def per_s(self) -> dict[float, float | None]:
        return self._quantiles(self._per_s)

    def _quantiles(self, values: collections.deque[float]) -> dict[float, float | None]:
        with self._lock:
            found = sorted(values)
        if not found:
            return {}
        if len(found) == 1:
            return dict.fromkeys(_QUANTILES, found[0])
        cuts = statistics.quantiles(found, n=100, method="inclusive")
        return {quantile: cuts[round(quantile * 100) - 1] for quantile in _QUANTILES}


class LanguageModels(FolderModels[LanguageModel]):
    """With their figures.

    Args:
        folders: By name, in the order of the command line.
    """

    def __init__(self, folders: Mapping[str, Path], host: Host, fallback: Fallback) -> None:
        def load(name: str, folder: Path) -> tuple[LanguageModel, str]:
            from qnnbridge.genai import Model, Tokenizer

            model = Model(folder, host=host, fallback=fallback)
            info = model.info
            words = f"{info.layout} layout, context of {info.context_length} tokens"
            return LanguageModel(name, model, Tokenizer(model)), words

        super().__init__("language model", folders, load)
        self.figures = {name: GenerationFigures() for name in folders}

    def families(self) -> Iterator[Metric]:
        """For /metrics."""
        rows = [({"model": name}, figures) for name, figures in self.figures.items()]
        yield gauge(
            "qnnbridge_llm_requests_running",
            "Requests that are being answered or wait for their turn.",
            [(labels, one.running) for labels, one in rows],
        )
        yield counter(
            "qnnbridge_llm_requests",
            "Requests that have ended, by how.",
            [({**labels, "outcome": how}, n) for labels, one in rows for how, n in sorted(one.outcomes.items())],
        )
        yield counter(
            "qnnbridge_llm_prompt_tokens",
            "Tokens of prompts.",
            [(labels, one.prompt_tokens) for labels, one in rows],
        )
        yield counter(
            "qnnbridge_llm_generated_tokens",
            "Tokens generated.",
            [(labels, one.answer_tokens) for labels, one in rows],
        )
        yield counter(
            "qnnbridge_llm_host_restarts",
            "Answers that went on in a new host process.",
            [(labels, one.restarts) for labels, one in rows],
        )
        yield summary(
            "qnnbridge_llm_time_to_first_token_seconds",
            f"From a request to its first token, waiting included; of the last {_RECENT}.",
            [(labels, one.first_s()) for labels, one in rows],
            "seconds",
        )
        yield summary(
            "qnnbridge_llm_tokens_per_second",
            f"Of an answer after its first token; of the last {_RECENT} answers.",
            [(labels, one.per_s()) for labels, one in rows],
        )
