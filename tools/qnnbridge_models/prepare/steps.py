"""The steps of `prepare`: work, dependencies and files of each. The work is that of other commands."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_host.graph import graphs, shapes
from qnnbridge_host.numerics.sampling import NamedFeeds
from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_models import fix as fix_report
from qnnbridge_models.command_options import PrepareOptions, QuantizeOptions, VerifyOptions
from qnnbridge_models.journals import hashes_of
from qnnbridge_models.prepare.preparation import HOST_CHIP, StepResult, step_id
from qnnbridge_models.progress import ShownProgress
from qnnbridge_models.quantize import quantization
from qnnbridge_models.quantize.quantizer import quantize_model
from qnnbridge_models.quantize.samples import load
from qnnbridge_models.verify import verification as verify_report
from qnnbridge_models.verify.verifier import verify_model
from qnnbridge_protocol.model_records import NumbersReport, NumbersState, OutputNumbers
from qnnbridge_tools import output
from qnnbridge_tools.arguments import input_paths
from qnnbridge_tools.compile.compiling import variant_tag

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
        variant: the sizes of its bucket, as text.
    """

    name: str
    chip: str | None
    went_in: Mapping[str, Any]
    do: Callable[[], tuple[list[Path], dict[str, Any]]]
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
        "constants": dict(options.constants),
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
    return StepWork("quantize", None, went_in, do)


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
    chip: str, model: Path, model_hash: str, folder: Path, options: PrepareOptions, versions: Mapping[str, str]
) -> StepWork:
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
    return StepWork("verify", chip, went_in, do)


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
    order = ("differs", "unknown", "agrees")
    # The worst output first, as a session reports it.
    outputs.sort(key=lambda one: (order.index(one.state), math.inf if one.snr_db is None else one.snr_db))
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
