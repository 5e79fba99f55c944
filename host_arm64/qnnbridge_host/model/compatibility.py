"""Origin and target of a compiled model: the compatibility text, the context binary, SDK versions as text.

Three places say it, and only one of them cannot be wrong: the context binary itself holds the SDK build and the
chip that the compiler worked for. The compatibility text in the model's metadata mirrors the options, and the
nodes' attributes can be edited; QNN checks neither. The text is there since ONNX Runtime 1.23 and has two forms;
the fields are separated by colons:

    6:2.48.40:5.48.0:0.0.0:68:0     backend, SDK, backend API, context blob, architecture, runtime driver
    v2:6:2.51.0:5.51.0:0:60:0:0     backend, SDK, backend API, architectures, chips, VTCM, runtime driver

In the second form architectures, chips and VTCM are lists of equal length, separated by commas; 0 means that none
was named. Immutable data and pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge_host.model.chips import chip_label, chip_named, chip_of
from qnnbridge_host.model.collector import EpContextNode
from qnnbridge_host.model.context_files import Blob

# A third part with more than six digits is the stamp of a build, and no part of the version.
_NUMBERS: Final = re.compile(r"v?(\d{1,4})\.(\d{1,6})(?:\.(\d{1,6})(?!\d))?")


def sdk_numbers(text: str | None) -> tuple[int, ...] | None:
    """``v2.51.0.260929181845`` -> (2, 51, 0), without the build stamp; ``None`` for a text that is no version.

    Lenient, unlike the version table's: this text comes from a stranger's model.
    """
    found = _NUMBERS.match(text.strip()) if text else None
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def short_sdk(text: str | None) -> str:
    """``2.51``, as people say it."""
    numbers = sdk_numbers(text)
    return ".".join(map(str, numbers[:2])) if numbers else str(text or "unknown")


def release_with_sdk(sdk: str | None) -> str | None:
    """``onnxruntime-qnn 2.7.0``: the oldest release whose QNN SDK is as new; ``None`` if none is known."""
    wanted = sdk_numbers(sdk)
    if wanted is None:
        return None
    try:
        from qnnbridge_host.model.releases import load_releases, version_key

        releases = load_releases()
    # The release is only a part of the advice: without the table the verdict is the same.
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
    """The target of a context binary. 0 means that the compiler got no target."""

    arch: int = 0
    soc_model: int = 0
    vtcm_mb: int = 0

    @property
    def known_arch(self) -> int | None:
        """The chip decides, where both were said and contradict each other."""
        chip = chip_of(self.soc_model)
        # As QNN does it: with soc_model 60 and htp_arch 81 it compiles for V73.
        return chip.arch if chip else self.arch or None

    @property
    def label(self) -> str:
        """``SoC 88 (V81)``, ``V73`` or ``no chip named``."""
        arch = self.known_arch
        if self.soc_model:
            return f"SoC {self.soc_model} (V{arch})" if arch else f"SoC {self.soc_model}"
        return f"V{arch}" if arch else "no chip named"


@dataclasses.dataclass(frozen=True, slots=True)
class Compatibility:
    """form: 1 or 2. context_blob: only in the first form. user_driver: made on the runtime driver (HNRD)."""

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
        """The fields as text for a person: origin and target."""
        backend = _BACKENDS.get(self.backend, f"backend {self.backend}")
        made_with = f"{backend}, QNN SDK {self.sdk}, backend API {self.backend_api}"
        if self.context_blob is not None:
            made_with += f", context blob {self.context_blob}"
        driver = (
            "made on the system's runtime driver (HNRD)" if self.user_driver else "not on a runtime driver (HNRD)"
        )
        return made_with, f"for {', '.join(_target_words(target) for target in self.targets)}; {driver}"


def parse(text: str) -> Compatibility | None:
    """``None`` for a text of neither form."""
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
    # A field that is no number, or lists of different lengths.
    except ValueError:
        pass
    return None


def _number(text: str) -> int:
    """Architectures are also written with a letter ("v73")."""
    return int(text.strip().lstrip("vV") or "0")


def _target_words(target: CompiledTarget) -> str:
    words = chip_label(target.soc_model) if target.soc_model else "no chip named"
    if target.arch:
        words += f", architecture V{target.arch} asked for"
    return words + (f", {target.vtcm_mb} MB of VTCM" if target.vtcm_mb else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """sdk: the QNN SDK, ``None`` if nothing says it. targets: one, or several in a binary for several chips.

    multi: it is such a binary. user_driver: made on the system's runtime driver. notes: contradictions.
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
        """``compiled with QNN 2.51 for SoC 88 (V81)``."""
        sdk = f"QNN {short_sdk(self.sdk)}" if self.sdk else "an unknown version of QNN"
        named = [target.label for target in self.targets if target.known_arch or target.soc_model]
        return f"compiled with {sdk}" + (f" for {', '.join(named)}" if named else "")


def made(metadata: Mapping[str, str], nodes: Sequence[EpContextNode], blobs: Sequence[Blob]) -> Made:
    """Of a compiled model: its metadata, its EPContext nodes, and its context binaries if they could be read."""
    text = parse(metadata.get(METADATA_KEY, ""))
    facts = [blob.facts for blob in blobs]
    said = next((node.sdk_version for node in nodes if node.sdk_version), None)
    by_blob = next((fact.sdk for fact in facts if fact.sdk), None)
    sdk = by_blob or (text.sdk if text and sdk_numbers(text.sdk) else None) or (said if sdk_numbers(said) else None)
    notes = []
    for other, where in ((text.sdk if text else None, "metadata"), (said, "nodes")):
        if by_blob and sdk_numbers(other) and short_sdk(other) != short_sdk(by_blob):
            notes.append(
                f"The model's {where} say QNN {short_sdk(other)}, the context binary {short_sdk(by_blob)}."
            )
    multi = (
        any(fact.kind == "several contexts" for fact in facts)
        or any(node.multi_soc for node in nodes)
        or (text is not None and len(text.targets) > 1)
    )
    recorded = tuple(dict.fromkeys(_target(t.soc, t.arch, fact.vtcm_mb) for fact in facts for t in fact.targets))
    declared = text.targets if text else ()
    # In a binary for several chips only the beginning was read, so the metadata knows more of them.
    targets = declared if multi and len(declared) >= len(recorded) else recorded or declared
    return Made(
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
