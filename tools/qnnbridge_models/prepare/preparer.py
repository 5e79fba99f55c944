"""`prepare_model`: create a folder with a model that is ready to ship."""

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
from qnnbridge_os.missing import why_missing
from qnnbridge_os.outputs import check_folder
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


# --- steps of `prepare`: actions, dependencies and files; functions of other commands do the work ---

# Maximum number of calibration samples used as inputs of the verification.
_MOST_SAMPLES = 4
MODELS = "models"
COMPILED = "compiled"


@dataclasses.dataclass(frozen=True, slots=True)
class StepWork:
    """One step of `prepare`.

    Args:
        name: name of the step.
        chip: chip of the step, if it runs for each chip.
        went_in: everything that the step's result depends on.
        do: function that runs the step and returns (absolute paths of the files, document).
        holds: function that returns whether a result may be kept. A crashed host, a timeout or a full disk proves
            nothing about the model: such a result is reported, but the next call runs the step again.
        variant: sizes of the step's bucket, as text.
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
    # Remove ".." from the name, because QNN cannot open a binary whose name contains it.
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
            # A step runs only if its recorded result is invalid, so its old files may be replaced.
            overwrite=True,
        )
        return list(result.files), fix_report.document(result)

    # The folder's path is not a dependency, because a finished folder may be moved.
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
        quantize_options = QuantizeOptions(
            calibration=options.calibration,
            seed=options.seed,
            settings=options.quantizing,
            overwrite=True,
            large=True,
        )
        with ShownProgress() as progress:
            result = quantize_model(model, target, quantize_options, on_progress=progress, own_process=True)
        return list(result.files), quantization.document(result)

    # Include the versions of onnx and onnxruntime, because another quantizer version may write a different model.
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
        # Create a host only to pass its settings: it never starts, because `compile` starts a separate host.
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

    # The timeout is not a dependency: it may abort the step, but does not affect its result.
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
    """Return the step that verifies the model on one chip.

    Args:
        reference: the CPU's results, which all chips share.
    """
    # Use calibration samples as real inputs if no others are given.
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
        # Include NAME=FILE values: a file gives other results for another input. Its contents are hashed below.
        "inputs": [os.fspath(one) for one in options.inputs if "=" in os.fspath(one)],
        "input_files": hashes_of(input_paths(os.fspath(one) for one in options.inputs)),
        **({"samples": hashes_of(_files_in(options.calibration))} if with_samples else {}),
        "extreme": options.extreme,
        "seed": options.seed,
        "versions": dict(versions),
    }
    return StepWork("verify", chip, went_in, do, was_compared)


def was_compared(verification: Mapping[str, Any]) -> bool:
    """Return whether QNN and the CPU completed all calls: no host crashed and no call failed.

    A random crash and a crash caused by the model look the same. Repeating the verification in the next call only
    costs time, but a stored random crash would mark a good model as not ready forever.
    """
    rows = verification.get("rows") or ()
    return not verification.get("error") and not any(row.get("died") or row["status"] == "failed" for row in rows)


def was_measured(quantized: Mapping[str, Any]) -> bool:
    """Return whether the check on QNN ended without a crash of the host or a timeout."""
    error = (quantized.get("qnn") or {}).get("error")
    return not error or not isinstance(from_wire(error), (*DEATHS, HostError, CallError, DeviceReset))


def _some_samples(model: Path, options: PrepareOptions) -> list[NamedFeeds]:
    """Return a few calibration samples, evenly spread."""
    inputs = shapes.real_inputs(graphs.load(model).graph)
    samples, _ = load(options.calibration, [shapes.declared(value) for value in inputs])
    count = min(len(samples), _MOST_SAMPLES)
    # Include the first and the last sample.
    numbers = sorted({round(place * (len(samples) - 1) / max(1, count - 1)) for place in range(count)})
    return [NamedFeeds(f"sample {number + 1} of {len(samples)}", dict(samples[number])) for number in numbers]


def shipped_numbers(verified: StepResult) -> dict[str, Any] | None:
    """Return the result of a verification as a session reports it; None if nothing was compared."""
    verification = verified.document
    states: dict[str, NumbersState] = {"agrees": "agrees", "differs": "differs", "not shown": "unknown"}
    state = states.get(str(verification.get("verdict")))
    if state is None:
        return None
    outputs = [OutputNumbers.from_wire({**_numbers(one), "output": one["name"]}) for one in verification["outputs"]]
    outputs.sort(key=badness)  # a session reports the worst output first
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
    """Replace "inf", which stands for infinity in documents, by the largest float."""
    found = {name: sys.float_info.max if value == "inf" else value for name, value in numbers.items()}
    return {**found, "reason": found.get("reason") or ""}


def soc_of(chip: str) -> str | None:
    return None if chip == HOST_CHIP else chip


def folder_of(chip: str) -> str:
    return chip if chip == HOST_CHIP else f"soc{chip}"


def _files_in(paths: Iterable[Path]) -> list[Path]:
    """Return the files inside given folders, and all other paths unchanged."""
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

# Callback: called with (None, title) when a step begins, and with (result, title) when it ends.
OnStep = Callable[[StepResult | None, str], None]

# Errors that are not about the model; they end the call, because all further steps would raise them as well.
_NOT_ABOUT_THE_MODEL = (HostStartFailed, OptionError, ProviderUnavailable)


def prepare_model(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: PrepareOptions | None = None,
    on_step: OnStep = lambda result, title: None,
) -> PreparedFolder:
    """Create a folder to ship: the model rewritten for QNN, optionally quantised, compiled for chips, and verified.

    Finished steps are kept: a call after an interruption resumes, and a call with other options repeats the steps
    that depend on them. If compiling for one chip fails, the other chips are still processed.

    Args:
        folder: folder to create; new, empty, or the result of an earlier call with this model.
        options: sizes, chips, samples and inputs.
        on_step: called at the beginning and the end of each step.

    Raises:
        CompiledModelRefused: the model is compiled.
        OptionError: an option or the folder is wrong.
        Busy: another process uses the folder.
        HostStartFailed: the host cannot be started.
        ModelError: a rewrite or the quantisation failed.
    """
    begun = time.monotonic()
    options = options or PrepareOptions()
    path = files.existing_model(Path(source))
    # Check the model's location first, because files in the folder are removed below.
    _refuse_inside(path, Path(folder))
    check_folder(folder, folder)
    journals.refuse_other_files(Path(folder))
    # Do all checks that need no host before starting a host.
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
        # Once all steps are known, remove the files of other steps, so that the folder only contains results of
        # this call's options.
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
        # Write the reports last, because they mark the folder as complete.
        write_reports(prepared, journal)
    return prepared


class _Steps:
    """Runs steps or reuses finished ones, and collects the results.

    `variant` is the bucket of the steps that are running.
    """

    def __init__(self, journal: PrepareJournal, on_step: OnStep) -> None:
        self.journal = journal
        self.results: list[StepResult] = []
        self.ids: list[str] = []
        self.variant = ""
        self._on_step = on_step

    def do(self, work: StepWork, *, may_fail: bool = False) -> StepResult:
        """Run a step, or return its stored result.

        Args:
            work: the step.
            may_fail: if true, an error about the model is stored as the step's result instead of ending the call.
        """
        work = dataclasses.replace(work, variant=self.variant)
        self.ids.append(work.id)
        key = key_of(work.name, **work.went_in)
        entry = self.journal.finished(work.id, key)
        # Check the document as well: journals of earlier versions contain results that must not be kept.
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
        # Resolve both paths, because one of them may contain a link.
        root = self.journal.folder.resolve()
        names = tuple(path.resolve().relative_to(root).as_posix() for path in made)
        document = output.jsonable(document)
        if work.holds(document):
            self.journal.finish(work.id, key, names, document, seconds)
        elif names:
            # Record the files with an empty key, which never matches, so that the next call runs the step again.
            self.journal.finish(work.id, "", names, {}, seconds)
        return self._reported(StepResult(work.name, "done", work.chip, names, document, "", seconds))

    def skip(self, name: str, chip: str, problem: str) -> None:
        self._reported(StepResult(name, "skipped", chip, problem=problem))

    def ship_verdict(self, compiled: StepResult, verified: StepResult) -> None:
        """Store the verification result in the compiled model's manifest, so that its sessions report it."""
        if compiled.state not in ("done", "kept") or not was_compared(verified.document):
            return
        numbers = shipped_numbers(verified)
        if numbers is None:
            return
        folder = self.journal.folder
        if add_verdict(folder / compiled.files[0], numbers):
            self.journal.record_again(compiled.id)

    def _reported(self, result: StepResult) -> StepResult:
        result = dataclasses.replace(result, variant=self.variant)
        self.results.append(result)
        self._on_step(result, result.title)
        return result


