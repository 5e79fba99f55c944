"""Whether a compiled model can run on a host: ok, recompile recommended, or cannot run here, and why.

Nothing is loaded: the answer comes from the model file, the head of its context binary, its manifest and the
packages that are known of the host. The rules for NPUs are those of the QNN provider's own check, which the
simulator skips; those for the simulator are measured (onnxruntime-qnn 2.7.0). Any thread.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge_host.model.chips import chip_label, chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_host.model.collector import QNN_SOURCES, EpContextNode, ModelScan
from qnnbridge_host.model.compatibility import (
    HTP_BACKEND,
    CompiledTarget,
    Made,
    made,
    release_with_sdk,
    sdk_numbers,
    short_sdk,
)
from qnnbridge_host.model.context_files import Blob, ContextFindings, Hash, look
from qnnbridge_host.model.manifest import CompiledManifest, read_manifest
from qnnbridge_host.model.scan import CANNOT_RUN, OK, RECOMPILE, RECOMPILE_FIX, Verdict, cannot_run
from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import ContextUnusable
from qnnbridge_protocol.specs import QNN, ProviderSpec

# Below and from here on context binaries do not mix.
_NEW_ARCH: Final = 73
# Binaries for these do not load on the simulator when it simulates an older one; all others load everywhere.
_SIMULATOR_REFUSES_FROM_ARCH: Final = 81
# Release of onnxruntime-qnn in which an embedded model of several parts was seen to load (ONNX Runtime #31977).
_EMBEDDED_PARTS_LOAD_SINCE: Final = (2, 7)


@dataclasses.dataclass(frozen=True, slots=True)
class HostTraits:
    """versions as their packages say them; ``None``: not there, or not known.

    simulator: QNN computes on the CPU, for the chip `soc_model`. soc_model, htp_arch: of the NPU (73 for V73).
    backend: of QNN; nothing but htp is judged.
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
        """Of a host that has said hello, before it has loaded anything; for a session with these providers."""
        # QNN is not loaded yet, so its wheel is known by the machine alone: those for x64 have the simulator.
        simulator = {"ARM64": False, "x64": True, "x86_64": True}.get(peer.machine)
        return cls.of_installation(peer.versions, simulator, _qnn_options(providers))

    @classmethod
    def of_installation(
        cls, versions: Mapping[str, str], simulator: bool | None, options: Mapping[str, str]
    ) -> HostTraits:
        """By the versions of the installed packages; options: QNN's, of a session."""
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
        """``QNN 2.51 on V73``, for messages with the needs of a compiled model."""
        sdk = f"QNN {short_sdk(self.qnn_sdk)}" if self.qnn_sdk else "a QNN of unknown version"
        if self.simulator and self.htp_arch:
            return f"{sdk} and simulates V{self.htp_arch} (soc_model={self.soc_model})"
        return f"{sdk} on V{self.htp_arch}" if self.htp_arch else sdk


def _qnn_options(providers: Sequence[ProviderSpec]) -> Mapping[str, str]:
    return next((provider.options for provider in providers if provider.name == QNN), {})


def backend_of(options: Mapping[str, str]) -> str:
    """Which backend of QNN a provider's options choose: htp, gpu, cpu; else the name of its file."""
    library = os.path.basename(options.get("backend_path", "").replace("\\", "/")).removeprefix("lib")
    if library:
        name = library.partition(".")[0].lower()
        return name.removeprefix("qnn") if name.startswith("qnn") else name
    return options.get("backend_type", "htp")


def _sdk_of(release: str | None) -> str | None:
    """Packages of the first generation do not say it."""
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
    """Judge a compiled model, which `scan` is of.

    path: of the model, or its bytes; then `folder` is the base of its relative paths, default the current folder.
    hash_of: where hashes of its files come from if they are known already. Raises nothing but what reading raises.
    """
    return examine(path, scan, host, folder=folder, hash_of=hash_of).verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Examination:
    """The verdict and its evidence. broken: the fault that makes the model unusable on any host."""

    verdict: Verdict
    broken: Verdict | None
    found: ContextFindings
    made: Made
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
    """`check_compiled`, with all that was found. by_manifest: False for a model that is to get another manifest."""
    model = path if isinstance(path, bytes) else os.path.abspath(os.fsdecode(path))
    if folder is None:
        folder = os.curdir if isinstance(model, bytes) else os.path.dirname(model)
    folder = os.path.abspath(folder)
    nodes = scan.ep_contexts
    problem = _name_problem(model) or _structure_problem(nodes)
    manifest, manifest_problem, notes = _manifest(model) if by_manifest else (None, None, ())
    problem = problem or manifest_problem
    qnn = [node for node in nodes if node.source in QNN_SOURCES]
    # What Genie runs is in a DLC of its own, with neither header nor graphs of a context binary.
    found = look(model, folder, [node for node in qnn if node.dlc_path is None], manifest, hash_of or hash_file)
    was_made = made(scan.metadata, qnn, found.blobs)
    broken = problem or found.problem
    verdict = broken or _judge(nodes, found.blobs, was_made, host)
    all_notes = (*verdict.notes, *notes, *was_made.notes)
    return Examination(verdict._replace(notes=all_notes), broken, found, was_made, manifest)


