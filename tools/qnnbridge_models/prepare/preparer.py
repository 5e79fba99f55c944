"""`prepare_model`: the work of the command, for programs."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.bounds import refuse_large
from qnnbridge_host.graph.shapes import Dimensions, is_symbol
from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP, chip_of_this_computer
from qnnbridge_host.model.manifest import add_verdict
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.numerics.judge import badness
from qnnbridge_host.numerics.sampling import NamedFeeds
from qnnbridge_host.rewrite.catalogue import chosen
from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_models import fix as fix_report
from qnnbridge_models import journals
from qnnbridge_models.command_options import PrepareOptions, QuantizeOptions, VerifyOptions
from qnnbridge_models.journals import PrepareJournal, hashes_of, key_of
from qnnbridge_models.prepare.preparation import (
    HOST_CHIP,
    PreparedFolder,
    StepResult,
    chip_label,
    step_id,
    write_reports,
)
from qnnbridge_models.progress import ShownProgress
from qnnbridge_models.quantize import quantization
from qnnbridge_models.quantize.quantizer import quantize_model
from qnnbridge_models.quantize.samples import load
from qnnbridge_models.verify import trying
from qnnbridge_models.verify import verification as verify_report
from qnnbridge_models.verify.verifier import CpuReference, verify_model
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import (
    BridgeError,
    CallError,
    DeviceReset,
    HostError,
    HostStartFailed,
    OptionError,
    ProviderUnavailable,
    from_wire,
)
from qnnbridge_protocol.input_constants import plain_constants
from qnnbridge_protocol.model_records import NumbersReport, NumbersState, OutputNumbers
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import arguments, output
from qnnbridge_tools.arguments import input_paths, read_chip
from qnnbridge_tools.compile.compiling import variant_tag
from qnnbridge_tools.sessions import DEATHS, one_line

if TYPE_CHECKING:
    from qnnbridge import HostInfo


# --- the steps: work, dependencies and files of each; the work is that of other commands ---

# Number of the calibration samples that are verified with.
_MOST_SAMPLES = 4
MODELS = "models"
COMPILED = "compiled"


@dataclasses.dataclass(frozen=True, slots=True)
class StepWork:
    """One step.

    Args:
        went_in: all that it depends on.
        do: does it, gives the files (absolute) and the document.
        holds: whether a document is a result that another run would have as well. Others are reported, and the next
            call does the step again: a host that was killed, a timeout or a full disk says nothing about the model.
        variant: the sizes of its bucket, as text.
    """

    name: str
    chip: str | None
    went_in: Mapping[str, Any]
    do: Callable[[], tuple[list[Path], dict[str, Any]]]
    holds: Callable[[Mapping[str, Any]], bool] = lambda document: True
    variant: str = ""

    @property
    def id(self) -> str:
        return step_id(self.name, self.chip, self.variant)


def fix(
    source: Path, fingerprint: str, folder: Path, options: PrepareOptions, versions: Mapping[str, str]
) -> StepWork:
    from qnnbridge_host.create.publish import safe_stem

    tag = variant_tag(options.buckets[0]) if options.buckets else ""
    # QNN does not find a binary with ".." in its name.
    target = folder / MODELS / f"{safe_stem(source.stem + tag)}.onnx"

    def do() -> tuple[list[Path], dict[str, Any]]:
        result = fix_model(
            source,
            target,
            shapes=options.shapes,
            dims=options.dims,
            constants=options.constants,
            skip=options.skip,
            seed=options.seed,
            # The journal has decided that this step is done again.
            overwrite=True,
        )
        return list(result.files), fix_report.document(result)

    # The place of the folder is not among them: a finished folder may be moved.
    went_in = {
        "model": fingerprint,
        "shapes": {name: list(sizes) for name, sizes in options.shapes.items()},
        "dims": sorted(options.dims.by_name.items()),
        "axes": sorted((name, axis, size) for (name, axis), size in options.dims.by_axis.items()),
        "constants": plain_constants(options.constants),
        "skip": sorted(options.skip),
        "seed": options.seed,
        "versions": dict(versions),
    }
    return StepWork("fix", None, went_in, do)


def quantize(
    model: Path, model_hash: str, folder: Path, options: PrepareOptions, versions: Mapping[str, str]
) -> StepWork:
    target = folder / MODELS / f"{model.stem}_quantized.onnx"

    def do() -> tuple[list[Path], dict[str, Any]]:
        wish = QuantizeOptions(
            calibration=options.calibration,
            seed=options.seed,
            settings=options.quantizing,
            overwrite=True,
            large=True,
        )
        with ShownProgress() as progress:
            result = quantize_model(model, target, wish, on_progress=progress, own_process=True)
        return list(result.files), quantization.document(result)

    # With the versions of onnx and onnxruntime: another quantizer may make another model.
    went_in = {
        "model": model_hash,
        "calibration": hashes_of(_files_in(options.calibration)),
        "settings": dataclasses.asdict(options.quantizing),
        "seed": options.seed,
        "versions": dict(versions),
    }
    return StepWork("quantize", None, went_in, do, was_measured)


def compile_for(
    chip: str, model: Path, model_hash: str, folder: Path, options: PrepareOptions, versions: Mapping[str, str]
) -> StepWork:
    target = folder / COMPILED / folder_of(chip)

    def do() -> tuple[list[Path], dict[str, Any]]:
        import qnnbridge

        target.mkdir(parents=True, exist_ok=True)
        # It never starts: `compile` takes its settings and works in a host of its own.
        host = qnnbridge.Host(python=options.host_python) if options.host_python is not None else None
        result = qnnbridge.compile(
            model,
            target / f"{model.stem}_ctx.onnx",
            soc_model=soc_of(chip),
            provider_options=options.provider_options,
            timeout=options.timeout_s,
            overwrite=True,
            host=host,
        )
        files = [Path(name) for name in (result.path, result.blob, result.manifest) if name is not None]
        return files, result.to_json()

    # Not the timeout: it may end the step, and changes nothing about what the step makes.
    went_in = {
        "model": model_hash,
        "chip": chip,
        "options": dict(options.provider_options),
        "versions": dict(versions),
    }
    return StepWork("compile", chip, went_in, do)


def verify_on(
    chip: str,
    model: Path,
    model_hash: str,
    options: PrepareOptions,
    versions: Mapping[str, str],
    reference: CpuReference,
) -> StepWork:
    """reference: the CPU's answers, which all chips share."""
    # What was given to calibrate is as real as inputs are.
    with_samples = bool(options.calibration) and not options.inputs

    def do() -> tuple[list[Path], dict[str, Any]]:
        result = verify_model(
            model,
            soc_model=soc_of(chip),
            inputs=options.inputs,
            samples=_some_samples(model, options) if with_samples else (),
            how=VerifyOptions(
                provider_options=options.provider_options,
                seed=options.seed,
                extreme=options.extreme,
                timeout_s=options.timeout_s,
                host_python=options.host_python,
            ),
            reference=reference,
        )
        return [], verify_report.document(result)

    went_in = {
        "model": model_hash,
        "chip": chip,
        "options": dict(options.provider_options),
        # NAME=FILE says which input a file is for. The contents are hashed below.
        "inputs": [os.fspath(one) for one in options.inputs if "=" in os.fspath(one)],
        "input_files": hashes_of(input_paths(os.fspath(one) for one in options.inputs)),
        **({"samples": hashes_of(_files_in(options.calibration))} if with_samples else {}),
        "extreme": options.extreme,
        "seed": options.seed,
        "versions": dict(versions),
    }
    return StepWork("verify", chip, went_in, do, was_compared)


