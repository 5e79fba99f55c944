"""Choose which of ONNX Runtime's graph optimizers are disabled for a session.

Theory of operation. QNN computes the graph that ONNX Runtime's optimizers of level 1 produce, and some optimizers
change a model's results or produce an invalid graph. Three tests find such optimizers. A worker runs the tests with
sessions on the CPU; QNN is not involved:

    a model with quantised tensors, before its first session: do its results on generated inputs change at level 1?
    a model that ONNX Runtime does not load: does it load without optimizers?
    a call whose results on QNN differ from the CPU's: does the CPU with the optimizers compute QNN's results?

If the answer is yes, the search in `model.optimizers` finds the optimizers at fault. A choice is stored with the
model's fingerprint and the version of ONNX Runtime; later sessions of the model use it, and it is part of the key
of their compiled model (`disabled_optimizers`). Only quantised models are tested in advance: in 7,862 graphs the
optimizers changed no float computation at level 1, and the test needs a process. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.key import KEY_DIGITS, size_of
from qnnbridge_host.cache.memo import OptimizerChoice, OptimizerChoices
from qnnbridge_host.model.optimizers import (
    LEVEL_ALL,
    LEVEL_BASIC,
    LEVEL_OFF,
    OPTIMIZATION_LEVEL,
    PROVE_ENTRY,
    harm_of,
    harmful,
    optimizers_of,
)
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded, OrtError
from qnnbridge_protocol.specs import QNN, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_host.create.publish import CompilerInput
    from qnnbridge_host.create.worker import Worker
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.connection import Hello
    from qnnbridge_protocol.model_records import CacheSettings

_log = logging.getLogger("qnnbridge.compiling")

# Test models with these operators before their first session.
_QUANTISED: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))
# Do not test larger models in advance. The first call is compared with the CPU instead.
MAX_BYTES: Final = 512 * 2**20
# Time limit of the test in seconds. If it expires, the first call is compared with the CPU instead.
PROOF_S: Final = 30.0
# Number of sets of generated inputs. A single set is used if a run takes longer than SLOW_S.
MOST_SETS: Final = 2
SLOW_S: Final = 2.0
# Smallest SNR, in dB, of results that differ only by rounding. Optimizers that only fold constants and move nodes
# change the last bits of floats: the SNR was at least 120 dB in 22 models, and 300 dB in quantised models. Removing
# a requantisation lowers the SNR to 39 to 45 dB, or to at most 60 dB if the quantisation steps are very fine.
LEAST_DB: Final = 50.0
# Largest fraction of an output's integers that differ if two results differ only by rounding.
MAX_DIFFERING_FRACTION: Final = 0.1
_PREFIX: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
# Errors for a graph that ONNX Runtime's own optimizers have broken: InvalidArgument ("Node input ... is not a graph
# input"), InvalidGraph ("Type Error") and Fail ("TypeInferenceError").
_BROKEN: Final = ("InvalidArgument", "InvalidGraph", "Fail", "NotImplemented")

# Configuration entries with this prefix enable or disable single optimizers; other entries do not affect the
# optimised graph.
_OF_OPTIMIZERS: Final = (
    *("optimization.", "session.disable_quant_qdq", "session.disable_double_qdq_remover"),
    *("session.enable_quant_qdq_cleanup", "session.qdq", "session.enable_cast_chain", "session.enable_gelu"),
)

Answers = Mapping[str, Sequence[Any]]


class Optimizers:
    """Chooses the optimizers that are disabled in sessions. hello: the host's HELLO, with its versions."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        # Choices by key. With a cache, each choice is also stored in a file whose name is the key.
        self._choices: dict[str, OptimizerChoice] = {}

    def kept(
        self, source: ModelSource, spec: SessionSpec, settings: CacheSettings | None
    ) -> OptimizerChoice | None:
        """Return the stored choice for a session; ``None`` if no choice was made yet."""
        if not _may_choose(source, spec):
            return None
        key = self._key(source, spec)
        found = self._choices.get(key)
        if found is None and (notes := _notes(settings)) is not None:
            found = notes.read(key)
            if found is not None:
                self._choices[key] = found
        return found

    def chosen(
        self,
        source: ModelSource,
        spec: SessionSpec,
        initializers: Sequence[Any],
        settings: CacheSettings | None,
        order: WorkOrder,
    ) -> OptimizerChoice:
        """Return the choice for a session that is about to be created: the stored choice, or that of a new test.

        Args:
            source: the model.
            spec: the session's description.
            initializers: the values of ``spec.value_names``.
            settings: the cache's settings; ``None`` without a cache.
            order: stop signal, deadline and receiver of progress events for the worker.
        """
        kept = self.kept(source, spec, settings)
        if kept is not None:
            return kept
        choice = OptimizerChoice()
        if not _may_choose(source, spec):
            return choice
        if _is_proven_before(source, spec):
            job = job_of(source, spec, initializers)
            choice = _within(order, lambda limited: _proven(job, limited)) or choice
        # Store an empty choice, too, so that the next session need not scan the operators.
        self._keep(source, spec, settings, choice)
        return choice

    def after_failure(
        self,
        source: ModelSource,
        spec: SessionSpec,
        initializers: Sequence[Any],
        settings: CacheSettings | None,
        order: WorkOrder,
        error: BridgeError,
    ) -> OptimizerChoice | None:
        """Return the choice for a model that failed to load; ``None`` if optimizers are not the cause.

        error: the error of loading the model. For the other arguments see `chosen`.
        """
        if type(error).__name__ not in _BROKEN or not isinstance(error, OrtError):
            return None
        level = _level(spec)
        if level <= LEVEL_OFF or not _is_model(source):
            return None
        job, message = job_of(source, spec, initializers), error.message
        choice = _within(order, lambda limited: _loading(job, level, limited, message))
        if choice is None or not choice.why:
            return None
        self._keep(source, spec, settings, choice)
        return choice

    def blamed(
        self,
        worker: Worker,
        job: CompilerInput,
        settings: CacheSettings | None,
        judged: Callable[[Sequence[Any], Sequence[Any]], bool],
        expected: Sequence[Any],
        results: Sequence[Any],
        run: Callable[[Any], Sequence[Any]],
    ) -> str:
        """Return why QNN's results differ, if optimizers are the cause; "" if they are not.

        Args:
            worker: the worker for sessions on the CPU.
            job: the model and its session.
            settings: the cache's settings, for storing the choice.
            judged: a function that returns whether two lists of outputs agree.
            expected: the reference's outputs.
            results: QNN's outputs.
            run: a function that returns a session's outputs for the same inputs.
        """
        spec = job.spec
        if not _may_choose(job.source, spec):
            return ""
        for level in dict.fromkeys((min(_level(spec), LEVEL_BASIC), _level(spec))):
            got = _answer_at(worker, job, level, spec.disabled_optimizers, run)
            # QNN gets the graph of level 1. Optimizers of a higher level are the cause only if the CPU's results at
            # level 1 equal the results of QNN's session.
            if got is None or judged(expected, got) or (level > LEVEL_BASIC and not judged(got, results)):
                continue

            def is_right(disabled: Sequence[str], level: int = level) -> bool:
                found = _answer_at(worker, job, level, (*spec.disabled_optimizers, *disabled), run)
                return found is not None and judged(expected, found)

            names = harmful(is_right, optimizers_of(level))
            if names:
                why = harm_of(names, "changes", f"the results of {job.source.label} on the CPU and on QNN")
                self._keep(job.source, spec, settings, OptimizerChoice(names, why=why))
                return (
                    f"{why}: QNN correctly computes the graph that ONNX Runtime has changed. Later sessions "
                    "disable this optimizer."
                )
        return ""

    # --- stored choices ---

    def _keep(
        self, source: ModelSource, spec: SessionSpec, settings: CacheSettings | None, choice: OptimizerChoice
    ) -> None:
        if spec.value_names or spec.config_entries.get(PROVE_ENTRY) == "0":
            return  # do not store: the key lacks the session's initializers, or the test of optimizers is disabled
        key = self._key(source, spec)
        self._choices[key] = choice
        notes = _notes(settings)
        if notes is not None:
            notes.write(key, choice)

    def _key(self, source: ModelSource, spec: SessionSpec) -> str:
        parts = {
            "model": source.fingerprint,
            "onnxruntime": self._hello.versions.get("onnxruntime"),
            "qnnbridge": __version__,
            "level": _level(spec),
            "disabled": sorted(spec.disabled_optimizers),
            "sizes": [dict(spec.free_dimensions_by_name), dict(spec.free_dimensions_by_denotation)],
            "entries": {k: v for k, v in spec.config_entries.items() if k.startswith(_OF_OPTIMIZERS)},
        }
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_DIGITS]


