"""Context binaries without an ONNX file (`model.bin`), for `qnnbridge inspect` and `qnnbridge wrap`.

The host's Python reads the binary with QNN's system library, in a separate process, because a damaged file can end
the process.
"""

from __future__ import annotations

import base64
import dataclasses
import filecmp
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.model.chips import chip_label
from qnnbridge_host.model.compatibility import Examination, HostTraits, examine
from qnnbridge_host.model.context_binary import BinaryDescription, BlobFacts, GraphDescription, TensorDescription
from qnnbridge_host.model.context_files import facts_of, look_at_binary, sketch
from qnnbridge_host.model.manifest import manifest_path, write_manifest
from qnnbridge_host.model.paths import path_problem
from qnnbridge_host.model.scan import CANNOT_RUN
from qnnbridge_os.files import write_whole
from qnnbridge_os.outputs import place_of_several
from qnnbridge_protocol.errors import (
    BridgeError,
    CompileFailed,
    ContextUnusable,
    HostStartFailed,
    OptionError,
    ProviderUnavailable,
    from_wire,
)
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.shell import model_command
from qnnbridge_tools import output
from qnnbridge_tools.arguments import read_chip
from qnnbridge_tools.inspection import SCHEMA_VERSION, find_installation, host_text

# Reading a binary of some gigabytes from a slow disk takes minutes.
READ_TIMEOUT_S: Final = 600.0
# Genie's description of a language model, in the folder of the model's binaries.
_GENIE_CONFIG: Final = "genie_config.json"
_SHOWN_TENSORS: Final = 8
_SHOWN_GRAPHS: Final = 6


@dataclasses.dataclass(frozen=True, slots=True)
class BinaryFacts:
    """The facts about a bare context binary.

    unread: why QNN's library could read only the header; `described` is then ``None``. no_host: why no host is
    available to check the binary.
    """

    path: str
    header: BlobFacts
    examination: Examination
    described: BinaryDescription | None = None
    unread: BridgeError | None = None
    host: HostTraits | None = None
    host_python: str | None = None
    no_host: BridgeError | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        found = []
        if os.path.exists(os.path.join(os.path.dirname(self.path), _GENIE_CONFIG)):
            found.append(
                f"The same folder contains {_GENIE_CONFIG}: the binary is a part of a language model that Genie "
                "runs. A session runs one graph of it. To generate text, use Genie, or onnxruntime-genai with a "
                "model made for it."
            )
        graphs = self.described.graphs if self.described is not None else ()
        exchanged = (
            f"The graph {graph.name} has {graph.updateable} tensors that a QNN program can update "
            "after loading (such as LoRA adapters); ONNX Runtime does not update them."
            for graph in graphs
            if graph.updateable
        )
        return (*found, *exchanged)


@dataclasses.dataclass(frozen=True, slots=True)
class WrappedFile:
    """One written model. graphs: the graphs of the binary that the model runs."""

    path: str
    graphs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapping:
    """The result of `wrap`. binary: path of the binary that the models use. copied: whether it is a copy."""

    facts: BinaryFacts
    models: tuple[WrappedFile, ...]
    binary: str
    copied: bool
    float_io: bool


def is_binary(path: Path) -> bool:
    """Return whether `inspect` shows the file as a context binary."""
    return facts_of(os.fspath(path)) is not None


def gather(binary: Path, *, soc_model: str | None = None, host_python: str | None = None) -> BinaryFacts:
    """Read the facts about a context binary.

    Args:
        binary: the file.
        soc_model: number or name of the chip to check the binary for; default: the host's chip.
        host_python: the interpreter of the host; default: the result of `find_host`.

    Raises:
        ContextUnusable: the file is not a usable context binary.
        OptionError: the chip is unknown.
        HostError: `host_python` is not a host's interpreter.
    """
    path = os.path.abspath(binary)
    # The header is read here, without a host: a file that is not a context binary is rejected immediately.
    header = look_at_binary(path)
    options = {"soc_model": str(read_chip(soc_model))} if soc_model is not None else {}
    found, seen = find_installation(host_python), sketch(path, header)
    if isinstance(found, BridgeError):
        return BinaryFacts(path, header, examine(path, seen, HostTraits()), no_host=found)
    host = found.traits(options)
    facts = BinaryFacts(path, header, examine(path, seen, host), host=host, host_python=found.python)
    try:
        described, _ = _ask(found.python, {**_REQUEST, "path": path})
    # Show the facts from the header, and the reason why QNN's library could not read more.
    except (ContextUnusable, ProviderUnavailable) as error:
        return dataclasses.replace(facts, unread=error)
    return dataclasses.replace(facts, described=described)