def was_compared(verification: Mapping[str, Any]) -> bool:
    """Return whether QNN and the CPU answered as the model makes them: no host died, no call failed.

    A death by chance and one that the model causes look the same. Verifying such a model again in each call costs
    time only; a death by chance that is kept calls a good model not ready for ever.
    """
    rows = verification.get("rows") or ()
    return not verification.get("error") and not any(row.get("died") or row["status"] == "failed" for row in rows)


def was_measured(quantized: Mapping[str, Any]) -> bool:
    """Return whether no host died, and no time ran out, where the quantised model was run on QNN."""
    error = (quantized.get("qnn") or {}).get("error")
    return not error or not isinstance(from_wire(error), (*DEATHS, HostError, CallError, DeviceReset))


def _some_samples(model: Path, options: PrepareOptions) -> list[NamedFeeds]:
    """A few of those that calibrate, from the first to the last."""
    inputs = shapes.real_inputs(graphs.load(model).graph)
    samples, _ = load(options.calibration, [shapes.declared(value) for value in inputs])
    count = min(len(samples), _MOST_SAMPLES)
    # Evenly spread, with the first and the last one.
    numbers = sorted({round(place * (len(samples) - 1) / max(1, count - 1)) for place in range(count)})
    return [NamedFeeds(f"sample {number + 1} of {len(samples)}", dict(samples[number])) for number in numbers]


