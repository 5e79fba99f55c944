"""The options of a daemon on our command lines, and as the words that the daemon's own command line takes.

Only what was given is passed on: the defaults are the daemon's.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final

import typer

from qnnbridge_protocol.errors import OptionError


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The given options of a daemon; ``None`` for absent ones."""

    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter of the NPU host that the daemon runs.")
    ] = None
    idle_exit: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="Exit after this many seconds without a client. Default: never."),
    ] = None
    idle_unload: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help="Unload a model after this many seconds without a call; 0: never. Default 600."
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of calls in the NPU host at once. Default 4."),
    ] = None
    max_sessions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of open sessions per client. Default 64.")
    ] = None
    max_queued: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of waiting calls per client. Default 256."),
    ] = None
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Maximum memory of a client's calls and shared arrays (500M, 4G). Default 2G."
        ),
    ] = None
    max_kv_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Maximum memory of a client's KV caches. Default 8G."),
    ] = None
    recycle_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Replace an NPU host that has grown to this size. Default: never."),
    ] = None
    recycle_sessions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replace an NPU host after this many new sessions. Default: never."),
    ] = None

    def checked_words(self) -> list[str]:
        """`words` for a daemon that is about to be started here: an interpreter that cannot be the host's is
        refused now (`HostNotFound`), and not by the first session."""
        if self.python is not None:
            from qnnbridge._launch import find_host

            find_host(self.python)
        return self.words()

    def words(self) -> list[str]:
        """The words of the daemon's command line, which is read in another working folder.

        Raises `OptionError` for an invalid size or time.
        """
        from qnnbridge._daemon.discovery import from_anywhere
        from qnnbridge_tools.arguments import check_seconds

        given: dict[str, Any] = dataclasses.asdict(self)
        for name in _SECONDS:
            check_seconds(_option(name), given[name])
        given["python"] = None if self.python is None else from_anywhere(self.python)
        for name in _SIZES:
            given[name] = _bytes(name, given[name])
        return [
            word
            for name, value in given.items()
            if value is not None
            for word in (_option(name), f"{value:g}" if isinstance(value, float) else str(value))
        ]


_SIZES: Final = ("max_bytes", "max_kv_bytes", "recycle_bytes")
_SECONDS: Final = ("idle_exit", "idle_unload")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _bytes(name: str, size: str | None) -> int | None:
    if size is None:
        return None
    from qnnbridge_protocol.settings import parse_size

    number = parse_size(size)
    if not number:
        raise OptionError(f'{_option(name)} "{size}" is no size.', fix="Write bytes, or 500M, 4G.")
    return number
