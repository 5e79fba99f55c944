"""`fix_model`: the function behind `qnnbridge fix`. A rewrite that changes a result is undone."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import files, graphs
from qnnbridge_host.graph import shapes as model_shapes
from qnnbridge_host.graph.bounds import MANY_NODES
from qnnbridge_host.graph.model_index import Editor
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.numerics.comparing import ModelCheck, Reference, evidence, is_random, tolerance_of
from qnnbridge_host.numerics.sampling import masks_as_used
from qnnbridge_host.rewrite.catalogue import FIXED_SHAPES, MASKS, Rewrite, chosen
from qnnbridge_host.rewrite.constants import fix_inputs, fix_values
from qnnbridge_protocol.errors import BridgeError, ModelError, OptionError, OrtError
from qnnbridge_protocol.input_constants import plain_constants
from qnnbridge_protocol.shown import Shown, more

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

COMMAND = "qnnbridge fix"


# --- applying rewrites to a model ------------------------------------------------------------------------


# A rewrite changes the model in place. The changed model is written to the candidate's file, loaded, and compared
# with the original. The rewrite is kept if the results agree within the largest tolerance of all rewrites so far.
# If not, the model is restored from the bytes after the last kept rewrite. Sizes are requested by the user and
# never undone: if the results differ with these sizes, the run fails. A model that does not load with the sizes may
# load after a later rewrite.
class RewriteRun:
    """Application of rewrites to a model: each rewrite is checked, and undone if it changes a result.

    Args:
        model: the model, which is changed in place.
        source: the original model's file.
        output: the files of the result.
        candidate: path of the file for the changed model, in a folder with its weight files; the model is loaded
            from there.
        seed: seed of the generated inputs for the checks; ``None`` to disable the checks.
        right_here: rows of the known-wrong table that are not rewritten.
    """

    def __init__(
        self,
        model: Any,
        source: Path,
        output: files.Output,
        candidate: Path,
        seed: int | None,
        right_here: Collection[str] = (),
    ) -> None:
        self.model = model
        self._right_here = right_here
        self._source = source
        self._output = output
        self._candidate = candidate
        self._seed = seed
        ops = graphs.count_ops(model)
        self._tolerance, self._random = tolerance_of(model, ops), is_random(ops)
        # The largest tolerance of the kept rewrites.
        self._allowed = 0.0
        self._reference: Reference | None = None
        self._broken = ""
        # The model after the last kept rewrite, and the model under test. Without checks rewrites are not undone,
        # so these copies are not needed.
        self._kept = self._now = model.SerializeToString() if seed is not None else b""
        # Whether ONNX Runtime has loaded the kept model; True for the original.
        self._loads = True
        # The index of the current model. If a rewrite changes nothing, the next rewrite uses the same index.
        self._editor: Editor | None = None
        self._decided = Dimensions()
        self._constants: Mapping[str, Any] = {}
        self._values: dict[str, Any] = {}

    @property
    def types(self) -> Mapping[str, graphs.TensorType]:
        """Types of the current model's tensors."""
        if self._editor is None:
            self._editor = Editor(self.model, self._source.parent, self._right_here)
        return self._editor.types

    def do(self, wanted: Iterable[Rewrite], decided: Dimensions, constants: Mapping[str, Any]) -> list[RewriteStep]:
        """Apply rewrites and return the steps that changed something.

        Args:
            wanted: the rewrites, in their order.
            decided: sizes of free dimensions.
            constants: values of the inputs that become constants.
        """
        self._decided, self._constants = decided, constants
        return [step for rewrite in wanted if (step := self._one(rewrite)) is not None]

    def write(self, *, external: bool) -> None:
        """Write the result to the work folder. Raise `ModelError` if ONNX Runtime cannot load it.

        external: whether to write the weights to a separate file.
        """
        import onnx

        if external:
            graphs.load_weights(self.model, self._source.parent)
            onnx.save_model(
                self.model,
                os.fspath(self._output.model),
                save_as_external_data=True,
                location=self._output.data_name,
            )
            # Read the model again without its weights, which are in a separate file after writing.
            self.model = graphs.load(self._output.model)
        else:
            onnx.save_model(self.model, os.fspath(self._output.model))
        # Without external data, the last check has loaded exactly the bytes of this file.
        problem = load_problem(self._output.model) if external or not self._loads else None
        # If the original does not load either, the rewrites are not at fault.
        if not problem or load_problem(self._source) is not None:
            return
        # Load both models with optimization, as sessions do: after folding constants, ONNX Runtime detects more
        # sizes that do not match.
        of_original = load_problem(self._source, optimize=True)
        if of_original is not None:
            raise ModelError(
                f"{self._source.name} cannot be loaded by ONNX Runtime, before the rewrites and after them. "
                "Nothing was written.",
                cause=of_original,
                fix="Export the model again, with another exporter or opset: its nodes contradict each other.",
            )
        raise ModelError(
            f"{self._source.name} cannot be loaded any more after the rewrites. Nothing was written.",
            cause=problem,
            fix="Check the sizes; exclude rewrites with --skip to find the rewrite at fault.",
        )

    def _one(self, rewrite: Rewrite) -> RewriteStep | None:
        editor = self._editor or Editor(self.model, self._source.parent, self._right_here)
        sizing = rewrite.name == FIXED_SHAPES
        changes = tuple(self._sized(editor) if sizing else rewrite.apply(editor))
        # The index of a changed model is outdated; the index of an unchanged model is reused for the next rewrite.
        self._editor = None if changes else editor
        if not changes:
            return None
        try:
            # Keep the largest tolerance: each check compares with the original, so an allowed difference occurs in
            # all later checks.
            checked = self._checked(max(self._allowed, rewrite.tolerance))
        except OrtError as error:
            if sizing or self._broken:
                # Keep the sizes: an untaken branch may be invalid with them; a later rewrite removes the branch.
                self._broken = error.cause or error.message
                self._kept, self._loads = self._now, False
                return RewriteStep(
                    rewrite.name, changes, ModelCheck(False, reason=f"the model does not load yet ({self._broken})")
                )
            return self._taken_back(RewriteStep(rewrite.name, changes, reason=error.cause or error.message))
        self._broken = ""
        if rewrite.name == MASKS and checked is not None and not checked.agrees:
            # Generated masks of random zeros can mask all values in some rows; the results of such rows are
            # arbitrary.
            checked = self._checked(self._allowed, as_used=True)
            if checked is not None and checked.agrees:
                changes = (
                    *changes,
                    "the values of rows in which all elements are masked have changed; these values are arbitrary",
                )
        if checked is None or checked.agrees:
            self._kept, self._loads = self._now, checked is not None and checked.compared
            self._allowed = max(self._allowed, rewrite.tolerance)
            return RewriteStep(rewrite.name, changes, checked)
        if sizing:
            raise ModelError(
                f"{self._source.name} computes different results with these sizes fixed.",
                cause="A size of an input contradicts the sizes inside of the model.",
                evidence=evidence(checked),
                fix="Give the sizes with which the model is used.",
            )
        return self._taken_back(RewriteStep(rewrite.name, changes, checked, reason="the results differed"))

    def _sized(self, editor: Editor) -> list[str]:
        changes = fix_inputs(editor, self._decided)
        more, self._values = fix_values(editor, self._constants)
        return changes + more

    def _taken_back(self, step: RewriteStep) -> RewriteStep:
        # Rewrites change the model in place, so restore it from the bytes of the last kept state.
        restored = type(self.model)()
        restored.ParseFromString(self._kept)
        self.model = restored
        return dataclasses.replace(step, kept=False)

    def _checked(self, allowed: float, *, as_used: bool = False) -> ModelCheck | None:
        """Compare the current model with the original. Return ``None`` if checks are disabled.

        allowed: largest relative difference. as_used: whether to use only realistic masks, which do not mask a
            complete row.
        """
        if self._seed is None:
            return None
        # Create the reference once, when it is first needed.
        reference = self._reference if not as_used else None
        if reference is None:
            inputs = model_shapes.real_inputs(self.model.graph)
            declared = [model_shapes.declared(value) for value in inputs]
            reference = Reference(
                lambda: cpu.open_session(self._source, "the original", cpu.silent_options()),
                tolerance=self._tolerance,
                seed=self._seed,
                declared=declared,
                constants=self._values,
                random=self._random,
                changed=masks_as_used if as_used else None,
            )
            if not as_used:
                self._reference = reference
        self._now = self.model.SerializeToString()
        self._candidate.write_bytes(self._now)
        return reference.check(
            lambda: cpu.open_session(self._candidate, "the rewritten model", cpu.silent_options()), allowed
        )


