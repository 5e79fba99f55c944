"""Operations `model.verify` and `model.samples`: compare a session's outputs with the CPU's.

The session itself is not used: the application sends the inputs and outputs of a run. The original model, not
a rewritten copy, runs on the CPU in a worker, so that its crashes, memory and time do not affect the host. The
verdict is stored under the key of the compiled model. If the comparison cannot be completed, the reason is in the
report; it is never an error of the application's run. The same applies if a file of the model has changed: the
CPU's results are then unrelated to the session's, and the report is not stored. A host runs one comparison at a
time. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.create.order import known_faults
from qnnbridge_host.create.service import cache_settings, data_folder, deadline_of, open_model, stop_signal
from qnnbridge_host.create.session import ATTEMPTS
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded, ModelChanged, WorkerDied, desync
from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers
from qnnbridge_protocol.specs import SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.cache.memo import Verdicts
    from qnnbridge_host.create.optimizers import Optimizers
    from qnnbridge_host.create.order import WorkOrder
    from qnnbridge_host.create.session import SessionMaker
    from qnnbridge_host.create.worker import Worker, WorkerSession
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_host.request.in_flight import Answer, Request
    from qnnbridge_protocol.model_records import CacheSettings

# Operators whose results vary from run to run.
RANDOM_OPS: Final = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
# Estimated memory of a session on the CPU, as a multiple of the model's size: the file, the weights, and packed
# copies of the weights.
CPU_COPIES: Final = 3
# Fraction of the free memory that a comparison may use; the rest is left to the application.
SHARE_OF_MEMORY: Final = 0.5
TURN_POLL_S: Final = 0.05


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """Arguments of a `model.verify` request.

    results: the session's results for `outputs`. inputs: description of the inputs. leading: the results are only
        the beginning of each dimension, because the rest is padding. again: whether to ignore a stored verdict.
        calls: calls of the session since the last comparison. compared: number of comparisons whose results the
        session has received. constant: whether the inputs are nearly constant. made_from: the model or rewritten
        copy from which the session was created.
    """

    source: ModelSource
    spec: SessionSpec
    initializers: tuple[Any, ...]
    outputs: tuple[str, ...]
    feeds: Mapping[str, Any]
    results: tuple[Any, ...]
    inputs: str
    leading: bool
    again: bool
    calls: int
    compared: int
    constant: bool
    verdicts: Verdicts | None
    key: str
    made_from: tuple[ModelSource, SessionSpec]
    settings: CacheSettings | None = None


class NumbersService:
    """Serves `model.verify` and `model.samples`."""

    def __init__(self, maker: SessionMaker) -> None:
        self._maker = maker
        self._turn = threading.Lock()

    # --- operations ---

    def verify(self, request: Request) -> Answer:
        """Compare the outputs of a run with the CPU's, or return the stored verdict."""
        try:
            report = self._verdict(*self._comparison(request, stop_signal(request)))
        except ModelChanged:
            reason = "the model or one of its external files has changed since the session was created"
            report = NumbersReport("unknown", reason=reason, when=time.time())
        return {"numbers": report.to_wire()}, ()

    def samples(self, request: Request) -> Answer:
        """Return generated values for inputs of fixed sizes, or the reason why values cannot be generated."""
        from qnnbridge_host.numerics.sampling import NotMade, made_up
        from qnnbridge_protocol.specs import NodeInfo
        from qnnbridge_protocol.values import Encoder

        header = request.header
        encoder, reason, described = Encoder(), "", None
        try:
            inputs = [NodeInfo.from_wire(one) for one in list(header["inputs"])]
            feeds = made_up(inputs, int(header.get("seed") or 0))
            described = [[name, encoder.add(value)] for name, value in feeds.items()]
        except NotMade as not_made:
            reason = str(not_made)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.samples without a proper description ({error})") from None
        return {"inputs": described, "reason": reason}, tuple(encoder.buffers)

    # --- comparison --------------------------------------------------------------------------------------

    def _comparison(self, request: Request, stop: StopSignal) -> tuple[_Comparison, WorkOrder]:
        from qnnbridge_host.cache.key import key_of, key_parts
        from qnnbridge_host.cache.measured import rows_of_session
        from qnnbridge_host.cache.memo import Verdicts
        from qnnbridge_host.cache.store import Store
        from qnnbridge_protocol.values import Decoder

        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            count = len(request.buffers) - (spec.model_path is None)
            data = bytes(request.buffers[count]) if spec.model_path is None else None
            decoder = Decoder(request.buffers[:count])
            initializers = tuple(decoder.value(item) for item in header.get("initializers") or ())
            feeds = {str(name): decoder.value(item) for name, item in header["inputs"]}
            results = tuple(decoder.value(item) for item in header["results"])
            decoder.finish()
            outputs = tuple(str(name) for name in header["outputs"])
            if len(outputs) != len(results):
                raise ValueError(f"{len(results)} results of {len(outputs)} outputs")
            folder = data_folder(spec.config_entries, str(header.get("folder") or os.getcwd()))
            settings = cache_settings(header.get("cache"))
            # Fingerprint of the model from which the session was created.
            fingerprint = header.get("fingerprint")
            files = [(str(path), int(size), int(date)) for path, size, date in header.get("files") or ()]
            budget_s = header.get("budget_s")
            deadline = deadline_of(budget_s)
            calls, compared = int(header.get("calls", 1)), int(header.get("compared", 0))
            parts = str(header.get("parts") or "")
        except BridgeError:
            raise  # some `BridgeError`s are also `ValueError`s, which the next clause would convert
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"model.verify without a proper description ({error})") from None
        source = open_model(spec.model_path, data, folder, settings, stop, fingerprint, files)
        store = Store(Path(settings.folder)) if settings is not None and settings.enabled else None
        hash_library = store.memo.sha256 if store is not None else lambda _path: None
        order = self._maker.order(request, stop, source, deadline, budget_s)
        order = order._replace(patient=bool(header.get("patient")))
        host_info = self._maker.host_info
        here = rows_of_session(spec, host_info.versions, simulator=host_info.machine != "ARM64")
        used, made_with = source, dataclasses.replace(spec, fix=None)
        if spec.fix is not None and spec.fix.when == "always":
            # QNN runs the rewritten copy, whose results are compared with those of the original.
            from qnnbridge_host.create.replaced import fixed_source

            fixed = fixed_source(source, spec, settings, folder, order, here.right)
            used, made_with = fixed.source, fixed.spec
            feeds |= _constants(source, spec)
        spec = dataclasses.replace(spec, fix=None)
        key = key_of(key_parts(used.fingerprint, made_with, initializers, host_info, hash_library, here.identity))
        if parts:
            key = hashlib.sha256(f"{key} {parts}".encode()).hexdigest()[: len(key)]
        verdicts = Verdicts(store.root) if store is not None else None
        wanted = _Comparison(
            *(source, spec, initializers, outputs, feeds, results),
            inputs=str(header.get("of") or "the inputs of a call"),
            leading=bool(header.get("leading")),
            again=bool(header.get("again")),
            calls=max(0, calls),
            compared=compared,
            constant=bool(header.get("constant")),
            verdicts=verdicts,
            key=key,
            made_from=(used, made_with),
            settings=settings,
        )
        return wanted, order

    def _verdict(self, wanted: _Comparison, order: WorkOrder) -> NumbersReport:
        reason = _reason_against(wanted)
        if reason:
            return NumbersReport("unknown", reason=reason, when=time.time())
        while not self._turn.acquire(timeout=TURN_POLL_S):
            order.stop.check()
            if order.left_s == 0.0:
                return NumbersReport("unknown", reason="the timeout expired before it started", when=time.time())
        try:
            kept = wanted.verdicts.read(wanted.key) if wanted.verdicts is not None else None
            if kept is not None and wanted.verdicts is not None and not wanted.again:
                calls = kept.calls + wanted.calls
                # A session requests a comparison after a number of its own calls. If other sessions have compared
                # the model since, compare again only when all sessions' calls have reached `next_call`.
                due = kept.compared <= wanted.compared or calls >= kept.next_call
                if kept.state != "agrees" or not due:
                    wanted.verdicts.count(wanted.key, wanted.calls)
                    return dataclasses.replace(kept, calls=calls)
            if wanted.verdicts is not None and not wanted.again and not wanted.verdicts.begin(wanted.key):
                return NumbersReport(
                    "unknown",
                    reason="several comparisons did not finish; session.verify(feeds) waits for a comparison",
                    when=time.time(),
                )
            report = self._compare_unchanged(wanted, order)
        finally:
            self._turn.release()
        if wanted.verdicts is not None:
            wanted.verdicts.ended(wanted.key)
        if wanted.constant and report.state == "agrees":
            return report if wanted.again else _inconclusive(report)
        # Do not store a verdict from inputs that are not conclusive, so that the next inputs are compared.
        if wanted.verdicts is None or (report.state == "unknown" and report.outputs):
            return dataclasses.replace(report, calls=max(1, wanted.calls), compared=1)
        together = wanted.verdicts.add(wanted.key, report, wanted.calls)
        return dataclasses.replace(report, calls=together.calls, compared=together.compared)

    def _compare_unchanged(self, wanted: _Comparison, order: WorkOrder) -> NumbersReport:
        """Return the report of a comparison during which no program wrote to the model's files. Raise
        `ModelChanged` if the files have changed or keep changing.

        A change that was reverted counts too: the worker may have read the changed data, and external data is read
        during the run.
        """
        from qnnbridge_host.model.source import are_same

        for _ in range(ATTEMPTS):
            before = wanted.source.stamps()
            report = _compare(wanted, order, self._maker.optimizers)
            if report.state == "differs" and not report.cause:
                # Search the rewritten copy, if the session uses one, for operators that QNN computes wrong: an
                # operator that the rewrite has replaced did not cause the difference.
                host = self._maker.host_info
                cause = known_faults(*wanted.made_from, host.machine, host.versions)
                report = dataclasses.replace(report, cause=cause)
            wanted.source.check_unchanged()
            if are_same(before, wanted.source.stamps()):
                return report
            order.stop.check()
        raise wanted.source.never_rests()


