"""`verify_model`: compare a model on QNN with the CPU."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.engine.cpu import require_models_extra
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.runnable import check_runnable
from qnnbridge_host.graph.shapes import Dimensions, as_dimensions
from qnnbridge_host.model import optimizers
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.quantised_steps import quantised_steps
from qnnbridge_host.model.scan import refuse_scanned, scan_model
from qnnbridge_host.numerics.judge import LIMITS, NumberFormat, precision_of_operators
from qnnbridge_host.numerics.measuring import same_results
from qnnbridge_host.numerics.sampling import NOTHING_KNOWN, InputKnowledge, NamedFeeds, knowledge_of
from qnnbridge_models import progress
from qnnbridge_models.command_options import VerifyOptions
from qnnbridge_models.journals import AnswerJournal, feeds_digest, hashes_of
from qnnbridge_models.progress import OnProgress
from qnnbridge_models.verify import trying
from qnnbridge_models.verify.bisection import Cutter, DivergenceNotFound, DivergenceSearch
from qnnbridge_models.verify.trying import FixedSizes, Trial, TrialSet
from qnnbridge_models.verify.verification import (
    Divergence,
    InputSetResult,
    OutputVerdict,
    SessionCure,
    TrapFound,
    Verification,
    VerificationVerdict,
    numbers_text,
    worst_of,
)
from qnnbridge_protocol.errors import BridgeError, ModelChanged
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.shell import fix_command
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools.arguments import with_chip
from qnnbridge_tools.sessions import (
    CPU,
    NO_FINDING,
    QNN,
    ProviderSession,
    RunAnswer,
    SessionSettings,
    memory_filling,
    opened,
)

if TYPE_CHECKING:
    from qnnbridge import Host

OnRows = Callable[[Sequence[str], Sequence[str]], Callable[[InputSetResult], None]]

COMMAND = "qnnbridge verify"

# Extreme inputs for which a search for the first differing node is useful. With NaN or values beyond float16, even
# the first node of the model differs.
_WORTH_BISECTING = ("large: up to 1e4",)


def verify_model(
    source: str | os.PathLike[str],
    *,
    soc_model: str | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
    samples: Iterable[NamedFeeds] = (),
    dims: Mapping[str, int] | Dimensions | None = None,
    how: VerifyOptions | None = None,
    on_progress: OnProgress = progress.ignore,
    on_rows: OnRows | None = None,
    reference: CpuReference | None = None,
) -> Verification:
    """Run a model on QNN and on the host's CPU, and report where and why the results differ.

    A model that raises, hangs or crashes the host is a finding, not an error.

    Args:
        source: path of the model.
        soc_model: number or name of the chip; default: the host's chip.
        inputs: files with real inputs: .npz archives, or `NAME=FILE.npy`.
        samples: real inputs in memory.
        dims: sizes of free dimensions; given inputs define sizes as well.
        how: seed, extreme inputs, search, deadlines and QNN options.
        on_progress: called with the stage and its progress.
        on_rows: called with the names of all sets of inputs and of all outputs; returns a function that is then
            called with each row.
        reference: caches the CPU's results, to verify the same model on another chip.

    Returns:
        the verdict, and a row for each set of inputs.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: an option or an input is wrong.
        NoSuchFile: the model or its weights do not exist.
        InvalidProtobuf: the file is not an ONNX model.
        HostStartFailed: the host cannot be started.
        OrtError: the CPU cannot run the model.
    """
    begun = time.monotonic()
    how = how or VerifyOptions()
    path = files.existing_model(Path(source))
    # First scan without counting nodes, so that a compiled model is refused quickly.
    refuse_scanned(scan_model(path, count_nodes=False), COMMAND)
    scan = scan_model(path)
    others = files.weight_files(path, scan.external_files)
    # Do all checks that need no host before starting a host.
    given = [*trying.read_given(inputs, scan.inputs), *samples]
    sizes = trying.sizes_of(scan.inputs, as_dimensions(dims), given)
    number_format: NumberFormat = precision_of_operators(scan.ops)
    options = with_chip(how.provider_options, soc_model)
    with work_folder("verify") as folder:
        # If a session can set all sizes by name, the model need not be copied.
        model = path if sizes.all_named else _with_sizes(path, scan, sizes, Path(folder) / "sized")
        settings = SessionSettings(options, sizes.by_name if sizes.all_named else {}, how.timeout_s)
        known, nodes, constant = _known_of(path, sizes, soc_model)
        steps = quantised_steps(str(path))
        work = _Work(
            *(model, scan, given, settings, number_format, known, constant, steps, how, on_progress, on_rows),
            reference or CpuReference(),
        )
        # Hash only the contents, not the file names, because renaming a model does not change it.
        hashes = [digest for _, digest in hashes_of([path, *others])]
        what = {"model": hashes, "sizes": sizes.shown(), "options": options}
        tried = work.tried(what)
        if how.bisect and tried.worst() is not None:
            on_progress("looking for the first node that differs", 0, 0)
        divergence, node_traps, not_bisected = work.bisected(path, sizes, tried, Path(folder))
        outputs = trying.verdicts_of(tried.prepared, tried.found)
        verdict, reason = _verdict(tried, outputs)
        cure = (work.of_optimizers(tried) or work.cured(tried)) if verdict == "differs" else None
        if verdict == "differs" and (cure is None or not cure.agrees):
            cure = work.parted(tried, path, Path(folder) / "gates") or cure
    shown = {trap.name for row in tried.rows for trap in row.traps}
    return Verification(
        source=path,
        verdict=verdict,
        reason=f"{reason} {cure}" if cure is not None else reason,
        number_format=number_format,
        limits=str(LIMITS[number_format]),
        sizes=sizes.shown(),
        rows=tried.rows,
        outputs=outputs,
        given=trying.verdicts_on(tried.prepared, tried.found, ("given",)),
        placement=tried.placement,
        versions=tried.versions,
        nodes=nodes,
        divergence=divergence,
        not_bisected=not_bisected,
        # Omit traps that a row already reports with its own evidence.
        node_traps=tuple(trap for trap in node_traps if trap.name not in shown),
        error=tried.error,
        cure=cure,
        seconds=time.monotonic() - begun,
    )


def _known_of(
    path: Path, sizes: FixedSizes, soc_model: str | None
) -> tuple[InputKnowledge, int | None, frozenset[str]]:
    """Return (valid values of inputs, number of nodes that depend on inputs, outputs that depend on no input).

    The number equals that of `qnnbridge analyze`; it is None without the onnx package.
    """
    # Without onnx, only the types of the inputs are known.
    try:
        import onnx  # noqa: F401 - only checks that the package is installed
    except ImportError:
        return NOTHING_KNOWN, None, frozenset()
    from qnnbridge_models.analyze.analyzer import chip_options
    from qnnbridge_models.analyze.predict import predict_model

    model = graphs.load(path)
    shapes.fix(model, sizes.dimensions)
    check_runnable(model)
    prediction = predict_model(model, chip_options(soc_model)[2], path.parent)
    pairs = zip(prediction.view.nodes, prediction.verdicts, strict=True)
    working = [node for node, verdict in pairs if verdict.place != "folded"]
    reached = {tensor.name for node in working for tensor in node.made} | prediction.view.inputs
    return knowledge_of(model), len(working), frozenset(value.name for value in model.graph.output) - reached


@dataclasses.dataclass(frozen=True, slots=True)
class _Tried:
    """Results of the CPU and of QNN.

    Args:
        answers: QNN's results, by set of inputs.
        error: why QNN created no session.
        left_out: ONNX Runtime optimizers that the host disabled to create the session.
        repeats: set only if the CPU's results differ from run to run: true if QNN returned the same result twice.
    """

    prepared: TrialSet
    rows: tuple[InputSetResult, ...]
    answers: Mapping[str, RunAnswer]
    placement: Placement | None
    versions: Mapping[str, str]
    error: BridgeError | None = None
    left_out: tuple[str, ...] = ()
    repeats: bool | None = None

    @property
    def found(self) -> dict[str, Sequence[Any]]:
        """QNN's values by set of inputs."""
        return {name: answer.values for name, answer in self.answers.items() if answer.values is not None}

    def worst(self) -> Trial | None:
        """Return the inputs to use in the search for the first differing node; None if no search is useful."""
        by_name = {trial.name: trial for trial in self.prepared.trials}
        if self.error is not None:
            # QNN could not create a session. This does not depend on the values of the inputs, so use any set of
            # inputs.
            return next((trial for trial in self.prepared.trials if trial.feeds), None)
        bad = [row for row in self.rows if row.is_bad and by_name[row.name].expected.values is not None]
        # Prefer rows that count, then crashes, then the lowest SNR.
        for row in sorted(bad, key=lambda one: (not one.counts, not one.died, _lowest_snr(one))):
            if row.counts or row.died or row.name in _WORTH_BISECTING:
                return by_name[row.name]
        return None