def shipped_numbers(verified: StepResult) -> dict[str, Any] | None:
    """What a verification found, as the report of a session; None where nothing was compared."""
    verification = verified.document
    states: dict[str, NumbersState] = {"agrees": "agrees", "differs": "differs", "not shown": "unknown"}
    state = states.get(str(verification.get("verdict")))
    if state is None:
        return None
    outputs = [OutputNumbers.from_wire({**_numbers(one), "output": one["name"]}) for one in verification["outputs"]]
    outputs.sort(key=badness)  # the worst output first, as a session reports it
    versions = verification["versions"]
    release = versions.get("onnxruntime_qnn") or versions.get("onnxruntime-qnn") or "?"
    report = NumbersReport(
        state,
        tuple(outputs),
        f"qnnbridge prepare, onnxruntime-qnn {release}",
        "" if state == "agrees" else str(verification["reason"]),
        float(verification["seconds"]),
    )
    found: dict[str, Any] = output.jsonable(report.to_wire())
    return found


def _numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Infinities are text in a document, and no number of JSON."""
    found = {name: sys.float_info.max if value == "inf" else value for name, value in numbers.items()}
    return {**found, "reason": found.get("reason") or ""}


def soc_of(chip: str) -> str | None:
    return None if chip == HOST_CHIP else chip


def folder_of(chip: str) -> str:
    return chip if chip == HOST_CHIP else f"soc{chip}"


def _files_in(paths: Iterable[Path]) -> list[Path]:
    """The files of folders, and the others as they are."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(
                (Path(folder) / name for folder, _, names in os.walk(path) for name in names), key=os.fspath
            )
        else:
            found.append(path)
    return found


COMMAND = "qnnbridge prepare"

# Called with the title of a step when it begins (None), and with its result when it is over.
OnStep = Callable[[StepResult | None, str], None]

# Every further step would meet these errors as well, so they end the whole.
_NOT_ABOUT_THE_MODEL = (HostStartFailed, OptionError, ProviderUnavailable)


