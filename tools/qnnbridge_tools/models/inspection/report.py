"""What `inspect` found, as text for a person: one screen."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from qnnbridge_host.model.chips import chip_label
from qnnbridge_host.model.context_files import Blob
from qnnbridge_host.model.host_traits import HostTraits
from qnnbridge_host.model.nodes import EpContextNode
from qnnbridge_tools import output
from qnnbridge_tools.models.inspection.facts import Facts

_SHOWN_VALUES = 8
_SHOWN_OPERATORS = 8
_SHOWN_FILES = 5
_SHOWN_PARTS = 4
_SHOWN_TEXT = 60

NO_MANIFEST = "none, so a damaged context binary is not noticed"


def print_facts(facts: Facts) -> None:
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


def model_pairs(facts: Facts) -> list[tuple[str, str]]:
    scan = facts.scan
    if scan.format == "ort":
        return [
            ("size", size_text(scan.size_bytes)),
            (
                "format",
                "ONNX Runtime's own (.ort); its contents can be seen only in the ONNX model it was made from",
            ),
        ]
    producer = " ".join(part for part in (scan.producer, scan.producer_version) if part) or "not named"
    pairs = [
        ("size", size_text(scan.size_bytes)),
        ("made by", producer),
        ("versions", f"opset {_opsets(facts)}; IR {scan.ir_version}"),
        ("nodes", _operators(scan.ops, scan.node_count) or "none"),
    ]
    if scan.functions:
        count = f"{len(scan.functions)}, with {scan.function_nodes} nodes"
        pairs.append(("functions", f"{count}: {', '.join(scan.functions[:_SHOWN_FILES])}"))
    if scan.initializer_count:
        pairs.append(("initializers", str(scan.initializer_count)))
    for index, file in enumerate(facts.data_files[:_SHOWN_FILES]):
        size = "MISSING" if file.size is None else size_text(file.size)
        pairs.append(("external data" if not index else "", f"{file.name}, {size}"))
    if len(facts.data_files) > _SHOWN_FILES:
        pairs.append(("", f"and {len(facts.data_files) - _SHOWN_FILES} more files"))
    if not scan.is_compiled:
        pairs.append(("compiled", "no"))
    pairs += [("only looks compiled", _lookalike(node)) for node in scan.lookalikes[:_SHOWN_PARTS]]
    return pairs


def compiled_pairs(facts: Facts) -> list[tuple[str, str]]:
    assert facts.examination is not None
    scan, examination = facts.scan, facts.examination
    made = examination.made
    pairs = [
        ("made by", f"{' and '.join(scan.sources)}, QNN SDK {made.sdk or 'not known'}"),
        ("made for", _targets(facts)),
    ]
    for index, node in enumerate(scan.ep_contexts[:_SHOWN_PARTS]):
        pairs.append((_parts_label(len(scan.ep_contexts)) if not index else "", _part(node)))
    if len(scan.ep_contexts) > _SHOWN_PARTS:
        pairs.append(("", f"and {len(scan.ep_contexts) - _SHOWN_PARTS} more"))
    left = {name: count for name, count in scan.ops.items() if name != "com.microsoft.EPContext"}
    pairs.append(("left on the CPU", _operators(left, sum(left.values())) or "nothing"))
    pairs += [("context binary", _blob(blob)) for blob in examination.found.blobs]
    if made.compatibility is not None:
        pairs.append(("compatibility", made.compatibility.text))
        pairs += [
            ("", f"= {words}" if not index else words) for index, words in enumerate(made.compatibility.words)
        ]
    manifest = examination.manifest
    pairs.append(("manifest", f"yes, of {manifest.created or 'unknown time'}" if manifest else NO_MANIFEST))
    return pairs


def host_pairs(facts: Facts) -> list[tuple[str, str]]:
    assert facts.examination is not None
    if facts.host is None and facts.examination.broken is None:
        problem = facts.no_host
        pairs = [("verdict", "unknown, because there is no host to hold it against")]
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


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    number = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1024 or unit == "GiB":
            break
    return f"{number:.1f} {unit}"


def _opsets(facts: Facts) -> str:
    """ONNX's own, and of the other domains those that a node is of: ONNX Runtime lists all it knows."""
    scan = facts.scan
    own = scan.opsets.get("", scan.opsets.get("ai.onnx"))
    used = {name.rpartition(".")[0] for name in scan.ops}
    others = [f"{domain} {version}" for domain, version in scan.opsets.items() if domain in used - {""}]
    return ", ".join([str(own) if own is not None else "not named", *others])


def _operators(ops: Mapping[str, int], total: int) -> str:
    if not total:
        return ""
    most: Sequence[tuple[str, int]] = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {count}" for name, count in most[:_SHOWN_OPERATORS])
    more = len(most) - _SHOWN_OPERATORS
    return f"{total}: {shown}" + (f" and {more} more kinds" if more > 0 else "")


def _targets(facts: Facts) -> str:
    assert facts.examination is not None
    made = facts.examination.made
    words = [
        chip_label(target.soc_model) if target.soc_model else f"V{target.known_arch}"
        for target in made.targets
        if target.soc_model or target.known_arch
    ]
    vtcm = {blob.facts.vtcm_mb for blob in facts.examination.found.blobs} - {None}
    text = ", ".join(words) or "not known"
    return text + (f"; {max(size for size in vtcm if size)} MB of VTCM" if vtcm else "")


def _parts_label(count: int) -> str:
    return "1 part" if count == 1 else f"{count} parts"


def _part(node: EpContextNode) -> str:
    where = "" if node.where == "the main graph" else f" in {node.where}"
    kind = "" if node.owns_blob else ", secondary"
    return f"{_short(node.label)}{where}{kind}"


def _blob(blob: Blob) -> str:
    facts = blob.facts
    whole = {True: "whole", False: "NOT WHOLE", None: "not checked"}[facts.is_whole]
    shared = ", shared with other models" if blob.is_shared else ""
    return f"{blob.name or 'inside of the model'}, {size_text(facts.size)}, {whole}{shared}"


def _lookalike(node: EpContextNode) -> str:
    return (
        f"node {_short(node.label)}: operator {node.op_type} of domain {node.domain or 'ai.onnx'} in {node.where}"
    )


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN_TEXT else f"{name[: _SHOWN_TEXT - 25]}...{name[-22:]}"
