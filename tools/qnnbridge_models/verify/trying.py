"""Run each set of inputs on the CPU and on QNN, and judge the results with `qnnbridge_host.numerics.judge`.

Inputs come from files (never unpickled), are generated with plausible content ("made up"), or contain extreme
values. On some extreme values no float16 computation can agree with the CPU (`ExtremeInput.limit`): a difference is
reported, but does not change the verdict. If an output is constant or NaN for all made-up inputs, these inputs
cannot show an error; further inputs are then tried that make the CPU's results vary more.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.shapes import Dimensions, FreeAxis, options_text
from qnnbridge_host.numerics.judge import (
    NumberFormat,
    judge,
    judge_over_inputs,
    largest,
    movement,
    rank,
)
from qnnbridge_host.numerics.pairing import judge_all, paired
from qnnbridge_host.numerics.sampling import (
    InputKnowledge,
    NamedFeeds,
    NotMade,
    codes,
    further_inputs,
    is_guess,
    ordinary_inputs,
    varied,
)
from qnnbridge_models.command_options import VerifyOptions
from qnnbridge_models.verify import traps
from qnnbridge_models.verify.verification import InputKind, InputSetResult, InputStatus, OutputVerdict, TrapFound
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds
from qnnbridge_tools.arguments import InputFile, read_input_files, refuse_unknown_of
from qnnbridge_tools.sessions import ProviderSession, RunAnswer, one_line

# --- sizes, given inputs, extreme inputs ---

Array = npt.NDArray[Any]
# Every seventh value becomes NaN or infinite, as in data with missing values.
_EVERY = 7
_WIDE_BYTES = 4
# The lower 32 bits are 5, so the result shows whether the upper 32 bits were lost.
BIG_INTEGER = 2**33 + 5
# Extreme values of floats: LARGE is within float16's limit of 65504, HUGE is beyond it, and TINY squared becomes 0.
LARGE = 1e4
HUGE = 1e5
TINY = 1e-5
# Operators with an input that determines the size of a tensor. With an extreme value they would allocate gigabytes
# or run forever.
SIZE_MAKERS = frozenset(
    (
        *("ConstantOfShape", "EyeLike", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"),
        *("HammingWindow", "HannWindow", "BlackmanWindow", "RandomNormal", "RandomUniform", "Loop", "Scan"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizes:
    """Sizes of all free dimensions.

    Args:
        by_axis: size by input and axis.
        by_name: sizes of dimensions that a session can set by name.
        all_named: `by_name` contains all free dimensions.
    """

    by_axis: Mapping[tuple[str, int], int]
    by_name: Mapping[str, int]
    all_named: bool

    @property
    def dimensions(self) -> Dimensions:
        return Dimensions({}, dict(self.by_axis))

    def of(self, inputs: Iterable[NodeInfo]) -> list[NodeInfo]:
        """Return the inputs with their free dimensions replaced by the sizes."""
        return [
            dataclasses.replace(
                node,
                shape=tuple(self.by_axis.get((node.name, axis), dim) for axis, dim in enumerate(node.shape)),
            )
            if node.shape is not None
            else node
            for node in inputs
        ]

    def shown(self) -> dict[str, int]:
        """Return the sizes for the report, by name where possible."""
        named = dict(self.by_name)
        return named if self.all_named else {f"{name}:{axis}": size for (name, axis), size in self.by_axis.items()}


def read_given(texts: Iterable[str | os.PathLike[str]], inputs: Sequence[NodeInfo]) -> list[NamedFeeds]:
    """Read sets of inputs from files. Raise `OptionError` if a file does not fit the model.

    An .npz file contains all inputs by name; an .npy file is for a model with one input. All `NAME=FILE` arguments
    together form one set.
    """
    files, paths = read_input_files(os.fspath(text) for text in texts)
    given = [_read_one(path, inputs) for path in paths]
    if files:
        found = {feed.name: feed.value for feed in feeds.load(files, None)}
        given.append(_complete("files", ", ".join(str(file.path) for file in files), found, inputs))
    return given


def _read_one(path: Path, inputs: Sequence[NodeInfo]) -> NamedFeeds:
    names = [node.name for node in inputs]
    if path.suffix.lower() == ".npy":
        if len(names) != 1:
            raise OptionError(
                f"{path} contains one array, but the model has {len(names)} inputs: {', '.join(names) or 'none'}.",
                fix="Save all inputs to one .npz file by their names: numpy.savez(FILE, name=array, ...).",
            )
        loaded = feeds.load([InputFile(names[0], path)], None)
    else:
        loaded = feeds.load([], path)
    return _complete(path.name, str(path), {feed.name: feed.value for feed in loaded}, inputs)


def _complete(name: str, where: str, found: dict[str, Any], inputs: Sequence[NodeInfo]) -> NamedFeeds:
    names = [node.name for node in inputs]
    unknown, missing = [n for n in found if n not in names], [n for n in names if n not in found]
    if unknown or missing:
        wrong = (
            f"has no array {', '.join(missing)}"
            if missing
            else f"contains {', '.join(unknown)}, which is not an input of the model"
        )
        raise OptionError(
            f"{where} {wrong}.",
            cause=f"The model's inputs: {', '.join(names) or 'none'}. The arrays in the file: "
            f"{', '.join(found) or 'none'}.",
            fix="Save the arrays under the names of the inputs: numpy.savez(FILE, name=array, ...).",
        )
    return NamedFeeds(name, {name: found[name] for name in names})


def sizes_of(inputs: Sequence[NodeInfo], dims: Dimensions, given: Sequence[NamedFeeds]) -> FixedSizes:
    """Return the sizes given with `--dim`, completed by the sizes of the given inputs.

    Raise `OptionError` if a size is missing.
    """
    by_axis: dict[tuple[str, int], int] = {}
    by_name: dict[str, int] = {}
    all_named, missing = True, list[FreeAxis]()
    for node in inputs:
        for axis, dim in enumerate(node.shape or ()):
            if isinstance(dim, int) and dim >= 0:
                continue
            # 0 is not a valid size, so empty input arrays do not define a size.
            size = dims.size_of(node.name, axis, dim) or _size_in(given, node.name, axis)
            if not size:
                missing.append(FreeAxis(node.name, axis, dim if isinstance(dim, str) and dim else None))
                continue
            by_axis[node.name, axis] = size
            # ONNX allows dimensions of different size with the same name: a PaddleOCR model calls height and width
            # "?". Set such sizes by axis: a session's override by name would set the same size for both.
            if not isinstance(dim, str) or by_name.setdefault(dim, size) != size:
                all_named = False
    # Check for unknown dimensions first: a misspelt --dim also causes a missing size, and the message must show the
    # misspelling.
    refuse_unknown_of(inputs, dims)
    if missing:
        names = ", ".join(dict.fromkeys(one.option for one in missing))
        raise OptionError(
            f"The model has free dimensions without a size: {names}.",
            cause="QNN supports fixed shapes only.",
            fix=f"Give the sizes that you use: {options_text(missing)}",
        )
    return FixedSizes(by_axis, by_name, all_named)


def _size_in(given: Sequence[NamedFeeds], name: str, axis: int) -> int | None:
    for one in given:
        shape = one.feeds[name].shape
        if axis < len(shape):
            return int(shape[axis])
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class ExtremeInput:
    """One kind of extreme values.

    Args:
        name: name of the row.
        limit: true if float16 cannot represent the values; a difference then does not count by default.
        takes: returns whether an array can contain the extreme values.
        put: returns a copy of an ordinary array with the extreme values.
        as_sizes: true if the values must not be tried on a model that may use its inputs as sizes.
        of_numbers: true if the values apply only to integer inputs that are numbers, not to ids, masks and similar
            codes.
    """

    name: str
    limit: bool
    takes: Callable[[Array], bool]
    put: Callable[[Array], Array]
    as_sizes: bool = False
    of_numbers: bool = False


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f"


def _holds(number: float) -> Callable[[Array], bool]:
    # float16 ends at 65504, so a float16 input gets the values up to 1e4, but not those up to 1e5.
    return lambda value: value.dtype.kind == "f" and float(np.finfo(value.dtype).max) > number


def _scattered(numbers: tuple[float, ...]) -> Callable[[Array], Array]:
    def put(value: Array) -> Array:
        changed = np.array(value)
        flat = changed.reshape(-1)
        for start, number in enumerate(numbers):
            # Start each number at a different position, so that it does not overwrite the previous number.
            flat[min(start * (_EVERY // 2), flat.size - 1) :: _EVERY] = number
        return changed

    return put


def _spread(most: float) -> Callable[[Array], Array]:
    """Map values from 0..1 to -most..most."""
    return lambda value: np.asarray((value.astype(np.float64) * 2 - 1) * most).astype(value.dtype)


def _full_of(number: int) -> Callable[[Array], Array]:
    return lambda value: np.asarray(np.full_like(value, number))


# Extreme inputs show faults that ordinary inputs do not show. A speech detector (Silero) agreed on random inputs
# (cosine 1), but returned -98304 and 98304 instead of probabilities for frames of a real recording, and lost its
# recurrent state after digital silence.
EXTREMES = (
    ExtremeInput("NaN", True, _is_float, _scattered((float("nan"),))),
    ExtremeInput("infinity", True, _is_float, _scattered((float("inf"), float("-inf")))),
    # Keep this name equal to the one in `verifier._WORTH_BISECTING`.
    ExtremeInput("large: up to 1e4", True, _holds(LARGE), _spread(LARGE)),
    ExtremeInput("beyond half floats: up to 1e5", True, _holds(HUGE), _spread(HUGE)),
    ExtremeInput("tiny: up to 1e-5", True, _is_float, _spread(TINY)),
    ExtremeInput(
        # As an index, -1 counts from the end. Only some operators of QNN support negative indices.
        "negative numbers (-1)",
        False,
        lambda value: value.dtype.kind == "i" and value.dtype.itemsize >= _WIDE_BYTES,
        _full_of(-1),
        of_numbers=True,
    ),
    ExtremeInput(
        "integers beyond 32 bits",
        False,
        lambda value: value.dtype.kind in "iu" and value.dtype.itemsize > _WIDE_BYTES,
        _full_of(BIG_INTEGER),
        as_sizes=True,
        of_numbers=True,
    ),
)


def applied(extreme: ExtremeInput, feeds: Mapping[str, Any], codes: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the feeds with extreme values in every input that can contain them; None if no input can.

    Args:
        extreme: kind of extreme values.
        feeds: ordinary inputs.
        codes: names of inputs that contain ids or masks.
    """
    taking = [
        name
        for name, value in feeds.items()
        if isinstance(value, np.ndarray) and extreme.takes(value) and not (extreme.of_numbers and name in codes)
    ]
    # Arrays without elements cannot contain an extreme value.
    if not any(feeds[name].size for name in taking):
        return None
    return {name: extreme.put(value) if name in taking else value for name, value in feeds.items()}