def prepare_model(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: PrepareOptions | None = None,
    on_step: OnStep = lambda result, title: None,
) -> PreparedFolder:
    """Makes a folder to ship: the model rewritten for QNN, perhaps quantised, compiled for chips, verified.

    Finished steps are kept: a call after a killed one goes on, and with other options it does again the steps that
    depend on them. A chip for which the model cannot be compiled does not stop the others.

    Args:
        source: path of the model.
        folder: the folder to make; new, empty, or the result of an earlier call with this model.
        options: sizes, chips, samples and inputs.
        on_step: called at the beginning and the end of each step.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: an option or the folder is wrong.
        Busy: another process works in the folder.
        HostStartFailed: there is no host.
        ModelError: a rewrite or the quantisation failed.
    """
    begun = time.monotonic()
    options = options or PrepareOptions()
    path = files.existing_model(Path(source))
    # Before any work: some files of the folder are removed below.
    _refuse_inside(path, Path(folder))
    # All that can be refused without a host is refused before one is started.
    fingerprint, options = _checked(path, options)
    info = _host_info(options)
    chips, notes = _chips(options, info)
    with journals.opened(Path(folder), path.name) as journal:
        steps = _Steps(journal, on_step)
        models = []
        for one in _per_bucket(options):
            steps.variant = ", ".join(f"{name}={size}" for sizes in one.buckets for name, size in sizes.items())
            models.append(_made(steps, path, fingerprint, one, dict(info.versions)))
            _for_chips(steps, chips, models[-1], one, info)
        # When all steps are known: a folder keeps what the options of this call ask for.
        journal.keep_only(steps.ids)
        verdict, ready = _verdict(steps.results)
        prepared = PreparedFolder(
            source=path,
            source_sha256=fingerprint,
            folder=Path(folder),
            model=models[0].relative_to(journal.folder).as_posix(),
            steps=tuple(steps.results),
            verdict=verdict,
            ready=ready,
            notes=notes,
            versions={key: str(value) for key, value in sorted(info.versions.items()) if value},
            seconds=time.monotonic() - begun,
            package=options.package,
        )
        # Last: these files say that all is there.
        write_reports(prepared, journal)
    return prepared


class _Steps:
    """Does steps, or finds them done, and keeps what came of them. variant: the bucket whose steps are done."""

    def __init__(self, journal: PrepareJournal, on_step: OnStep) -> None:
        self.journal = journal
        self.results: list[StepResult] = []
        self.ids: list[str] = []
        self.variant = ""
        self._on_step = on_step

    def do(self, work: StepWork, *, may_fail: bool = False) -> StepResult:
        """may_fail: an error about the model is the result of this step and not the end of all of them."""
        work = dataclasses.replace(work, variant=self.variant)
        self.ids.append(work.id)
        key = key_of(work.name, **work.went_in)
        entry = self.journal.finished(work.id, key)
        # Journals of earlier versions also have results that do not hold.
        if entry is not None and work.holds(entry.document):
            names = tuple(record.name for record in entry.files)
            return self._reported(
                StepResult(work.name, "kept", work.chip, names, entry.document, "", entry.seconds)
            )
        self._on_step(None, StepResult(work.name, "done", work.chip, variant=self.variant).title)
        self.journal.begin(work.id)
        begun = time.monotonic()
        try:
            made, document = work.do()
        except _NOT_ABOUT_THE_MODEL:
            raise
        except BridgeError as error:
            if not may_fail:
                raise
            document, seconds = {"error": error.to_wire()}, time.monotonic() - begun
            return self._reported(
                StepResult(work.name, "failed", work.chip, (), document, one_line(error), seconds)
            )
        seconds = time.monotonic() - begun
        # Both paths are resolved: one of them may name the folder through a link.
        root = self.journal.folder.resolve()
        names = tuple(path.resolve().relative_to(root).as_posix() for path in made)
        document = output.jsonable(document)
        if work.holds(document):
            self.journal.finish(work.id, key, names, document, seconds)
        elif names:
            # For its files alone. No step has an empty key, so the next call does it again.
            self.journal.finish(work.id, "", names, {}, seconds)
        return self._reported(StepResult(work.name, "done", work.chip, names, document, "", seconds))

    def skip(self, name: str, chip: str, problem: str) -> None:
        self._reported(StepResult(name, "skipped", chip, problem=problem))

    def ship_verdict(self, compiled: StepResult, verified: StepResult) -> None:
        """A session of the compiled model says what was found here: its manifest holds it."""
        if compiled.state not in ("done", "kept") or not was_compared(verified.document):
            return
        numbers = shipped_numbers(verified)
        if numbers is None:
            return
        folder = self.journal.folder
        if add_verdict(folder / compiled.files[0], numbers):
            self.journal.look_again(compiled.id)

    def _reported(self, result: StepResult) -> StepResult:
        result = dataclasses.replace(result, variant=self.variant)
        self.results.append(result)
        self._on_step(result, result.title)
        return result


