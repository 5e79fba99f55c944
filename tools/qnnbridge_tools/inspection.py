"""`qnnbridge inspect`: the contents of a model or of a folder for text generation, read without loading QNN.

It also reports whether a compiled model can run on this host, from the model's files and the packages installed for
the host.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.chips import chip_label, chip_of, simulated_chip
from qnnbridge_host.model.collector import EpContextNode, ModelScan
from qnnbridge_host.model.compatibility import CompiledTarget, Examination, HostTraits, examine
from qnnbridge_host.model.context_files import Blob
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
from qnnbridge_protocol.errors import BridgeError, HostStartFailed
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.specs import IN_FILE, GenerationModelInfo, StagePlacement
from qnnbridge_tools import output, reporting
from qnnbridge_tools.arguments import read_chip

SCHEMA_VERSION = 1
_SHOWN_VALUES = 8
_SHOWN_OPERATORS = 8
_SHOWN_FILES = 5
_SHOWN_PARTS = 4
_SHOWN_TEXT = 60
NO_MANIFEST = "none, so a damaged context binary is not noticed"


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A file with tensors of the model. size: in bytes; ``None`` if the file is missing."""

    name: str
    size: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFacts:
    """Everything that `inspect` shows of a model.

    Args:
        examination, host: ``None`` if the model is not compiled.
        no_host: why no host was found that the model could be checked for.
    """

    path: str
    scan: ModelScan
    data_files: tuple[DataFile, ...]
    examination: Examination | None = None
    host: HostTraits | None = None
    host_python: str | None = None
    no_host: BridgeError | None = None


def gather(model: Path, *, soc_model: str | None = None, host_python: str | None = None) -> ModelFacts:
    """Read the facts about a model.

    Args:
        model: the model file.
        soc_model: the chip to check a compiled model for, by number or name; default the host's chip.
        host_python: the interpreter of the host; default: the result of `find_host`.

    Raises:
        ModelError: the model cannot be read.
        OptionError: the chip is unknown.
        HostError: `host_python` is not a host's interpreter.
    """
    options = {"soc_model": str(read_chip(soc_model))} if soc_model is not None else {}
    path = os.path.abspath(model)
    scan = scan_model(path)
    files = tuple(DataFile(name, _size(os.path.join(os.path.dirname(path), name))) for name in scan.external_files)
    if not scan.is_compiled:
        # A model that is not compiled runs wherever ONNX Runtime runs: there is nothing to check.
        return ModelFacts(path, scan, files)
    found = find_installation(host_python)
    if isinstance(found, BridgeError):
        # Examine the model even without a host, because damage can be found in its files alone.
        return ModelFacts(path, scan, files, examine(path, scan, HostTraits()), no_host=found)
    host = found.traits(options)
    return ModelFacts(path, scan, files, examine(path, scan, host), host, found.python)


# Timeout of a query. A cold start of an emulated interpreter takes several seconds.
ASK_TIMEOUT_S: Final = 60.0

