"""The result of `prepare_model` as a record, the reports in the folder, and the output of the command."""

from __future__ import annotations

import dataclasses
import datetime
import html
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge_host.graph.files import write_whole
from qnnbridge_host.model import chips
from qnnbridge_host.model.compatibility import METADATA_KEY as COMPATIBILITY_KEY
from qnnbridge_host.model.prepared import METADATA_KEY, SCHEMA
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.journals import PrepareJournal
from qnnbridge_protocol.model_records import PREPARED_MANIFEST
from qnnbridge_protocol.shell import model_command
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import AFTER_OPTIMISATION, CPU, QNN
from qnnbridge_tools import output

if TYPE_CHECKING:
    from qnnbridge_protocol.shown import Fact

StepState = Literal["done", "kept", "failed", "skipped"]

# Name that stands for the host's own chip, used if no chip is given and the machine's NPU is unknown.
HOST_CHIP = "host"


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step.

    Args:
        name: name of the step.
        state: "kept" means that an earlier call did the step, and nothing that it depends on has changed.
        chip: chip of the step, if it runs for each chip.
        files: paths of the created files, relative to the folder.
        document: JSON document of the command that did the work.
        problem: why the step failed or was skipped.
        seconds: duration.
        variant: sizes of the step's bucket as text (`seq=16`); empty without buckets.
    """

    name: str
    state: StepState
    chip: str | None = None
    files: tuple[str, ...] = ()
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    variant: str = ""

    @property
    def id(self) -> str:
        return step_id(self.name, self.chip, self.variant)

    @property
    def title(self) -> str:
        name = f"{self.name} ({self.variant})" if self.variant else self.name
        return name if self.chip is None else f"{name} for {chip_label(self.chip)}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class PreparedFolder(Shown):
    """A prepared folder.

    Args:
        source: path of the original model.
        source_sha256: hash of the original model.
        folder: path of the folder.
        model: model to open if no compiled model fits, relative to the folder; with buckets, the first bucket's
            model.
        steps: results of all steps.
        verdict: "Ready", or one sentence with the obstacle.
        ready: the folder can be shipped.
        notes: choices that the command made because the user gave none, for example the chip.
        versions: versions of the host's packages.
        seconds: duration.
        package: true if `manifest.json` is an ONNX Runtime model package with our manifest in its metadata.
    """

    source: Path
    source_sha256: str
    folder: Path
    model: str
    steps: tuple[StepResult, ...]
    verdict: str
    ready: bool
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    package: bool = False

    def _shown_name(self) -> str:
        return self.folder.name

    def _shown_facts(self) -> Iterator[Fact]:
        yield self.verdict, "" if self.ready else "problem"
        for step in self.steps:
            if step.state == "failed":
                yield f"{step.title} failed", "problem"
        yield from more(f"{step.title}: {step.problem or step.state}" for step in self.steps)
        yield from more(self.notes)

    def steps_of(self, name: str) -> tuple[StepResult, ...]:
        return tuple(step for step in self.steps if step.name == name)

    @property
    def targets(self) -> list[tuple[StepResult, StepResult]]:
        """Pairs of (compile step, verify step), one for each compiled model."""
        compiled = {(step.chip, step.variant): step for step in self.steps_of("compile")}
        # Each compile step has a verify step for the same chip and bucket, which may have been skipped.
        return [(compiled[step.chip, step.variant], step) for step in self.steps_of("verify")]

    def compiled_from(self, variant: str) -> str:
        """Return the path of the model that was compiled for a bucket, relative to the folder."""
        made = [step for name in ("fix", "quantize") for step in self.steps_of(name) if step.variant == variant]
        return made[-1].files[0]


def step_id(name: str, chip: str | None, variant: str) -> str:
    """Return the key of a step in the journal."""
    return " ".join(part for part in (name, chip, variant) if part)


def chip_label(chip: str | None) -> str:
    """Return a label such as `SoC 60 (SC8380XP, V73)`."""
    return chips.chip_label(int(chip)) if chip is not None and chip.isdecimal() else "the chip of the host"


def product_of(chip: str | None) -> str:
    """Return the product name of a chip; empty if unknown."""
    known = chips.chip_of(int(chip)) if chip is not None and chip.isdecimal() else None
    return known.product if known is not None else ""


# --- The reports on a prepared folder: `manifest.json`, `report.md`, and the output of the command.

_SHOWN_CHANGES = 4
_SHOWN_ROWS = 6
# Characters that are markup in Markdown, even in the middle of a word.
_OF_MARKDOWN = re.compile(r"([\\`*_\[\]|#~])")
_PLAIN_PATH = re.compile(r"[\w./ -]+")
# Characters to escape in a Python string literal, because they are markup in Markdown or HTML.
_OF_MARKUP = re.compile(r"[`<>&]")

REPORT = "report.md"
_WORDS = {"done": "done in", "kept": "done before, kept", "failed": "FAILED after", "skipped": "skipped"}


def markdown_page(prepared: PreparedFolder, sizes: Mapping[str, int]) -> str:
    """Return the report as Markdown.

    Args:
        prepared: the result.
        sizes: size of each file in bytes.
    """
    parts = [
        f"# {escaped(prepared.source.name)} for the NPU",
        f"**{escaped(prepared.verdict)}**",
        *(escaped(note) for note in prepared.notes),
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


def escaped(value: object) -> str:
    """Escape a value for the page: names come from model files and may contain anything."""
    # Escape < as an entity instead of with a backslash, because some viewers remove HTML before parsing Markdown.
    return html.escape(_OF_MARKDOWN.sub(r"\\\1", output.visible(value)), quote=False)


def _in_code(value: str) -> str:
    """Return the value as a Python string literal for a code block."""
    return _OF_MARKUP.sub(lambda found: f"\\x{ord(found[0]):02x}", repr(value))


def _as_code(name: str) -> str:
    # Use backticks only for names without special characters: Markdown has no escapes within backticks.
    return f"`{name}`" if _PLAIN_PATH.fullmatch(name) else escaped(name)


def _chips(prepared: PreparedFolder, sizes: Mapping[str, int]) -> str:
    rows = []
    for compiled, verified in prepared.targets:
        chip, size = compiled.chip, sum(sizes.get(name, 0) for name in compiled.files)
        rows.append(
            [
                " ".join(part for part in (chip_label(chip), product_of(chip), compiled.variant) if part),
                _nodes(compiled, verified),
                output.size_text(size) if compiled.files else "not compiled",
                _agreement(verified, "not verified"),
                _decibel(verified.document.get("snr_db")),
            ]
        )
    headers = ["chip", f"nodes on the NPU, {AFTER_OPTIMISATION}", "compiled", "against the CPU", "lowest SNR"]
    return "## Chips\n\n" + _table(headers, rows)


def _nodes(compiled: StepResult, verified: StepResult) -> str:
    for step in (compiled, verified):
        placement = step.document.get("placement")
        if placement and placement.get("known"):
            total = placement["qnn_nodes"] + placement["cpu_nodes"] + placement["other_nodes"]
            return f"{placement['qnn_nodes']} of {total}"
    return "-"


def _has_cpu_nodes(compiled: StepResult) -> bool:
    """Return whether a session of the compiled model needs permission for nodes on the CPU."""
    return bool((compiled.document.get("placement") or {}).get("cpu_nodes"))


def _agreement(step: StepResult, without: str) -> str:
    """Return the verdict of a verification as text.

    Args:
        step: the verify step.
        without: text for a step without a verdict.
    """
    if step.state in ("failed", "skipped"):
        return f"{without}: {step.problem}"
    return str(step.document.get("verdict", without))


def _decibel(value: Any) -> str:
    return f"{value:.1f} dB" if isinstance(value, (int, float)) else "-"


def _how_to_use(prepared: PreparedFolder) -> str:
    compiled = [step for step in prepared.steps_of("compile") if step.files]
    if not compiled or not prepared.ready:
        return ""
    model = compiled[0].files[0]
    lines = ["## How to use it", "", "```python", "import qnnbridge", ""]
    chip = output.visible(chip_label(compiled[0].chip))
    fallback = ', fallback="cpu"' if _has_cpu_nodes(compiled[0]) else ""
    lines += [f"session = qnnbridge.InferenceSession({_in_code(model)}{fallback})  # {chip}"]
    lines += ["```", ""]
    # The .onnx refers to the .bin; the .json contains the origin, the chips, and the verification result.
    lines.append("Ship the .onnx, .bin and .json of a chip together. " + _without_a_chip(prepared))
    lines.append(
        "Or ship the whole folder and open it as a model: the host selects the file for its chip and QNN version."
    )
    return "\n".join(lines)


def _without_a_chip(prepared: PreparedFolder) -> str:
    option = ""
    if any(compiled.chip not in (None, HOST_CHIP) for compiled, _ in prepared.targets):
        option = " (it is compiled when the session opens)"
    return f"For any other chip, open {_as_code(prepared.model)}{option}."


def _fixed(prepared: PreparedFolder) -> str:
    lines = []
    for step in prepared.steps_of("fix"):
        for one in step.document.get("steps", ()):
            changes = [escaped(change) for change in one["changes"][:_SHOWN_CHANGES]]
            more = len(one["changes"]) - len(changes)
            undone = "" if one["kept"] else f" **(undone: {escaped(one['reason'])})**"
            extra = f"; and {more} more" if more else ""
            lines.append(f"- {escaped(one['rewrite'])}: {'; '.join(changes)}{extra}{undone}")
        inputs = ", ".join(
            f"{escaped(name)} {escaped(output.shape_text(shape))}"
            for name, shape in step.document.get("inputs", {}).items()
        )
        lines.append(f"- inputs now: {inputs}")
    return "## What was changed\n\n" + "\n".join(lines)


def _quantized(prepared: PreparedFolder) -> str:
    for step in prepared.steps_of("quantize"):
        numbers = step.document
        worst = f"{numbers.get('verdict')}, worst SNR {_decibel(numbers.get('snr_db'))}"
        again = numbers.get("recalibration") or {}
        of = "held-out samples" if numbers.get("held_out") else "of the calibration samples"
        return (
            f"## Quantised\n\nCalibrated with {numbers.get('calibration_samples')} samples, and compared with the "
            f"float model on {numbers.get('compared_samples')} {of}: {worst}. "
            + (f"Then calibrated with all {again['samples']} samples. " if again.get("kept") else "")
            + f"Size before quantising: {output.size_text(numbers.get('bytes_before', 0))}; "
            f"after: {output.size_text(numbers.get('bytes_after', 0))}."
        )
    return ""


def _differences(prepared: PreparedFolder) -> str:
    lines = []
    for step in prepared.steps_of("verify"):
        bad = [
            row for row in step.document.get("rows", ()) if row["counts"] and row["status"] in ("differs", "failed")
        ]
        for row in bad[:_SHOWN_ROWS]:
            remarks = [f"{one['name']}: {one['reason']}" for one in row["outputs"] if one["differs"]]
            why = escaped("; ".join(remarks) or row["reason"] or "")
            lines.append(f"- {escaped(chip_label(step.chip))}, {escaped(row['inputs'])}: {why}")
        first = step.document.get("first_divergence")
        if bad and first:
            place = "" if first["exact"] else f"one of the {first['window']} nodes up to and including "
            lines.append(
                f"- The first node that differs is {place}{escaped(first['node'])} ({escaped(first['op'])})."
            )
    return "## Where QNN differs\n\n" + "\n".join(lines) if lines else ""


def _traps(prepared: PreparedFolder) -> str:
    found: dict[str, dict[str, Any]] = {}
    for step in prepared.steps_of("verify"):
        for trap in step.document.get("traps", ()):
            found.setdefault(trap["name"], trap)
    lines = [
        f"- **{escaped(trap['name'])}**: {escaped(trap['words'])} {escaped(trap['advice'])}"
        for trap in found.values()
    ]
    return "## What to know\n\n" + "\n".join(lines) if lines else ""


def _problems(prepared: PreparedFolder) -> str:
    lines = []
    for step in prepared.steps:
        if step.problem:
            lines.append(f"- {escaped(step.title)} {step.state}: {escaped(step.problem)}")
        error = step.document.get("error")
        if error and error.get("fix"):
            lines.append(f"- What to do: {escaped(error['fix'])}")
        lines += [f"- {escaped(step.title)}: {escaped(warning)}" for warning in step.document.get("warnings", ())]
    return "## Problems and warnings\n\n" + "\n".join(lines) if lines else ""


def _files(prepared: PreparedFolder, sizes: Mapping[str, int]) -> str:
    rows = [
        [name, output.size_text(sizes.get(name, 0)), step.title] for step in prepared.steps for name in step.files
    ]
    return (
        "## Files\n\n"
        + _table(["file", "size", "from"], rows)
        + ("\n\nThe hashes of the files are in manifest.json.")
    )


def _made_with(prepared: PreparedFolder) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in prepared.versions.items())
    return f"Made with {escaped(versions)}. The original's SHA-256: {prepared.source_sha256}."


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_reports(prepared: PreparedFolder, journal: PrepareJournal) -> None:
    """Write the report first and the manifest last, because the manifest marks the folder as complete."""
    records = journal.records()
    write_whole(
        journal.folder / REPORT, markdown_page(prepared, {name: record.size for name, record in records.items()})
    )
    manifest = {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **summary(prepared),
        "files": [
            {"name": name, "size": records[name].size, "sha256": records[name].sha256, "from": step.title}
            for step in prepared.steps
            for name in step.files
        ],
    }
    if prepared.package:
        manifest = _package(prepared, journal.folder, manifest)
    text = json.dumps(output.jsonable(manifest), indent=2, ensure_ascii=True)
    write_whole(journal.folder / PREPARED_MANIFEST, text)


def _package(prepared: PreparedFolder, folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a model package (schema 1.0, ONNX Runtime 1.32), with one component for each bucket.

    Package readers reject unknown fields, so the document of `prepare` is in the metadata.
    """
    components: dict[str, Any] = {}
    for compiled, _ in prepared.targets:
        name = compiled.variant or "model"
        variants = components.setdefault(name, {"variants": {}})["variants"]
        if compiled.files:
            chip = compiled.chip if compiled.chip is not None and compiled.chip.isdecimal() else None
            variant = _package_variant(QNN, compiled.files[0])
            # Select the backend: QNN has no default backend for the simulator, whose device is a CPU.
            variant["executor_info"]["ort"]["provider_options"] = {"backend_type": "htp"}
            text = scan_model(folder / compiled.files[0], count_nodes=False).metadata.get(COMPATIBILITY_KEY)
            if text:
                variant["compatibility_string"] = text
            variants[f"soc{chip}" if chip else HOST_CHIP] = variant
    for name, component in components.items():
        model = prepared.compiled_from(name if name != "model" else "")
        component["variants"]["original"] = _package_variant(CPU, model)
    return {
        "schema_version": "1.0",
        "layout": "portable",
        "package_name": prepared.source.stem,
        "components": components,
        "additional_metadata": {METADATA_KEY: dict(manifest)},
    }