def _made(
    steps: _Steps, path: Path, fingerprint: str, options: PrepareOptions, versions: Mapping[str, str]
) -> Path:
    """The model to compile: rewritten, and quantised on request."""
    folder = steps.journal.folder
    own = _own_versions()
    fixed = steps.do(fix(path, fingerprint, folder, options, own))
    model = folder / fixed.files[0]
    if options.quantize:
        hashed = _hash_of(folder, fixed)
        quantized = steps.do(quantize(model, hashed, folder, options, own))
        model = folder / quantized.files[0]
    return model


def _per_bucket(options: PrepareOptions) -> list[PrepareOptions]:
    """The options for each bucket, with its sizes among the dimensions."""
    if not options.buckets:
        return [options]
    return [
        dataclasses.replace(
            options,
            buckets=(sizes,),
            dims=Dimensions({**options.dims.by_name, **sizes}, dict(options.dims.by_axis)),
        )
        for sizes in options.buckets
    ]


def _for_chips(steps: _Steps, chips: list[str], model: Path, options: PrepareOptions, info: HostInfo) -> None:
    folder = steps.journal.folder
    # The step before made `model`: it is `fix`, or `quantize`.
    hashed = _hash_of(folder, steps.results[-1])
    # The host's, since it compiles and runs: packages of this process change nothing there.
    versions = {**{key: str(value) for key, value in info.versions.items()}, "qnnbridge": info.qnnbridge}
    compiled = {
        chip: steps.do(compile_for(chip, model, hashed, folder, options, versions), may_fail=True) for chip in chips
    }
    reference = CpuReference()
    for chip in chips:
        problem = _not_this_chip(chip, info)
        if problem:
            steps.skip("verify", chip, problem)
        else:
            # Also where compiling failed: the verification makes a session of its own, from `model`.
            verified = steps.do(verify_on(chip, model, hashed, options, versions, reference), may_fail=True)
            steps.ship_verdict(compiled[chip], verified)


def _checked(path: Path, options: PrepareOptions) -> tuple[str, PrepareOptions]:
    """The hash of the model with its weights, and the options with all sizes; refuses all it can without a host."""
    scan = files.given_model(path, COMMAND, count_nodes=True).scan
    if not options.large:
        refuse_large(scan.node_count, path.name, COMMAND, "hours")
    # Only to refuse unknown names.
    chosen((), options.skip)
    if options.quantize and len(options.buckets) > 1:
        raise OptionError(
            "A model is quantised for one size.",
            cause="The calibration samples have the sizes of one bucket.",
            fix="Call prepare for each size, each with samples and a folder of its own.",
        )
    if options.buckets and options.inputs:
        raise OptionError(
            "Real inputs have one size, and --bucket several.",
            fix="Leave --input away, or prepare one size: --dim.",
        )
    arguments.refuse_unknown([scan], Dimensions(dict(options.buckets[0]) if options.buckets else {}))
    if options.quantize != bool(options.calibration):
        missing = "--calibration" if options.quantize else "--quantize"
        raise OptionError(
            f"{'--quantize' if options.quantize else '--calibration'} needs {missing}.",
            cause="A model is quantised by what it computes of real samples.",
            fix="Give both: --quantize --calibration FOLDER, with an .npz file for each sample.",
        )
    for one in options.calibration:
        if not one.exists():
            raise OptionError(f"There is no {one} to calibrate with.")
    # An input that becomes a constant needs no size.
    inputs = [node for node in scan.inputs if node.name not in options.constants]
    # The first bucket stands for all: every bucket gives sizes to the same dimensions.
    said = _said(_per_bucket(options)[0], inputs)
    sizes = trying.sizes_of(inputs, said, trying.read_given(options.inputs, inputs))
    # With buckets only what was given: `sizes` has those of the first bucket in it.
    dims = Dimensions(
        {**(sizes.by_name if sizes.all_named and not options.buckets else {}), **options.dims.by_name},
        {**({} if sizes.all_named or options.buckets else sizes.by_axis), **options.dims.by_axis},
    )
    return ModelSource.open(path).fingerprint, dataclasses.replace(options, dims=dims)


