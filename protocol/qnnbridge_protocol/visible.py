"""Safe presentation of untrusted text: text comes from model files, requests and other programs.

A terminal interprets control sequences (which set titles and clipboards, or clear the screen), and a line feed or a
bidirectional control lets a name look like text of qnnbridge. Imports nothing heavy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging


def visible(text: object) -> str:
    """Return the text on one line, with each unprintable character escaped."""
    plain = str(text)
    # Nearly every text is printable.
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)


def visible_lines(text: str) -> str:
    """Return the text with its lines and tabs, and each other unprintable character escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else visible(c) for c in text)


def quoted(text: str) -> str:
    """Return a part of a report. Its further lines are marked, so that no name looks like a separate part."""
    return "\n  | ".join(visible(line) for line in text.rstrip().split("\n"))


def log_of(name: str) -> logging.Logger:
    """Return the logger `name`, in whose records `visible` escapes text arguments."""
    import logging

    logger = logging.getLogger(name)
    if _show_arguments not in logger.filters:
        logger.addFilter(_show_arguments)
    return logger


def _show_arguments(record: logging.LogRecord) -> bool:
    """Escape the arguments of a record."""
    if isinstance(record.args, tuple):
        record.args = tuple(_shown(one) for one in record.args)
    return True


def _shown(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    # A `BridgeError`, whose module imports this one.
    shown = getattr(value, "shown", None) if isinstance(value, Exception) else None
    return shown() if callable(shown) else value
