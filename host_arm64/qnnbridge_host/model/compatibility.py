"""Origin and target of a compiled model, and the verdict on whether it can run on a host.

Three sources describe the origin. Only the context binary is reliable: it contains the SDK build and the chip that
the compiler used. The compatibility text in the model's metadata repeats the options, and the nodes' attributes can
be edited; QNN checks neither the text nor the attributes. ONNX Runtime has written the text since 1.23, in two
formats with fields separated by colons:

    6:2.48.40:5.48.0:0.0.0:68:0     backend, SDK, backend API, context blob, architecture, runtime driver
    v2:6:2.51.0:5.51.0:0:60:0:0     backend, SDK, backend API, architectures, chips, VTCM, runtime driver

In the second format, architectures, chips and VTCM are lists of equal length, separated by commas; 0 means that the
options did not set the value. All data is immutable, and all functions are pure.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from qnnbridge_host.model.chips import chip_label, chip_named, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.collector import QNN_SOURCES, EpContextNode, ModelScan
from qnnbridge_host.model.context_binary import BlobFacts
from qnnbridge_host.model.context_files import Blob, ContextFindings, Hash, check_context_files
from qnnbridge_host.model.manifest import CompiledManifest, read_manifest
from qnnbridge_host.model.scan import CANNOT_RUN, OK, RECOMPILE, RECOMPILE_FIX, Verdict, cannot_run
from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import ContextUnusable
from qnnbridge_protocol.specs import QNN, ProviderSpec

# A third component with more than six digits is a build stamp and not part of the version.
_NUMBERS: Final = re.compile(r"v?(\d{1,4})\.(\d{1,6})(?:\.(\d{1,6})(?!\d))?")


def sdk_numbers(text: str | None) -> tuple[int, ...] | None:
    """Parse a version without its build stamp: ``v2.51.0.260929181845`` -> (2, 51, 0). Return ``None`` if it is
    invalid.

    An invalid text is not an error, because it may come from a model of unknown origin.
    """
    found = _NUMBERS.match(text.strip()) if text else None
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def short_sdk(text: str | None) -> str:
    """Return major and minor version for messages, such as ``2.51``."""
    numbers = sdk_numbers(text)
    return ".".join(map(str, numbers[:2])) if numbers else str(text or "unknown")


def release_with_sdk(sdk: str | None) -> str | None:
    """Return the oldest release with at least this QNN SDK, as ``onnxruntime-qnn 2.7.0``, or ``None``."""
    wanted = sdk_numbers(sdk)
    if wanted is None:
        return None
    try:
        from qnnbridge_host.model.releases import load_releases, version_key

        releases = load_releases()
    # Ignore a missing table: the release is only part of the advice, and the verdict does not depend on it.
    except (ImportError, OSError, ValueError, KeyError):
        return None
    fitting = [
        (numbers, version_key(release.version), release.version)
        for release in releases
        if (numbers := sdk_numbers(release.qnn_sdk)) is not None and numbers[:2] >= wanted[:2]
    ]
    return f"onnxruntime-qnn {min(fitting)[-1]}" if fitting else None


METADATA_KEY: Final = "ep_compatibility_info.QNNExecutionProvider"

HTP_BACKEND: Final = 6
_BACKENDS: Final = {HTP_BACKEND: "HTP backend"}


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledTarget:
    """Target of a context binary. 0 means that the compiler options did not set the value."""

    arch: int = 0
    soc_model: int = 0
    vtcm_mb: int = 0

    @property
    def known_arch(self) -> int | None:
        """Architecture of the chip, or `arch` if the chip is unknown; ``None`` if neither is known."""
        chip = chip_of(self.soc_model)
        # The chip takes precedence, as in QNN: with soc_model 60 and htp_arch 81 QNN compiles for V73.
        return chip.arch if chip else self.arch or None

    @property
    def label(self) -> str:
        """Target for messages: ``SoC 88 (V81)``, ``V73``, or ``no chip named`` if both are unknown."""
        arch = self.known_arch
        if self.soc_model:
            return f"SoC {self.soc_model} (V{arch})" if arch else f"SoC {self.soc_model}"
        return f"V{arch}" if arch else "no chip named"


@dataclasses.dataclass(frozen=True, slots=True)
class Compatibility:
    """Parsed compatibility text.

    form: format of the text, 1 or 2. context_blob: only in the first format. user_driver: compiled with the runtime
        driver (HNRD).
    """

    text: str
    form: int
    backend: int
    sdk: str
    backend_api: str
    targets: tuple[CompiledTarget, ...]
    user_driver: bool
    context_blob: str | None = None

    @property
    def words(self) -> tuple[str, str]:
        """Description of origin and target for messages."""
        backend = _BACKENDS.get(self.backend, f"backend {self.backend}")
        made_with = f"{backend}, QNN SDK {self.sdk}, backend API {self.backend_api}"
        if self.context_blob is not None:
            made_with += f", context blob {self.context_blob}"
        driver = (
            "compiled with the system's runtime driver (HNRD)"
            if self.user_driver
            else "not on a runtime driver (HNRD)"
        )
        return made_with, f"for {', '.join(_target_text(target) for target in self.targets)}; {driver}"


def parse(text: str) -> Compatibility | None:
    """Parse a compatibility text; return ``None`` if it has neither format."""
    fields = text.strip().split(":")
    try:
        if fields[0] == "v2" and len(fields) == 8:
            _, backend, sdk, api, archs, socs, vtcms, driver = fields
            columns = [[_number(item) for item in column.split(",")] for column in (archs, socs, vtcms)]
            targets = tuple(CompiledTarget(*row) for row in zip(*columns, strict=True))
            return Compatibility(text, 2, int(backend), sdk, api, targets, driver == "1")
        if len(fields) == 6:
            backend, sdk, api, blob, arch, driver = fields
            targets = (CompiledTarget(_number(arch)),)
            return Compatibility(text, 1, int(backend), sdk, api, targets, driver == "1", blob)
    # A field is not a number, or the lists differ in length.
    except ValueError:
        pass
    return None


def _number(text: str) -> int:
    """Parse a number; an architecture may have a leading letter ("v73")."""
    return int(text.strip().lstrip("vV") or "0")


def _target_text(target: CompiledTarget) -> str:
    words = chip_label(target.soc_model) if target.soc_model else "no chip named"
    if target.arch:
        words += f", architecture V{target.arch} requested"
    return words + (f", {target.vtcm_mb} MB of VTCM" if target.vtcm_mb else "")


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledOrigin:
    """Origin and targets of a compiled model.

    sdk: the QNN SDK, ``None`` if unknown. targets: one or several targets. multi: whether the binary is for several
        chips. user_driver: whether it was compiled with the system's runtime driver. notes: contradictions between
        the sources.
    """

    sdk: str | None = None
    targets: tuple[CompiledTarget, ...] = ()
    multi: bool = False
    user_driver: bool = False
    backend: int = HTP_BACKEND
    compatibility: Compatibility | None = None
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Origin for messages: ``compiled with QNN 2.51 for SoC 88 (V81)``."""
        sdk = f"QNN {short_sdk(self.sdk)}" if self.sdk else "an unknown version of QNN"
        named = [target.label for target in self.targets if target.known_arch or target.soc_model]
        return f"compiled with {sdk}" + (f" for {', '.join(named)}" if named else "")


