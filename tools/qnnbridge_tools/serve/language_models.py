"""The models for text generation of `qnnbridge serve --llm`: loading, names, figures for /metrics."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_tools.host.metrics import Family, counter, gauge, summary
from qnnbridge_tools.serve.errors import RETRY_AFTER_S, Refused, in_words

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge.genai import Model, Tokenizer
    from qnnbridge_protocol.specs import Fallback
    from qnnbridge_tools.generation.pace import Pace

# Of which quantiles are told.
_RECENT: Final = 1000
_QUANTILES: Final = (0.5, 0.9, 0.99)


@dataclasses.dataclass(frozen=True, slots=True)
class LanguageModel:
    """One that is loaded."""

    name: str
    model: Model
    tokenizer: Tokenizer


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


def read_names(texts: Iterable[str]) -> dict[str, Path]:
    """`--llm NAME=FOLDER`. Raises `OptionError`, `NoSuchFile`."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder or not name.isprintable():
            raise OptionError(
                f'--llm "{text}" is not of the form NAME=FOLDER.', fix="For example --llm phi=phi-qnn."
            )
        if name in found:
            raise OptionError(f'Two language models are called "{name}": {found[name]} and {folder}.')
        if not Path(folder).is_dir():
            raise NoSuchFile(f"There is no folder {folder}.")
        found[name] = Path(folder)
    return found


class LanguageModels:
    """By name. Any thread.

    Args:
        folders: By name, in the order of the command line.
    """

    def __init__(self, folders: dict[str, Path], host: Host, fallback: Fallback) -> None:
        self._folders = folders
        self._host = host
        self._fallback = fallback
        self._lock = threading.Lock()
        self._loaded: dict[str, LanguageModel] = {}
        self._failed: dict[str, BridgeError] = {}
        self._starting = bool(folders)
        self._closed = False
        self.created = int(time.time())
        self.figures = {name: GenerationFigures() for name in folders}

    @property
    def names(self) -> Sequence[str]:
        """Of those that are loaded."""
        with self._lock:
            return [name for name in self._folders if name in self._loaded]

    def get(self, name: str) -> LanguageModel:
        """Raises `Refused`."""
        if name not in self._folders:
            raise Refused(
                404, f"The model {name[:80]!r} does not exist here.", field="model", reason="model_not_found"
            )
        with self._lock:
            found, failed = self._loaded.get(name), self._failed.get(name)
        if found is not None:
            return found
        if failed is not None:
            raise Refused(503, f"The model {name} is not ready: {in_words(failed)}", field="model")
        raise Refused(503, f"The model {name} is being loaded.", {"retry-after": str(RETRY_AFTER_S)}, field="model")

    def why_not_ready(self) -> str | None:
        with self._lock:
            if self._starting:
                return "language models are still being loaded"
            return "no language model is loaded" if self._folders and not self._loaded else None

    def load_all(self, told: Callable[[str], None]) -> dict[str, BridgeError]:
        """One after another. Returns what could not be, by name."""
        from qnnbridge.genai import Model, Tokenizer

        for name, folder in self._folders.items():
            if self._closed:
                break
            begun = time.monotonic()
            try:
                model = Model(folder, host=self._host, fallback=self._fallback)
                found = LanguageModel(name, model, Tokenizer(model))
            except BridgeError as error:
                with self._lock:
                    self._failed[name] = error
            except Exception as error:  # noqa: BLE001 - the start must not hang on an unexpected error
                with self._lock:
                    self._failed[name] = BridgeError(f"Unexpected {type(error).__name__}: {error}")
            else:
                with self._lock:
                    self._loaded[name] = found
                info = model.info
                told(
                    f"{name}: {info.layout} layout, context of {info.context_length} tokens, "
                    f"loaded in {time.monotonic() - begun:.1f} s"
                )
        with self._lock:
            self._starting = False
            return dict(self._failed)

    def close(self) -> None:
        """Free all models."""
        with self._lock:
            self._closed = True
            loaded, self._loaded = list(self._loaded.values()), {}
        for one in loaded:
            one.model.close()

    def families(self) -> Iterator[Family]:
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
