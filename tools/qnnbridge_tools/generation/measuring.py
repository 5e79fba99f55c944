"""`qnnbridge bench --llm`: measure time to the first token and tokens per second, with and without the bridge.

Without the bridge, onnxruntime_genai runs in a separate process of the host's interpreter (`in_process`) and
computes the same prompt with the same greedy search. The two variants take turns, so load on the machine
affects both.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools import output

if TYPE_CHECKING:
    from qnnbridge.genai import Model
    from qnnbridge_protocol.specs import GenerationModelInfo
    from qnnbridge_tools.bench.measuring import DirectProcess


@dataclasses.dataclass(slots=True)
class Pace:
    """Speed of an answer: time to its first token, and tokens per second after that.

    The clock starts when the object is created. Not thread-safe.
    """

    begun_s: float = dataclasses.field(default_factory=time.monotonic)
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0

    def token(self, count: int = 1) -> None:
        """Record that tokens have arrived."""
        self.last_s = time.monotonic()
        if self.first_s is None:
            self.first_s = self.last_s
        self.tokens += count

    @property
    def to_first_token_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.begun_s

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of the tokens after the first; ``None`` with fewer than two tokens."""
        # `time.monotonic` has steps of 15.6 ms on Windows before Python 3.13, so fast tokens may have equal times.
        if self.tokens < 2 or self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.last_s - self.first_s)


BRIDGE, DIRECT = "bridge", "without"
WORDS: Final = {BRIDGE: "qnnbridge.genai, the model in the host", DIRECT: "onnxruntime_genai in one process"}


@dataclasses.dataclass(frozen=True, slots=True)
class BenchLength:
    """Size of a measurement.

    Args:
        prompt, tokens: number of tokens of the prompt and of the answer.
        rounds: number of answers with the bridge, and without it.
    """

    prompt: int
    tokens: int
    rounds: int


QUICK: Final = BenchLength(16, 24, 2)
THOROUGH: Final = BenchLength(64, 128, 5)


@dataclasses.dataclass(frozen=True, slots=True)
class Paces:
    """Speed of each round, with or without the bridge.

    Args:
        first_s: seconds to the first token; ``None`` for an answer without tokens.
        per_s: tokens per second after the first; ``None`` for an answer with fewer than two tokens.
        same: whether the tokens equal those of the bridge.
    """

    first_s: tuple[float | None, ...]
    per_s: tuple[float | None, ...]
    same: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredPaces:
    """Results of `bench --llm`.

    Args:
        info: information about the model.
        effort: number of tokens and rounds.
        ways: results with and without the bridge, by name.
        load_s: seconds to load the model.
        without: why there are no figures without the bridge.
    """

    info: GenerationModelInfo
    effort: BenchLength
    ways: dict[str, Paces]
    load_s: float
    without: str | None = None


def perform(
    folder: Path, effort: BenchLength, fallback: str, host_python: str | None, say: Callable[[str], None]
) -> MeasuredPaces:
    """Measure with and without the bridge. Raise the errors of `qnnbridge.genai.Model`."""
    import qnnbridge
    from qnnbridge import genai
    from qnnbridge._launch import find_host
    from qnnbridge_tools.bench.measuring import DirectProcess

    with qnnbridge.Host(host_python) as host:
        host.start()
        say("loading the model")
        begun = time.monotonic()
        model = genai.Model(folder, host=host, fallback=fallback)  # type: ignore[arg-type]
        load_s = time.monotonic() - begun
        prompt, tokens = _fitting(model, effort)
        ways: dict[str, list[Any]] = {BRIDGE: [], DIRECT: []}
        problem: str | None = None
        # The process without the bridge loads the model at its first request, which belongs to the uncounted
        # first round.
        with DirectProcess(find_host(host_python).path, str(Path(__file__).with_name("in_process.py"))) as direct:
            for number in range(effort.rounds + 1):  # The first round is a warm-up.
                say(f"round {number} of {effort.rounds}")
                ways[BRIDGE].append(_answer(model, prompt, tokens))
                if problem is None:
                    answer, problem = _asked(direct, {"folder": str(folder), "prompt": prompt, "tokens": tokens})
                    ways[DIRECT].append(answer)
        found = {BRIDGE: _paces(ways[BRIDGE], ways[BRIDGE])}
        if problem is None:
            found[DIRECT] = _paces(ways[DIRECT], ways[BRIDGE])
        # Report the real length of the answer, which the model may have ended earlier.
        sized = dataclasses.replace(effort, prompt=len(prompt), tokens=len(ways[BRIDGE][0][1]))
        return MeasuredPaces(model.info, sized, found, load_s, problem)