def made(metadata: Mapping[str, str], nodes: Sequence[EpContextNode], blobs: Sequence[Blob]) -> CompiledOrigin:
    """Return the origin of a compiled model.

    Args:
        metadata: the model's metadata.
        nodes: the model's EPContext nodes of QNN.
        blobs: the context binaries that could be read.
    """
    text = parse(metadata.get(METADATA_KEY, ""))
    facts = [blob.facts for blob in blobs]
    said = next((node.sdk_version for node in nodes if node.sdk_version), None)
    by_blob = next((fact.sdk for fact in facts if fact.sdk), None)
    sdk = by_blob or (text.sdk if text and sdk_numbers(text.sdk) else None) or (said if sdk_numbers(said) else None)
    notes = []
    for other, where in ((text.sdk if text else None, "metadata"), (said, "nodes")):
        if by_blob and sdk_numbers(other) and short_sdk(other) != short_sdk(by_blob):
            notes.append(
                f"The model's {where} record QNN {short_sdk(other)}, but the context binary records "
                f"{short_sdk(by_blob)}."
            )
    multi = (
        any(fact.kind == "several contexts" for fact in facts)
        or any(node.multi_soc for node in nodes)
        or (text is not None and len(text.targets) > 1)
    )
    recorded = tuple(dict.fromkeys(_target(t.soc, t.arch, fact.vtcm_mb) for fact in facts for t in fact.targets))
    declared = text.targets if text else ()
    # Prefer the metadata of a binary for several chips if it lists at least as many targets as the binary, because
    # only the start of the binary is read.
    targets = declared if multi and len(declared) >= len(recorded) else recorded or declared
    return CompiledOrigin(
        sdk=sdk,
        targets=targets,
        multi=multi,
        user_driver=bool(text and text.user_driver),
        backend=text.backend if text else HTP_BACKEND,
        compatibility=text,
        notes=tuple(notes),
    )


