"""`qnnbridge compile --adopt`: a manifest for a compiled model that has none, so that later damage is found."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from qnnbridge_host.model.compatibility_check import HostTraits, examine
from qnnbridge_host.model.manifest import CompiledManifest, manifest_path, write_manifest
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import CompileFailed, OptionError
from qnnbridge_tools import output


def adopt(models: Sequence[Path], *, overwrite: bool, as_json: bool) -> None:
    """Write the manifests and print their names. Raises what `adopt_one` raises, before any is written."""
    # All of them first: no manifest is written if one of the models cannot have one.
    files = [_files_of(model, overwrite=overwrite) for model in models]
    made = [adopt_one(model, beside) for model, beside in zip(models, files, strict=True)]
    if as_json:
        output.print_json(
            {
                "adopted": [
                    {"path": manifest_path(model), **dataclasses.asdict(one)}
                    for model, one in zip(models, made, strict=True)
                ]
            }
        )
        return
    for model, one in zip(models, made, strict=True):
        names = ", ".join(record.name for record in one.files)
        print(f"{manifest_path(model)}: {names}, as they are now.")


def adopt_one(model: Path, beside: Sequence[str]) -> CompiledManifest:
    """Write the manifest of a compiled model and of the files beside it. Raises `CompileFailed`."""
    folder, name = os.path.split(os.path.abspath(model))
    try:
        return write_manifest(folder, name, beside, extra={"adopted": True})
    except OSError as error:
        raise CompileFailed(
            f"The manifest of {name} cannot be written.",
            cause=f"{error.strerror or error}.",
            fix="Check the rights of the folder, and its disk.",
        ) from None


def _files_of(model: Path, *, overwrite: bool) -> tuple[str, ...]:
    """Names of the context binaries of a compiled model that is whole.

    Raises:
        OptionError: it is not a compiled model, or has a manifest.
        ContextUnusable: its files cannot be what belongs together.
    """
    source = ModelSource.open(model)
    scan = source.scan
    if scan is None or not scan.is_compiled:
        raise OptionError(
            f"{model.name} is no compiled model: only those have a manifest.",
            fix=f"Compile it: qnnbridge compile {model.name}",
        )
    manifest = manifest_path(model)
    if os.path.exists(manifest):
        if not overwrite:
            raise OptionError(
                f"{model.name} has a manifest: {manifest}.",
                fix="Leave it: it is compared before each load. --overwrite writes one of the files as they are.",
            )
        # Before the examination, which would hold the files against the old manifest.
        os.unlink(manifest)
    examined = examine(model, scan, HostTraits())
    if examined.broken is not None:
        raise examined.broken.error(scan.label, scan.path)
    # A node with main_context 0 uses the binary of the main node.
    return tuple(dict.fromkeys(node.cache_path for node in scan.ep_contexts if node.owns_blob and node.cache_path))
