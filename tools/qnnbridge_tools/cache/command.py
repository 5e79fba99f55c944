"""The commands of `qnnbridge cache`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson

if TYPE_CHECKING:
    from qnnbridge_host.cache.store import Store
    from qnnbridge_tools.cache.entries import CacheFacts

DAY_S = 24 * 3600.0

app = typer.Typer(help="Manage the cache of compiled models.", rich_markup_mode=None)
Keys = Annotated[
    tuple[str, ...], typer.Argument(metavar="[KEY]...", help="Keys, beginnings of keys, or model names.")
]


@app.callback(invoke_without_command=True)
def cache(context: typer.Context) -> None:
    """List the entries if there is no subcommand."""
    if context.invoked_subcommand is None:
        list_entries()


@app.command("list")
@command
def list_entries(as_json: AsJson = False) -> None:
    """List the entries, last used first, with sizes, hits and ages."""
    from qnnbridge_tools.cache import entries

    _, facts = _gather()
    reporting.show(facts, entries.contents, entries.print_list, as_json=as_json)


@app.command("show")
@command
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, the beginning of a key, or a model name.")],
    as_json: AsJson = False,
) -> None:
    """Show one entry: its model and options, or why it was set aside."""
    from qnnbridge_tools.cache import entries

    _, facts = _gather()
    found = facts.matching(key)
    reporting.show(found, entries.details, entries.print_show, as_json=as_json)


@app.command("verify")
@command
def verify(keys: Keys = (), as_json: AsJson = False) -> None:
    """Compare entries with their hashes: all, or the given ones. Exit code 1 if one is damaged."""
    from qnnbridge_tools.cache import entries

    store, facts = _gather(keys)
    results = [entries.verify(store, entry) for entry in facts.entries]
    reporting.show(results, entries.verified, entries.print_verified, as_json=as_json)
    if any(result.state == "bad" for result in results):
        raise typer.Exit(reporting.EXIT_FAILED)


@app.command("prune")
@command
def prune(
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size to shrink to (500M, 2G). Default: the cache's limit.")
    ] = None,
    unused_days: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0.0, help="Also remove entries not used for this many days.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove damaged and leftover entries. Then remove the least recently used ones, down to the size limit."""
    from qnnbridge_tools import arguments
    from qnnbridge_tools.cache import entries

    store, facts = _gather()
    # A size of 0 is valid: it removes everything that is not in use.
    limit = facts.settings.max_bytes if max_size is None else arguments.read_size("--max-size", max_size, least=0)
    unused_s = None if unused_days is None else unused_days * DAY_S
    removed = entries.prune(store, facts, max_bytes=limit, unused_s=unused_s)
    reporting.show(removed, entries.removed, entries.print_removed, as_json=as_json)


@app.command("clear")
@command
def clear(
    keys: Keys = (),
    everything: Annotated[bool, typer.Option("--all", help="Remove all entries.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove entries and the records about them. Exit code 1 if an entry is in use and stays."""
    from qnnbridge_tools.cache import entries

    # Require either keys or --all, not both.
    if everything == bool(keys):
        raise OptionError(
            "Keys and --all are both given." if keys else "No entry to clear is given.",
            fix="Give keys or model names from `qnnbridge cache list`, or --all.",
        )
    store, facts = _gather(keys)
    removed = entries.clear(store, facts, everything=everything)
    reporting.show(removed, entries.removed, entries.print_removed, as_json=as_json)
    if removed.kept:
        raise typer.Exit(reporting.EXIT_FAILED)


def _gather(keys: Sequence[str] = ()) -> tuple[Store, CacheFacts]:
    """Return the configured cache and its contents; with `keys` only the matching contents."""
    from qnnbridge_host.cache.store import Store
    from qnnbridge_protocol.settings import cache_settings
    from qnnbridge_tools.cache import entries

    settings = cache_settings()
    store = Store(Path(settings.folder))
    entries.is_there(store)
    facts = entries.gather(settings)
    return store, entries.together(facts, keys) if keys else facts