def _target(soc: str | None, arch: int, vtcm_mb: int | None) -> CompiledTarget:
    chip = chip_named(soc) if soc else None
    return CompiledTarget(arch, chip.number if chip else 0, vtcm_mb or 0)


# --- the verdict on a host: ok, recompile recommended, or cannot run here --------------------------------
# QNN is not loaded: the verdict follows from the model file, the header of its context binary, its manifest and the
# host's package versions. The rules for NPUs are those of the QNN provider's own check, which the provider skips on
# the simulator. The rules for the simulator were measured (onnxruntime-qnn 2.7.0).

# Binaries for architectures before V73 do not run on V73 and newer architectures, and vice versa.
_NEW_ARCH: Final = 73
# A simulator of a chip older than V81 does not load binaries for V81 and newer; it loads all other binaries.
_SIMULATOR_REFUSES_FROM_ARCH: Final = 81
# First release of onnxruntime-qnn that was measured to load a model with several compiled parts and an embedded
# context binary (ONNX Runtime #31977).
_EMBEDDED_PARTS_LOAD_SINCE: Final = (2, 7)


@dataclasses.dataclass(frozen=True, slots=True)
class HostTraits:
    """Properties of a host that decide whether a compiled model runs.

    Versions are those of the installed packages; ``None`` means absent or unknown. simulator: QNN computes on the
    CPU and simulates the chip `soc_model`. soc_model, htp_arch: chip and architecture of the NPU (73 for V73).
    backend: QNN's backend; there are rules only for htp.
    """

    onnxruntime: str | None = None
    onnxruntime_qnn: str | None = None
    qnn_sdk: str | None = None
    simulator: bool | None = None
    soc_model: int | None = None
    htp_arch: int | None = None
    backend: str = "htp"

    @classmethod
    def of_hello(cls, peer: Hello, providers: Sequence[ProviderSpec] = ()) -> HostTraits:
        """Return the traits of a host from its HELLO, before it loads QNN, for a session with these providers."""
        # QNN is not loaded yet, so infer from the machine whether the host has the simulator: the x64 wheels
        # contain it.
        simulator = {"ARM64": False, "x64": True, "x86_64": True}.get(peer.machine)
        return cls.of_installation(peer.versions, simulator, _qnn_options(providers))

    @classmethod
    def of_installation(
        cls, versions: Mapping[str, str], simulator: bool | None, options: Mapping[str, str]
    ) -> HostTraits:
        """Return the traits from the versions of installed packages and QNN's provider options of a session."""
        release = versions.get("onnxruntime_qnn")
        if simulator:
            number = simulated_chip(options.get("soc_model"), options.get("htp_arch"))
            chip = chip_of(number) if number else None
        else:
            chip = chip_of_this_computer()
            number = chip.number if chip else None
        return cls(
            onnxruntime=versions.get("onnxruntime"),
            onnxruntime_qnn=release,
            qnn_sdk=versions.get("qnn_sdk") or _sdk_of(release),
            simulator=simulator,
            soc_model=number,
            htp_arch=chip.arch if chip else None,
            backend=backend_of(options),
        )

    @property
    def words(self) -> str:
        """QNN version and architecture for messages: ``QNN 2.51 on V73``."""
        sdk = f"QNN {short_sdk(self.qnn_sdk)}" if self.qnn_sdk else "a QNN of unknown version"
        if self.simulator and self.htp_arch:
            return f"{sdk} and simulates V{self.htp_arch} (soc_model={self.soc_model})"
        return f"{sdk} on V{self.htp_arch}" if self.htp_arch else sdk


