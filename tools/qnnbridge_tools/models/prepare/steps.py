"""The steps of `prepare`: work, dependencies and files of each. The work is that of other commands."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_tools.arguments import input_paths
from qnnbridge_tools.compile.compiling import variant_tag
from qnnbridge_tools.models.fix import report as fix_report
from qnnbridge_tools.models.prepare.result import HOST_CHIP, PrepareOptions
from qnnbridge_tools.models.quantize import result as quantize_result
from qnnbridge_tools.models.quantize.quantizer import quantize_model
from qnnbridge_tools.models.quantize.settings import QuantizeOptions
from qnnbridge_tools.models.verify import report as verify_report
from qnnbridge_tools.models.verify.verifier import VerifyOptions, verify_model

MODELS = "models"
COMPILED = "compiled"


@dataclasses.dataclass(frozen=True, slots=True)
class StepWork:
    """One step.

    Args:
        went_in: all that it depends on.
        do: does it, gives the files (absolute) and the document.
        variant: the sizes of its bucket, in words.
    """

    name: str
    chip: str | None
    went_in: Mapping[str, Any]
    do: Callable[[], tuple[list[Path], dict[str, Any]]]
    variant: str = ""

    @property
    def id(self) -> str:
        """In the journal."""
        return " ".join(part for part in (self.name, self.chip, self.variant) if part)


def fix(
    source: Path, fingerprint: str, folder: Path, options: PrepareOptions, versions: Mapping[str, str]
) -> StepWork:
    from qnnbridge_host.compile.jobs import safe_stem

    tag = variant_tag(options.buckets[0]) if options.buckets else ""
    target = (
        folder / MODELS / f"{safe_stem(source.stem + tag)}.onnx"
    )  # QNN does not find a binary with ".." in its name

    def do() -> tuple[list[Path], dict[str, Any]]:
        result = fix_model(
            source,
            target,
            shapes=options.shapes,
            dims=options.dims,
            constants=options.constants,
            skip=options.skip,
            seed=options.seed,
            overwrite=True,
        )
        return list(result.files), fix_report.document(result)

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
        result = quantize_model(model, target, wish, own_process=True)
        return list(result.files), quantize_result.document(result)

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
    def do() -> tuple[list[Path], dict[str, Any]]:
        result = verify_model(
            model,
            soc_model=soc_of(chip),
            inputs=options.inputs,
            provider_options=options.provider_options,
            how=VerifyOptions(
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
        "inputs": [os.fspath(one) for one in options.inputs if "=" in os.fspath(one)],
        "input_files": hashes_of(input_paths(os.fspath(one) for one in options.inputs)),
        "extreme": options.extreme,
        "seed": options.seed,
        "versions": dict(versions),
    }
    return StepWork("verify", chip, went_in, do)


def soc_of(chip: str) -> str | None:
    return None if chip == HOST_CHIP else chip


def folder_of(chip: str) -> str:
    return chip if chip == HOST_CHIP else f"soc{chip}"


def hashes_of(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Name and content of each file, in order. Raises `OSError`."""
    found: list[tuple[str, str]] = []
    for path in paths:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        found.append((path.name, digest.hexdigest()))
    return found


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
