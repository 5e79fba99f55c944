"""What `qnnbridge.compile` gives back: where the files are, what is in them, and what its reader should know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qnnbridge._compiling.job import CompiledFiles, CompileJob
from qnnbridge._compiling.refusals import known_chips_text, unknown_chips, unknown_chips_text
from qnnbridge._compiling.validation import Validation
from qnnbridge_protocol.specs import Placement


@dataclasses.dataclass(frozen=True, slots=True)
class CompileResult:
    """A compiled model in its place.

    path: of the .onnx file, which a session opens. blob: of the context binary, ``None`` if embedded.
    manifest: of the file that says what belongs together. source: name of the original.
    placement: of the original's nodes; ``None`` if the compiler died before it could tell.
    soc_model: what it was compiled for, ``None``: the chip of the host. versions: of what compiled it.
    compile_seconds: inside of the compiler. seconds: all of it, with the starts of processes and the validation.
    warnings: what one should know, in sentences.
    """

    path: str
    blob: str | None
    manifest: str
    source: str
    size_bytes: int
    placement: Placement | None
    soc_model: str | None
    provider_options: Mapping[str, str]
    versions: Mapping[str, str]
    validation: Validation
    compile_seconds: float
    seconds: float
    died_at_teardown: bool = False
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "blob": self.blob,
            "manifest": self.manifest,
            "source": self.source,
            "size_bytes": self.size_bytes,
            "placement": self.placement.to_wire() if self.placement is not None else None,
            "soc_model": self.soc_model,
            "provider_options": dict(self.provider_options),
            "versions": dict(self.versions),
            "validation": self.validation.to_json(),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds": round(self.seconds, 3),
            "died_at_teardown": self.died_at_teardown,
            "warnings": list(self.warnings),
        }


def warnings_of(job: CompileJob, files: CompiledFiles, validation: Validation, *, asked: bool) -> tuple[str, ...]:
    """asked: whether validation was wanted, so that its absence needs a word."""
    found = []
    placed = files.placement
    if placed is not None and placed.cpu_nodes:
        total = placed.qnn_nodes + placed.cpu_nodes + placed.other_nodes
        found.append(
            f"{placed.cpu_nodes} of {total} nodes stay on the CPU, so a session of it needs fallback='cpu'. "
            f"{placed.cause or ''}".rstrip()
        )
    found += _about_the_chip(job, files)
    unknown = unknown_chips(job.spec.providers)
    if unknown:
        found.append(f"{unknown_chips_text(unknown)}; known are {known_chips_text()}.")
    if files.died_at_teardown:
        found.append("The compiler died after its work was done; the files are whole.")
    if asked and validation.skipped:
        found.append(f"Not validated: {validation.skipped}")
    found += [f"Unusually far from the CPU's numbers: {remark}." for remark in validation.remarks]
    return tuple(found)


def _about_the_chip(job: CompileJob, files: CompiledFiles) -> list[str]:
    named = any("soc_model" in provider.options for provider in job.spec.providers)
    archs = [provider.options.get("htp_arch", "0") for provider in job.spec.providers]
    arch = next((arch for arch in archs if arch != "0"), None)
    if named:
        return ["A chip and an architecture were named: QNN goes by the chip."] if arch is not None else []
    if files.soc_model is None:
        return ["No chip was named: compiled for the chip of the host. Others may refuse it."]
    which = "the simulator's default" if arch is None else f"the simulator's chip of V{arch}"
    return [f"No chip was named: compiled for soc_model={files.soc_model}, {which}."]


def chips(soc_model: str | None) -> tuple[int, ...]:
    """The numbers in a ``soc_model``; names are left out, and 0, which means none."""
    parts = (part.strip() for part in (soc_model or "").split(","))
    return tuple(int(part) for part in parts if part.isdecimal() and int(part))