def _qnn_options(providers: Sequence[ProviderSpec]) -> Mapping[str, str]:
    return next((provider.options for provider in providers if provider.name == QNN), {})


def backend_of(options: Mapping[str, str]) -> str:
    """Return QNN's backend for these provider options: htp, gpu, cpu, or the file name of another library."""
    library = os.path.basename(options.get("backend_path", "").replace("\\", "/")).removeprefix("lib")
    if library:
        name = library.partition(".")[0].lower()
        return name.removeprefix("qnn") if name.startswith("qnn") else name
    return options.get("backend_type", "htp")


def _sdk_of(release: str | None) -> str | None:
    """Return the QNN SDK of a release from the version table, because 1.x packages do not report it."""
    if release is None:
        return None
    try:
        from qnnbridge_host.model.releases import for_version

        return next((found.qnn_sdk for found in for_version(release) if found.qnn_sdk), None)
    except (ImportError, OSError, ValueError):
        return None


def check_compiled(
    path: str | os.PathLike[str] | bytes,
    scan: ModelScan,
    host: HostTraits,
    *,
    folder: str | None = None,
    hash_of: Hash | None = None,
) -> Verdict:
    """Judge a compiled model.

    Args:
        path: the model's path, or its bytes.
        scan: the scan of the model.
        folder: folder to which relative paths in a model given as bytes refer; default: the current folder.
        hash_of: function that returns the SHA-256 of a file, for callers that have already computed it.
    """
    return examine(path, scan, host, folder=folder, hash_of=hash_of).verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Examination:
    """Verdict and its evidence. broken: the fault that makes the model unusable on any host."""

    verdict: Verdict
    broken: Verdict | None
    found: ContextFindings
    made: CompiledOrigin
    manifest: CompiledManifest | None = None


def examine(
    path: str | os.PathLike[str] | bytes,
    scan: ModelScan,
    host: HostTraits,
    *,
    folder: str | None = None,
    hash_of: Hash | None = None,
    by_manifest: bool = True,
) -> Examination:
    """Judge a compiled model like `check_compiled`, and return the verdict with its evidence.

    by_manifest: False to ignore the manifest next to the model, because the caller is about to replace it.
    """
    model = path if isinstance(path, bytes) else os.path.abspath(os.fsdecode(path))
    if folder is None:
        folder = os.curdir if isinstance(model, bytes) else os.path.dirname(model)
    folder = os.path.abspath(folder)
    nodes = scan.ep_contexts
    problem = _name_problem(model) or _structure_problem(nodes)
    manifest, manifest_problem, notes = _manifest(model) if by_manifest else (None, None, ())
    problem = problem or manifest_problem
    qnn = [node for node in nodes if node.source in QNN_SOURCES]
    # Omit parts with a DLC file, which Genie runs: a DLC has neither the header nor the graphs of a context binary.
    with_binary = [node for node in qnn if node.dlc_path is None]
    found = check_context_files(model, folder, with_binary, manifest, hash_of or hash_file)
    was_made = made(scan.metadata, qnn, found.blobs)
    broken = problem or found.problem
    verdict = broken or _judge(nodes, found.blobs, was_made, host)
    all_notes = (*verdict.notes, *notes, *was_made.notes)
    return Examination(verdict._replace(notes=all_notes), broken, found, was_made, manifest)