def _made(
    steps: _Steps, path: Path, fingerprint: str, options: PrepareOptions, versions: Mapping[str, str]
) -> Path:
    """Return the model to compile: rewritten and, if requested, quantised."""
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
    """Return one set of options for each bucket, with the bucket's sizes as dimensions."""
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
    # `model` was created by the previous step, `fix` or `quantize`.
    hashed = _hash_of(folder, steps.results[-1])
    # Use the versions of the host, which compiles and runs the model; the packages of this process do not matter.
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
            # Verify even if compiling failed: the verification uses `model` instead of the compiled model.
            verified = steps.do(verify_on(chip, model, hashed, options, versions, reference), may_fail=True)
            steps.ship_verdict(compiled[chip], verified)


def _checked(path: Path, options: PrepareOptions) -> tuple[str, PrepareOptions]:
    """Do all checks that need no host. Return the hash of the model with its weights, and the options with
    completed `dims`.
    """
    scan = files.given_model(path, COMMAND, count_nodes=True).scan
    if not options.large:
        refuse_large(scan.node_count, path.name, COMMAND, "hours")
    # Refuse unknown names in --skip; the result is not needed.
    chosen((), options.skip)
    if options.quantize and len(options.buckets) > 1:
        raise OptionError(
            "A model can be quantised for only one size.",
            cause="The calibration samples have the sizes of one bucket.",
            fix="Run prepare once for each size, with samples of this size and a separate folder.",
        )
    if options.buckets and options.inputs:
        raise OptionError(
            "Real inputs have a single size, but --bucket defines several sizes.",
            fix="Omit --input, or prepare a single size with --dim.",
        )
    arguments.refuse_unknown([scan], Dimensions(dict(options.buckets[0]) if options.buckets else {}))
    if options.quantize != bool(options.calibration):
        missing = "--calibration" if options.quantize else "--quantize"
        raise OptionError(
            f"{'--quantize' if options.quantize else '--calibration'} needs {missing}.",
            cause="Quantising needs calibration samples.",
            fix="Give both options: --quantize --calibration FOLDER, with one .npz file for each sample.",
        )
    for one in options.calibration:
        if not one.exists():
            raise OptionError(f"The calibration file or folder {one} does not exist.", **why_missing(one))
    # An input that is replaced by a constant needs no size.
    inputs = [node for node in scan.inputs if node.name not in options.constants]
    # Check only the first bucket: every bucket sets the same dimensions.
    wanted = _requested_sizes(_per_bucket(options)[0], inputs)
    sizes = trying.sizes_of(inputs, wanted, trying.read_given(options.inputs, inputs))
    # With buckets, use only the sizes that the user gave: `sizes` also contains the sizes of the first bucket.
    dims = Dimensions(
        {**(sizes.by_name if sizes.all_named and not options.buckets else {}), **options.dims.by_name},
        {**({} if sizes.all_named or options.buckets else sizes.by_axis), **options.dims.by_axis},
    )
    return ModelSource.open(path).fingerprint, dataclasses.replace(options, dims=dims)


