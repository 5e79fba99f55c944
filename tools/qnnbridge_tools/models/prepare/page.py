"""The report of a prepared folder: one page of Markdown that a person understands. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qnnbridge_tools import output
from qnnbridge_tools.models.prepare.result import HOST_CHIP, Prepared, StepResult, chip_label, product_of

_SHOWN_CHANGES = 4
_SHOWN_ROWS = 6
_MIB = 1024 * 1024
_OF_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#])")


def page(prepared: Prepared, sizes: Mapping[str, int]) -> str:
    """sizes: bytes of each file."""
    parts = [
        f"# {text(prepared.source.name)} for the NPU",
        f"**{text(prepared.verdict)}**",
        *(text(note) for note in prepared.notes),
        _chips(prepared, sizes),
        _how_to_use(prepared),
        _fixed(prepared),
        _quantized(prepared),
        _differences(prepared),
        _traps(prepared),
        _problems(prepared),
        _files(prepared, sizes),
        _made_with(prepared),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: object) -> str:
    """For the page: names come from model files and may hold anything."""
    return _OF_MARKDOWN.sub(r"\\\1", output.visible(value))


def size_text(size: int) -> str:
    return f"{size / _MIB:.1f} MiB" if size >= _MIB else f"{size / 1024:.0f} KiB"


def _chips(prepared: Prepared, sizes: Mapping[str, int]) -> str:
    rows = []
    for chip in prepared.chips:
        compiled, verified = prepared.step("compile", chip), prepared.step("verify", chip)
        rows.append(
            [
                f"{chip_label(chip)} {product_of(chip)}".strip(),
                _nodes(compiled, verified),
                size_text(sum(sizes.get(name, 0) for name in compiled.files))
                if compiled is not None and compiled.files
                else "not compiled",
                _agreement(verified),
                _cosine(verified.told.get("cosine")) if verified is not None else "-",
            ]
        )
    headers = ["chip", "nodes on the NPU", "compiled", "against the CPU", "worst cosine"]
    return "## Chips\n\n" + _table(headers, rows)


def _nodes(compiled: StepResult | None, verified: StepResult | None) -> str:
    for step in (compiled, verified):
        placement = step.told.get("placement") if step is not None else None
        if placement and placement.get("known"):
            total = placement["qnn_nodes"] + placement["cpu_nodes"] + placement["other_nodes"]
            return f"{placement['qnn_nodes']} of {total}"
    return "-"


def _agreement(step: StepResult | None) -> str:
    if step is None or step.state in ("failed", "skipped"):
        return f"not verified: {step.problem}" if step is not None else "not verified"
    return str(step.told.get("verdict"))


def _cosine(value: Any) -> str:
    return f"{value:.5f}" if isinstance(value, float) else "-"


def _how_to_use(prepared: Prepared) -> str:
    compiled = [step for step in prepared.steps_of("compile") if step.files]
    if not compiled or not prepared.ready:
        return ""
    model = compiled[0].files[0]
    lines = ["## How to use it", "", "```python", "import qnnbridge", ""]
    lines += [f"session = qnnbridge.InferenceSession({model!r})  # {output.visible(chip_label(compiled[0].chip))}"]
    lines += ["```", ""]
    lines.append("Ship the .onnx, .bin and .json of a chip together. " + _without_a_chip(prepared))
    return "\n".join(lines)


def _without_a_chip(prepared: Prepared) -> str:
    option = ""
    if any(chip not in (None, HOST_CHIP) for chip in prepared.chips):
        option = " (it is compiled when the session opens)"
    return f"For a chip that is not here, open `{prepared.model}`{option}."


def _fixed(prepared: Prepared) -> str:
    lines = []
    for step in prepared.steps_of("fix"):
        for one in step.told.get("steps", ()):
            changes = [text(change) for change in one["changes"][:_SHOWN_CHANGES]]
            more = len(one["changes"]) - len(changes)
            undone = "" if one["kept"] else f" **(taken back: {text(one['reason'])})**"
            extra = f"; and {more} more" if more else ""
            lines.append(f"- {text(one['rewrite'])}: {'; '.join(changes)}{extra}{undone}")
        inputs = ", ".join(
            f"{text(name)} {text(output.shape_text(shape))}" for name, shape in step.told.get("inputs", {}).items()
        )
        lines.append(f"- inputs now: {inputs}")
    return "## What was changed\n\n" + "\n".join(lines)


def _quantized(prepared: Prepared) -> str:
    for step in prepared.steps_of("quantize"):
        told = step.told
        of = "samples that were kept for it" if told.get("held_out") else "the calibration samples themselves"
        return (
            f"## Quantised\n\nWith {told.get('calibration_samples')} samples; against the float model on "
            f"{told.get('compared_samples')} {of}: worst cosine {_cosine(told.get('cosine'))}. "
            f"{size_text(told.get('bytes_before', 0))} became {size_text(told.get('bytes_after', 0))}."
        )
    return ""


def _differences(prepared: Prepared) -> str:
    lines = []
    for step in prepared.steps_of("verify"):
        bad = [row for row in step.told.get("rows", ()) if row["counts"] and row["status"] in ("differs", "failed")]
        for row in bad[:_SHOWN_ROWS]:
            remarks = [f"{one['name']}: {one['remark']}" for one in row["outputs"] if one["differs"]]
            why = text("; ".join(remarks) or row["reason"] or "")
            lines.append(f"- {text(chip_label(step.chip))}, {text(row['inputs'])}: {why}")
        first = step.told.get("first_divergence")
        if bad and first:
            place = (
                "It begins at" if first["exact"] else f"It begins within {first['window']} nodes, at the latest at"
            )
            lines.append(f"- {place} node {text(first['node'])} ({text(first['op'])}).")
    return "## Where QNN differs\n\n" + "\n".join(lines) if lines else ""


def _traps(prepared: Prepared) -> str:
    found: dict[str, dict[str, Any]] = {}
    for step in prepared.steps_of("verify"):
        for trap in step.told.get("traps", ()):
            found.setdefault(trap["name"], trap)
    lines = [f"- **{text(trap['name'])}**: {text(trap['words'])} {text(trap['advice'])}" for trap in found.values()]
    return "## What to know\n\n" + "\n".join(lines) if lines else ""


def _problems(prepared: Prepared) -> str:
    lines = []
    for step in prepared.steps:
        if step.problem:
            lines.append(f"- {text(step.title)} {step.state}: {text(step.problem)}")
        error = step.told.get("error")
        if error and error.get("fix"):
            lines.append(f"- What to do: {text(error['fix'])}")
        lines += [f"- {text(step.title)}: {text(warning)}" for warning in step.told.get("warnings", ())]
    return "## Problems and warnings\n\n" + "\n".join(lines) if lines else ""


def _files(prepared: Prepared, sizes: Mapping[str, int]) -> str:
    rows = [[name, size_text(sizes.get(name, 0)), step.title] for step in prepared.steps for name in step.files]
    return "## Files\n\n" + _table(["file", "size", "from"], rows) + "\n\nTheir hashes are in manifest.json."


def _made_with(prepared: Prepared) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in prepared.versions.items())
    return f"Made with {text(versions)}. The original's SHA-256: {prepared.source_sha256}."


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