def _compare(wanted: _Comparison, order: WorkOrder, optimizers: Optimizers) -> NumbersReport:
    from qnnbridge_host.create.publish import CompilerInput
    from qnnbridge_host.create.worker import Worker, open_original
    from qnnbridge_host.model.quantised_steps import quantised_steps
    from qnnbridge_host.numerics.judge import badness, precision_of_operators
    from qnnbridge_host.numerics.pairing import judge_all

    begun = time.monotonic()

    def report(
        state: Any, outputs: Sequence[OutputNumbers] = (), reason: str = "", cause: str = ""
    ) -> NumbersReport:
        seconds = time.monotonic() - begun
        return NumbersReport(state, tuple(outputs), wanted.inputs, reason, seconds, time.time(), cause=cause)

    job = CompilerInput(wanted.source, wanted.spec, initializers=wanted.initializers)
    cause = ""
    try:
        with Worker(order).running() as worker:
            reference = open_original(worker, job)
            expected = _compared_part(wanted, reference.run(wanted.feeds, wanted.outputs))
            number_format = precision_of_operators(_operators(wanted.source))
            steps = quantised_steps(wanted.source.given)
            judged = judge_all(wanted.outputs, expected, wanted.results, number_format, steps=steps)
            if any(one.state == "differs" for _, one in judged):
                # The results of a model with random numbers vary from run to run, so they prove nothing.
                second = _compared_part(wanted, reference.run(wanted.feeds, wanted.outputs))
                again = judge_all(wanted.outputs, expected, second, "fp16")
                if any(one.snr_db is not None and one.state == "differs" for _, one in again):
                    return report("unknown", reason="the CPU returns a different result in each run")
                cause = _cause_in_optimizers(wanted, worker, reference, expected, optimizers)
    except Cancelled:
        raise
    except WorkerDied as error:
        code = error.details.get("exit_code")
        return report("unknown", reason=f"the run on the CPU crashed its process (exit code {code})")
    except DeadlineExceeded:
        return report("unknown", reason="the run on the CPU took too long")
    except BridgeError as error:
        return report("unknown", reason=f"the CPU cannot run the model: {error.message}")
    numbers = (OutputNumbers(**one.to_wire(), output=name) for name, one in judged)
    outputs = sorted(numbers, key=badness)
    states = [one.state for one in outputs]
    if "differs" in states:
        return report("differs", outputs, str(outputs[0]), cause)
    if "agrees" in states:
        return report("agrees", outputs)
    return report(
        "unknown", outputs, f"these inputs are not conclusive: {outputs[0]}" if outputs else "it has no outputs"
    )


