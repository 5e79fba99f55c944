"""`qnnbridge inspect FOLDER`: stages, window, KV cache and chip of a model for generation, and what runs where."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.chips import chip_label, simulated_chip
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.compatibility_check import HostTraits, examine
from qnnbridge_host.model.genai_folder import (
    LAYOUTS,
    GenaiFolder,
    GenaiStage,
    KvCache,
    kv_cache,
    read_folder,
    releases_of,
)
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import GenerationModelInfo, StagePlacement
from qnnbridge_tools import output, reporting

_FOR: Final = {"prompt": "prompts", "token": "single tokens", "both": "both"}
_HEADERS: Final = ("stage", "for", "asks for", "chip", "nodes", "file")


@dataclasses.dataclass(frozen=True, slots=True)
class GenaiFolderFacts:
    """What `inspect` shows of a folder.

    Args:
        scans: One for each stage.
        verdicts: Whether a compiled stage can run on this host, as text, by stage.
        loaded: What the host says of the model; ``None`` if it was not loaded.
    """

    folder: GenaiFolder
    scans: tuple[ModelScan, ...]
    cache: KvCache | None
    verdicts: Mapping[str, str]
    loaded: GenerationModelInfo | None = None


def gather(folder: Path, *, host_python: str | None = None, load: bool = False) -> GenaiFolderFacts:
    """Raises `GenerationFolderInvalid`; with `load` all that `qnnbridge.genai.Model` raises."""
    found = read_folder(os.path.abspath(folder))
    scans = tuple(scan_model(stage.path) for stage in found.stages)
    verdicts = _verdicts(found, scans, host_python)
    return GenaiFolderFacts(found, scans, kv_cache(found), verdicts, _load(found, host_python) if load else None)


def _verdicts(folder: GenaiFolder, scans: tuple[ModelScan, ...], host_python: str | None) -> dict[str, str]:
    compiled = [pair for pair in zip(folder.stages, scans, strict=True) if pair[1].is_compiled]
    if not compiled:
        return {}
    from qnnbridge_tools.inspection import find_installation

    found = find_installation(host_python)
    verdicts = {}
    for stage, scan in compiled:
        # For each stage: its options may name another chip to simulate.
        host = HostTraits() if isinstance(found, BridgeError) else found.traits(stage.qnn_options or {})
        verdicts[stage.name] = examine(stage.path, scan, host).verdict.message
    return verdicts


def _load(folder: GenaiFolder, host_python: str | None) -> GenerationModelInfo:
    import qnnbridge
    from qnnbridge import genai

    with qnnbridge.Host(host_python) as host:
        # With a fallback: what is left to the CPU is the answer here and no fault.
        return genai.Model(folder.path, host=host, fallback="cpu").info


def print_facts(facts: GenaiFolderFacts) -> None:
    output.print_pairs("Model for text generation", model_pairs(facts))
    print()
    output.print_table(_HEADERS, [_row(*pair) for pair in zip(facts.folder.stages, facts.scans, strict=True)])
    if facts.verdicts:
        print()
        output.print_pairs("Compiled stages", list(facts.verdicts.items()))
    if facts.loaded is not None:
        print()
        output.print_pairs("What runs where", [(one.stage, placement_text(one)) for one in facts.loaded.stages])


def model_pairs(facts: GenaiFolderFacts) -> list[tuple[str, str]]:
    folder = facts.folder
    layout = next(one for one in LAYOUTS if one.layout == folder.layout)
    pairs = [
        ("folder", folder.path),
        ("type", folder.type),
        ("layout", f"{layout.layout}: {layout.what}"),
        ("window", "none" if folder.window is None else f"{folder.window.size} tokens of a prompt at a time"),
        ("context", f"{folder.context_length} tokens, a vocabulary of {folder.vocab_size}"),
        ("KV cache", _cache_text(facts)),
        ("runs on", f"onnxruntime-genai {releases_of(folder.layout)}, as tried"),
    ]
    if facts.loaded is not None:
        pairs.append(("loaded by", f"onnxruntime-genai {facts.loaded.genai}"))
    return pairs


def _cache_text(facts: GenaiFolderFacts) -> str:
    cache = facts.cache
    if cache is None:
        return "none was found in the stages' inputs"
    size = output.size_text(cache.size_bytes)
    return f"{' and '.join(cache.types)}, {cache.tensors} tensors, {size} for each generation with a full context"


def _row(stage: GenaiStage, scan: ModelScan) -> tuple[str, ...]:
    asks = "QNN" if stage.qnn_options is not None else ", ".join(name for name, _ in stage.providers) or "the CPU"
    nodes = "compiled" if scan.is_compiled else str(scan.node_count)
    return (
        stage.name,
        _FOR[stage.runs_on],
        asks,
        chip_text(stage) or "-",
        nodes,
        f"{os.path.basename(stage.path)}, {output.size_text(scan.size_bytes)}",
    )


def chip_text(stage: GenaiStage) -> str | None:
    """The chip that the config names for a stage."""
    options = stage.qnn_options or {}
    given = options.get("soc_model"), options.get("htp_arch")
    chip = simulated_chip(*given) if any(given) else None
    return None if chip is None else chip_label(chip)


def placement_text(one: StagePlacement) -> str:
    if not one.wanted:
        return "the CPU, as the config says"
    text = reporting.placement_text(one.placement)
    if not one.placement.cpu_nodes:
        return text
    return f"{text}, {'by design' if one.by_design else 'not by design, so it is refused without fallback=cpu'}"


def document(facts: GenaiFolderFacts) -> dict[str, Any]:
    folder = facts.folder
    return {
        "folder": folder.path,
        "type": folder.type,
        "layout": folder.layout,
        "window": None if folder.window is None else folder.window.size,
        "context_length": folder.context_length,
        "vocab_size": folder.vocab_size,
        "kv_cache": None if facts.cache is None else dataclasses.asdict(facts.cache),
        "releases": releases_of(folder.layout).split(", "),
        "stages": [
            {
                "stage": stage.name,
                "file": stage.path,
                "runs_on": stage.runs_on,
                "providers": dict(stage.providers),
                "chip": chip_text(stage),
                "nodes": scan.node_count,
                "compiled": scan.is_compiled,
                "verdict": facts.verdicts.get(stage.name),
            }
            for stage, scan in zip(folder.stages, facts.scans, strict=True)
        ],
        "placement": None if facts.loaded is None else [one.to_wire() for one in facts.loaded.stages],
        "genai": None if facts.loaded is None else facts.loaded.genai,
    }