def judge_apart(
    scan: ModelScan, host: HostTraits, header_of: Callable[[EpContextNode], BlobFacts | None]
) -> Verdict:
    """Judge a compiled model that is not on this computer (such as on a model hub) by the headers of its files.

    This does not detect damaged files; use `examine` after the download.

    Args:
        scan: the scan of the model.
        host: the traits of the host.
        header_of: reads the header of a main node's context binary; ``None`` if the binary is missing.
    """
    nodes = scan.ep_contexts
    qnn = [node for node in nodes if node.source in QNN_SOURCES]
    problem = _structure_problem(nodes)
    if problem is not None:
        return problem
    owners = [node for node in qnn if node.owns_blob and node.dlc_path is None]
    headers = [(node, header_of(node)) for node in owners]
    blobs = tuple(Blob(node.cache_path, None, facts, tuple(qnn)) for node, facts in headers if facts is not None)
    return _judge(nodes, blobs, made(scan.metadata, qnn, blobs), host)


# --- the nodes -------------------------------------------------------------------------------------------


def _name_problem(model: str | bytes) -> Verdict | None:
    if isinstance(model, bytes) or not model.lower().endswith(".ort"):
        return None
    return cannot_run(
        "its name ends in .ort, so ONNX Runtime would read it as its own format",
        "The file is an ONNX model in spite of its name.",
        f"Rename it to {os.path.splitext(os.path.basename(model))[0]}.onnx.",
    )


def _structure_problem(nodes: tuple[EpContextNode, ...]) -> Verdict | None:
    foreign = [node for node in nodes if node.source not in QNN_SOURCES]
    if foreign:
        makers = ", ".join(dict.fromkeys(node.provider for node in foreign))
        return cannot_run(
            f"compiled by {makers}; this host runs only models that QNNExecutionProvider compiled",
            "A context binary can be read only by the execution provider that made it.",
            f"{RECOMPILE_FIX}, or use the original model.",
        )
    if not any(node.owns_blob for node in nodes):
        return cannot_run(
            "none of its compiled parts owns a context binary",
            "No EPContext node has main_context=1. Parts of the model were removed, or it was written incorrectly.",
            f"{RECOMPILE_FIX}.",
        )
    return None


# --- the manifest ----------------------------------------------------------------------------------------


def _manifest(model: str | bytes) -> tuple[CompiledManifest | None, Verdict | None, tuple[str, ...]]:
    if isinstance(model, bytes):
        return None, None, ()
    try:
        manifest = read_manifest(model)
    except ContextUnusable as error:
        return None, cannot_run(error.message.rstrip("."), error.cause, error.fix, *error.evidence), ()
    if manifest is not None and manifest.model != os.path.basename(model):
        return None, None, (f"The manifest next to the model belongs to {manifest.model} and was ignored.",)
    return manifest, None, ()


# --- origin and target -----------------------------------------------------------------------------------


def _judge(
    nodes: tuple[EpContextNode, ...], blobs: tuple[Blob, ...], was: CompiledOrigin, host: HostTraits
) -> Verdict:
    if host.backend != "htp":
        note = f"Whether the model runs on the session's QNN backend {host.backend} cannot be checked."
        return Verdict(OK, notes=(note,))
    # Apply every rule, because the result contains the notes of all rules. Of several verdicts with the same level
    # the first is shown. Check the version before the chip, because the advice on the chip depends on the version
    # that is installed.
    verdicts = [
        verdict
        for verdict in (
            _no_qnn(was, host),
            _other_backend(was),
            _older_sdk(was, host),
            _chip(was, host),
            _shared(blobs, host),
            _user_driver(was, host),
            _genie(nodes, host),
            _embedded_parts(nodes, host),
        )
        if verdict is not None
    ]
    worst = max(verdicts, key=_severity, default=Verdict(OK))
    return worst._replace(notes=tuple(note for verdict in verdicts for note in verdict.notes))