def _notes(settings: CacheSettings | None) -> OptimizerChoices | None:
    if settings is None or not settings.enabled:
        return None
    from qnnbridge_host.cache.store import Store

    return OptimizerChoices(Store(Path(settings.folder)).root)


# --- properties of a session -----------------------------------------------------------------------------


def _level(spec: SessionSpec) -> int:
    given = spec.options.get(OPTIMIZATION_LEVEL, LEVEL_ALL)
    return given if isinstance(given, int) else LEVEL_ALL


def _is_model(source: ModelSource) -> bool:
    scan = source.scan
    return scan is not None and scan.format == "onnx" and not scan.is_compiled


def _may_choose(source: ModelSource, spec: SessionSpec) -> bool:
    """Return whether a session uses QNN and optimizers that may be disabled."""
    wants_qnn = not spec.providers or any(provider.name == QNN for provider in spec.providers)
    return wants_qnn and _level(spec) > LEVEL_OFF and _is_model(source) and not spec.value_names


def _is_proven_before(source: ModelSource, spec: SessionSpec) -> bool:
    if spec.custom_op_libraries or spec.config_entries.get(PROVE_ENTRY) == "0":
        return False
    from qnnbridge_host.model.scan import scan_model

    try:
        # Operators of other domains have the domain as a prefix ("com.microsoft.QuantizeLinear").
        operators = {name.rpartition(".")[2] for name in scan_model(source.given).ops}
    except BridgeError:  # creating the session raises the same error
        return False
    return not _QUANTISED.isdisjoint(operators) and size_of(source) <= MAX_BYTES


