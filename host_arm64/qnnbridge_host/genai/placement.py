"""Where the stages of a model run, found out one by one before genai loads them.

genai reports no placement, and provider options that QNN cannot use make it compute on the CPU in silence. So each
stage that asks for QNN is made once as a session of its own, with the same options, and looked at. By design some
work stays on the CPU: stages that do not ask for QNN, attention of the GroupQueryAttention layouts, and what only
moves data. Other operators there refuse the model, unless it allows them. The result is kept in a file beside the
cache of compiled models, so a stage is tried once per version and change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from qnnbridge_host.cache.files import read_json, write_json
from qnnbridge_host.model.genai_folder import GenaiFolder, GenaiStage
from qnnbridge_protocol.errors import BridgeError, PlacementRefused
from qnnbridge_protocol.specs import CPU, QNN, Placement, ProviderSpec, SessionSpec, StagePlacement

# Folder of the results, in that of the cache.
FOLDER: Final = "genai"
SCHEMA: Final = 1
# Operators that have no counterpart in QNN and belong to the layout.
ATTENTION: Final = frozenset(("GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "PagedAttention"))
# Operators that only move, name or convert data.
BOOKKEEPING: Final = frozenset(
    (
        *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "QuantizeLinear"),
        *("Range", "ReduceSum", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
    )
)

Probe = Callable[[SessionSpec], Placement]


def place(
    folder: GenaiFolder, probe: Probe, cache: str | None, versions: Mapping[str, str], *, strict: bool
) -> list[StagePlacement]:
    """The placement of every stage.

    Args:
        folder: the model.
        probe: makes a session for a stage, closes it, and gives its placement.
        cache: the cache's folder, ``None`` for no memory of results.
        versions: of ONNX Runtime, QNN and the driver.
        strict: whether computing on the CPU refuses the model.

    Raises:
        PlacementRefused: a stage that asks for QNN would compute on the CPU.
    """
    # All stages before one is refused: the error lists each of them.
    found = [_place(stage, probe, cache, versions, strict) for stage in folder.stages]
    refused = [one for one in found if one.wanted and not one.by_design]
    if refused and strict:
        raise _refusal(folder, refused[0], found)
    return found


def _place(
    stage: GenaiStage, probe: Probe, cache: str | None, versions: Mapping[str, str], strict: bool
) -> StagePlacement:
    options = stage.qnn_options
    if options is None:
        return StagePlacement(stage.name, False, True, Placement(cause="The config does not ask for QNN."))
    file = _memory(stage, cache, versions)
    placed = _recall(file)
    if placed is None:
        spec = SessionSpec(stage.path, (ProviderSpec(QNN, options), ProviderSpec(CPU)), fallback="cpu")
        try:
            placed = probe(spec)
        except BridgeError as error:
            if strict:
                raise
            # Not remembered, since it may be an error of the moment, such as a full NPU: the next load tries again.
            placed = Placement(known=False, cause=error.message)
        else:
            _remember(file, placed)
    return StagePlacement(stage.name, True, _by_design(placed), placed)


def _by_design(placed: Placement) -> bool:
    if not placed.known:
        return placed.cause is None  # this ONNX Runtime does not report it
    if not placed.qnn_nodes:
        return False
    return all(kind in ATTENTION or kind in BOOKKEEPING for _, kind in placed.cpu_list)


def _refusal(folder: GenaiFolder, worst: StagePlacement, found: list[StagePlacement]) -> PlacementRefused:
    placed = worst.placement
    total = placed.qnn_nodes + placed.cpu_nodes + placed.other_nodes
    if placed.qnn_nodes:
        # Without what is on the CPU by design: the message names the operators that are at fault.
        kinds = sorted({kind for _, kind in placed.cpu_list} - ATTENTION - BOOKKEEPING)
        message = f"The stage {worst.stage!r} of {folder.label} would compute {', '.join(kinds)} on the CPU."
    else:
        message = f"No node of the stage {worst.stage!r} of {folder.label} runs on the NPU."
    return PlacementRefused(
        message,
        cause=placed.cause
        or "QNN did not take the nodes: a wrong backend_path or soc_model, or shapes that are not fixed.",
        fix="Correct the provider options of the stage in genai_config.json, or allow it: "
        "qnnbridge.genai.Model(..., fallback='cpu').",
        evidence=[f"{placed.qnn_nodes} of {total} nodes are on QNN"],
        details={"stage": worst.stage, "stages": [one.to_wire() for one in found]},
    )


# --- memory of results ---


def _memory(stage: GenaiStage, cache: str | None, versions: Mapping[str, str]) -> Path | None:
    if cache is None:
        return None
    try:
        status = os.stat(stage.path)
    except OSError:
        return None
    # With the versions: another driver or QNN may take other nodes.
    key = [os.path.abspath(stage.path), status.st_size, status.st_mtime_ns, stage.qnn_options, dict(versions)]
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    return Path(cache) / FOLDER / f"{name[:32]}.json"


def _recall(file: Path | None) -> Placement | None:
    if file is None:
        return None
    try:
        document = read_json(file) or {}
        return Placement.from_wire(document["placement"]) if document.get("schema") == SCHEMA else None
    except Exception:  # noqa: BLE001 - damaged: the stage is tried again
        return None


def _remember(file: Path | None, placed: Placement) -> None:
    if file is not None:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"schema": SCHEMA, "placement": placed.to_wire()})