def _severity(verdict: Verdict) -> int:
    return (OK, RECOMPILE, CANNOT_RUN).index(verdict.level)


def _no_qnn(was: CompiledOrigin, host: HostTraits) -> Verdict | None:
    if host.onnxruntime_qnn is not None:
        return None
    release = release_with_sdk(was.sdk) or "onnxruntime-qnn"
    return cannot_run(
        f"{was.words}; this host has no onnxruntime-qnn",
        None,
        f"Install {release} in the host's Python.",
    )


def _other_backend(was: CompiledOrigin) -> Verdict | None:
    if was.backend == HTP_BACKEND:
        return None
    return cannot_run(
        f"made for QNN's backend {was.backend}, not for the HTP ({HTP_BACKEND})",
        "A context binary can be read only by the backend that made it.",
        f"{RECOMPILE_FIX}, or select that backend with the provider option backend_type.",
    )


def _older_sdk(was: CompiledOrigin, host: HostTraits) -> Verdict | None:
    its, ours = sdk_numbers(was.sdk), sdk_numbers(host.qnn_sdk)
    if its is None or ours is None:
        note = "The QNN version of the model or host is unknown, so the versions could not be compared."
        return Verdict(OK, notes=(note,))
    if its[:2] > ours[:2]:
        release = release_with_sdk(was.sdk)
        newer = release or f"a release of onnxruntime-qnn with QNN {short_sdk(was.sdk)} or newer"
        chip = _chip(was, host)
        fix = f"{RECOMPILE_FIX}, or install {newer} in the host's Python."
        if chip is not None and not chip.can_run:
            fix = f"{chip.fix} Installing {newer} is not enough, because this chip cannot run the model either."
        return cannot_run(
            f"{was.words}; this host has {host.words}", "QNN cannot read a context binary of a newer SDK.", fix
        )
    if its > ours:
        return Verdict(RECOMPILE, f"{was.words} ({was.sdk}); this host has a slightly older QNN ({host.qnn_sdk})")
    if its[:2] < ours[:2]:
        return Verdict(
            OK,
            notes=(
                f"Compiled with an older QNN ({short_sdk(was.sdk)}) than the QNN of this host "
                f"({short_sdk(host.qnn_sdk)}).",
            ),
        )
    return None


def _chip(was: CompiledOrigin, host: HostTraits) -> Verdict | None:
    if host.simulator:
        return _chip_on_simulator(was, host)
    if host.htp_arch is None:
        return Verdict(OK, notes=("The chip of the host is not known, so the architecture was not compared.",))
    if not was.targets or not any(target.known_arch for target in was.targets):
        return Verdict(OK, notes=("The model does not record the chip for which it was compiled.",))
    verdicts = [_chip_on_npu(target, was, host, host.htp_arch) for target in was.targets if target.known_arch]
    # A binary for several chips runs if at least one of its targets matches.
    return min(verdicts, key=_severity)


def _chip_on_npu(target: CompiledTarget, was: CompiledOrigin, host: HostTraits, ours: int) -> Verdict:
    its = target.known_arch or ours
    fix = f"{RECOMPILE_FIX}" + (f" with soc_model={host.soc_model}" if host.soc_model else " for this chip") + "."
    if its > ours or (its < _NEW_ARCH) != (ours < _NEW_ARCH):
        return cannot_run(
            f"{was.words}; this host has {host.words}",
            "A context binary runs only on its own Hexagon architecture or on a newer architecture. Binaries for "
            "V69 and older do not run on V73 and newer.",
            fix,
        )
    if its < ours:
        return Verdict(
            RECOMPILE,
            f"{was.words}; this host has {host.words}",
            "The model runs, but does not use the features of the newer architecture.",
            fix,
        )
    chip = chip_of(host.soc_model) if host.soc_model else None
    if chip is not None and target.vtcm_mb > chip.vtcm_mb:
        return cannot_run(
            f"{was.words} with {target.vtcm_mb} MB of VTCM; this host's chip has {chip.vtcm_mb} MB",
            None,
            fix,
        )
    return Verdict(OK)