def load_problem(model: Path, *, optimize: bool = False) -> str | None:
    """Return why ONNX Runtime cannot load a model; ``None`` if it can. optimize: whether to fold constants
    first."""
    try:
        cpu.open_session(model, "the model", cpu.silent_options(optimize=optimize))
    except BridgeError as error:
        return error.cause or error.message
    return None


def fix_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    shapes: model_shapes.Shapes | None = None,
    dims: Mapping[str, int] | Dimensions | None = None,
    constants: Mapping[str, Any] | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    check: bool = True,
    seed: int = 0,
    overwrite: bool = False,
    right_here: Collection[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> FixResult:
    """Rewrite a model so that QNN supports more of it, and write the result to `target`.

    The original is never changed. A rewrite that changes what the model computes is undone, and reported in the
    result.

    Args:
        source: path of the model.
        target: path of the result.
        shapes: all sizes of an input, `{"x": [1, 3, 48, 192]}`.
        dims: sizes by name or by `"x:2"`.
        constants: inputs that become a number or a small tensor, `{"sr": 16000, "size": [480, 640]}`.
        only: names of the rewrites to apply; default: all.
        skip: rewrites to exclude, by name.
        check: whether to compare with the original after each rewrite.
        seed: seed of the generated inputs.
        overwrite: whether to replace an existing target.
        right_here: rows of the known-wrong table that are not rewritten, because QNN's measured results are right.
        on_progress: called with the name of the stage for a model of many nodes.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: a size, a rewrite's name or the target is wrong.
        InvalidProtobuf: the file is not a model.
        ModelError: ONNX Runtime cannot load the result.
    """
    begun = time.perf_counter()
    wanted = chosen(only, skip)
    given_constants = _readable(constants or {})
    given = files.given_model(source, COMMAND)
    model_path, target_path, external = given.path, Path(target), given.needs_external_data
    with files.Output(
        model_path, target_path, overwrite=overwrite, source_files=given.weights, external=external
    ) as output:
        model = graphs.load(model_path)
        if len(model.graph.node) > MANY_NODES:
            on_progress(f"rewriting {len(model.graph.node):,} nodes", 0, 0)
        before = graphs.count_ops(model)
        decided = model_shapes.decide(model.graph, shapes or {}, model_shapes.as_dimensions(dims))
        given_sizes = decided.by_name or decided.by_axis or given_constants
        if given_sizes and all(rewrite.name != FIXED_SHAPES for rewrite in wanted):
            raise OptionError(
                f'Sizes are given, but the rewrite "{FIXED_SHAPES}", which sets the sizes, is excluded.',
                fix=f"Add --only {FIXED_SHAPES}, or remove the sizes.",
            )
        work = RewriteRun(
            model,
            model_path,
            output,
            output.candidate(model_path, given.scan.external_files),
            seed if check else None,
            right_here,
        )
        # Refuse models that could use all memory or run forever, because the model is run here.
        if check:
            check_runnable(model, work.types)
        steps = work.do(wanted, decided, given_constants)
        work.write(external=external)
        written = output.commit()
    return FixResult(
        model_path,
        target_path,
        written,
        {one.name: model_shapes.dims_of(one) for one in model_shapes.real_inputs(work.model.graph)},
        tuple(steps),
        before,
        graphs.count_ops(work.model),
        tuple(_warnings_about(work.model, steps)),
        time.perf_counter() - begun,
    )


def _readable(constants: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return plain_constants(constants)
    except (TypeError, ValueError) as error:
        raise OptionError(
            "The constants are not numbers or small tensors of numbers.",
            cause=f"{error}.",
            fix='Give a constant for each input name: {"sr": 16000, "size": [480, 640]}.',
        ) from None


def _warnings_about(model: Any, steps: list[RewriteStep]) -> list[str]:
    warnings = [f'Rewrite "{step.rewrite}" was taken back: {step.reason}.' for step in steps if not step.kept]
    free = model_shapes.free_dimensions(model.graph)
    if free:
        warnings.append(
            "Some inputs have free dimensions, but QNN needs fixed sizes. Set the sizes with: "
            f"{model_shapes.options_text(free)}"
        )
    return warnings


@dataclasses.dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rewrite that changed something.

    Args:
        rewrite: the rewrite's name.
        changes: descriptions of the changes.
        check: comparison with the original; ``None`` with --no-check.
        kept: False if the rewrite was undone, because the model computed different results or did not load.
        reason: why the rewrite was undone.
    """

    rewrite: str
    changes: tuple[str, ...]
    check: ModelCheck | None = None
    kept: bool = True
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class FixResult(Shown):
    """The result of `fix_model`.

    Args:
        source: the original model.
        target: the path of the result.
        files: the files that were written, beginning with the model.
        shapes: the shapes of the result's inputs.
        steps: the rewrites that changed something, including undone ones.
        nodes_before, nodes_after: number of nodes by operator.
        warnings: messages for the user.
        seconds: duration.
    """

    source: Path
    target: Path
    files: tuple[Path, ...]
    shapes: Mapping[str, tuple[int | str | None, ...] | None]
    steps: tuple[RewriteStep, ...]
    nodes_before: Mapping[str, int]
    nodes_after: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def _shown_name(self) -> str:
        return self.target.name

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{len(self.kept)} {'rewrite' if len(self.kept) == 1 else 'rewrites'}", ""
        yield f"{sum(self.nodes_before.values())} -> {sum(self.nodes_after.values())} nodes in the file", ""
        for step in self.steps:
            yield from more(step.changes if step.kept else [f"{step.rewrite} was taken back: {step.reason}"])
        yield from more(self.warnings)

    @property
    def kept(self) -> tuple[RewriteStep, ...]:
        """Steps that were kept."""
        return tuple(step for step in self.steps if step.kept)
