"""Hands a compiled model on unchanged, with the files that belong to it, byte for byte.

Names of those files come from the model. They are taken only if they lie in the model's folder by the rules of
POSIX and of Windows, so that no model can have a file copied from, or to, somewhere else.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.models.optimize.result import OptimizeResult
from qnnbridge_tools.models.shared.files import Output, inside_folder, total_size

if TYPE_CHECKING:
    from qnnbridge_host.model.scan import ModelScan


def pass_through(source: Path, target: Path, scan: ModelScan, level: str, *, overwrite: bool) -> OptimizeResult:
    """Copies the model to `target`, and its context binaries and weights to the same place relative to it."""
    warnings: list[str] = []
    beside = list(_beside(source, scan.files, warnings))
    copies = [(source.parent / name, target.parent / name) for name in beside]
    copies += _manifest(source, target, warnings)
    needed = [(here, there) for here, there in copies if _must_copy(here, there, overwrite)]
    written: list[Path] = []
    with Output(source, target, overwrite=overwrite) as output:
        shutil.copyfile(source, output.model)
        for here, there in needed:
            there.parent.mkdir(parents=True, exist_ok=True)
            _copy(here, there)
            written.append(there)
        files = (*output.commit(), *written)
    providers = " and ".join(scan.sources)
    return OptimizeResult(
        source,
        target,
        level,
        files,
        passed_through=True,
        bytes_before=total_size([source, *(source.parent / name for name in beside)]),
        bytes_after=total_size([target, *(target.parent / name for name in beside)]),
        changes=(f"passed through unchanged: it is a compiled EPContext artifact made by {providers}",),
        warnings=tuple(warnings),
    )


def _beside(source: Path, names: Iterable[str], warnings: list[str]) -> Iterable[str]:
    for name in names:
        if not inside_folder(name):
            warnings.append(f'Its file "{name}" was not copied: it is named outside of the model\'s folder.')
        elif not (source.parent / name).is_file():
            warnings.append(f'Its file "{name}" is missing beside {source.name}, so neither runs.')
        else:
            yield name


def _manifest(source: Path, target: Path, warnings: list[str]) -> list[tuple[Path, Path]]:
    from qnnbridge_host.model.manifest import manifest_path

    manifest = Path(manifest_path(source))
    if not manifest.is_file():
        return []
    if source.name == target.name:
        return [(manifest, Path(manifest_path(target)))]
    warnings.append(f"{manifest.name} was not copied: it describes {source.name} by its name.")
    return []


def _must_copy(here: Path, there: Path, overwrite: bool) -> bool:
    if not there.exists():
        return True
    if here.samefile(there) or filecmp.cmp(here, there, shallow=False):
        return False
    if overwrite:
        return True
    raise OptionError(
        f"{there} exists already and is another file than {here}.",
        cause="The model names this file, so it cannot get another name.",
        fix="Write to another folder, or give --overwrite to replace it.",
    )


def _copy(here: Path, there: Path) -> None:
    part = there.with_name(f".{there.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(here, part)
        os.replace(part, there)
    finally:
        part.unlink(missing_ok=True)