# --- tests for faulty optimizers -------------------------------------------------------------------------


def _within(order: WorkOrder, work: Callable[[WorkOrder], OptimizerChoice | None]) -> OptimizerChoice | None:
    """Run a test within `PROOF_S`; return ``None`` if it did not finish or failed.

    Raise `Cancelled` or `DeadlineExceeded` if the request itself was cancelled or its deadline expired.
    """
    deadline = time.monotonic() + PROOF_S
    is_earlier = order.deadline is not None and order.deadline < deadline
    limited = order if is_earlier else order._replace(deadline=deadline)
    try:
        return work(limited)
    except Cancelled:
        raise
    except DeadlineExceeded:
        if limited is order:
            raise
    except BridgeError as error:
        # The worker crashed, or the CPU cannot run the model: do not disable optimizers.
        _log.debug("%s: its optimizers could not be tested: %s", order.model.label, error)
    return None


def _proven(job: CompilerInput, order: WorkOrder) -> OptimizerChoice:
    """Find optimizers that change results: compare level 1 with a session without optimization, on generated
    inputs."""
    from qnnbridge_host.create.trials import few
    from qnnbridge_host.create.worker import Worker, WorkerSession, open_original
    from qnnbridge_host.numerics.sampling import NotMade

    level = min(_level(job.spec), LEVEL_BASIC)
    with Worker(order).running() as worker:
        reference = open_original(worker, job)
        try:
            trials, expected = few(reference, job, MOST_SETS, SLOW_S)
        except NotMade:
            return OptimizerChoice()
        finally:
            reference.close()

        def all_answers(session: WorkerSession) -> list[Any]:
            return [session.run(feeds) for feeds in trials.values()]

        def again() -> bool:
            """Return whether the reference returns the same outputs again. A model with random numbers cannot be
            tested."""
            found = _answer_at(worker, job, LEVEL_OFF, (), all_answers)
            return found is not None and _are_same(expected, dict(zip(expected, found, strict=True)))

        def is_right(disabled: Sequence[str]) -> bool:
            found = _answer_at(worker, job, level, (*job.spec.disabled_optimizers, *disabled), all_answers)
            return found is not None and _are_same(expected, dict(zip(expected, found, strict=True)))

        names = () if is_right(()) or not again() else harmful(is_right, optimizers_of(level))
    if not names:
        return OptimizerChoice()
    return OptimizerChoice(names, why=harm_of(names, "changes", f"what {job.source.label} computes"))