def _package_variant(ep: str, file: str) -> dict[str, Any]:
    folder, _, name = file.rpartition("/")
    return {"variant_directory": folder, "ep": ep, "executor_info": {"ort": {"model_file": name}}}


def summary(prepared: PreparedFolder) -> dict[str, Any]:
    """Return the result as a dictionary, without the files and documents of the steps."""
    return {
        "source": prepared.source.name,
        "source_sha256": prepared.source_sha256,
        "ready": prepared.ready,
        "verdict": prepared.verdict,
        "notes": list(prepared.notes),
        "model": prepared.model,
        "chips": [
            {**_chip_document(compiled, verified), "model": prepared.compiled_from(compiled.variant)}
            for compiled, verified in prepared.targets
        ],
        "versions": dict(prepared.versions),
    }


def _chip_document(compiled: StepResult, verified: StepResult) -> dict[str, Any]:
    chip, placement = compiled.chip, compiled.document.get("placement") or {}
    return {
        "soc_model": int(chip) if chip is not None and chip.isdecimal() else None,
        "name": chip_label(chip),
        "bucket": compiled.variant or None,
        "compiled": compiled.files[0] if compiled.files else None,
        "problem": compiled.problem or None,
        "qnn_nodes": placement.get("qnn_nodes"),
        "cpu_nodes": placement.get("cpu_nodes"),
        "verified": _agreement(verified, "no"),
        "snr_db": verified.document.get("snr_db"),
        "traps": [trap["name"] for trap in verified.document.get("traps", ())],
    }