def _chip_on_simulator(was: CompiledOrigin, host: HostTraits) -> Verdict | None:
    if was.multi:
        return cannot_run(
            f"{was.words}, as one binary for several chips; this host computes on the QNN simulator",
            "The simulator loads only binaries for a single chip.",
            f"{RECOMPILE_FIX} for one chip, or run the model on an NPU.",
        )
    newest = max((target.known_arch or 0 for target in was.targets), default=0)
    if newest < _SIMULATOR_REFUSES_FROM_ARCH or host.htp_arch is None or host.htp_arch >= newest:
        return None
    # If the binary records only its architecture, suggest chip 88, the V81 chip of PCs.
    chip = next((t.soc_model for t in was.targets if t.soc_model), 88)
    return cannot_run(
        f"{was.words}; this host has {host.words}",
        f"The simulator does not load a V{newest} binary when it simulates an older chip.",
        f"Set the provider option soc_model={chip} to simulate {chip_label(chip)}, "
        f"or recompile from the original model with soc_model={host.soc_model}.",
    )


def _user_driver(was: CompiledOrigin, host: HostTraits) -> Verdict | None:
    if not was.user_driver or host.simulator:
        return None
    return Verdict(
        RECOMPILE,
        "it was compiled with the system's runtime driver (HNRD), not with the libraries of onnxruntime-qnn",
        "A host that uses its own QNN libraries refuses a binary that was compiled with this driver.",
        f"{RECOMPILE_FIX} on this host.",
    )


def _shared(blobs: tuple[Blob, ...], host: HostTraits) -> Verdict | None:
    shared = [blob for blob in blobs if blob.is_shared]
    if not shared:
        return None
    label = shared[0].label
    if host.simulator:
        return cannot_run(
            f"its {label} is shared with other models (common weights), and this host is the QNN simulator",
            "The simulator crashes the process when it loads a binary with shared weights.",
            f"{RECOMPILE_FIX} without shared weights, or run the model on an NPU.",
        )
    return Verdict(OK, notes=(f"Its {label} is shared with other models: copy and delete them together.",))


def _genie(nodes: tuple[EpContextNode, ...], host: HostTraits) -> Verdict | None:
    dlc = next((node.dlc_path for node in nodes if node.dlc_path is not None), None)
    if dlc is None:
        return None
    if host.simulator:
        return cannot_run(
            f"its compiled part is the DLC {dlc}, which Genie runs, and this host is the QNN simulator",
            "onnxruntime-qnn hands a DLC (ep_context_type dlc) to Genie, Qualcomm's runtime for language "
            "models, which needs an NPU.",
            "Copy the folder to a Windows-on-Arm PC, and generate text with qnnbridge.genai or onnxruntime-genai.",
        )
    return Verdict(OK, notes=(f"Its compiled part is the DLC {dlc}, which onnxruntime-qnn hands to Genie.",))


def _embedded_parts(nodes: tuple[EpContextNode, ...], host: HostTraits) -> Verdict | None:
    bare = [node for node in nodes if not node.owns_blob and node.embedded is None and node.embeds]
    if not bare:
        return None
    release = sdk_numbers(host.onnxruntime_qnn)
    why = "Some older releases expect the second part's binary in a separate file (ONNX Runtime issue 31977)."
    if release is not None and release >= _EMBEDDED_PARTS_LOAD_SINCE:
        return Verdict(OK, notes=(f"The model has several compiled parts and embeds its context binary. {why}",))
    return Verdict(
        RECOMPILE,
        "it has several compiled parts and embeds its context binary, which many releases cannot load",
        why,
        f"{RECOMPILE_FIX} without embedding (embed_mode 0).",
    )
