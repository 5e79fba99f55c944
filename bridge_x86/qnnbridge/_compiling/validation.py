"""Tries a compiled model in a fresh host and holds its numbers against the original's on the CPU.

A model can compile without an error and compute something else: what overflows 16-bit floats, what QNN does
otherwise than ONNX says. So by default nothing is delivered that was not run. The reference runs first, in the same
process: it cannot hurt. Any thread.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._compiling import inputs as made_up
from qnnbridge._compiling.compare import TOLERANCES, Difference, Precision, compare
from qnnbridge._compiling.job import CompiledFiles, CompileJob
from qnnbridge._compiling.loading import open_compiled, open_on_cpu
from qnnbridge_protocol.errors import BridgeError, CompileFailed, ContextUnusable, DeadlineExceeded, HostCrashed
from qnnbridge_protocol.specs import NodeInfo

if TYPE_CHECKING:
    from qnnbridge._remote_session import RemoteSession

SEEDS: Final = (0, 1)
_QUANTIZED_OPS: Final = frozenset(("QuantizeLinear", "DequantizeLinear"))


@dataclasses.dataclass(frozen=True, slots=True)
class Validation:
    """What came of it. skipped: why it was not done, ``None`` if it was. tolerance: in words. seconds: it took."""

    differences: tuple[Difference, ...] = ()
    tolerance: str = ""
    skipped: str | None = None
    seconds: float = 0.0

    @property
    def worst(self) -> Difference | None:
        """Of the output that differs most, measured against its own values."""
        return max(self.differences, key=lambda one: (one.max_rel, one.max_abs), default=None)

    @property
    def max_abs(self) -> float:
        """Of the `worst` output, as is `max_rel`: outputs of other sizes are not compared with each other."""
        return self.worst.max_abs if self.worst is not None else 0.0

    @property
    def max_rel(self) -> float:
        return self.worst.max_rel if self.worst is not None else 0.0

    @property
    def cosine(self) -> float | None:
        """The worst one."""
        return min((one.cosine for one in self.differences if one.cosine is not None), default=None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is unusual, in words."""
        return tuple(f"{one.output} ({one.inputs}): {one.remark}" for one in self.differences if one.remark)

    def to_json(self) -> dict[str, Any]:
        return {
            "skipped": self.skipped,
            "tolerance": self.tolerance,
            "worst_output": self.worst.output if self.worst is not None else None,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "cosine": self.cosine,
            "seconds": round(self.seconds, 3),
            "outputs": [dataclasses.asdict(one) for one in self.differences],
        }


def validate(job: CompileJob, files: CompiledFiles, *, deadline: float | None = None) -> Validation:
    """Run the compiled model on all ones and on random inputs, and the original on the CPU.

    Raises `CompileFailed` if the compiled model cannot be loaded or run, or its numbers are not the original's,
    `DeadlineExceeded`.
    """
    try:
        return _validate(job, files, deadline)
    except DeadlineExceeded as error:
        raise _too_late(job, error) from None


def _validate(job: CompileJob, files: CompiledFiles, deadline: float | None) -> Validation:
    begun = time.monotonic()
    tolerance = TOLERANCES[precision_of(job)]
    unloadable = _cannot_load_here(files)
    if unloadable:
        return Validation(skipped=unloadable)
    with job.host.fresh() as host:
        try:
            reference = open_on_cpu(job, _left(deadline), host)
            trials = _trials(reference.info.inputs)
            expected = {name: _run(reference, feeds, deadline) for name, feeds in trials.items()}
        except DeadlineExceeded:
            raise
        except made_up.CannotMakeUp as reason:
            return Validation(skipped=f"{reason}.")
        except BridgeError as error:
            return Validation(skipped=f"The original cannot be run on the CPU to compare with: {error.message}")
        try:
            compiled = open_compiled(job, os.path.join(files.folder, files.model), _left(deadline), host)
            got = {name: _run(compiled, feeds, deadline) for name, feeds in trials.items()}
        except DeadlineExceeded:
            raise
        except BridgeError as error:
            if _for_another_chip(job, files, error):
                return Validation(skipped=f"It cannot be loaded on this machine's chip: {error.message}")
            raise _unusable(job, error) from None
    found = [
        compare(
            node.name,
            {trial: values[index] for trial, values in got.items()},
            {trial: values[index] for trial, values in expected.items()},
            tolerance,
        )
        for index, node in enumerate(reference.info.outputs)
    ]
    differences = tuple(one for one in found if one is not None)
    result = Validation(differences, str(tolerance), None, time.monotonic() - begun)
    if any(one.level == "wrong" for one in differences):
        raise _wrong_numbers(job, result)
    return result