def on_step(result: StepResult | None, title: str) -> None:
    """Print the start or the end of a step to stderr."""
    title = output.visible(title)
    print(f"{title} ..." if result is None else f"{title}: {_state(result)}", file=sys.stderr, flush=True)


def _state(step: StepResult) -> str:
    words = _WORDS[step.state]
    if step.state in ("done", "failed"):
        words += f" {output.seconds(step.seconds)}"
    return f"{words}: {output.visible(step.problem)}" if step.problem else words


def print_result(prepared: PreparedFolder) -> None:
    print(output.visible(prepared.verdict))
    print()
    figures = summary(prepared)
    output.print_table(
        ["chip", f"nodes {AFTER_OPTIMISATION}", "verified", "lowest SNR", "compiled"],
        [
            [
                chip["name"] + (f", {chip['bucket']}" if chip["bucket"] else ""),
                f"{chip['qnn_nodes']} QNN, {chip['cpu_nodes']} CPU" if chip["qnn_nodes"] is not None else "-",
                chip["verified"],
                _decibel(chip["snr_db"]),
                chip["compiled"] or "-",
            ]
            for chip in figures["chips"]
        ],
    )
    print()
    pairs = [("folder", str(prepared.folder)), ("report", str(prepared.folder / REPORT))]
    pairs += [("manifest", str(prepared.folder / PREPARED_MANIFEST)), ("time", output.seconds(prepared.seconds))]
    pairs += [("note", note) for note in prepared.notes]
    if prepared.ready:
        fallback = " --fallback cpu" if any(map(_has_cpu_nodes, prepared.steps_of("compile"))) else ""
        pairs.append(("next", model_command("run", prepared.folder, f"--random{fallback}")))
    output.print_pairs("Prepared", pairs)


def document(prepared: PreparedFolder) -> dict[str, Any]:
    return {
        **summary(prepared),
        "folder": str(prepared.folder),
        "steps": [
            {
                "step": step.name,
                "soc_model": step.chip,
                "bucket": step.variant or None,
                "state": step.state,
                "problem": step.problem or None,
                "files": list(step.files),
                "seconds": step.seconds,
                # Keep the key that released versions use.
                "told": dict(step.document),
            }
            for step in prepared.steps
        ],
        "seconds": prepared.seconds,
    }
