"""What a compiled model was made with and for, from the most reliable source that says it. Immutable data.

Three places say it, and only one of them cannot be wrong: the context binary itself holds the SDK build and the
chip that the compiler worked for. The compatibility text in the model's metadata mirrors the options, and the
nodes' attributes can be edited; QNN checks neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from qnnbridge_host.model.chips import chip_named
from qnnbridge_host.model.compatibility import HTP_BACKEND, Compatibility, Target, of_metadata
from qnnbridge_host.model.context_files import Blob
from qnnbridge_host.model.nodes import EpContextNode
from qnnbridge_host.model.versions_text import sdk_numbers, short_sdk


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """sdk: the QNN SDK, ``None`` if nothing says it. targets: one, or several in a binary for several chips.

    multi: it is such a binary. user_driver: made on the system's runtime driver. notes: contradictions.
    """

    sdk: str | None = None
    targets: tuple[Target, ...] = ()
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
    text = of_metadata(metadata)
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


def _target(soc: str | None, arch: int, vtcm_mb: int | None) -> Target:
    chip = chip_named(soc) if soc else None
    return Target(arch, chip.number if chip else 0, vtcm_mb or 0)
