"""`qnnbridge inspect` of a folder of `qnnbridge prepare`: its compiled models, and which of them runs here."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from qnnbridge_host.model.chips import chip_label
from qnnbridge_host.model.compatibility import HostTraits
from qnnbridge_host.model.genai_folder import CONFIG
from qnnbridge_host.model.prepared import Chosen, CompiledVariant, FolderManifest, choose, read_folder, verdicts
from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.model_records import PREPARED_MANIFEST
from qnnbridge_tools import output
from qnnbridge_tools.arguments import read_chip
from qnnbridge_tools.inspection import find_installation


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedFacts:
    """The facts about a prepared folder.

    chosen: the model that a session here runs, or the session's error. host: ``None`` if none was found.
    """

    manifest: FolderManifest
    rows: list[tuple[CompiledVariant, str]]
    chosen: Chosen | BridgeError
    host: HostTraits | None


def is_prepared(folder: Path) -> bool:
    """Return whether `prepare` may have created the folder, and it is not for text generation."""
    return (folder / PREPARED_MANIFEST).is_file() and not (folder / CONFIG).exists()


def gather(folder: Path, *, soc_model: str | None = None, host_python: str | None = None) -> PreparedFacts:
    """Read the facts about a prepared folder.

    Raises:
        BridgeError: the folder cannot be read.
        OptionError: the chip is unknown, or the folder is a different kind of model package.
    """
    options = {"soc_model": str(read_chip(soc_model))} if soc_model is not None else {}
    path = os.path.abspath(folder)
    manifest = read_folder(path)
    if manifest is None:
        raise OptionError(
            f"{folder} is a model package that was not created by `qnnbridge prepare`.",
            cause="Only ONNX Runtime can resolve its paths, and inspect does not load ONNX Runtime.",
            fix="Open a session: InferenceSession(FOLDER).placement.variant shows the file and the reason.",
        )
    found = find_installation(host_python)
    host = None if isinstance(found, BridgeError) else found.traits(options)
    chosen: Chosen | BridgeError
    try:
        # Use the sizes of any bucket, because the choice depends on the chip and not on the sizes.
        sizes = next((one.sizes for one in manifest.variants if one.sizes), {})
        if host is None:
            assert isinstance(found, BridgeError)
            raise found
        chosen = choose(path, host, (), sizes, hash_file, may_compile=True, read_package=lambda _: ())
    except BridgeError as error:
        chosen = error
    return PreparedFacts(manifest, verdicts(manifest, host or HostTraits(), hash_file), chosen, host)


def document(facts: PreparedFacts) -> dict[str, Any]:
    chosen = facts.chosen
    return {
        "folder": facts.manifest.folder,
        "model": facts.manifest.model,
        "compiled": [
            {
                "file": variant.compiled or None,
                "soc_model": variant.soc_model,
                "bucket": dict(variant.sizes),
                "verdict": words,
            }
            for variant, words in facts.rows
        ],
        "chosen": chosen.reason if isinstance(chosen, Chosen) else None,
        "error": None if isinstance(chosen, Chosen) else chosen.to_wire(),
    }


def print_facts(facts: PreparedFacts) -> None:
    host, chosen = facts.host, facts.chosen
    pairs = [
        ("folder", facts.manifest.folder),
        ("before compilation", facts.manifest.model),
        ("host", "not found" if host is None else host.words),
        ("a session runs", chosen.reason if isinstance(chosen, Chosen) else f"nothing: {chosen.message}"),
    ]
    output.print_pairs("Prepared folder", pairs)
    print()
    output.print_table(
        ["compiled model", "chip", "sizes", "verdict"],
        [
            [
                variant.compiled or "-",
                chip_label(variant.soc_model) if variant.soc_model else "the chip of the computer that compiled it",
                ", ".join(f"{name}={size}" for name, size in variant.sizes.items()) or "-",
                words,
            ]
            for variant, words in facts.rows
        ],
    )