def _refuse_inside(path: Path, folder: Path) -> None:
    """Raise `OptionError` if the original model is inside the folder, whose files are replaced and removed."""
    if folder.resolve() in path.resolve().parents:
        raise OptionError(
            f"{path} is inside {folder}, whose files are replaced.",
            fix="Give a folder that does not contain the model: -o FOLDER.",
        )


def _requested_sizes(options: PrepareOptions, inputs: list[NodeInfo]) -> Dimensions:
    """Merge the sizes of --dim and --shape. If they contradict each other, the step `fix` raises the error."""
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
    """Return (numbers of the chips, notes for the user).

    Use a default chip on the simulator: without a chip it computes floats in full precision, unlike an NPU, and
    takes minutes to compile some models.
    """
    # Compare chips by number, because 60 and SC8380XP are the same chip.
    named = list(dict.fromkeys(str(read_chip(chip)) for chip in options.soc_models))
    if named:
        return named, ()
    if info.simulator:
        chip = str(DEFAULT_SIMULATED_CHIP)
        return [chip], (
            f"No chip was given: prepared for {chip_label(chip)}. Select other chips with --soc-model.",
        )
    here = chip_of_this_computer()
    if here is not None:
        return [str(here.number)], (f"No chip was given: prepared for this computer's chip, {here.label}.",)
    return [HOST_CHIP], ("No chip was given: prepared for the host's chip; the model may not load on other chips.",)


def _not_this_chip(chip: str, info: HostInfo) -> str:
    """Return why the chip cannot be used for verification here; empty if it can."""
    here = chip_of_this_computer()
    if info.simulator or here is None or chip in (HOST_CHIP, str(here.number)):
        return ""
    return f"this computer's chip is {here.label}: verify the model on a machine with that chip"


def _verdict(results: list[StepResult]) -> tuple[str, bool]:
    failed = [step for step in results if step.state == "failed"]
    if failed:
        return f"Not ready: {failed[0].title} failed. {failed[0].problem}", False
    for step in results:
        if step.name == "quantize" and not step.document.get("good_enough", True):
            # Compiling and verifying may succeed with a bad quantised model, but the result is not ready.
            warning = next((one for one in step.document.get("warnings", ()) if "Output" in one), "")
            return f"Not ready: the quantised model is {step.document['verdict']}. {warning}", False
        state = step.document.get("verdict") if step.name == "verify" and step.state != "skipped" else None
        if state not in (None, "agrees", "not shown"):
            return f"Not ready for {chip_label(step.chip)}: {step.document.get('reason')}", False
    unshown = [step for step in results if step.name == "verify" and step.document.get("verdict") == "not shown"]
    if unshown:
        return f"Compiled, but the verification proves nothing: {unshown[0].document.get('reason')}", True
    if any(step.state == "skipped" for step in results):
        return "Compiled, but not verified for every chip.", True
    extremes = any(
        row["status"] == "differs"
        for step in results
        for row in step.document.get("rows", ())
        if step.name == "verify"
    )
    more = " On extreme inputs the results differ." if extremes else ""
    return f"Ready: compiled, and QNN's results agree with the CPU's.{more}", True


def _hash_of(folder: Path, step: StepResult) -> str:
    return key_of("files", files=hashes_of(folder / name for name in step.files))


def _own_versions() -> dict[str, str]:
    """Return the versions of the packages in this process that rewrite and quantise models."""
    import onnx
    import onnxruntime

    return {"qnnbridge": __version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