_REQUEST: Final[Mapping[str, Any]] = {"name": None, "graphs": [], "together": False, "float_io": False}


def _ask(python: str, request: Mapping[str, Any]) -> tuple[BinaryDescription, list[tuple[tuple[str, ...], bytes]]]:
    """Let the host's Python read the binary and build models; return the description and the models.

    Raise the errors of that process, and `ContextUnusable` if it crashes.
    """
    from qnnbridge._launch import host_environment

    try:
        # Use a separate process, because QNN's system library crashes on some damaged binaries.
        done = subprocess.run(
            [python, "-I", "-X", "utf8", "-m", "qnnbridge_host.wrap"],
            input=json.dumps(request).encode("ascii"),
            capture_output=True,
            timeout=READ_TIMEOUT_S,
            env=host_environment({}),
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostStartFailed(
            f"The host's interpreter {python} cannot read the binary.", cause=f"{error}."
        ) from None
    name = os.path.basename(str(request["path"]))
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()[-2:]
    try:
        answer = json.loads(done.stdout or b"null")
        if "error" in answer:
            raise from_wire(answer["error"])
        described = BinaryDescription.from_plain(answer["description"])
        models = [(tuple(map(str, names)), base64.b64decode(data)) for names, data in answer["models"]]
    except (ValueError, TypeError, LookupError) as error:
        if isinstance(error, BridgeError):
            raise
        # An older qnnbridge in that interpreter has no such module, and Python ends before the request is read.
        if "No module named qnnbridge_host.wrap" in " ".join(lines):
            raise ProviderUnavailable(
                f"The qnnbridge of the host's interpreter {python} is too old to read context binaries.",
                fix=install_command(python=str(python), options="--upgrade"),
            ) from None
        raise ContextUnusable(
            f"The process that reads {name} crashed (exit code {done.returncode}).",
            cause="QNN's system library crashed: the binary is damaged, or in an unknown format.",
            fix="Copy or download the binary again.",
            evidence=lines,
            details={"path": str(request["path"])},
        ) from None
    return described, models


# --- wrap ------------------------------------------------------------------------------------------------


def wrap_binary(
    binary: Path,
    target: Path,
    *,
    graphs: Sequence[str] = (),
    together: bool = False,
    float_io: bool = False,
    host_python: str | None = None,
    overwrite: bool = False,
) -> Wrapping:
    """Write the models around a context binary, and a manifest for each of them.

    Args:
        binary: the context binary. It stays in place if it is in the folder of `target` or below it; otherwise it
            is copied there.
        target: the file of the model. For several graphs, the name of each graph is inserted before the suffix.
        graphs: the names of the graphs; default all.
        together: whether to write one model that runs all graphs.
        float_io: whether fixed-point and half-precision tensors are float32 for the application.
        host_python: the interpreter of the host; default: the result of `find_host`.
        overwrite: whether to replace existing files.

    Returns:
        The written models, and the path of the binary.

    Raises:
        OptionError: `target` or an option is wrong.
        ContextUnusable: the binary cannot be read, or ONNX Runtime cannot run it.
        CompileFailed: a file cannot be written, or it exists already.
    """
    place_of_several(os.fspath(target))
    facts = gather(binary, host_python=host_python)
    if facts.unread is not None:
        raise facts.unread
    if facts.host_python is None:
        raise facts.no_host or ProviderUnavailable(
            "A host with QNN is needed to read the binary, and none was found."
        )
    folder = os.path.dirname(os.path.abspath(target))
    if target.suffix.lower() != ".onnx":
        raise OptionError(f"{target.name} is not a file name of an ONNX model.", fix="Let OUT end in .onnx.")
    # Decide the binary's path before building the models, because the models contain this path.
    place = _place(facts.path, folder)
    request = {
        "path": facts.path,
        "name": place.name,
        "graphs": list(graphs),
        "together": together,
        "float_io": float_io,
    }
    described, models = _ask(facts.host_python, request)
    names = _file_names(target, [one for one, _ in models])
    # Check all files before the first one is written.
    _refuse_existing([*names, *(map(manifest_path, names))], place, facts.path, overwrite=overwrite)
    try:
        os.makedirs(folder, exist_ok=True)
        # Write the binary first, so that a model never exists without its binary, even if this process is killed.
        if place.copy:
            _copy(facts.path, place.path)
        for name, (_, data) in zip(names, models, strict=True):
            # Write the manifest after its model, because it contains the model's hash.
            write_whole(name, data, durable=True)
            write_manifest(
                folder, os.path.basename(name), (place.name,), extra={"wrapped": True, "float_io": float_io}
            )
    except OSError as error:
        raise CompileFailed(
            f"The model for {binary.name} cannot be written.",
            cause=f"{error.strerror or error}.",
            fix="Check the permissions of the folder and the space on its disk.",
        ) from None
    written = tuple(WrappedFile(name, one) for name, (one, _) in zip(names, models, strict=True))
    return Wrapping(dataclasses.replace(facts, described=described), written, place.path, place.copy, float_io)


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Path of the binary that the models use.

    name: the path in the models. copy: whether a copy is needed there.
    """

    path: str
    name: str
    copy: bool


def _place(binary: str, folder: str) -> _Place:
    real, root = os.path.realpath(binary), os.path.realpath(folder)
    # Compare with the separator, because /a/bc is not in /a/b.
    with_folder = os.path.normcase(root) + os.sep
    if os.path.normcase(real).startswith(with_folder) and os.path.realpath(
        os.path.dirname(binary)
    ) == os.path.dirname(real):
        # Make the path relative, with slashes, because onnxruntime-qnn 2.7.0 refuses an absolute one.
        name = os.path.relpath(real, root).replace(os.sep, "/")
        if path_problem(name) is None:
            return _Place(real, name, copy=False)
    # onnxruntime-qnn 2.7.0 refuses every path with two dots in a row, also within a name.
    name = re.sub(r"\.{2,}", ".", os.path.basename(binary))
    return _Place(os.path.join(folder, name), name, copy=True)


def _file_names(target: Path, groups: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a file name for each model: `target` itself for one model."""
    if len(groups) == 1:
        return [os.path.abspath(place_of_several(os.fspath(target)))]
    taken: set[str] = set()
    names = []
    for group in groups:
        # A graph's name may contain characters that a file name must not contain, such as a slash.
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", group[0])[:80] or "graph"
        shown, number = stem, 2
        while shown.lower() in taken:  # names that differ only in case are the same file on Windows
            shown, number = f"{stem}_{number}", number + 1
        taken.add(shown.lower())
        names.append(os.path.abspath(target.with_name(f"{target.stem}_{shown}{target.suffix}")))
    return names


def _refuse_existing(files: Sequence[str], place: _Place, binary: str, *, overwrite: bool) -> None:
    # Recognise the binary under another path or by a link, too, because --overwrite would destroy it.
    over = [name for name in files if os.path.exists(name) and os.path.samefile(name, binary)]
    if over:
        raise OptionError(f"{over[0]} is the context binary itself.", fix="Give the model another name (-o).")
    wanted = list(files)
    if place.copy and os.path.exists(place.path):
        wanted.append(place.path)
    there = [name for name in wanted if os.path.lexists(name)]
    if there and not overwrite:
        raise CompileFailed(
            f"{there[0]} exists already.",
            fix="Give another name (-o), or add --overwrite.",
            details={"path": there[0]},
        )


def _copy(source: str, target: str) -> None:
    # The same contents may exist already, for example from an earlier call. `shallow=False`: an equal size and date
    # prove nothing.
    if os.path.exists(target) and filecmp.cmp(source, target, shallow=False):
        return
    # Copy under a temporary name first, so that the models never refer to an incomplete copy.
    part = f"{target}.{os.getpid()}.part"
    try:
        shutil.copyfile(source, part)
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.unlink(part)


# --- shown -----------------------------------------------------------------------------------------------


def document(facts: BinaryFacts) -> dict[str, Any]:
    """Return the JSON document of `inspect`. ``graphs`` is null if QNN's library has not read the binary."""
    header, described, verdict = facts.header, facts.described, facts.examination.verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "model": facts.path,
        "format": "qnn_context_binary",
        "size_bytes": header.size,
        "qnn_sdk": _sdk(facts),
        "targets": [dataclasses.asdict(target) for target in header.targets],
        "soc_model": described.soc_model or None if described else None,
        "backend": described.backend_words if described else None,
        "vtcm_mb": header.vtcm_mb,
        "shares_weights": header.shares_weights,
        "read_by": f"QNN system interface {described.library}: {described.layout}" if described else None,
        "graphs": None if described is None else [_graph_document(graph) for graph in described.graphs],
        "unread": None if facts.unread is None else facts.unread.to_wire(),
        "host": None if facts.host is None else {"python": facts.host_python, **dataclasses.asdict(facts.host)},
        "verdict": {"level": "unknown", "reason": facts.no_host.message}
        if facts.host is None and facts.no_host is not None
        else _unread_document(facts.unread)
        if facts.unread is not None
        else verdict._asdict(),
        "notes": list(facts.notes),
    }