def _fitting(model: Model, effort: BenchLength) -> tuple[list[int], int]:
    """Return a prompt and a number of tokens that fit into the context. The prompt has no special tokens."""
    info = model.info
    room = info.context_length or effort.prompt + effort.tokens
    count = min(effort.prompt, max(1, room // 3))
    ends = {*info.eos, info.pad}
    plain = [n for n in range(info.vocab_size // 4, info.vocab_size // 2) if n not in ends] or [1]
    return [plain[17 * n % len(plain)] for n in range(count)], max(2, min(effort.tokens, room - count - 1))


def _answer(model: Model, prompt: list[int], tokens: int) -> tuple[Pace, list[int]]:
    from qnnbridge import genai

    # The clock starts before the generator is created, as in `in_process`.
    pace = Pace()
    params = genai.GeneratorParams(model)
    params.set_search_options(do_sample=False)
    generator = genai.Generator(model, params)
    made: list[int] = []
    try:
        generator.append_tokens(prompt)
        while not generator.is_done() and len(made) < tokens:
            # Use greedy search with and without the bridge, because sampling would choose different tokens in
            # each round.
            generator.generate_next_token()
            pace.token()
            made.append(int(generator.get_next_tokens()[0]))
    finally:
        generator.close()
    return pace, made


def _asked(direct: DirectProcess, question: dict[str, Any]) -> tuple[tuple[Pace, list[int]], str | None]:
    """Query the process without the bridge. Return (speed, tokens) and the error, if the request failed."""
    try:
        result = direct.ask(question)
    except BridgeError as error:
        return (Pace(), []), error.message.rstrip(".")
    if "error" in result:
        return (Pace(), []), str(result["error"])
    came_s = result["came_s"] or [None]
    # The times from the process are relative to the start of its answer, so `Pace` starts at 0.
    return (Pace(0.0, came_s[0], came_s[-1], len(result["tokens"])), result["tokens"]), None


def _paces(rounds: Sequence[tuple[Pace, list[int]]], truth: Sequence[tuple[Pace, list[int]]]) -> Paces:
    counted = [pace for pace, _ in rounds[1:]]
    return Paces(
        tuple(pace.to_first_token_s for pace in counted),
        tuple(pace.tokens_per_second for pace in counted),
        # Compare all rounds, including the first, because greedy search must be repeatable.
        all(tokens == truth[0][1] for _, tokens in rounds),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _text(values: Sequence[float | None], in_words: Callable[[float], str]) -> str:
    median = _median(values)
    return "unknown" if median is None else in_words(median)


def print_measured(measured: MeasuredPaces) -> None:
    effort = measured.effort
    print(
        f"{output.visible(measured.info.label)}: a prompt of {effort.prompt} tokens, {effort.tokens} tokens of "
        "answer, medians"
    )
    rows = [
        (way, _text(found.first_s, output.seconds), _text(found.per_s, lambda rate: f"{rate:.4g}"), WORDS[way])
        for way, found in measured.ways.items()
    ]
    output.print_table(("", "first token", "tokens/s", ""), rows)
    print(f"Loaded in {output.seconds(measured.load_s)} by onnxruntime-genai {measured.info.genai}.")
    for note in notes(measured):
        print(f"Note: {output.visible(note)}")


def notes(measured: MeasuredPaces) -> list[str]:
    said = []
    if measured.without is not None:
        said.append(f"the model could not be measured without the bridge: {measured.without}.")
    elif not measured.ways[DIRECT].same:
        said.append(
            "onnxruntime_genai in one process did not return the bridge's tokens; docs/genai.md lists the "
            "faults of onnxruntime_genai."
        )
    return said


def document(measured: MeasuredPaces) -> dict[str, Any]:
    return {
        "model": measured.info.label,
        "layout": measured.info.layout,
        "genai": measured.info.genai,
        "prompt_tokens": measured.effort.prompt,
        "tokens": measured.effort.tokens,
        "load_s": measured.load_s,
        "ways": {
            way: {
                "first_token_s": {"median": _median(found.first_s), "all": found.first_s},
                "tokens_per_second": {"median": _median(found.per_s), "all": found.per_s},
                "same_tokens": found.same,
            }
            for way, found in measured.ways.items()
        },
        "notes": notes(measured),
    }