def _lowest_snr(row: InputSetResult) -> float:
    worst = row.worst
    return -math.inf if worst is None or worst.snr_db is None else worst.snr_db


def _with_sizes(path: Path, scan: ModelScan, sizes: FixedSizes, folder: Path) -> Path:
    """Write a copy of the model with fixed sizes, for dimensions that a session cannot set by name.

    A session cannot set a dimension without a name, or one that shares its name with another dimension.
    """
    require_models_extra(f"For a model whose free dimensions have no unique names, {COMMAND}")
    model = graphs.load(path)
    shapes.fix(model, sizes.dimensions)
    return files.changed_copy(model, path, scan.external_files, folder)


class CpuReference:
    """Sets of inputs with the CPU's results, cached to verify the same model on another chip.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._kept: tuple[str, TrialSet] | None = None

    def answers(self, key: object, compute: Callable[[], tuple[str, TrialSet]]) -> tuple[str, TrialSet]:
        """Return the fingerprint of the model and its trials, cached or from `compute`.

        Args:
            key: everything that the answers depend on.
            compute: called if the key is not cached.
        """
        if self._kept is not None and self._key == key:
            return self._kept
        found = compute()
        # Do not cache a crash of the host, which proves nothing about the model: the next chip must run the CPU
        # again.
        if not any(trial.expected.died for trial in found[1].trials):
            self._key, self._kept = key, found
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """Runs one model on the CPU and on QNN in a host."""

    model: Path
    scan: ModelScan
    given: Sequence[NamedFeeds]
    settings: SessionSettings
    number_format: NumberFormat
    known: InputKnowledge
    constant: frozenset[str]
    steps: Mapping[str, float]
    how: VerifyOptions
    on_progress: OnProgress
    on_rows: OnRows | None
    reference: CpuReference

    def tried(self, what: Mapping[str, Any]) -> _Tried:
        """Run all sets of inputs.

        Args:
            what: everything that QNN's answers depend on, for the journal.
        """
        from qnnbridge import Host

        how = self.how
        with Host(python=how.host_python) as host:
            self.on_progress("running on the CPU", 0, 0)
            versions = dict(host.info.versions)
            original, prepared = self.reference.answers(self._cpu_key(what, versions), lambda: self._on_cpu(host))
            prepared = dataclasses.replace(prepared, constant=self.constant, steps=self.steps)
            # If the CPU's results are not repeatable, a comparison with QNN proves nothing.
            if not prepared.stable:
                return self._tried_twice(host, prepared, versions)
            self.on_progress("compiling for QNN", 0, 0)
            try:
                # The CPU's results are already in this process, so a crash of the host from here on does not lose
                # them.
                with opened(host, self.model, QNN, self.settings) as side:
                    # The sessions for the CPU and for QNN each read the file, which may have been replaced in
                    # between.
                    if side.fingerprint != original:
                        raise ModelChanged(
                            f"{self.model.name} or one of its weight files changed while it was verified.",
                            cause="QNN would run a model different from the CPU's.",
                            fix="Verify the model again when no other program writes to its files.",
                            details={"path": str(self.model)},
                        )
                    placement, left_out = side.placement, side.left_out
                    # If no node runs on QNN, the CPU would be compared with itself.
                    if placement.known and not placement.qnn_nodes:
                        return _Tried(prepared, (), {}, placement, versions)
                    # Use the versions of the host, which computes the results: another QNN release may compute
                    # different results.
                    journal = AnswerJournal({**what, "versions": versions}) if how.resume else None
                    rows, found = self._rows(side, prepared, journal, memory_filling(host, self.settings))
            # Raise ModelChanged here, so that the handler of BridgeError does not report it as an error of QNN.
            except (*NO_FINDING, ModelChanged):
                raise
            except BridgeError as error:
                return _Tried(prepared, (), {}, None, versions, error)
        # Remove the journal only after the last result, because an interrupted verification resumes from it.
        if journal is not None:
            journal.over()
        return _Tried(prepared, rows, found, placement, versions, left_out=left_out)

    def _on_cpu(self, host: Host) -> tuple[str, TrialSet]:
        with opened(host, self.model, CPU, self.settings) as side:
            return side.fingerprint, trying.prepare_trials(
                side, self.given, self.scan.ops, self.known, self.number_format, self.how
            )

    def _cpu_key(self, what: Mapping[str, Any], versions: Mapping[str, str]) -> object:
        """Return everything that the CPU's results depend on, which excludes the chip and QNN's options."""
        how = self.how
        given = [(one.name, feeds_digest(one.feeds)) for one in self.given]
        made_up = (how.seed, how.extreme, how.strict, how.timeout_s, how.host_python)
        return what["model"], what["sizes"], given, made_up, dict(versions)

    def _tried_twice(self, host: Host, prepared: TrialSet, versions: Mapping[str, str]) -> _Tried:
        """Run a model with random numbers twice on QNN and report whether the results repeat."""
        self.on_progress("running on QNN", 0, 0)
        placement: Placement | None = None
        feeds = next(trial.feeds for trial in prepared.trials if trial.expected.values is not None)
        try:
            with opened(host, self.model, QNN, self.settings) as side:
                placement = side.placement
                if placement.known and not placement.qnn_nodes:
                    return _Tried(prepared, (), {}, placement, versions)
                answers = [side.values(feeds) for _ in range(2)]
        except NO_FINDING:
            raise
        except BridgeError as error:
            return _Tried(prepared, (), {}, placement, versions, error)
        return _Tried(prepared, (), {}, placement, versions, repeats=same_results(*answers))

    def cured(self, tried: _Tried) -> SessionCure | None:
        """Run the model with the rewrites that sessions apply automatically.

        Return None if there are no such rewrites, or if the run fails.
        """
        from qnnbridge import Host

        trial = tried.worst()
        if trial is None or trial.expected.values is None or any(row.died for row in tried.rows):
            # After a crash, do not run the model again: a second crash would put the model into quarantine.
            return None
        self.on_progress("checking whether a session fixes it", 0, 0)
        try:
            with (
                Host(python=self.how.host_python) as host,
                opened(host, self.model, QNN, self.settings, cured=True) as side,
            ):
                if not side.rewritten:
                    return None
                memory_filling(host, self.settings)()
                row, _ = trying.try_on_qnn(side, trial, tried.prepared)
                rewrites = tuple(side.rewritten)
        except BridgeError:
            return None
        words = numbers_text(row.worst) if row.worst is not None else row.reason
        return SessionCure(rewrites, row.status == "agrees", words)

    def of_optimizers(self, tried: _Tried) -> SessionCure | None:
        """Find ONNX Runtime optimizers that change the results before QNN gets the model, and run QNN without them.

        Returns:
            the result without these optimizers; None if they are not the cause.
        """
        from qnnbridge import Host

        trial = tried.worst()
        if trial is None or trial.expected.values is None or any(row.died for row in tried.rows):
            return None
        self.on_progress("checking whether ONNX Runtime's optimizers are the cause", 0, 0)
        with Host(python=self.how.host_python) as host:

            def row(provider: str, disabled: Sequence[str]) -> InputSetResult | None:
                try:
                    with opened(
                        host, self.model, provider, self.settings, level="basic", disabled_optimizers=disabled
                    ) as side:
                        return trying.try_on_qnn(side, trial, tried.prepared)[0]
                except BridgeError:
                    return None

            def is_right(disabled: Sequence[str]) -> bool:
                found = row(CPU, disabled)
                return found is not None and found.status != "differs"

            names = optimizers.harmful(is_right, optimizers.BASIC_OPTIMIZERS)
            right = row(QNN, names) if names else None
        if not names or right is None:
            return None
        words = numbers_text(right.worst) if right.worst is not None else right.reason
        return SessionCure((optimizers.listed(names),), right.status == "agrees", words, by_optimizers=True)

    def parted(self, tried: _Tried, path: Path, folder: Path) -> SessionCure | None:
        """Try the rewrite that splits gates (Sigmoid and Tanh).

        Return None if the model has no gates, or if QNN still differs with the rewrite.
        """
        from qnnbridge import Host

        trial = tried.worst()
        if self.number_format != "fp16" or trial is None or trial.expected.values is None:
            return None
        if any(row.died for row in tried.rows) or not {"Sigmoid", "Tanh"} & self.scan.ops.keys():
            return None
        # Skip this check without the models extra, which the rewrite needs.
        try:
            from qnnbridge_host.rewrite.catalogue import GATES
            from qnnbridge_host.rewrite.fixer import fix_model

            folder.mkdir()
            target = folder / self.model.name
            self.on_progress("checking whether the gates are the cause", 0, 0)
            if not fix_model(self.model, target, only=[GATES]).kept:
                return None
            with (
                Host(python=self.how.host_python) as host,
                opened(host, target, QNN, self.settings) as side,
            ):
                memory_filling(host, self.settings)()
                row, _ = trying.try_on_qnn(side, trial, tried.prepared)
        except (BridgeError, ImportError, OSError):  # errors such as a full disk must not change the verdict
            return None
        if row.status != "agrees" or row.worst is None:
            return None
        command = fix_command(path, f"--only {GATES}")
        return SessionCure((GATES,), True, numbers_text(row.worst), command=command)

    def bisected(
        self, path: Path, sizes: FixedSizes, tried: _Tried, folder: Path
    ) -> tuple[Divergence | None, tuple[TrapFound, ...], str]:
        """Return (first differing node, traps, reason why the node is unknown).

        The reason is empty if no search was necessary.
        """
        trial = tried.worst()
        is_nan = trial is None and "IsNaN" in self.scan.ops
        # An IsNaN is wrong only on inputs with NaN. On these inputs all nodes differ, so examine only the IsNaN.
        if is_nan:
            differing = {row.name for row in tried.rows if row.kind == "extreme" and row.status == "differs"}
            trial = next((one for one in tried.prepared.trials if one.name in differing), None)
        if trial is None:
            return None, (), ""
        if not self.how.bisect:
            return None, (), "--no-bisect"
        try:
            import onnx  # noqa: F401 - only checks that the package is installed
        except ImportError:
            return None, (), f"the application's Python lacks the package onnx: {install_command('models')}"
        deadline = time.monotonic() + self.how.bisect_s
        # Use a separate folder: weight files are linked there, and a copy with fixed sizes has weight files with
        # the same names in `folder`.
        cuts = folder / "cuts"
        cuts.mkdir()
        try:
            model = graphs.load(path)
            shapes.fix(model, sizes.dimensions)
            answer = tried.answers.get(trial.name)
            search = DivergenceSearch(
                Cutter(model, path, self.scan.external_files, cuts),
                trial.name,
                trial.feeds,
                dataclasses.replace(self.settings, sizes={}),
                self.number_format,
                self.steps,
                self.how.host_python,
                deadline,
                # QNN's error for the whole model, raised by creating the session or by the run with these inputs.
                tried.error or (answer.error if answer is not None else None),
                tried.left_out,
            )
            if is_nan:
                return None, search.prove_at("IsNaN"), ""
            return (*search.run(), "")
        except (DivergenceNotFound, BridgeError) as error:
            # Keep the first line of the message: a BridgeError's cause and fix follow on separate lines.
            return None, (), str(error).splitlines()[0]

    def _rows(
        self,
        side: ProviderSession,
        prepared: TrialSet,
        journal: AnswerJournal | None,
        fill: Callable[[], None],
    ) -> tuple[tuple[InputSetResult, ...], dict[str, RunAnswer]]:
        """Run the sets of inputs on QNN up to the first crash: a second one would put the model into quarantine."""
        rows: list[InputSetResult] = []
        found: dict[str, RunAnswer] = {}
        names = [trial.name for trial in prepared.trials]
        report = self.on_rows(names, prepared.outputs) if self.on_rows is not None else None
        for number, trial in enumerate(prepared.trials):
            self.on_progress("running on QNN", number, len(prepared.trials))
            kept = journal.answer(trial.feeds) if journal is not None and trial.feeds else None
            # Stop after a crash on QNN. Ignore skipped rows: their host crashed on the CPU, so QNN was not tried.
            if any(row.died and row.status != "skipped" for row in rows):
                reason = "skipped after a crash"
                row = InputSetResult(trial.name, trial.kind, trial.counts, "skipped", reason=reason)
            # The journal contains only QNN's values, so compare them with the CPU's results of this run.
            elif kept is not None and trial.expected.values is not None:
                row = dataclasses.replace(trying.judged_row(trial, prepared, kept), kept=True)
                found[trial.name] = RunAnswer(kept)
            else:
                # Overwrite QNN's memory before each run. Otherwise, an output that QNN fails to write contains the
                # previous run's result, which may be correct and hide the error.
                fill()
                row, found[trial.name] = trying.try_on_qnn(side, trial, prepared)
                values = found[trial.name].values
                if journal is not None and values is not None:
                    journal.keep(trial.feeds, values)
            rows.append(row)
            if report is not None:
                report(row)
        return tuple(rows), found


# The first check that applies determines the verdict.
# 1. Was anything compared? Without a session, with random results, or with all nodes on the CPU there is no
#    verdict.
# 2. Did the host crash? A crash counts in every row, even for extreme inputs: an application with such a value
#    loses its host.
# 3. Did QNN fail where the CPU returned results? A failed row has no numbers, so the outputs' verdicts do not
#    include it.
# 4. What is the verdict on the outputs over all inputs? An output that differs decides before one that is not
#    shown.
# 5. Did a row differ that the outputs' verdicts ignore? They ignore rows that differ only because of a trap and, if
#    real inputs are given, the extreme inputs of --strict.
def _verdict(tried: _Tried, outputs: Sequence[OutputVerdict]) -> tuple[VerificationVerdict, str]:
    if tried.error is not None:
        what = "cannot create a session for the model" if tried.placement is None else "cannot run the model"
        return "failed", f"QNN {what}: {tried.error.message}"
    if tried.repeats:
        return "differs", (
            "The results of the model change with every run on the CPU, but not on QNN: QNN draws the random "
            'numbers only once. A session with fallback="cpu" runs the random operators on the CPU.'
        )
    if not tried.prepared.stable and (tried.placement is None or tried.placement.qnn_nodes):
        return "not compared", "The results of the model change with every run, on the CPU and on QNN."
    if tried.placement is not None and tried.placement.known and not tried.placement.qnn_nodes:
        cause = f": {tried.placement.cause}" if tried.placement.cause else "."
        return "not compared", f"No node of the model runs on QNN, so there is nothing to compare{cause}"
    bad = [row for row in tried.rows if row.is_bad]
    if any(row.died for row in bad):
        return "differs", "QNN crashes or hangs the host."
    failed = [row for row in bad if row.counts and row.status == "failed"]
    if failed:
        return "differs", f"QNN fails but the CPU does not, on {failed[0].name}: {failed[0].reason}"
    worst = worst_of(outputs)
    extreme = " On extreme inputs the results differ." if any(row.kind == "extreme" for row in bad) else ""
    if worst is None:
        return "not compared", "For no set of inputs did both QNN and the CPU return results."
    where = f"the worst is {worst.name}, {worst.inputs}: {worst.numbers}"
    if worst.state == "differs":
        # Without an SNR, `numbers` is the reason, so do not append the reason again.
        why = "" if worst.numbers == worst.reason else f" {worst.reason[:1].upper()}{worst.reason[1:]}."
        return "differs", f"The results of QNN and the CPU differ; {where}.{why}"
    given = sum(trial.kind == "given" for trial in tried.prepared.trials)
    strict = [row for row in bad if row.counts]
    if strict:
        # Check for differing rows before "not shown": a trap is evidence even if the numbers prove nothing.
        return "differs", f"The results of QNN and the CPU differ on {strict[0].name}."
    if worst.state == "unknown":
        open_outputs = [one.name for one in outputs if one.state == "unknown"]
        more = f"Give other inputs than the {given} given" if given else "Give real inputs"
        return "not shown", (
            f"These inputs do not show whether QNN and the CPU agree on output {', '.join(open_outputs[:3])}: "
            f"{worst.reason}. {more}: --input FILE.npz.{extreme}"
        )
    if any(row.kind == "made up" for row in bad):
        why = "real inputs are given" if given else "the model may not support their values"
        extreme = f" Made-up inputs show a difference, which is ignored because {why}.{extreme}"
    return "agrees", f"The results of QNN and the CPU agree; {where}.{extreme}"