def precision_of(job: CompileJob) -> Precision:
    """What the NPU computes the model in: a float model in 16-bit floats, one with Q/DQ nodes in its own steps."""
    from qnnbridge_host.model.scan import scan_model

    source = job.source.path if job.source.path is not None else job.source.data or b""
    return precision_of_operators(scan_model(source).ops)


def precision_of_operators(operators: Iterable[str]) -> Precision:
    """`precision_of` a model with these operators, those that are not ONNX's own with their domain."""
    plain = {name.rpartition(".")[2] for name in operators}
    return "quantized" if plain & _QUANTIZED_OPS else "fp16"


def _cannot_load_here(files: CompiledFiles) -> str | None:
    chips = [chip for chip in (files.soc_model or "").split(",") if chip.strip()]
    simulator = files.placement.simulator if files.placement is not None else False
    if simulator and len(chips) > 1:
        return "The simulator cannot load a context binary for several chips at once."
    return None


def _for_another_chip(job: CompileJob, files: CompiledFiles, error: BridgeError) -> bool:
    """A real NPU cannot load what was compiled for a newer chip, and nothing tells its number; then the compiled
    model is not known to be bad. The simulator computes for any single chip."""
    named = any("soc_model" in p.options or "htp_arch" in p.options for p in job.spec.providers)
    simulator = files.placement is None or files.placement.simulator
    return named and not simulator and not isinstance(error, HostCrashed)


def _trials(nodes: tuple[NodeInfo, ...]) -> dict[str, dict[str, Any]]:
    trials = {"ones": made_up.ones(nodes)}
    trials |= {f"random, seed {seed}": made_up.random(nodes, seed) for seed in SEEDS}
    return trials


def _run(session: RemoteSession, feeds: dict[str, Any], deadline: float | None) -> list[Any]:
    values = [(name, value, None) for name, value in feeds.items()]
    return session.run(None, values, None, timeout_s=_left(deadline), retry=0, on_deadline="kill")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _too_late(job: CompileJob, error: DeadlineExceeded) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{job.source.label} was compiled, and the time was over before the result was compared with the CPU.",
        cause="The time that was given is for both; a large model takes longest on the CPU.",
        fix="Give it more time (timeout=, --timeout), or leave the comparison out (validate=False, --no-validate); "
        "nothing was written.",
        details={**error.details, "model": job.source.label},
    )


def _unusable(job: CompileJob, error: BridgeError) -> CompileFailed:
    died = isinstance(error, (HostCrashed, ContextUnusable))
    return CompileFailed(
        f"{job.source.label} was compiled, and the result {'kills the host' if died else 'cannot be used'}.",
        cause=error.message if error.cause is None else f"{error.message} {error.cause}",
        fix="Nothing was written. To keep the result all the same, compile with validate=False (--no-validate).",
        evidence=error.evidence,
        details={"validation_error": error.code, **error.details},
    )


def _wrong_numbers(job: CompileJob, result: Validation) -> CompileFailed:
    wrong = [one for one in result.differences if one.level == "wrong"]
    return CompileFailed(
        f"{job.source.label} was compiled, and the result computes other numbers than the original on the CPU.",
        cause=f"Output {wrong[0].output!r} ({wrong[0].inputs}): {wrong[0].remark}. Allowed for {result.tolerance}.",
        fix="Look for values that 16-bit floats cannot hold (above 65504), or quantize the model anew; nothing was "
        "written. To keep the result all the same, compile with validate=False (--no-validate).",
        evidence=[f"{one.output} ({one.inputs}): {one.remark}" for one in wrong[1:4]],
        details={"validation": result.to_json()},
    )
