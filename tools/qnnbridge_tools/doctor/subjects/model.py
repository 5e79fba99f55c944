"""Survey and check the model given with ``--model`` (can QNN run it on this computer?), and check
onnxruntime-genai.
"""

from __future__ import annotations

import ntpath
import os
import re
from collections.abc import Iterator
from typing import Final, cast

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import AFTER_OPTIMISATION
from qnnbridge_protocol.version_numbers import numbers_of
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Distribution, ExaminedModel, Facts, Packages, ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding
from qnnbridge_tools.doctor.fixes import word
from qnnbridge_tools.doctor.machine import Machine, paths_of
from qnnbridge_tools.doctor.subjects.packages import GENAI, fits_platform, fits_python
from qnnbridge_tools.doctor.subjects.probe import died_text


def survey_model(machine: Machine, path: str, facts: Facts) -> ExaminedModel:
    """Examine a model without running it."""
    # A folder is a model only if it contains a configuration; otherwise the path is a mistake.
    kind = machine.kind(path)
    if kind == "folder" and machine.kind(paths_of(machine.system).join(path, CONFIG)) == "file":
        return _survey_folder(path)
    if kind != "file":
        return ExaminedModel(path, exists=False, is_folder=kind == "folder")
    from qnnbridge_host.model.qnn_operators import nothing_for_qnn
    from qnnbridge_host.model.scan import scan_model

    try:
        scan = scan_model(path)
    except (BridgeError, OSError, ValueError) as error:
        return ExaminedModel(path, problem=getattr(error, "message", str(error)))
    paths = paths_of(machine.system)
    name, folder = paths.basename(path), paths.dirname(path)
    # If QNN supports no operator of the model, free dimensions do not matter.
    inputs = () if nothing_for_qnn(scan.ops) else scan.inputs
    known = ExaminedModel(
        path,
        size_bytes=scan.size_bytes,
        is_compiled=scan.is_compiled,
        node_count=scan.node_count,
        dynamic=tuple(
            f"{node.name}: {', '.join('?' if dim is None else str(dim) for _, dim in free)}"
            for node in inputs
            if (free := _free(node.shape))
        ),
        # Use the syntax of `--dim`: the dimension's name, or input and axis for a dimension without a name.
        free=tuple(
            dim if isinstance(dim, str) else f"{node.name}:{axis}"
            for node in inputs
            for axis, dim in _free(node.shape)
        ),
        # Check only inputs and outputs: `qnnbridge analyze` finds empty tensors inside of the model.
        zero=tuple(node.name for node in (*scan.inputs, *scan.outputs) if 0 in (node.shape or ())),
        missing=tuple(file for file in scan.external_files if machine.kind(paths.join(folder, file)) != "file"),
        quarantined=name in facts.state.quarantined,
    )
    # Only a compiled model can be judged without running it: its file records the chip and the QNN version.
    return _judge(known, scan, facts) if scan.is_compiled else known


def _survey_folder(path: str) -> ExaminedModel:
    """Examine the folder of a model for text generation."""
    from qnnbridge_host.model.genai_folder import read_folder

    try:
        folder = read_folder(path)
    except BridgeError as error:
        return ExaminedModel(path, is_folder=True, layout="unknown", problem=error.cause or error.message)
    size = sum(os.path.getsize(stage.path) for stage in folder.stages)
    return ExaminedModel(path, is_folder=True, layout=folder.layout, size_bytes=size)


def _judge(model: ExaminedModel, scan: object, facts: Facts) -> ExaminedModel:
    import dataclasses

    from qnnbridge_host.model.chips import chip_named
    from qnnbridge_host.model.compatibility import HostTraits, check_compiled

    packages = facts.host.packages
    loaded = packages.loaded_set if packages else None
    chip = chip_named(facts.computer.chip) if facts.computer.chip else None
    verdict = check_compiled(
        model.path,
        scan,  # type: ignore[arg-type] # a ModelScan, whose module is imported only where it is needed
        HostTraits(
            onnxruntime=packages.version("onnxruntime") if packages else None,
            onnxruntime_qnn=packages.version(fixes.QNN) if packages else None,
            qnn_sdk=packages.plugin_sdk or (loaded.sdk if loaded else None) if packages else None,
            simulator=not loaded.of("stub") if loaded else None,
            soc_model=chip.number if chip else None,
            htp_arch=facts.computer.arch,
        ),
    )
    reasons = [verdict.message, verdict.cause or "", verdict.fix or "", *verdict.notes]
    return dataclasses.replace(model, verdict=verdict.level, reasons=tuple(reason for reason in reasons if reason))