# --- the nodes -------------------------------------------------------------------------------------------


def _name_problem(model: str | bytes) -> Verdict | None:
    if isinstance(model, bytes) or not model.lower().endswith(".ort"):
        return None
    return cannot_run(
        "its name ends in .ort, by which ONNX Runtime takes it for its own format",
        "It is an ONNX file, whatever its name.",
        f"Rename it to {os.path.splitext(os.path.basename(model))[0]}.onnx.",
    )


def _structure_problem(nodes: tuple[EpContextNode, ...]) -> Verdict | None:
    foreign = [node for node in nodes if node.source not in QNN_SOURCES]
    if foreign:
        makers = ", ".join(dict.fromkeys(node.provider for node in foreign))
        return cannot_run(
            f"made by {makers}, and this host runs what QNNExecutionProvider made",
            "A context binary can be read only by the execution provider that made it.",
            f"{RECOMPILE_FIX}, or use the original model.",
        )
    if not any(node.owns_blob for node in nodes):
        return cannot_run(
            "none of its compiled parts owns a context binary",
            "No EPContext node has main_context=1. Parts were taken out of the model, or it was written wrongly.",
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
        return None, None, (f"The manifest beside it is of {manifest.model} and was not used.",)
    return manifest, None, ()


# --- origin and target -----------------------------------------------------------------------------------


def _judge(nodes: tuple[EpContextNode, ...], blobs: tuple[Blob, ...], was: Made, host: HostTraits) -> Verdict:
    if host.backend != "htp":
        return Verdict(OK, notes=(f"The session asks for QNN's backend {host.backend}; fitness was not judged.",))
    # All rules are asked, since the notes of each count. Of several verdicts of one level the user gets the first.
    # So a missing QNN stands in front of its version, and the version in front of the chip, on which its own advice
    # depends.
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
    worst = max(verdicts, key=_badness, default=Verdict(OK))
    return worst._replace(notes=tuple(note for verdict in verdicts for note in verdict.notes))


def _badness(verdict: Verdict) -> int:
    return (OK, RECOMPILE, CANNOT_RUN).index(verdict.level)


def _no_qnn(was: Made, host: HostTraits) -> Verdict | None:
    if host.onnxruntime_qnn is not None:
        return None
    release = release_with_sdk(was.sdk) or "onnxruntime-qnn"
    return cannot_run(
        f"{was.words}; this host has no onnxruntime-qnn",
        None,
        f"Install {release} in the host's Python.",
    )


def _other_backend(was: Made) -> Verdict | None:
    if was.backend == HTP_BACKEND:
        return None
    return cannot_run(
        f"made for QNN's backend {was.backend}, not for the HTP ({HTP_BACKEND})",
        "A context binary can be read only by the backend that made it.",
        f"{RECOMPILE_FIX}, or ask for that backend with the provider option backend_type.",
    )


def _older_sdk(was: Made, host: HostTraits) -> Verdict | None:
    its, ours = sdk_numbers(was.sdk), sdk_numbers(host.qnn_sdk)
    if its is None or ours is None:
        return Verdict(OK, notes=("The versions of QNN could not be compared.",))
    if its[:2] > ours[:2]:
        release = release_with_sdk(was.sdk)
        newer = release or f"an onnxruntime-qnn that has QNN {short_sdk(was.sdk)} or newer"
        chip = _chip(was, host)
        fix = f"{RECOMPILE_FIX}, or install {newer} in the host's Python."
        if chip is not None and not chip.can_run:
            fix = f"{chip.fix} To install {newer} is not enough: the chip does not fit either."
        return cannot_run(
            f"{was.words}; this host has {host.words}", "QNN cannot read a context binary of a newer SDK.", fix
        )
    if its > ours:
        return Verdict(RECOMPILE, f"{was.words} ({was.sdk}); this host has a little older one ({host.qnn_sdk})")
    if its[:2] < ours[:2]:
        return Verdict(
            OK,
            notes=(f"Made with an older QNN ({short_sdk(was.sdk)}) than the host's ({short_sdk(host.qnn_sdk)}).",),
        )
    return None


def _chip(was: Made, host: HostTraits) -> Verdict | None:
    if host.simulator:
        return _chip_on_simulator(was, host)
    if host.htp_arch is None:
        return Verdict(OK, notes=("The chip of the host is not known, so the architecture was not compared.",))
    if not was.targets or not any(target.known_arch for target in was.targets):
        return Verdict(OK, notes=("The model does not say which chip it was compiled for.",))
    verdicts = [_chip_on_npu(target, was, host, host.htp_arch) for target in was.targets if target.known_arch]
    # A binary for several chips runs if one of its parts fits.
    return min(verdicts, key=_badness)


def _chip_on_npu(target: CompiledTarget, was: Made, host: HostTraits, ours: int) -> Verdict:
    its = target.known_arch or ours
    fix = f"{RECOMPILE_FIX}" + (f" with soc_model={host.soc_model}" if host.soc_model else " for this chip") + "."
    if its > ours or (its < _NEW_ARCH) != (ours < _NEW_ARCH):
        return cannot_run(
            f"{was.words}; this host has {host.words}",
            "A context binary runs on the Hexagon architecture that it was made for or on a newer one, and V69 and "
            "older do not mix with V73 and newer.",
            fix,
        )
    if its < ours:
        return Verdict(
            RECOMPILE,
            f"{was.words}; this host has {host.words}",
            "It runs, but does not use what the newer architecture can do.",
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


def _chip_on_simulator(was: Made, host: HostTraits) -> Verdict | None:
    if was.multi:
        return cannot_run(
            f"{was.words}, as one binary for several chips; this host computes on the QNN simulator",
            "The simulator loads only binaries for a single chip.",
            f"{RECOMPILE_FIX} for one chip, or take the model to an NPU.",
        )
    newest = max((target.known_arch or 0 for target in was.targets), default=0)
    if newest < _SIMULATOR_REFUSES_FROM_ARCH or host.htp_arch is None or host.htp_arch >= newest:
        return None
    # A binary may name its architecture alone. 88 is the V81 chip of PCs.
    chip = next((t.soc_model for t in was.targets if t.soc_model), 88)
    return cannot_run(
        f"{was.words}; this host has {host.words}",
        f"The simulator does not load a V{newest} binary when it simulates an older chip.",
        f"Give the provider option soc_model={chip} to simulate {chip_label(chip)}, "
        f"or recompile from the original model with soc_model={host.soc_model}.",
    )


def _user_driver(was: Made, host: HostTraits) -> Verdict | None:
    if not was.user_driver or host.simulator:
        return None
    return Verdict(
        RECOMPILE,
        "it was compiled on the system's Hexagon runtime driver (HNRD), not with the libraries of onnxruntime-qnn",
        "A host that uses its own libraries refuses such a binary.",
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
            "The simulator ends the process when it loads such a binary.",
            f"{RECOMPILE_FIX} without shared weights, or take the model to an NPU.",
        )
    return Verdict(OK, notes=(f"Its {label} is shared with other models: copy and delete them together.",))


def _genie(nodes: tuple[EpContextNode, ...], host: HostTraits) -> Verdict | None:
    dlc = next((node.dlc_path for node in nodes if node.dlc_path is not None), None)
    if dlc is None:
        return None
    if host.simulator:
        return cannot_run(
            f"its compiled part is the DLC {dlc}, which Genie runs, and this host is the QNN simulator",
            "onnxruntime-qnn hands such a part (ep_context_type dlc) to Genie, Qualcomm's runtime for language "
            "models, which needs an NPU.",
            "Take the folder to a Windows-on-Arm PC, and generate with qnnbridge.genai or onnxruntime-genai.",
        )
    return Verdict(OK, notes=(f"Its compiled part is the DLC {dlc}, which onnxruntime-qnn hands to Genie.",))


def _embedded_parts(nodes: tuple[EpContextNode, ...], host: HostTraits) -> Verdict | None:
    bare = [node for node in nodes if not node.owns_blob and node.embedded is None and node.embeds]
    if not bare:
        return None
    release = sdk_numbers(host.onnxruntime_qnn)
    why = "Some older releases take the missing binary of its second part for a file (ONNX Runtime issue 31977)."
    if release is not None and release >= _EMBEDDED_PARTS_LOAD_SINCE:
        return Verdict(OK, notes=(f"It has several parts and embeds its context binary. {why}",))
    return Verdict(
        RECOMPILE,
        "it has several compiled parts and embeds its context binary, which many releases cannot load",
        why,
        f"{RECOMPILE_FIX} without embedding (embed_mode 0).",
    )