def why_not(extreme: ExtremeInput, operators: Mapping[str, int]) -> str:
    """Return why the extreme values must not be tried on a model with these operators; empty if they may be
    tried.
    """
    makers = sorted(SIZE_MAKERS & set(operators))
    if not extreme.as_sizes or not makers:
        return ""
    return f"the model may use the numbers as sizes ({', '.join(makers[:3])}) and allocate gigabytes"


# Minimum SNR in dB at which two CPU runs count as equal: threads add numbers in a varying order, so results vary
# slightly.
_AGAIN_DB = 80.0
# Time limits in seconds: for running further inputs on the CPU, and for the hill climbing that follows.
_FURTHER_S = 60.0
_SEARCH_S = 8.0
_MOST_SEARCHED = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs with the CPU's results.

    Args:
        name: name of the row.
        kind: where the inputs come from: given, made up or extreme.
        counts: whether a difference makes the model's verdict "differs".
        feeds: the inputs; empty if the set is not tried.
        expected: the CPU's results.
        reason: why the set is not tried.
        guess: true if the model may not support the values. Agreement then counts as evidence, a difference does
            not.
    """

    name: str
    kind: InputKind
    counts: bool
    feeds: dict[str, Any]
    expected: RunAnswer
    reason: str = ""
    guess: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TrialSet:
    """All sets of inputs with the CPU's results.

    Args:
        trials: all sets of inputs.
        stable: whether two runs on the CPU return the same results.
        outputs: names of the outputs.
        number_format: format in which QNN computes.
        scales: largest CPU value of each output over the given and made-up sets; differences are measured against
            it.
        constant: outputs that do not depend on any input.
        steps: quantisation step of each quantised tensor.
    """

    trials: tuple[Trial, ...]
    stable: bool
    outputs: tuple[str, ...]
    number_format: NumberFormat
    scales: Mapping[str, float]
    constant: frozenset[str] = frozenset()
    steps: Mapping[str, float] = dataclasses.field(default_factory=dict)


def prepare_trials(
    cpu: ProviderSession,
    given: Sequence[NamedFeeds],
    operators: Mapping[str, int],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    how: VerifyOptions,
) -> TrialSet:
    """Run all sets of inputs on the CPU. Raise `OptionError` if no set can be run, or if given inputs are rejected.

    If real inputs are given, differences on made-up and extreme inputs do not count.
    """
    # The CPU must accept given inputs (`_expected` raises), but may reject made-up inputs.
    trials = [Trial(f"given: {one.name}", "given", True, one.feeds, _expected(cpu, one)) for one in given]
    reason = ""
    try:
        trials += [_trial(cpu, one, knowledge) for one in ordinary_inputs(cpu.inputs, knowledge, how.seed)]
        trials += _further(cpu, trials, knowledge, number_format, how.seed)
    except NotMade as error:
        # Do not raise the error yet: with given inputs the verification does not need made-up inputs.
        reason = str(error)
    answered = [trial for trial in trials if trial.expected.values is not None]
    if not answered:
        refusals = [short_of(trial.expected) for trial in trials if trial.expected.error is not None]
        reason = reason or (
            f"the CPU does not run the model on made-up inputs ({(refusals or ['no answer'])[0][:300]})"
        )
        raise OptionError(
            "There are no inputs to verify with: no random inputs can be generated for this model.",
            cause=f"{reason[:1].upper()}{reason[1:]}.",
            fix="Give real inputs: --input FILE.npz, with an array for each input under its name.",
        )
    # The CPU rejects these made-up inputs, so they are invalid. Keep one set to see whether QNN accepts invalid
    # inputs.
    refused = [trial for trial in trials if _is_refused(trial)]
    trials = [trial for trial in trials if not _is_refused(trial)] + refused[:1]
    if given:
        trials = [trial if trial.kind == "given" else dataclasses.replace(trial, counts=False) for trial in trials]
    # Compute the scales before extreme inputs are added: measured against outputs of 1e5, an error on ordinary
    # inputs would look like noise.
    scales = {
        name: max(largest(trial.expected.values[place]) for trial in answered if trial.expected.values is not None)
        for place, name in enumerate(cpu.outputs)
    }
    # Insert the extreme values into the first set that the CPU could run; given sets come first.
    first = answered[0]
    if how.extreme:
        # Ids and masks keep their values unless --strict is given.
        held = frozenset[str]() if how.strict else codes(cpu.inputs, knowledge)
        trials += _extreme_trials(cpu, first.feeds, operators, held, strict=how.strict, counts=not given)
    return TrialSet(tuple(trials), _is_stable(cpu, first), tuple(cpu.outputs), number_format, scales)


def _trial(cpu: ProviderSession, one: NamedFeeds, knowledge: InputKnowledge) -> Trial:
    answer = cpu.answer(one.feeds)
    return Trial(f"made up: {one.name}", "made up", True, one.feeds, answer, guess=is_guess(one.feeds, knowledge))


def _is_refused(trial: Trial) -> bool:
    return trial.expected.values is None and not trial.expected.died


def _expected(cpu: ProviderSession, given: NamedFeeds) -> RunAnswer:
    answer = cpu.answer(given.feeds)
    if answer.error is not None:
        raise OptionError(
            f"The CPU does not run the model on {given.name}.",
            cause=one_line(answer.error),
            fix=answer.error.fix or "Give inputs that the model supports.",
        )
    return answer


def _further(
    cpu: ProviderSession,
    trials: Sequence[Trial],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    seed: int,
) -> list[Trial]:
    """Return further made-up inputs that change outputs which were constant over all earlier inputs."""
    begun = time.monotonic()
    kept: list[Trial] = []
    # How much each output varies over the inputs. From 1 on the variation clearly exceeds the number format's
    # noise.
    moves = [_movement(trials, place, number_format) for place in range(len(cpu.outputs))]
    for one in further_inputs(cpu.inputs, knowledge, seed):
        if all(move >= 1.0 for move in moves) or time.monotonic() - begun > _FURTHER_S:
            break
        trial = _trial(cpu, one, knowledge)
        if trial.expected.values is None:
            continue
        # Always keep the first set that the CPU can run: there is no earlier set to compare it with.
        if not any(t.expected.values is not None for t in (*trials, *kept)):
            kept.append(trial)
            continue
        now = [_movement([*trials, *kept, trial], place, number_format) for place in range(len(cpu.outputs))]
        # Keep a set only if it more than doubles the variation of an output: a smaller increase may be random.
        if any(new > 2 * old and old < 1.0 for new, old in zip(now, moves, strict=True)):
            kept.append(trial)
            moves = now
    if min(moves, default=1.0) < 1.0:
        kept += _searched(cpu, [*trials, *kept], knowledge, number_format, seed)
    return kept


def _searched(
    cpu: ProviderSession,
    trials: Sequence[Trial],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    seed: int,
) -> list[Trial]:
    """Search by hill climbing for inputs that change an output that has been constant so far."""
    begun = time.monotonic()
    answered = [trial for trial in trials if trial.expected.values is not None]
    # Use a separate random stream: ordinary and further inputs use the seeds [seed, number of the set].
    rng = np.random.default_rng([seed, 1000])
    found: list[Trial] = []
    for place in range(len(cpu.outputs)):
        best, move = answered[:1], _movement([*answered, *found], place, number_format)
        first = move
        for _ in range(_MOST_SEARCHED):
            if not best or move >= 1.0 or time.monotonic() - begun > _SEARCH_S:
                break
            feeds = varied(best[0].feeds, knowledge, rng)
            trial = _trial(cpu, NamedFeeds("searched", feeds), knowledge)
            # The host crashed on made-up values: try no further inputs.
            if trial.expected.died:
                return found
            new = _movement([*answered, *found, trial], place, number_format)
            if trial.expected.values is not None and new > move:
                best, move = [trial], new
        # Below 1, the variation is within the noise of the number format: do not add a row.
        if best and move > 2 * first and move >= 1.0:
            found.append(dataclasses.replace(best[0], name=f"made up: searched for {cpu.outputs[place]}"))
    return found


def _movement(trials: Sequence[Trial], place: int, number_format: NumberFormat) -> float:
    return movement([t.expected.values[place] for t in trials if t.expected.values is not None], number_format)


def _is_stable(cpu: ProviderSession, trial: Trial) -> bool:
    again = cpu.values(trial.feeds)
    judged = [judge(a, b) for a, b in zip(trial.expected.values or [], again, strict=True)]
    return all(one.state != "differs" and (one.snr_db is None or one.snr_db >= _AGAIN_DB) for one in judged)


def _extreme_trials(
    cpu: ProviderSession,
    ordinary: Mapping[str, Any],
    operators: Mapping[str, int],
    held: Collection[str],
    *,
    strict: bool,
    counts: bool,
) -> list[Trial]:
    found: list[Trial] = []
    for extreme in EXTREMES:
        feeds = applied(extreme, ordinary, held)
        if feeds is None:
            continue
        reason = why_not(extreme, operators)
        # Do not run a skipped set on the CPU either, where it would also allocate too much memory.
        answer = RunAnswer(None) if reason else cpu.answer(feeds)
        matters = strict or (counts and not extreme.limit)
        found.append(Trial(extreme.name, "extreme", matters, {} if reason else feeds, answer, reason))
    return found


def try_on_qnn(qnn: ProviderSession, trial: Trial, prepared: TrialSet) -> tuple[InputSetResult, RunAnswer]:
    """Run one set of inputs on QNN; return the row with its verdict, and QNN's results."""
    if trial.reason:
        return _row(trial, "skipped", trial.reason), RunAnswer(None)
    if trial.expected.died:
        return _row(trial, "skipped", f"no CPU results: {short_of(trial.expected)}", True), RunAnswer(None)
    answer = qnn.answer(trial.feeds)
    if trial.expected.values is None:
        # Drop QNN's values: there are no values of the CPU to compare them with.
        return _without_reference(trial, answer), RunAnswer(None, answer.error)
    if answer.values is None:
        return _row(trial, "failed", short_of(answer), answer.died), answer
    return judged_row(trial, prepared, answer.values), answer


