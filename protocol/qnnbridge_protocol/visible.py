"""Safe presentation of untrusted text from model files, requests and other programs.

A terminal interprets control sequences (which set titles and clipboards, or clear the screen). With a line feed or
a bidirectional control character, a name can look like a message of qnnbridge. This module imports no large
modules.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging


def visible(text: object) -> str:
    """Return the text on one line, with each unprintable character escaped."""
    plain = str(text)
    # Fast path, because nearly every text is printable.
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)


def visible_lines(text: str) -> str:
    """Return the text with line feeds and tabs kept and all other unprintable characters escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else visible(c) for c in text)


def quoted(text: str) -> str:
    """Return a text as one part of a report. Lines after the first are marked, so that a name cannot look like a
    separate part."""
    return "\n  | ".join(visible(line) for line in text.rstrip().split("\n"))


def log_of(name: str) -> logging.Logger:
    """Return the logger `name`. Its records escape string arguments with `visible`."""
    import logging

    logger = logging.getLogger(name)
    if _show_arguments not in logger.filters:
        logger.addFilter(_show_arguments)
    return logger


def _show_arguments(record: logging.LogRecord) -> bool:
    """Escape the arguments of a record. Return True, so that the record is logged."""
    if isinstance(record.args, tuple):
        record.args = tuple(_shown(one) for one in record.args)
    return True


def _shown(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    # Recognise a `BridgeError` by its method: the class is not imported, because its module imports this module.
    shown = getattr(value, "shown", None) if isinstance(value, Exception) else None
    return shown() if callable(shown) else value