def _unread_document(error: BridgeError) -> dict[str, Any]:
    return {
        "level": CANNOT_RUN,
        "reason": error.message,
        "cause": error.cause,
        "fix": error.fix,
        "evidence": list(error.evidence),
        "notes": [],
    }


def _graph_document(graph: GraphDescription) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": [_tensor_document(one) for one in graph.inputs],
        "outputs": [_tensor_document(one) for one in graph.outputs],
        "updateable": graph.updateable,
    }


def _tensor_document(tensor: TensorDescription) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "qnn": tensor.words,
        "type": tensor.onnx_type,
        "shape": list(tensor.dimensions),
        "quantisation": None if tensor.quantisation is None else dataclasses.asdict(tensor.quantisation),
    }


def _sdk(facts: BinaryFacts) -> str | None:
    return facts.header.sdk or (facts.described.build.removeprefix("v") if facts.described else None)


def print_facts(facts: BinaryFacts) -> None:
    header, described = facts.header, facts.described
    chips = ", ".join(f"{target.soc or 'chip not named'} V{target.arch}" for target in header.targets)
    if not chips and described is not None and described.soc_model:
        chips = chip_label(described.soc_model)
    vtcm = f"; {header.vtcm_mb} MB of VTCM" if header.vtcm_mb else ""
    pairs = [
        ("format", "QNN context binary without an ONNX file"),
        ("size", output.size_text(header.size)),
        ("made by", f"QNN SDK {_sdk(facts) or 'not known'}"),
        ("made for", (chips or "not known") + vtcm),
    ]
    if described is not None:
        pairs.append(("backend", described.backend_words))
        pairs.append(("graphs", str(len(described.graphs))))
    if header.shares_weights:
        pairs.append(("weights", "shared by its graphs"))
    output.print_pairs(os.path.basename(facts.path), pairs)
    graphs = described.graphs if described is not None else ()
    for graph in graphs[:_SHOWN_GRAPHS]:
        print()
        print(f"Graph {output.visible(graph.name)}")
        rows = [
            [kind, one.name, one.onnx_type or "none", one.words]
            for kind, ends in (("input", graph.inputs), ("output", graph.outputs))
            for one in ends[:_SHOWN_TENSORS]
        ]
        output.print_table(["", "name", "array of", "in QNN"], rows)
        more = sum(max(0, len(ends) - _SHOWN_TENSORS) for ends in (graph.inputs, graph.outputs))
        if more:
            print(f"and {more} more")
    if len(graphs) > _SHOWN_GRAPHS:
        print(f"\nand {len(graphs) - _SHOWN_GRAPHS} more graphs")
    print()
    output.print_pairs("On this host", _host_pairs(facts))