def judged_row(trial: Trial, prepared: TrialSet, found: Sequence[Any]) -> InputSetResult:
    """Judge QNN's values for one set of inputs."""
    assert trial.expected.values is not None
    judged = judge_all(
        prepared.outputs,
        trial.expected.values,
        found,
        prepared.number_format,
        prepared.scales,
        prepared.steps,
    )
    states = [one.state for _, one in judged]
    seen: tuple[TrapFound, ...] = ()
    if trial.kind == "extreme" or "differs" in states:
        seen = tuple(
            dataclasses.replace(trap, evidence=f"{trial.name}; {trap.evidence}")
            for name, expected, got in zip(prepared.outputs, trial.expected.values, found, strict=True)
            for trap in traps.of_values(name, expected, got, prepared.number_format)
        )
    # A trap alone makes an extreme set differ: the comparison ignores values that are NaN on the CPU, but a number
    # from QNN instead of NaN is a trap.
    differs = "differs" in states or (trial.kind == "extreme" and bool(seen))
    status: InputStatus = "differs" if differs else "agrees" if "agrees" in states else "not shown"
    counts = trial.counts and not (differs and trial.guess)
    return dataclasses.replace(_row(trial, status), outputs=judged, traps=seen, counts=counts)


def verdicts_of(prepared: TrialSet, found: Mapping[str, Sequence[Any]]) -> tuple[OutputVerdict, ...]:
    """Return the verdict on each output.

    Given inputs determine the verdict. For an output on which they cannot show an error, made-up inputs can only
    confirm agreement.

    Args:
        prepared: all sets of inputs.
        found: QNN's values by name of the set of inputs.
    """
    given = verdicts_on(prepared, found, ("given",))
    if not given:
        return verdicts_on(prepared, found, ("made up", "extreme"))
    every = verdicts_on(prepared, found, ("given", "made up"))
    return tuple(
        one if one.state != "unknown" or other.state == "differs" else other
        for one, other in zip(given, every, strict=True)
    )