def _free(shape: object) -> list[tuple[int, int | str | None]]:
    """Return axis and declared size of each free dimension."""
    dims = shape if isinstance(shape, (tuple, list)) else ()
    return [(axis, dim) for axis, dim in enumerate(dims) if not isinstance(dim, int) or dim < 0]


CONFIG: Final = "genai_config.json"
_IS_AXIS: Final = re.compile(r":\d+$")
_COMPILE: Final = ("qnnbridge compile ORIGINAL.onnx",)


def find(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the model of ``--model``."""
    model = facts.model
    if model is None:
        return
    # `ntpath` accepts both kinds of slashes, so it works for paths of every system.
    name = ntpath.basename(model.path.rstrip("\\/")) or model.path
    if model.layout:
        yield from _generation(facts, model, name)
    elif model.is_folder:
        yield finding("model.missing", f"{name} is a folder", model.path, fix="Give the path of the model's file.")
    elif not model.exists:
        yield finding("model.missing", f"the file {name} does not exist", model.path, fix="Correct the path.")
    elif model.problem:
        yield finding(
            "model.unreadable", f"{name} is not an ONNX model", model.problem, fix="Export or copy the model again."
        )
    else:
        yield from _contents(facts, model, name)
        if model.probe is not None and model.probe.failed:
            yield _live(model, model.probe, name)


def _generation(facts: Facts, model: ExaminedModel, name: str) -> Iterator[Finding]:
    from qnnbridge_host.model.genai_folder import EVERY_LAYOUT, Layout, refusal, releases_of

    if model.problem:
        yield finding(
            "model.genai-damaged",
            f"the folder {name} is not a complete model for text generation",
            model.problem,
            fix="Copy or download the folder again with all of its files.",
        )
        return
    if facts.host.packages is None:
        return
    version = facts.host.packages.version(GENAI)
    if version is None:
        yield finding(
            "model.genai-missing",
            f"the host does not have {GENAI}, which {name} needs",
            facts.host.path,
            fix=fixes.by_pip(facts, f"install {GENAI}"),
        )
        return
    layout = cast("Layout", model.layout)
    reason = refusal(layout, version)
    if reason is not None:
        yield finding(
            "model.genai-layout",
            f"{GENAI} {version} does not support the layout of {name}",
            f"layout {layout}: {reason}",
            f"runs on: {releases_of(layout)}",
            fix=fixes.by_pip(facts, f"install {GENAI}=={EVERY_LAYOUT}"),
        )


def _contents(facts: Facts, model: ExaminedModel, name: str) -> Iterator[Finding]:
    if model.missing:
        yield finding(
            "model.data-missing",
            f"{name} lacks a file with weights" if len(model.missing) == 1 else f"{name} lacks files with weights",
            *model.missing[:5],
            fix="Copy these files to the model's folder, too, without renaming them.",
        )
    if model.zero:
        yield finding(
            "model.zero-size",
            f"{name} has tensors of size 0",
            *model.zero[:5],
            fix="Give these tensors a size above 0, or remove them from the model.",
        )
    if model.verdict == "cannot run here":
        yield finding(
            "model.compiled-unusable",
            f"the compiled model {name} cannot run here",
            *model.reasons[:4],
            fix=Remedy("Compile the original model (ORIGINAL.onnx) for this computer.", _COMPILE),
        )
    elif model.verdict == "recompile recommended":
        yield finding(
            "model.recompile",
            f"{name} should be compiled again",
            *model.reasons[:4],
            fix=Remedy("Compile the original model (ORIGINAL.onnx) again.", _COMPILE),
        )
    # Skip the finding if a probe ran the whole model on QNN: the user then gave sizes with --dim.
    if model.dynamic and not _ran_on_qnn(model):
        yield finding(
            "model.dynamic-shape",
            f"the inputs of {name} have free dimensions",
            *model.dynamic[:5],
            fix=_fix_dimensions(model),
        )
    if facts.is_windows and not model.path.isascii():
        yield finding(
            "model.not-ascii",
            f"the path of {name} is not plain ASCII",
            model.path,
            fix="Rename the file or folder.",
        )
    if model.quarantined:
        yield finding(
            "model.quarantined",
            f"{name} is in quarantine",
            fix=Remedy(
                "See why, then let it try again.", ("qnnbridge crashes", "qnnbridge quarantine clear --all")
            ),
        )


def _fix_dimensions(model: ExaminedModel) -> Remedy:
    """Return the fix that sets all free dimensions: a single free dimension prevents all nodes from running on
    QNN.
    """
    free = model.free or [name for line in model.dynamic for name in line.rpartition(": ")[2].split(", ")]
    names = list(dict.fromkeys(free))
    named = next((name for name in names if not _IS_AXIS.search(name)), None)
    code = f" (in code: add_free_dimension_override_by_name('{named}', SIZE)" if named else ""
    code += (" for each)" if len(names) > 1 else ")") if named else ""
    sizes = " ".join(f"--dim {word(f'{name}=SIZE')}" for name in names)
    return Remedy(f"Give them sizes for SIZE{code}.", (f"qnnbridge run {word(model.path)} --random {sizes}",))


def _ran_on_qnn(model: ExaminedModel) -> bool:
    probe = model.probe
    return probe is not None and not probe.failed and not probe.skipped and not probe.cpu_nodes


def _live(model: ExaminedModel, probe: ProbeResult, name: str) -> Finding:
    # A refused placement is caused by the model, not by the host.
    if probe.error == "PlacementRefused":
        return finding(
            "model.on-cpu",
            f"QNN does not support all of {name}",
            probe.message,
            *probe.evidence[:4],
            fix=probe.fix or "Change these nodes, or allow fallback='cpu'.",
            notes=(probe.cause,) if probe.cause else (),
        )
    return finding(
        "model.fails",
        f"{name} does not work on this host{died_text(probe)}",
        probe.message,
        *probe.evidence[:4],
        fix=probe.fix or Remedy("See the whole error.", (f"qnnbridge run {word(model.path)} --random",)),
        notes=(probe.cause,) if probe.cause else (),
    )


def healthy(facts: Facts) -> str | None:
    """Describe the model in one line."""
    model = facts.model
    if model is None:
        return None
    text = f"{ntpath.basename(model.path)}, {model.size_bytes} bytes"
    if model.layout:
        return f"{text}, for text generation, {model.layout} layout"
    if model.is_compiled:
        text += f", compiled: {model.verdict}"
    if model.probe and not model.probe.failed and not model.probe.skipped:
        text += f"; {model.probe.qnn_nodes} nodes on QNN, {model.probe.cpu_nodes} on the CPU, {AFTER_OPTIMISATION}"
    return text


CHECK = SubjectCheck("model", find, healthy)


# --- onnxruntime-genai: in the host, and in an application that should use the host's copy ---

_LEAST: Final = re.compile(r">=\s*([\d.]+)")


def find_genai(facts: Facts) -> Iterator[Finding]:
    """Yield findings about onnxruntime-genai."""
    packages = facts.host.packages
    installed = packages.distribution(GENAI) if packages is not None else None
    if packages is not None and installed is not None:
        yield from _wheel(facts, installed)
        yield from _versions(facts, packages, installed)
    yield from _emulated(facts, has_host=installed is not None)


def _wheel(facts: Facts, installed: Distribution) -> Iterator[Finding]:
    answer = facts.host.answer
    if answer is None or not installed.tags:
        return
    # Wheel tags contain underscores: win_arm64 for win-arm64.
    platform = answer.platform.replace("-", "_").replace(".", "_")
    tags = [tag.split("-") for tag in installed.tags]
    if not any(fits_platform(tag[-1], platform) and fits_python(tag[0], answer.tag) for tag in tags):
        yield finding(
            "genai.wheel",
            f"the host's {GENAI} {installed.version} is for another interpreter",
            f"wheel {', '.join(installed.tags)} in Python {answer.version}, {answer.platform} ({installed.folder})",
            fix=fixes.install_again(facts, GENAI, installed.version, "--only-binary :all:"),
        )


def _versions(facts: Facts, packages: Packages, installed: Distribution) -> Iterator[Finding]:
    # Import this module only here: it also imports the model reader, and most computers lack onnxruntime-genai.
    from qnnbridge_host.model.genai_folder import OLDEST, TRIED, is_too_old

    if is_too_old(installed.version):
        yield finding(
            "genai.too-old",
            f"the host's {GENAI} {installed.version} is too old",
            f"{GENAI} {installed.version} ({installed.folder})",
            fix=fixes.by_pip(facts, f"install -U {word(f'{GENAI}>=' + '.'.join(map(str, OLDEST)))}"),
        )
        # This release must be replaced anyway, so skip the check of its onnxruntime.
        return
    if "ort-too-old" in fixes.known_reasons(facts):
        return  # `packages.onnxruntime-too-old` reports the cause and the fix
    runtime, least = packages.version("onnxruntime"), _LEAST.search(installed.needs)
    if runtime is not None and least is not None and numbers_of(runtime) < numbers_of(least[1]):
        wanted = "onnxruntime" + installed.needs
        is_whole = fixes.is_1x(packages.version(fixes.QNN) or "")
        yield finding(
            "genai.onnxruntime-too-old",
            f"onnxruntime {runtime} is too old for {GENAI} {installed.version}",
            f"{GENAI} {installed.version} needs {wanted}",
            # With onnxruntime-qnn 1.x, replace onnxruntime-genai: installing onnxruntime would overwrite the
            # provider's files.
            fix=fixes.by_pip(
                facts, f"install {GENAI}=={TRIED[0]}", "Install a release for the installed onnxruntime."
            )
            if is_whole
            else fixes.by_pip(facts, f"install {word(wanted)}"),
        )


def _emulated(facts: Facts, *, has_host: bool) -> Iterator[Finding]:
    """Yield a finding for onnxruntime-genai in an emulated x64 Python on an Arm PC, where it cannot use the NPU."""
    installed = facts.application_packages.distribution(GENAI)
    if installed is None or not (facts.is_windows and facts.is_arm and facts.application_machine == "x64"):
        return
    commands = () if has_host or facts.host.answer is None else fixes.pip(facts, f"install {GENAI}")
    yield finding(
        "genai.emulated",
        f"this Python's own {GENAI} {installed.version} runs emulated",
        f"{GENAI} {installed.version} for x64 ({installed.folder})",
        fix=Remedy(
            "Use qnnbridge.genai, which has the same interface and generates in the ARM64 host. "
            "With `qnnbridge exec`, a program that imports onnxruntime_genai uses qnnbridge.genai."
            + (" The host lacks the package:" if commands else ""),
            commands,
        ),
    )


def healthy_genai(facts: Facts) -> str | None:
    """Describe the host's onnxruntime-genai in one line; ``None`` without it."""
    packages = facts.host.packages
    version = packages.version(GENAI) if packages is not None else None
    if version is None:
        return None
    from qnnbridge_host.model.genai_folder import TRIED, is_untried, standing_of
    from qnnbridge_host.model.releases import STANDING_WORDS

    position = standing_of(version)
    if position == "listed":
        return f"{GENAI} {version}"
    words = STANDING_WORDS[position]
    if is_untried(version):
        words += f", {TRIED[-1]}: a separate process tests it before the host loads it"
    return f"{GENAI} {version} ({words})"


GENAI_CHECK = SubjectCheck("text generation", find_genai, healthy_genai)
