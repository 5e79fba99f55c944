"""What the file of ``--model`` holds, and whether a compiled one fits the host; without loading it into QNN."""

from __future__ import annotations

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.doctor.facts import Facts, ModelFacts
from qnnbridge_tools.doctor.machine import Machine, paths_of


def survey_model(machine: Machine, path: str, facts: Facts) -> ModelFacts:
    if machine.kind(path) != "file":
        return ModelFacts(path, exists=False, is_folder=machine.kind(path) == "folder")
    from qnnbridge_host.model.scan import scan_model

    try:
        scan = scan_model(path)
    except (BridgeError, OSError, ValueError) as error:
        return ModelFacts(path, problem=getattr(error, "message", str(error)))
    name = paths_of(machine.system).basename(path)
    known = ModelFacts(
        path,
        size_bytes=scan.size_bytes,
        is_compiled=scan.is_compiled,
        node_count=scan.node_count,
        dynamic=tuple(f"{node.name}: {_free(node.shape)}" for node in scan.inputs if _free(node.shape)),
        free=tuple(name for node in scan.inputs for name in _names(node.name, node.shape)),
        zero=tuple(node.name for node in (*scan.inputs, *scan.outputs) if 0 in (node.shape or ())),
        quarantined=name in facts.state.quarantined,
    )
    return _judge(known, scan, facts) if scan.is_compiled else known


def _judge(model: ModelFacts, scan: object, facts: Facts) -> ModelFacts:
    import dataclasses

    from qnnbridge_host.model.chips import chip_named
    from qnnbridge_host.model.compatibility_check import HostTraits, check_compiled

    packages = facts.host.packages
    loaded = packages.loaded_set if packages else None
    chip = chip_named(facts.computer.chip) if facts.computer.chip else None
    verdict = check_compiled(
        model.path,
        scan,  # type: ignore[arg-type] # a ModelScan; its module is imported where it is needed
        HostTraits(
            onnxruntime=packages.version("onnxruntime") if packages else None,
            onnxruntime_qnn=packages.version("onnxruntime-qnn") if packages else None,
            qnn_sdk=packages.plugin_sdk or (loaded.sdk if loaded else None) if packages else None,
            simulator=not loaded.of("stub") if loaded else None,
            soc_model=chip.number if chip else None,
            htp_arch=facts.computer.arch,
        ),
    )
    reasons = [verdict.message, verdict.cause or "", verdict.fix or "", *verdict.notes]
    return dataclasses.replace(model, verdict=verdict.level, reasons=tuple(reason for reason in reasons if reason))


def _free(shape: object) -> str:
    if not isinstance(shape, (tuple, list)):
        return ""
    return ", ".join("?" if dim is None else str(dim) for dim in shape if not isinstance(dim, int) or dim < 0)


def _names(name: str, shape: object) -> list[str]:
    """The free dimensions as ``--dim`` takes them: by name, or by input and axis where they have none."""
    if not isinstance(shape, (tuple, list)):
        return []
    return [
        dim if isinstance(dim, str) else f"{name}:{axis}"
        for axis, dim in enumerate(shape)
        if not isinstance(dim, int) or dim < 0
    ]
