"""All findings: severity, effect on an application that just tries, and why the finding matters.

The order is the order of a report: causes come before consequences. `hides` names findings (or beginnings of their
codes) that are consequences of this one. docs/doctor.md has the same table; a test compares both.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from qnnbridge_tools.doctor.findings import Effect, Finding, Remedy, Severity

BLOCKED, DEGRADED = Severity.BLOCKED, Severity.DEGRADED
_CPU, _SIMULATOR, _DEATH = Effect.SILENT_CPU, Effect.SIMULATOR, Effect.DEATH


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    why: str
    effect: Effect = Effect.UNUSABLE
    hides: tuple[str, ...] = ()


# Without a host neither the tiny model nor the user's can be run: their failures say nothing new.
_NO_HOST = ("probe.", "model.on", "model.fails")

CATALOGUE: Final[dict[str, Problem]] = {
    # --- the computer ---
    "arch.no-qualcomm": Problem(
        BLOCKED, "QNN drives the NPU of Qualcomm's Snapdragon chips and no other.", hides=("driver.",)
    ),
    # --- which interpreter is the host ---
    "host.config-broken": Problem(
        BLOCKED,
        "What was set explicitly is never passed over, so no other interpreter is looked for.",
        hides=_NO_HOST,
    ),
    "host.file-missing": Problem(
        BLOCKED,
        "What was set explicitly is never passed over, so no other interpreter is looked for.",
        hides=_NO_HOST,
    ),
    "host.store-alias": Problem(
        BLOCKED,
        "Such a file opens the Microsoft Store, or starts a Python that has no folder for packages of its own.",
        hides=_NO_HOST,
    ),
    "host.base-missing": Problem(
        BLOCKED,
        "A virtual environment is only a small program that starts the Python it was made from.",
        hides=_NO_HOST,
    ),
    "host.wrong-machine": Problem(
        BLOCKED,
        "Only a program of the computer's own machine type can load the libraries that reach the NPU. Emulated, "
        "QNN lists its provider and then ends the process or computes in its simulator.",
        _DEATH,
        _NO_HOST,
    ),
    "host.only-emulated": Problem(
        BLOCKED,
        "Emulated, onnxruntime-qnn lists its provider, and the process dies or computes in the simulator when a "
        "session is made. The host has to be an ARM64 Python; your application may stay what it is.",
        _DEATH,
        (*_NO_HOST, "application."),
    ),
    "host.python-too-old": Problem(
        BLOCKED,
        "onnxruntime-qnn and the host need Python 3.11 or newer. Your application may be older.",
        hides=(*_NO_HOST, "host.packages-missing"),
    ),
    "host.user-packages": Problem(
        BLOCKED,
        "The host is started isolated, without packages of the user, so that nothing else can break it.",
        hides=_NO_HOST,
    ),
    "host.packages-missing": Problem(
        BLOCKED,
        "The host needs qnnbridge, onnxruntime and onnxruntime-qnn in its own interpreter. Nothing else of your "
        "application has to be there: packages without an ARM64 wheel stay on the application's side.",
        # "packages.no" stands for `packages.no-qnn` and `packages.no-onnxruntime`.
        hides=(*_NO_HOST, "packages.no"),
    ),
    "host.none": Problem(BLOCKED, "QNN needs an interpreter of its own to run in.", hides=_NO_HOST),
    "host.does-not-start": Problem(BLOCKED, "Without a running host there is no QNN.", hides=_NO_HOST),
    # --- driver: before the packages, because its QNN decides which of them fit ---
    "driver.missing": Problem(BLOCKED, "Every way to the NPU goes through its driver.", hides=("probe.",)),
    "driver.disabled": Problem(BLOCKED, "Every way to the NPU goes through its driver.", hides=("probe.",)),
    "driver.problem": Problem(BLOCKED, "Every way to the NPU goes through its driver.", hides=("probe.",)),
    "driver.no-device": Problem(
        BLOCKED, "The driver is installed, and Windows sees no NPU that it could drive.", hides=("probe.",)
    ),
    "driver.no-fastrpc": Problem(
        BLOCKED, "Every QNN stub needs libcdsprpc.dll, which comes with the driver.", hides=("probe.",)
    ),
    "driver.node-closed": Problem(BLOCKED, "QNN opens the device as the user that it runs for.", hides=("probe.",)),
    # --- packages of the host ---
    "packages.vc-runtime": Problem(
        BLOCKED,
        "onnxruntime's library needs the Visual C++ runtime of the interpreter's machine type; without it the "
        "import fails with 'DLL load failed' (WinError 126).",
        hides=("probe.",),
    ),
    "packages.wheel-machine": Problem(
        BLOCKED,
        "Libraries for another machine type cannot be loaded (WinError 193, invalid ELF header).",
        hides=("files.", "sdk.", "probe."),
    ),
    "packages.arm-only": Problem(
        BLOCKED,
        "The wheels for x64 of some releases are made for emulated Pythons on Arm computers; an x64 processor "
        "cannot load them.",
        hides=("files.", "sdk.", "probe."),
    ),
    "packages.wheel-python": Problem(
        BLOCKED,
        "A compiled module works only with the Python version that it was built for.",
        hides=("files.", "probe."),
    ),
    "packages.half-installed": Problem(
        BLOCKED,
        "An installation was interrupted or its files were deleted; pip believes that it is whole.",
        hides=("files.", "packages.no", "sdk.", "probe."),
    ),
    "packages.shadowed": Problem(
        BLOCKED,
        "onnxruntime-qnn 1.x is an onnxruntime of its own: both write the folder onnxruntime, and "
        "the one that came "
        "last has replaced files of the other.",
        _CPU,
        ("files.", "packages.leftover", "packages.other", "probe."),
    ),
    "packages.other-runtime": Problem(
        BLOCKED, "All of them write the folder onnxruntime, so their files are mixed.", _CPU, ("files.", "probe.")
    ),
    "packages.leftover-1x": Problem(
        BLOCKED,
        "The old libraries in the folder onnxruntime are loaded beside the new ones, or instead of them.",
        _DEATH,
        ("files.", "sdk.", "probe."),
    ),
    "packages.twice": Problem(
        DEGRADED, "Which of two copies is used depends on the order of folders, and pip changes only one of them."
    ),
    "packages.no-qnn": Problem(BLOCKED, "onnxruntime alone has no QNN provider.", _CPU, ("probe.",)),
    "packages.no-onnxruntime": Problem(
        BLOCKED, "onnxruntime-qnn 2.x is a plugin for onnxruntime and does not contain it.", hides=("probe.",)
    ),
    "packages.onnxruntime-too-old": Problem(
        BLOCKED,
        "The plugin speaks a newer interface than this onnxruntime has; it is refused when it is registered, or "
        "lists no device.",
        _CPU,
        ("probe.",),
    ),
    "packages.qnn-too-old": Problem(
        BLOCKED, "This onnxruntime refuses plugins that are so old, though pip allows the pair.", _CPU, ("probe.",)
    ),
    "packages.other-qnnbridge": Problem(
        DEGRADED, "Both sides speak one protocol; of different versions they do with what both know, or not at all."
    ),
    "packages.known-fault": Problem(DEGRADED, "Sessions of models that other releases run fail with this one."),
    # --- text generation ---
    "genai.wheel": Problem(
        DEGRADED, "Its library cannot be loaded there, so no text can be generated. Sessions are not concerned."
    ),
    "genai.too-old": Problem(
        DEGRADED, "It lacks functions that the host calls, so no text can be generated. Sessions are not concerned."
    ),
    "genai.onnxruntime-too-old": Problem(
        DEGRADED, "It loads the installed onnxruntime and asks it for a newer interface, which fails at its import."
    ),
    "genai.emulated": Problem(
        DEGRADED,
        "Emulated it generated one token a second where ARM64 code gave seventeen, and it does not reach the NPU. "
        "qnnbridge.genai is not concerned.",
    ),
    # --- files of QNN ---
    "files.missing": Problem(
        BLOCKED,
        "QNN needs all of its libraries. Without a part of them it silently uses the driver's own runtime, "
        "or nothing at all.",
        _CPU,
        # A deleted stub or skel looks like a release that never had one for this chip.
        ("files.incomplete", "sdk.too-old-for-chip", "probe."),
    ),
    "files.truncated": Problem(
        BLOCKED,
        "A library that is cut off ends the process when it is loaded (SIGBUS, 0xC0000006), or is refused.",
        _DEATH,
        ("files.replaced", "files.incomplete", "files.skel", "sdk.", "probe."),
    ),
    "files.wrong-machine": Problem(
        BLOCKED,
        "A library for another machine type cannot be loaded (WinError 193, invalid ELF header).",
        _CPU,
        ("files.replaced", "files.mixed", "probe."),
    ),
    "files.mixed-builds": Problem(
        BLOCKED,
        "Provider, backend, stub and skel have to come from one build; mixed they fail with error 1008 or end the "
        "process.",
        _DEATH,
        ("files.replaced", "files.skel", "sdk.", "probe."),
    ),
    "files.replaced": Problem(
        BLOCKED,
        "The library is not the one that the package brought: changed by hand, by another program, or damaged.",
        hides=("files.skel", "probe."),
    ),
    "files.incomplete": Problem(
        BLOCKED,
        "QNN needs all of its libraries; without stub, skel or Prepare it silently uses the driver's own "
        "runtime, which knows fewer operators (error 3110).",
        _CPU,
        ("probe.",),
    ),
    "files.skel-not-signed": Problem(
        BLOCKED,
        "The NPU takes only a skel library that is listed in the signed catalog beside it; else QNN fails with "
        "0x80000406 or 14001.",
        hides=("probe.",),
    ),
    # --- which QNN ---
    "sdk.backend-path-missing": Problem(
        BLOCKED, "Without its backend QNN does not start, and says so only in the log.", _CPU
    ),
    "sdk.backend-path-mixed": Problem(
        BLOCKED,
        "The provider takes only a backend of its own build or a newer one, and stub and skel must match that: an "
        "older one is refused with 'Unable to find a valid interface', in the log only.",
        _CPU,
    ),
    "sdk.too-old-for-chip": Problem(
        BLOCKED, "Each chip needs a stub and a skel of its own Hexagon version.", _CPU, ("probe.",)
    ),
    "engine.catalogue-unreadable": Problem(
        BLOCKED, "A source of QNN that is set is never replaced by another one.", hides=_NO_HOST
    ),
    "engine.catalogue-no-qnn": Problem(
        BLOCKED, "Windows offers the providers that fit the chip and its driver.", hides=_NO_HOST
    ),
    "engine.not-downloaded": Problem(
        BLOCKED, "Windows downloads a provider when somebody asks for it; the host does not.", hides=_NO_HOST
    ),
    "engine.catalogue-fits-better": Problem(
        BLOCKED,
        "A bundled QNN that is newer than the system's fails on the NPU; Windows chooses its own for the driver.",
        hides=("sdk.newer-than-system", "probe."),
    ),
    "sdk.newer-than-system": Problem(
        BLOCKED,
        "A bundled QNN that is newer than the system's fails on the NPU when a session is made or run.",
        hides=("probe.",),
    ),
    "sdk.root-missing": Problem(DEGRADED, "Tools that follow the variable find nothing, or something else."),
    "sdk.roots-disagree": Problem(
        DEGRADED, "Half of the tools take the one SDK and half the other: builds get mixed."
    ),
    "files.foreign-on-path": Problem(
        DEGRADED,
        "A loader that searches the PATH finds these libraries beside those of the package, and mixes two builds "
        "(error 1008, WinError 127).",
    ),
    "files.foreign-on-adsp-path": Problem(
        DEGRADED, "The NPU's own loader searches there for the skel, and takes the first one it finds."
    ),
    # --- paths and environment ---
    "path.not-ascii": Problem(
        BLOCKED,
        "QNN passes paths to the NPU's driver in the system's old code page: from such a folder it does not find "
        "its own libraries.",
        hides=("probe.",),
    ),
    "path.too-long": Problem(
        BLOCKED,
        "The driver refuses a process with such a long path, and Windows refuses files with one.",
        hides=("probe.",),
    ),
    "path.network": Problem(
        DEGRADED,
        "QNN maps its libraries and models into memory; a network that pauses then ends the process (0xC0000006).",
    ),
    "path.cache-not-ascii": Problem(DEGRADED, "QNN cannot open compiled models in such a folder on every driver."),
    "path.cache-read-only": Problem(
        DEGRADED, "Every start compiles all models again, which takes seconds to minutes."
    ),
    "path.state-read-only": Problem(DEGRADED, "No crash report can be written and no model be kept in quarantine."),
    "path.disk-full": Problem(
        DEGRADED, "Compiled models take as much room as their originals, or three times that."
    ),
    "env.pythonhome": Problem(
        DEGRADED,
        "It makes every other Python of this computer use the wrong library. qnnbridge takes it away from its "
        "host, pip and py do not.",
    ),
    "env.cpu-backend": Problem(DEGRADED, "The variable makes QNN's own CPU backend a device beside the NPU.", _CPU),
    "env.unknown-variable": Problem(DEGRADED, "A name with a typing error changes nothing, and nothing says so."),
    "env.unusable-value": Problem(DEGRADED, "The default is used instead."),
    # --- the application ---
    "application.packages-missing": Problem(BLOCKED, "qnnbridge itself cannot work without them."),
    "application.simulator-wheel": Problem(
        DEGRADED,
        "What this Python computes with its own onnxruntime runs in QNN's simulator, up to a thousand times slower "
        "than the NPU. Sessions of qnnbridge are not concerned.",
    ),
    "application.python311-loader": Problem(
        DEGRADED,
        "Python 3.11 says AMD64 on an emulated x64 process, so the package loads libs/amd64: the simulator, or a "
        "hang. Sessions of qnnbridge are not concerned.",
    ),
    "arch.windows-too-old": Problem(DEGRADED, "Windows 10 on Arm runs no x64 programs at all."),
    # --- earlier days ---
    "cache.damaged": Problem(DEGRADED, "These models are compiled again when they are used."),
    "state.quarantine": Problem(DEGRADED, "These models killed hosts and are refused until the quarantine ends."),
    "state.crashes": Problem(
        DEGRADED,
        "A host that dies is started again and the call is repeated, which costs time; a model that keeps killing "
        "hosts is refused.",
    ),
    # --- the daemon ---
    "daemon.folder": Problem(
        DEGRADED,
        "Who can write there could pretend to be the daemon, so it is neither started nor used. Applications with "
        "a host of their own are not concerned.",
    ),
    "daemon.other-version": Problem(
        DEGRADED,
        "A daemon and its applications may be one minor version apart; applications of this version are refused.",
    ),
    "daemon.silent": Problem(DEGRADED, "Applications that use the daemon wait for it and then fail."),
    "daemon.stale": Problem(
        DEGRADED, "It was killed, or the computer went down. The next application that wants a daemon starts one."
    ),
    "daemon.ends-with-window": Problem(
        DEGRADED,
        "Windows ends all programs of a job when its owner ends. A daemon that is started from within would be one "
        "of them, so applications start none there and are refused.",
    ),
    # --- live probe ---
    "probe.start": Problem(BLOCKED, "A host was started for this and did not come up."),
    "probe.import": Problem(BLOCKED, "onnxruntime could not be imported in the host.", _DEATH),
    "probe.register": Problem(BLOCKED, "The QNN provider could not be loaded into onnxruntime.", _CPU),
    "probe.devices": Problem(BLOCKED, "The provider was loaded and lists no device it could compute on.", _CPU),
    "probe.create": Problem(BLOCKED, "A tiny model could not be compiled for QNN without help of the CPU.", _CPU),
    "probe.run": Problem(BLOCKED, "A tiny model was compiled and could not be run.", _DEATH),
    "probe.numbers": Problem(
        BLOCKED, "A tiny model ran and gave wrong numbers: no result of QNN on this computer can be trusted."
    ),
    "probe.timeout": Problem(BLOCKED, "QNN neither answered nor failed."),
    # --- the model ---
    "model.missing": Problem(BLOCKED, "There is nothing to examine."),
    "model.unreadable": Problem(BLOCKED, "ONNX Runtime cannot read it either.", hides=("model.",)),
    "model.genai-damaged": Problem(BLOCKED, "onnxruntime-genai cannot load it either.", hides=("model.",)),
    "model.genai-missing": Problem(
        BLOCKED, "Text is generated by this package, in the host's interpreter.", hides=("model.",)
    ),
    "model.genai-layout": Problem(
        BLOCKED,
        "A release of onnxruntime-genai runs some layouts of models and fails, or computes wrongly, on others.",
    ),
    "model.zero-size": Problem(BLOCKED, "QNN divides by that size and ends the process.", _DEATH, ("model.",)),
    "model.compiled-unusable": Problem(BLOCKED, "Loading it fails, or ends the process.", hides=("model.",)),
    "model.recompile": Problem(DEGRADED, "It runs, and not at its best."),
    "model.dynamic-shape": Problem(
        BLOCKED,
        "QNN needs fixed dimensions; nodes without them silently run on the CPU.",
        _CPU,
        ("model.on-cpu", "model.fails"),
    ),
    "model.not-ascii": Problem(
        DEGRADED,
        "QNN cannot open files with such a name on every driver; qnnbridge works on a copy with another name.",
    ),
    "model.quarantined": Problem(BLOCKED, "It killed hosts and is refused until the quarantine ends."),
    "model.on-cpu": Problem(BLOCKED, "Nodes that QNN does not take run on the CPU, if that is allowed.", _CPU),
    "model.fails": Problem(BLOCKED, "A session of this very model could not be made or run on this host."),
    # --- the doctor itself ---
    "doctor.incomplete": Problem(DEGRADED, "What could not be found out cannot be judged either."),
}

_ORDER: Final = {code: index for index, code in enumerate(CATALOGUE)}


def finding(code: str, title: str, *seen: str, fix: Remedy | str, notes: tuple[str, ...] = ()) -> Finding:
    """A finding of the catalogue, with what is particular to this computer.

    Args:
        fix: As a text, without a command.
    """
    entry = CATALOGUE[code]
    remedy = fix if isinstance(fix, Remedy) else Remedy(fix)
    shown = tuple(line for line in seen if line)
    return Finding(code, entry.severity, title, shown, entry.why, remedy, entry.effect, notes)


def rank(found: Finding) -> tuple[int, int]:
    """Sorts a report: the most blocking first, causes before what rests on them."""
    return -int(found.severity), _ORDER[found.code]


def is_hidden(found: Finding, others: tuple[Finding, ...]) -> bool:
    """Whether it is a mere consequence of one of the others, which then stands before it."""
    return any(
        # Strictly before: `model.unreadable` hides all of "model.", and must not hide itself.
        found.code.startswith(CATALOGUE[other.code].hides) and _ORDER[other.code] < _ORDER[found.code]
        for other in others
    )