def verdicts_on(
    prepared: TrialSet, found: Mapping[str, Sequence[Any]], kinds: Sequence[InputKind]
) -> tuple[OutputVerdict, ...]:
    """Return the verdict on each output over the sets of these kinds with results from both CPU and QNN.

    Return an empty tuple if `kinds` contains "given", but no set has results from both.
    """
    trials = [
        trial
        for trial in prepared.trials
        if trial.name in found and trial.kind in kinds and (trial.counts or trial.kind == "made up")
        # Ignore a difference on values that the model may not support (`guess`). Agreement on such values counts.
        if not trial.guess or judged_row(trial, prepared, found[trial.name]).status != "differs"
    ]
    verdicts = []
    runs = [
        paired(t.expected.values, found[t.name], prepared.number_format)
        for t in trials
        if t.expected.values is not None
    ]
    # If no set was compared, return no verdicts on given inputs; for the other kinds, each output is "unknown".
    if not runs and "given" in kinds:
        return ()
    for place, name in enumerate(prepared.outputs):
        pairs = [(mine[place], theirs[place]) for mine, theirs in runs]
        state, reason, judged = judge_over_inputs(pairs, prepared.number_format, prepared.steps.get(name, 0.0))
        if name in prepared.constant and {one.state for one in judged} == {"agrees"}:
            state, reason = "agrees", ""  # agreement suffices: no input can make a constant output vary
        # As evidence, use the worst set among those with the verdict's state.
        worst = min(range(len(judged)), key=lambda k: (judged[k].state != state, rank(judged[k])), default=None)
        verdicts.append(
            OutputVerdict(
                name,
                state,
                reason,
                trials[worst].name if worst is not None else "",
                judged[worst] if worst is not None else None,
            )
        )
    return tuple(verdicts)


def _without_reference(trial: Trial, answer: RunAnswer) -> InputSetResult:
    refusal = short_of(trial.expected)
    if answer.values is None:
        return _row(trial, "failed" if answer.died else "refused", refusal, answer.died)
    trap = TrapFound(
        "unchecked",
        "QNN does not check inputs: for inputs that the CPU rejects, QNN returns arbitrary numbers (measured: "
        "index 10**8 in ScatterND, token id 2**40 + 3, which QNN reads as 3, integer division by zero).",
        f"{trial.name}; the CPU reports: {refusal}",
        "Check the inputs before each run.",
        "the CPU rejects these inputs, QNN accepts them",
    )
    return dataclasses.replace(_row(trial, "unchecked", f"the CPU rejects these inputs: {refusal}"), traps=(trap,))


def _row(trial: Trial, status: InputStatus, reason: str = "", died: bool = False) -> InputSetResult:
    return InputSetResult(trial.name, trial.kind, trial.counts, status, reason=reason, died=died)


def short_of(answer: RunAnswer) -> str:
    return one_line(answer.error) if answer.error is not None else ""
