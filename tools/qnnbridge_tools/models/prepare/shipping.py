"""What makes a folder one to ship: `manifest.json` for programs and `report.md`, one page, for people."""

from __future__ import annotations

import datetime
import json
from typing import Any

from qnnbridge_tools import output
from qnnbridge_tools.models.prepare import page
from qnnbridge_tools.models.prepare.journal import Journal, write_whole
from qnnbridge_tools.models.prepare.result import Prepared, StepResult, chip_label

MANIFEST = "manifest.json"
REPORT = "report.md"
SCHEMA = 1


def write(prepared: Prepared, journal: Journal) -> None:
    """The report first: the manifest says that all is there."""
    sizes = {name: record.size for name, record in journal.records().items()}
    write_whole(journal.folder / REPORT, page.page(prepared, sizes))
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    told = {"schema": SCHEMA, "created": created, **document(prepared, journal)}
    write_whole(journal.folder / MANIFEST, json.dumps(output.jsonable(told), indent=2, ensure_ascii=True))


def document(prepared: Prepared, journal: Journal) -> dict[str, Any]:
    records = journal.records()
    return {
        **summary(prepared),
        "files": [
            {"name": name, "size": records[name].size, "sha256": records[name].sha256, "from": step.title}
            for step in prepared.steps
            for name in step.files
        ],
    }


def summary(prepared: Prepared) -> dict[str, Any]:
    """Without the files and the documents of each step."""
    return {
        "source": prepared.source.name,
        "source_sha256": prepared.source_sha256,
        "ready": prepared.ready,
        "verdict": prepared.verdict,
        "notes": list(prepared.notes),
        "model": prepared.model,
        "chips": [_chip(prepared, chip) for chip in prepared.chips],
        "versions": dict(prepared.versions),
    }


def _chip(prepared: Prepared, chip: str | None) -> dict[str, Any]:
    compiled, verified = prepared.step("compile", chip), prepared.step("verify", chip)
    placement = (compiled.told.get("placement") if compiled is not None else None) or {}
    return {
        "soc_model": int(chip) if chip is not None and chip.isdecimal() else None,
        "name": chip_label(chip),
        "compiled": _compiled_model(compiled),
        "problem": compiled.problem or None if compiled is not None else None,
        "qnn_nodes": placement.get("qnn_nodes"),
        "cpu_nodes": placement.get("cpu_nodes"),
        "verified": _state(verified),
        "cosine": verified.told.get("cosine") if verified is not None else None,
        "traps": [trap["name"] for trap in verified.told.get("traps", ())] if verified is not None else [],
    }


def _compiled_model(step: StepResult | None) -> str | None:
    return step.files[0] if step is not None and step.files else None


def _state(step: StepResult | None) -> str:
    if step is None or step.state in ("failed", "skipped"):
        return f"no: {step.problem}" if step is not None else "no"
    return str(step.told.get("verdict", "no"))