def _inconclusive(report: NumbersReport) -> NumbersReport:
    """Return the report for nearly constant inputs, which do not prove that the results agree."""
    worst = f" ({report.outputs[0]})" if report.outputs else ""
    reason = (
        f"the inputs are nearly constant, and their results agree{worst}; only a call with other inputs is "
        "conclusive"
    )
    return dataclasses.replace(report, state="unknown", reason=reason)


def _cause_in_optimizers(
    wanted: _Comparison, worker: Worker, reference: WorkerSession, expected: Sequence[Any], optimizers: Optimizers
) -> str:
    """Return why the results differ if ONNX Runtime's optimizers are the cause and not QNN; else ""."""
    from qnnbridge_host.create.optimizers import job_of
    from qnnbridge_host.numerics.judge import precision_of_operators
    from qnnbridge_host.numerics.pairing import judge_all

    reference.close()
    number_format = precision_of_operators(_operators(wanted.source))

    def agrees(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
        return all(one.state != "differs" for _, one in judge_all(wanted.outputs, mine, theirs, number_format))

    def run(session: Any) -> Sequence[Any]:
        return _compared_part(wanted, session.run(wanted.feeds, wanted.outputs))

    # Do not test the optimizers on a rewritten copy: the test passes the original's inputs, and the copy lacks the
    # inputs that became constants.
    if wanted.made_from[0] is not wanted.source:
        return ""
    job = job_of(*wanted.made_from, wanted.initializers)
    return optimizers.blamed(worker, job, wanted.settings, agrees, expected, wanted.results, run)


def _compared_part(wanted: _Comparison, values: Sequence[Any]) -> list[Any]:
    """Return the part of the CPU's outputs that is compared with the results."""
    import numpy as np

    counted = []
    for value, result in zip(values, wanted.results, strict=True):
        if wanted.leading and isinstance(value, np.ndarray) and value.ndim == getattr(result, "ndim", None):
            value = value[tuple(slice(size) for size in result.shape)]
        counted.append(value)
    return counted


def _constants(source: ModelSource, spec: SessionSpec) -> dict[str, Any]:
    """Return the original's inputs that its rewritten copy lacks."""
    from qnnbridge_protocol.input_tensors import array_of, resolved

    nodes = {node.name: node for node in (source.scan.inputs if source.scan is not None else ())}
    constants = spec.fix.constants if spec.fix is not None else {}
    sizes = spec.free_dimensions_by_name
    shapes = {name: resolved(one, nodes[name].shape, sizes) for name, one in constants.items()}
    return {name: array_of(one, name, nodes[name].type, shapes[name]) for name, one in constants.items()}


def _operators(source: ModelSource) -> Mapping[str, int]:
    from qnnbridge_host.model.scan import scan_model

    return scan_model(source.given).ops


def _reason_against(wanted: _Comparison) -> str:
    """Return why a comparison is impossible, if this is known before a worker is started; else ""."""
    from qnnbridge_host.cache.key import size_of

    scan = wanted.source.scan
    if scan is None or scan.format != "onnx":
        return "the model is not an ONNX model"
    if scan.is_compiled:
        return "the model is compiled, so the CPU cannot run it"
    found = RANDOM_OPS & _operators(wanted.source).keys()
    if found:
        return f"its results are random ({', '.join(sorted(found))})"
    return _too_large(size_of(wanted.source) * CPU_COPIES)


def _too_large(needed: int) -> str:
    import psutil

    free = int(psutil.virtual_memory().available * SHARE_OF_MEMORY)
    if needed <= free:
        return ""
    return f"a session on the CPU needs about {needed >> 20} MiB, but only {free >> 20} MiB are free for it"