def _host_pairs(facts: BinaryFacts) -> list[tuple[str, str]]:
    if facts.host is None and facts.no_host is not None:
        return [
            ("verdict", "unknown, because no host was found, and the check needs one"),
            ("because", facts.no_host.message),
        ]
    verdict = facts.examination.verdict
    pairs = [("host", f"{host_text(facts.host)}; {facts.host_python}" if facts.host else "none")]
    error = facts.unread
    if error is not None:
        texts = (("verdict", CANNOT_RUN), ("because", error.message), ("", error.cause), ("fix", error.fix))
        return [*pairs, *((label, text) for label, text in texts if text)]
    pairs.append(("verdict", verdict.message))
    pairs += [(label, text) for label, text in (("because", verdict.cause), ("fix", verdict.fix)) if text]
    pairs += [("note", note) for note in (*verdict.notes, *facts.notes)]
    pairs.append(("to run it", f"{model_command('wrap', facts.path, '-o model_ctx.onnx')}, or open a session"))
    return pairs


def wrapping_document(done: Wrapping) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "binary": done.binary,
        "copied": done.copied,
        "float_io": done.float_io,
        "models": [
            {"path": one.path, "graphs": list(one.graphs), "manifest": manifest_path(one.path)}
            for one in done.models
        ],
        "source": document(done.facts),
    }


def print_wrapping(done: Wrapping) -> None:
    verdict = done.facts.examination.verdict
    for one in done.models:
        print(output.visible(f"{one.path}: {', '.join(one.graphs)}"))
    where = "copied next to the models" if done.copied else "not copied"
    print(f"{output.visible(done.binary)}: {where}; ship it with the models and their manifests.")
    print(f"Here: {output.visible(verdict.message)}")
    for text in (verdict.cause, verdict.fix, *done.facts.notes):
        if text:
            print(f"  {output.visible(text)}")