# Program for a host's interpreter: it reports versions from package metadata, and loads no library.
QUESTION: Final = (
    "import json, sysconfig\n"
    "from qnnbridge_host.machine import installed_versions\n"
    "print(json.dumps({'versions': installed_versions(), 'platform': sysconfig.get_platform()}))\n"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Installation:
    """Packages for a host in an interpreter. simulator: whether the interpreter's QNN uses the simulator."""

    python: str
    versions: Mapping[str, str]
    simulator: bool | None

    def traits(self, options: Mapping[str, str]) -> HostTraits:
        """Return the traits of the host with these QNN options."""
        return HostTraits.of_installation(self.versions, self.simulator, options)


def find_installation(host_python: str | None) -> Installation | BridgeError:
    """Return the packages of the host's interpreter, or the error that explains why no host was found.

    Raises:
        BridgeError: the given interpreter cannot be queried.
    """
    from qnnbridge._launch import find_host

    try:
        return installation_of(find_host(host_python).path)
    except BridgeError as error:
        # Raise the error, because the user gave this interpreter.
        if host_python is not None:
            raise
        return error


def installation_of(python: str) -> Installation:
    """Return the host packages of an interpreter.

    Raises:
        HostStartFailed: the interpreter does not answer.
    """
    from qnnbridge_tools.doctor.machine import last_line, run_interpreter

    try:
        done = run_interpreter(python, "-c", QUESTION, timeout_s=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"no answer within {ASK_TIMEOUT_S:.0f} s" if late else error
        raise HostStartFailed(f"The host's interpreter {python} does not start: {why}.") from None
    try:
        answer = last_line(done)
        versions, platform = dict(answer["versions"]), str(answer["platform"])
    except (ValueError, TypeError, LookupError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise HostStartFailed(
            f"The host's interpreter {python} does not report its installed packages.",
            fix=f"Install the host's packages: {install_command('host', python=str(python))}",
            # The last line of a traceback contains the error.
            evidence=lines[-1:],
        ) from None
    return Installation(python, versions, _is_simulator(platform))


def _is_simulator(platform: str) -> bool | None:
    """Return whether QNN uses the simulator on an interpreter's platform; ``None`` if that is unknown.

    Only Windows on ARM is certain to have the libraries for an NPU.
    """
    if platform == "win-arm64":
        return False
    # Linux on Arm runs on computers with and without a Qualcomm NPU.
    return True if platform.endswith(("x86_64", "amd64")) else None


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    # A missing file must not end the report, which shows that the file is missing.
    except OSError:
        return None


def document(facts: ModelFacts) -> dict[str, Any]:
    """Return the JSON document of `inspect`. ``compiled`` is null for a model that is not compiled."""
    scan = facts.scan
    return {
        "schema_version": SCHEMA_VERSION,
        "model": facts.path,
        "format": scan.format,
        "size_bytes": scan.size_bytes,
        "is_compiled": scan.is_compiled,
        "ir_version": scan.ir_version or None,
        "producer": {"name": scan.producer, "version": scan.producer_version},
        "opsets": dict(scan.opsets),
        "graph": scan.graph_name,
        "metadata": dict(scan.metadata),
        "inputs": [{"name": node.name, "type": node.type, "shape": node.shape} for node in scan.inputs],
        "outputs": [{"name": node.name, "type": node.type, "shape": node.shape} for node in scan.outputs],
        "nodes": {"count": scan.node_count, "by_operator": dict(scan.ops), "in_functions": scan.function_nodes},
        "functions": list(scan.functions),
        "initializers": scan.initializer_count,
        "external_data": [{"name": file.name, "size_bytes": file.size} for file in facts.data_files],
        "lookalikes": [_node_document(node) for node in scan.lookalikes],
        "compiled": _compiled_document(facts),
        "host": _host_document(facts),
        "verdict": _verdict_document(facts),
    }


def _compiled_document(facts: ModelFacts) -> dict[str, Any] | None:
    examination = facts.examination
    if examination is None:
        return None
    made, scan = examination.made, facts.scan
    text = made.compatibility
    return {
        "sources": list(scan.sources),
        "qnn_sdk": made.sdk,
        "targets": [_target_document(target) for target in made.targets],
        "multi_soc": made.multi,
        "nodes": [_node_document(node) for node in scan.ep_contexts],
        "left_on_cpu": _left_on_cpu(scan),
        "blobs": [_blob_document(blob) for blob in examination.found.blobs],
        "compatibility": None
        if text is None
        else {
            "text": text.text,
            "form": text.form,
            "backend": text.backend,
            "qnn_sdk": text.sdk,
            "backend_api": text.backend_api,
            "targets": [_target_document(target) for target in text.targets],
            "user_driver": text.user_driver,
        },
        "manifest": dataclasses.asdict(examination.manifest) if examination.manifest else None,
    }


def _left_on_cpu(scan: ModelScan) -> dict[str, int]:
    return {name: count for name, count in scan.ops.items() if name != "com.microsoft.EPContext"}


def _host_document(facts: ModelFacts) -> dict[str, Any] | None:
    if facts.host is None:
        return None
    return {"python": facts.host_python, **dataclasses.asdict(facts.host)}


def _verdict_document(facts: ModelFacts) -> dict[str, Any] | None:
    if facts.examination is None:
        return None
    # A damaged model cannot run anywhere: this verdict needs no host.
    if facts.host is None and facts.examination.broken is None:
        return {"level": "unknown", "reason": facts.no_host.message if facts.no_host else ""}
    return facts.examination.verdict._asdict()


def _node_document(node: EpContextNode) -> dict[str, Any]:
    inner = ("embedded", "multi_soc", "dlc_path")
    return {name: value for name, value in node._asdict().items() if name not in inner}


def _target_document(target: CompiledTarget) -> dict[str, Any]:
    chip = chip_of(target.soc_model)
    return {
        "soc_model": target.soc_model or None,
        "chip": chip.name if chip else None,
        "htp_arch": target.known_arch,
        "vtcm_mb": target.vtcm_mb or None,
    }


def _blob_document(blob: Blob) -> dict[str, Any]:
    facts = blob.facts
    return {
        "name": blob.name,
        "path": blob.path,
        "embedded": blob.name is None,
        "kind": facts.kind,
        "size_bytes": facts.size,
        "is_whole": facts.is_whole,
        "is_shared": blob.is_shared,
        "qnn_sdk": facts.sdk,
        "vtcm_mb": facts.vtcm_mb,
        "graphs": list(facts.graphs),
    }


def print_facts(facts: ModelFacts) -> None:
    scan = facts.scan
    output.print_pairs(os.path.basename(facts.path), model_pairs(facts))
    if scan.format == "ort":
        return
    for title, nodes in (("Inputs", scan.inputs), ("Outputs", scan.outputs)):
        print()
        print(title)
        rows = [[node.name, node.type, output.shape_text(node.shape)] for node in nodes[:_SHOWN_VALUES]]
        output.print_table(["name", "type", "shape"], rows)
        if len(nodes) > _SHOWN_VALUES:
            print(f"and {len(nodes) - _SHOWN_VALUES} more")
    if facts.examination is not None:
        print()
        output.print_pairs("Compiled (EPContext)", compiled_pairs(facts))
        print()
        output.print_pairs("On this host", host_pairs(facts))


def model_pairs(facts: ModelFacts) -> list[tuple[str, str]]:
    scan = facts.scan
    if scan.format == "ort":
        return [
            ("size", output.size_text(scan.size_bytes)),
            (
                "format",
                "ONNX Runtime's own (.ort); for its contents, inspect the ONNX model from which it was converted",
            ),
        ]
    producer = " ".join(part for part in (scan.producer, scan.producer_version) if part) or "not named"
    pairs = [
        ("size", output.size_text(scan.size_bytes)),
        ("made by", producer),
        ("versions", f"opset {_opsets(facts)}; IR {scan.ir_version}"),
        ("nodes", _operators(scan.ops, scan.node_count, f" {IN_FILE}") or "none"),
    ]
    if scan.functions:
        bodies = f"{scan.function_nodes} {'node' if scan.function_nodes == 1 else 'nodes'}"
        count = f"{len(scan.functions)}, containing {bodies} (counted above at each call of the function)"
        pairs.append(("functions", f"{count}: {', '.join(scan.functions[:_SHOWN_FILES])}"))
    if scan.initializer_count:
        pairs.append(("initializers", str(scan.initializer_count)))
    for index, file in enumerate(facts.data_files[:_SHOWN_FILES]):
        size = "MISSING" if file.size is None else output.size_text(file.size)
        pairs.append(("external data" if not index else "", f"{file.name}, {size}"))
    if len(facts.data_files) > _SHOWN_FILES:
        pairs.append(("", f"and {len(facts.data_files) - _SHOWN_FILES} more files"))
    if not scan.is_compiled:
        pairs.append(("compiled", "no"))
    pairs += [("only looks compiled", _lookalike(node)) for node in scan.lookalikes[:_SHOWN_PARTS]]
    return pairs


def compiled_pairs(facts: ModelFacts) -> list[tuple[str, str]]:
    assert facts.examination is not None
    scan, examination = facts.scan, facts.examination
    made = examination.made
    pairs = [
        ("made by", f"{' and '.join(scan.sources)}, QNN SDK {made.sdk or 'not known'}"),
        ("made for", _targets(facts)),
    ]
    count = len(scan.ep_contexts)
    for index, node in enumerate(scan.ep_contexts[:_SHOWN_PARTS]):
        label = "" if index else "1 part" if count == 1 else f"{count} parts"
        pairs.append((label, _part_text(node)))
    if count > _SHOWN_PARTS:
        pairs.append(("", f"and {count - _SHOWN_PARTS} more"))
    left = _left_on_cpu(scan)
    pairs.append(("left on the CPU", _operators(left, sum(left.values())) or "nothing"))
    pairs += [("context binary", _blob_text(blob)) for blob in examination.found.blobs]
    if made.compatibility is not None:
        pairs.append(("compatibility", made.compatibility.text))
        pairs += [
            ("", f"= {words}" if not index else words) for index, words in enumerate(made.compatibility.words)
        ]
    manifest = examination.manifest
    pairs.append(("manifest", f"yes, of {manifest.created or 'unknown time'}" if manifest else NO_MANIFEST))
    return pairs


def host_pairs(facts: ModelFacts) -> list[tuple[str, str]]:
    assert facts.examination is not None
    if facts.host is None and facts.examination.broken is None:
        problem = facts.no_host
        pairs = [("verdict", "unknown, because no host was found, and the check needs one")]
        if problem is not None:
            pairs.append(("because", problem.message))
            if problem.fix:
                pairs.append(("fix", problem.fix))
        return pairs
    verdict = facts.examination.verdict
    pairs = [("host", f"{host_text(facts.host)}; {facts.host_python}" if facts.host else "none")]
    pairs.append(("verdict", verdict.message))
    pairs += [(label, text) for label, text in (("because", verdict.cause), ("fix", verdict.fix)) if text]
    pairs += [("evidence", line) for line in verdict.evidence]
    pairs += [("note", note) for note in verdict.notes]
    return pairs


def host_text(host: HostTraits) -> str:
    if host.onnxruntime_qnn is None:
        return f"onnxruntime {host.onnxruntime}, no onnxruntime-qnn" if host.onnxruntime else "no onnxruntime"
    text = f"onnxruntime-qnn {host.onnxruntime_qnn} with QNN {host.qnn_sdk or 'of unknown version'}"
    chip = chip_label(host.soc_model) if host.soc_model else None
    if host.simulator:
        return f"{text}, simulating {chip}"
    return f"{text} on {chip}" if chip else f"{text}, chip not known"


def _opsets(facts: ModelFacts) -> str:
    """Return the opset version of ONNX itself, and of each other domain that a node uses. Unused domains are
    omitted, because ONNX Runtime adds all of its domains to a model that it writes.
    """
    scan = facts.scan
    own = scan.opsets.get("", scan.opsets.get("ai.onnx"))
    # The name of an operator of another domain contains the domain before its last dot.
    used = {name.rpartition(".")[0] for name in scan.ops}
    others = [f"{domain} {version}" for domain, version in scan.opsets.items() if domain in used - {""}]
    return ", ".join([str(own) if own is not None else "not named", *others])


def _operators(ops: Mapping[str, int], total: int, where: str = "") -> str:
    if not total:
        return ""
    # Sort by count, then by name, so that the order of the nodes has no effect.
    most: Sequence[tuple[str, int]] = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {count}" for name, count in most[:_SHOWN_OPERATORS])
    more = len(most) - _SHOWN_OPERATORS
    return f"{total}{where}: {shown}" + (f" and {more} more kinds" if more > 0 else "")


def _targets(facts: ModelFacts) -> str:
    assert facts.examination is not None
    made = facts.examination.made
    words = [
        chip_label(target.soc_model) if target.soc_model else f"V{target.known_arch}"
        for target in made.targets
        if target.soc_model or target.known_arch
    ]
    vtcm = [blob.facts.vtcm_mb for blob in facts.examination.found.blobs if blob.facts.vtcm_mb]
    text = ", ".join(words) or "not known"
    return text + (f"; {max(vtcm)} MB of VTCM" if vtcm else "")


def _part_text(node: EpContextNode) -> str:
    where = "" if node.where == "the main graph" else f" in {node.where}"
    kind = "" if node.owns_blob else ", secondary"
    return f"{_short(node.label)}{where}{kind}"


def _blob_text(blob: Blob) -> str:
    facts = blob.facts
    whole = {True: "whole", False: "NOT WHOLE", None: "not checked"}[facts.is_whole]
    shared = ", shared with other models" if blob.is_shared else ""
    return f"{blob.name or 'inside of the model'}, {output.size_text(facts.size)}, {whole}{shared}"


def _lookalike(node: EpContextNode) -> str:
    return (
        f"node {_short(node.label)}: operator {node.op_type} of domain {node.domain or 'ai.onnx'} in {node.where}"
    )


def _short(name: str) -> str:
    # Keep both ends, because generated node names (..._HASH_N_M) differ only in their last characters.
    return name if len(name) <= _SHOWN_TEXT else f"{name[: _SHOWN_TEXT - 25]}...{name[-22:]}"


# --- a folder for text generation: stages, window, KV cache and chip, and what runs where ---

_FOR: Final = {"prompt": "prompts", "token": "single tokens", "both": "both"}
_HEADERS: Final = ("stage", "for", "asks for", "chip", "nodes", "file")


@dataclasses.dataclass(frozen=True, slots=True)
class GenaiFolderFacts:
    """The facts that `inspect` shows of a folder.

    Args:
        scans: one for each stage.
        verdicts: whether a compiled stage can run on this host, as text, by stage.
        loaded: the host's description of the loaded model; ``None`` if it was not loaded.
    """

    folder: GenaiFolder
    scans: tuple[ModelScan, ...]
    cache: KvCache | None
    verdicts: Mapping[str, str]
    loaded: GenerationModelInfo | None = None


def gather_folder(folder: Path, *, host_python: str | None = None, load: bool = False) -> GenaiFolderFacts:
    """Read the facts about a folder for text generation.

    Args:
        folder: the folder.
        host_python: the interpreter of the host; default: the result of `find_host`.
        load: whether to load the model in a host, to see where its stages run.

    Raises:
        GenerationFolderInvalid: the folder is not a valid model folder.
        BridgeError: with `load`, everything that `qnnbridge.genai.Model` raises.
    """
    found = read_folder(os.path.abspath(folder))
    scans = tuple(scan_model(stage.path) for stage in found.stages)
    verdicts = _verdicts(found, scans, host_python)
    return GenaiFolderFacts(found, scans, kv_cache(found), verdicts, _load(found, host_python) if load else None)


def _verdicts(folder: GenaiFolder, scans: tuple[ModelScan, ...], host_python: str | None) -> dict[str, str]:
    compiled = [pair for pair in zip(folder.stages, scans, strict=True) if pair[1].is_compiled]
    if not compiled:
        return {}
    found = find_installation(host_python)
    verdicts = {}
    for stage, scan in compiled:
        # Determine the traits for each stage, because a stage's options may select a different chip to simulate.
        host = HostTraits() if isinstance(found, BridgeError) else found.traits(stage.qnn_options or {})
        verdicts[stage.name] = examine(stage.path, scan, host).verdict.message
    return verdicts


def _load(folder: GenaiFolder, host_python: str | None) -> GenerationModelInfo:
    import qnnbridge
    from qnnbridge import genai

    with qnnbridge.Host(host_python) as host:
        # Allow the fallback, because nodes on the CPU are a part of the result here and not an error.
        return genai.Model(folder.path, host=host, fallback="cpu").info


def print_folder(facts: GenaiFolderFacts) -> None:
    output.print_pairs("Model for text generation", folder_pairs(facts))
    print()
    output.print_table(_HEADERS, [_row(*pair) for pair in zip(facts.folder.stages, facts.scans, strict=True)])
    if facts.verdicts:
        print()
        output.print_pairs("Compiled stages", list(facts.verdicts.items()))
    if facts.loaded is not None:
        print()
        output.print_pairs("What runs where", [(one.stage, placement_text(one)) for one in facts.loaded.stages])


def folder_pairs(facts: GenaiFolderFacts) -> list[tuple[str, str]]:
    folder = facts.folder
    layout = next(one for one in LAYOUTS if one.layout == folder.layout)
    pairs = [
        ("folder", folder.path),
        ("type", folder.type),
        ("layout", f"{layout.layout}: {layout.what}"),
        ("window", "none" if folder.window is None else f"{folder.window.size} prompt tokens at a time"),
        ("context", f"{folder.context_length} tokens, a vocabulary of {folder.vocab_size}"),
        ("KV cache", _cache_text(facts)),
        ("runs on", f"onnxruntime-genai {releases_of(folder.layout)} (tested)"),
    ]
    if facts.loaded is not None:
        pairs.append(("loaded by", f"onnxruntime-genai {facts.loaded.genai}"))
    return pairs


def _cache_text(facts: GenaiFolderFacts) -> str:
    cache = facts.cache
    if cache is None:
        return "not found in the stages' inputs"
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
    """Return the chip that the config sets for a stage."""
    options = stage.qnn_options or {}
    given = options.get("soc_model"), options.get("htp_arch")
    chip = simulated_chip(*given) if any(given) else None
    return None if chip is None else chip_label(chip)


def placement_text(one: StagePlacement) -> str:
    if not one.wanted:
        return "the CPU, as the config sets it"
    text = reporting.placement_text(one.placement)
    if not one.placement.cpu_nodes:
        return text
    return f"{text}, {'by design' if one.by_design else 'not by design: refused without fallback=cpu'}"


def folder_document(facts: GenaiFolderFacts) -> dict[str, Any]:
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
