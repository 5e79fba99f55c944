"""Text of strangers, safe to show: names come from model files, requests and other programs.

A terminal obeys control sequences (it sets titles and clipboards, clears the screen), and a line feed or a
bidirectional control lets a name pass for words of ours. Imports nothing heavy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging


def visible(text: object) -> str:
    """Return the text on one line, with everything escaped that is not a printable character."""
    plain = str(text)
    # Nearly every text is printable as it is.
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)


def visible_lines(text: str) -> str:
    """Return the text with its lines and tabs, and everything else escaped that is not a printable character."""
    return "".join(c if c.isprintable() or c in "\n\t" else visible(c) for c in text)


def quoted(text: str) -> str:
    """Return a part of a report. Its further lines are marked, so that no name passes for a part of its own."""
    return "\n  | ".join(visible(line) for line in text.rstrip().split("\n"))


def log_of(name: str) -> logging.Logger:
    """Return the logger `name`, whose records show text arguments by `visible`."""
    import logging

    logger = logging.getLogger(name)
    if _show_arguments not in logger.filters:
        logger.addFilter(_show_arguments)
    return logger


def _show_arguments(record: logging.LogRecord) -> bool:
    """Escape what a record was given."""
    if isinstance(record.args, tuple):
        record.args = tuple(_shown(one) for one in record.args)
    return True


def _shown(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    # Of a `BridgeError`, whose module imports this one.
    shown = getattr(value, "shown", None) if isinstance(value, Exception) else None
    return shown() if callable(shown) else value
