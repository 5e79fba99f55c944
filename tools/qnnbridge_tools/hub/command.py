"""The commands `qnnbridge pull` and `qnnbridge models`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.visible import visible
from qnnbridge_tools import reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson, HostPython, SocModel

if TYPE_CHECKING:
    from qnnbridge_tools.hub.library import PulledFolder
    from qnnbridge_tools.hub.pulling import PullResult


@command
def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="OWNER/NAME of a model repository, or OWNER/NAME@REVISION.")
    ],
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit. Default: main.")
    ] = None,
    files: Annotated[
        tuple[str, ...],
        typer.Option("--file", metavar="NAME", help="Pull only files with this name or pattern. May be repeated."),
    ] = (),
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The folder to create. Default: one in QNNBRIDGE_MODELS_DIR."
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not use the network; find a model that was pulled before.")
    ] = False,
    soc_model: SocModel = None,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Download a model by its name on a hub.

    Prefers a compiled model for this chip to a model that must be compiled.
    """
    from qnnbridge_tools.hub.pulling import PullRequest, pull_model

    request = PullRequest(name, revision, files, folder, offline, soc_model, host_python)
    done = pull_model(request, lambda line: print(visible(line), file=sys.stderr, flush=True))
    reporting.show(done, _document, _print_result, as_json=as_json)


def _document(done: PullResult) -> dict[str, Any]:
    return {
        "path": str(done.path),
        "folder": str(done.folder),
        **_described(done.record),
        "is_new": done.is_new,
        "not_taken": [{"name": name, "why": why} for name, why in done.not_taken],
        "notes": list(done.notes),
        "next": done.next_command or None,
    }


def _described(record: Any) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    return {name: fields[name] for name in fields if name != "schema"}


def _print_result(done: PullResult) -> None:
    from qnnbridge_tools import output

    record = done.record
    pairs = [
        ("model", f"{record.candidate or 'all files'}: {record.why}"),
        *(("not" if not number else "", f"{name}: {why}") for number, (name, why) in enumerate(done.not_taken)),
        ("commit", record.commit),
        ("size", output.size_text(record.bytes)),
        ("path", str(done.path)),
        *(("note", note) for note in done.notes),
    ]
    if done.next_command:
        pairs.append(("next", done.next_command))
    output.print_pairs(f"{record.repository}, {'pulled' if done.is_new else 'already here'}", pairs)


models_app = typer.Typer(help="List, show and remove pulled models.", rich_markup_mode=None)


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the models if there is no subcommand."""
    if context.invoked_subcommand is None:
        list_models()


@models_app.command("list")
@command
def list_models(as_json: AsJson = False) -> None:
    """List the models that `qnnbridge pull` downloaded."""
    from qnnbridge_protocol.settings import models_dir
    from qnnbridge_tools import output
    from qnnbridge_tools.hub import library

    found = library.pulled()
    if as_json:
        output.print_json({"folder": str(models_dir()), "models": [_row(one) for one in found]})
    elif not found:
        print(f"No models in {visible(str(models_dir()))}.")
    else:
        rows = [
            [
                one.repository,
                one.id,
                one.record.kind if one.record else "unfinished",
                output.size_text(one.size),
                one.record.pulled[:10] if one.record else "-",
                one.path,
            ]
            for one in found
        ]
        output.print_table(["repository", "id", "kind", "size", "pulled", "path"], rows)


def _row(one: PulledFolder) -> dict[str, Any]:
    described = _described(one.record) if one.record else {"repository": one.repository, "kind": "unfinished"}
    return {"id": one.id, "path": str(one.path), "folder": str(one.folder), **described, "bytes": one.size}


@models_app.command("show")
@command
def show_model(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A repository, OWNER/NAME@REVISION, or an id from `qnnbridge models`."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the record and the files of a pulled model."""
    from qnnbridge_tools import output
    from qnnbridge_tools.hub import library

    found = library.matching(name)
    if as_json:
        output.print_json({"models": [{**_row(one), "files": _files(one)} for one in found]})
        return
    for number, one in enumerate(found):
        assert one.record is not None
        if number:
            print()
        pairs = [
            ("from", f"{one.record.endpoint}/{one.repository}"),
            ("commit", one.record.commit),
            ("model", f"{one.record.candidate or 'all files'}: {one.record.why}"),
            ("pulled", one.record.pulled),
            ("size", output.size_text(one.size)),
            ("path", str(one.path)),
            *(("files" if not place else "", name) for place, name in enumerate(_files(one))),
        ]
        output.print_pairs(f"{one.repository} {one.id}", pairs)


def _files(one: PulledFolder) -> list[str]:
    return sorted(path.relative_to(one.folder).as_posix() for path in one.folder.rglob("*") if path.is_file())


def _to_remove(name: str) -> list[PulledFolder]:
    from qnnbridge_tools.hub import library

    found = library.matching(name, unfinished=True)
    repositories = list(dict.fromkeys(one.repository for one in found))
    if len(repositories) > 1:
        raise OptionError(
            f'"{name}" matches models of several repositories: {", ".join(repositories)}.',
            fix="Give OWNER/NAME, or an id that `qnnbridge models` lists.",
        )
    return found


@models_app.command("remove")
@command
def remove_models(
    names: Annotated[
        tuple[str, ...], typer.Argument(metavar="[NAME]...", help="Repositories, or ids of the list.")
    ] = (),
    everything: Annotated[bool, typer.Option("--all", help="Remove all pulled models.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove pulled models and unfinished downloads."""
    from qnnbridge_tools import output
    from qnnbridge_tools.hub import library

    # Require either names or --all, not both.
    if everything == bool(names):
        raise OptionError(
            "Names of models and --all are both given." if names else "No model to remove is given.",
            fix="Give names or ids that `qnnbridge models` lists, or --all.",
        )
    chosen: Sequence[PulledFolder] = (
        library.pulled()
        if everything
        else list({one.folder: one for name in names for one in _to_remove(name)}.values())
    )
    rows = [_row(one) for one in chosen]
    for one in chosen:
        library.remove(one)
    if as_json:
        output.print_json({"removed": rows})
    else:
        print(f"Removed: {visible(', '.join(str(row['id']) for row in rows)) or 'nothing'}.")