def _refuse_inside(path: Path, folder: Path) -> None:
    """Files of the folder are replaced and removed; the original must not be one of them."""
    if folder.resolve() in path.resolve().parents:
        raise OptionError(
            f"{path} is inside of {folder}, whose files are replaced.",
            fix="Give a folder in which the model does not lie: -o FOLDER.",
        )


def _said(options: PrepareOptions, inputs: list[NodeInfo]) -> Dimensions:
    """The sizes of --dim and --shape together. `fix` checks both against each other and against the model."""
    by_name, by_axis = dict(options.dims.by_name), dict(options.dims.by_axis)
    declared = {node.name: node.shape or () for node in inputs}
    for name, sizes in options.shapes.items():
        for axis, size in enumerate(sizes):
            if size is None or axis >= len(declared.get(name, ())):
                continue
            by_axis.setdefault((name, axis), size)
            symbol = declared[name][axis]
            if isinstance(symbol, str) and is_symbol(symbol):
                by_name.setdefault(symbol, size)
    return Dimensions(by_name, by_axis)


def _host_info(options: PrepareOptions) -> HostInfo:
    from qnnbridge import Host

    with Host(python=options.host_python) as host:
        return host.info


def _chips(options: PrepareOptions, info: HostInfo) -> tuple[list[str], tuple[str, ...]]:
    """The chips by their numbers, and remarks about them.

    Without a chip QNN computes float models in full precision on the simulator, and compiles some for minutes.
    """
    # By number: 60 and SC8380XP are one chip, which is compiled for once.
    named = list(dict.fromkeys(str(read_chip(chip)) for chip in options.soc_models))
    if named:
        return named, ()
    if info.simulator:
        chip = str(DEFAULT_SIMULATED_CHIP)
        return [chip], (f"No chip was named: prepared for {chip_label(chip)}. Name others with --soc-model.",)
    here = chip_of_this_computer()
    if here is not None:
        return [str(here.number)], (f"No chip was named: prepared for this computer's, {here.label}.",)
    return [HOST_CHIP], ("No chip was named: prepared for the chip of the host; others may refuse it.",)


def _not_this_chip(chip: str, info: HostInfo) -> str:
    """The reason why the chip cannot be run here; empty if it can."""
    here = chip_of_this_computer()
    if info.simulator or here is None or chip in (HOST_CHIP, str(here.number)):
        return ""
    return f"this computer's chip is {here.label}: verify it on a machine with that chip"


def _verdict(results: list[StepResult]) -> tuple[str, bool]:
    failed = [step for step in results if step.state == "failed"]
    if failed:
        return f"Not ready: {failed[0].title} failed. {failed[0].problem}", False
    for step in results:
        if step.name == "quantize" and not step.document.get("good_enough", True):
            # A quantised model that is no good is compiled and verified all the same, and decides here.
            warning = next((one for one in step.document.get("warnings", ()) if "Output" in one), "")
            return f"Not ready: the quantised model is {step.document['verdict']}. {warning}", False
        state = step.document.get("verdict") if step.name == "verify" and step.state != "skipped" else None
        if state not in (None, "agrees", "not shown"):
            return f"Not ready for {chip_label(step.chip)}: {step.document.get('reason')}", False
    unshown = [step for step in results if step.name == "verify" and step.document.get("verdict") == "not shown"]
    if unshown:
        return f"Compiled, and not shown to be right: {unshown[0].document.get('reason')}", True
    if any(step.state == "skipped" for step in results):
        return "Compiled, and not verified for every chip.", True
    extremes = any(
        row["status"] == "differs"
        for step in results
        for row in step.document.get("rows", ())
        if step.name == "verify"
    )
    more = " Extreme inputs show the limits of QNN." if extremes else ""
    return f"Ready: compiled, and QNN computes what the CPU does.{more}", True


def _hash_of(folder: Path, step: StepResult) -> str:
    return key_of("files", files=hashes_of(folder / name for name in step.files))


def _own_versions() -> dict[str, str]:
    """Of what rewrites and quantises, in this process."""
    import onnx
    import onnxruntime

    return {"qnnbridge": __version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