def _loading(job: CompilerInput, level: int, order: WorkOrder, message: str) -> OptimizerChoice | None:
    """Find the optimizers that break a model; ``None`` if the CPU loads it with all of them."""
    from qnnbridge_host.create.worker import Worker, open_original

    with Worker(order).running() as worker:
        open_original(worker, job).close()

        def loads(disabled: Sequence[str]) -> bool:
            names = (*job.spec.disabled_optimizers, *disabled)
            return _answer_at(worker, job, level, names, lambda _session: ()) is not None

        names = harmful(loads, optimizers_of(level))
    if names == ():
        return None  # the CPU loads the model, so ONNX Runtime's optimizers are not the cause
    error = f"({_PREFIX.sub('', message).rstrip('.')})"
    if names is None:
        return OptimizerChoice(off=True, why=f"ONNX Runtime's optimizers break {job.source.label} {error}")
    return OptimizerChoice(names, why=harm_of(names, "breaks", f"{job.source.label} {error}"))


def _answer_at(
    worker: Worker,
    job: CompilerInput,
    level: int,
    disabled: Sequence[str],
    run: Callable[[Any], Sequence[Any]],
) -> Sequence[Any] | None:
    """Return the outputs of a session on the CPU at an optimisation level; ``None`` if the model does not load or
    run."""
    from qnnbridge_host.create.worker import WorkerSession, on_cpu

    spec = on_cpu(job, level, tuple(dict.fromkeys(disabled)))
    try:
        session = WorkerSession(worker, spec, job.initializers, job.source.data)
    except OrtError:
        return None
    try:
        return run(session)
    except OrtError:
        return None
    finally:
        session.close()


def _are_same(expected: Answers, found: Answers) -> bool:
    """Return whether optimisation changed only the rounding, judged over all sets of inputs together."""
    count = len(next(iter(expected.values()), ()))
    return all(
        _is_same([(values[place], found[name][place]) for name, values in expected.items()])
        for place in range(count)
    )


def _is_same(pairs: Sequence[tuple[Any, Any]]) -> bool:
    import numpy as np

    from qnnbridge_host.numerics.judge import as_array, snr_db

    mine, theirs = [], []
    for expected, found in pairs:
        a, b = as_array(expected), as_array(found)
        if a is None or b is None or a.dtype.kind not in "biuf":
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        mine.append(a.ravel())
        theirs.append(b.ravel())
    if not mine or not sum(one.size for one in mine):
        return True
    a, b = np.concatenate(mine), np.concatenate(theirs)
    if a.dtype.kind != "f":
        return float(np.mean(a != b)) <= MAX_DIFFERING_FRACTION
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    return bool(np.array_equal(a[finite], b[finite])) or snr_db(a[finite], b[finite]) >= LEAST_DB


def job_of(source: ModelSource, spec: SessionSpec, initializers: Sequence[Any] = ()) -> CompilerInput:
    """Return the model and its session as a job for the tests, which generate the inputs."""
    from qnnbridge_host.create.publish import CompilerInput

    return CompilerInput(source, dataclasses.replace(spec, fix=None), initializers=tuple(initializers))
