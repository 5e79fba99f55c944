"""Presentation of objects and errors: `repr` for a terminal, `_repr_html_` and short tracebacks for a notebook.

Text and HTML are made from one list of facts. A class returns its facts in `_shown_facts` from existing data,
without sending requests to a host, waiting for a lock or starting anything. Presentation never raises an exception.
A text contains no folder of a user, and in HTML all special characters are escaped. This module imports no large
modules.
"""

from __future__ import annotations

import os
import sys

from qnnbridge_protocol.visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType, TracebackType
    from typing import Any, Literal

    # "more": the fact is only shown in HTML. "problem": HTML marks the fact as a problem.
    Weight = Literal["", "problem", "more"]
    Fact = tuple[str, Weight]


class Shown:
    """Base class of objects that are shown as a list of facts."""

    __slots__ = ()

    def _shown_name(self) -> str:
        """Return the name of the model or file; '' if the object has no such name."""
        return ""

    def _shown_facts(self) -> Iterable[Fact]:
        """Return the facts, the most important first. The default is no facts."""
        return ()

    def __repr__(self) -> str:
        return _text(*_facts_of(self))

    def _repr_html_(self) -> str:
        return _html(*_facts_of(self))


def _facts_of(one: Shown) -> tuple[str, list[Fact]]:
    head = type(one).__name__
    try:
        name = one._shown_name()
        head = f"{head} {without_folders(name)}" if name else head
        return visible(head), [(visible(without_folders(text)), weight) for text, weight in one._shown_facts()]
    except Exception as error:  # noqa: BLE001 - debuggers and tracebacks also show partly initialised objects
        return visible(head), [(f"facts cannot be read ({type(error).__name__})", "problem")]


def _text(head: str, facts: list[Fact]) -> str:
    texts = [text for text, weight in facts if weight != "more"]
    return f"<{head}: {', '.join(texts)}>" if texts else f"<{head}>"


def _html(head: str, facts: list[Fact]) -> str:
    from html import escape

    # Mark problems with a symbol and not with a colour: notebooks are light or dark, and some remove styles from
    # outputs.
    main = "".join(
        f"<li>&#9888; <b>{escape(text)}</b></li>" if weight else f"<li>{escape(text)}</li>"
        for text, weight in facts
        if weight != "more"
    )
    more = "".join(f"<li>{escape(text)}</li>" for text, weight in facts if weight == "more")
    details = f"<details><summary>more</summary><ul>{more}</ul></details>" if more else ""
    return f'<div class="qnnbridge"><b>{escape(head)}</b><ul>{main}</ul>{details}</div>'


def more(lines: Iterable[str]) -> Iterator[Fact]:
    """Yield the nonempty lines as facts that are only shown in HTML."""
    for line in lines:
        if line:
            yield line, "more"


def beginning(text: str, most: int = 60) -> str:
    """Return the beginning of a text in quotes, on one line."""
    line = " ".join(text[: 4 * most].split())
    return f'"{line}"' if len(line) <= most and len(text) <= 4 * most else f'"{line[:most].rstrip()}..."'


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, for example "1 token" or "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an": "a model", "an input", "an OrtValue", "a uint8"."""
    return f"{'an' if noun[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {noun}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of the remaining names: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def closest(name: str, among: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar name, or ``None`` if none is similar enough. cutoff: as in
    `difflib.get_close_matches`."""
    import difflib  # `difflib` imports heapq, so import it only for errors

    return next(iter(difflib.get_close_matches(name, list(among), n=1, cutoff=cutoff)), None)


# Beginning of an absolute path that may lead to a user's files. Node names such as `/model.0/conv/Conv` look like
# paths, but do not match.
_ROOTS = (
    r"(?:[A-Za-z]:[\\/]+|\\\\[\w.$-]+\\+"
    r"|[\\/](?:home|[Uu]sers|root|tmp|mnt|media|opt|var|srv|usr|private|[Vv]olumes)[\\/]+)"
)
# A folder name that contains spaces must be followed by a separator, so that a sentence after a path is not part of
# the path.
_FOLDER = r"[^\s\\/\"'<>|:*?,;()]+(?: [^\s\\/\"'<>|:*?,;()]+){0,3}[\\/]+"


def without_folders(text: str) -> str:
    """Return the text with each absolute path reduced to its file name."""
    # Most texts contain no path, and importing `re` costs time in an application that does not need it otherwise.
    if "/" not in text and "\\" not in text:
        return text
    import re

    return re.sub(rf"(?<![\w.~/\\]){_ROOTS}(?:{_FOLDER})*", "", text)


# --- tracebacks without qnnbridge's own frames ---------------------------------------------------------------


_PACKAGES = frozenset(
    f"qnnbridge{part}" for part in ("", "_protocol", "_os", "_host", "_tools", "_models", "_serve", "_daemon")
)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to qnnbridge, not to the application or another library."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
        return True
    # Check the file, too: `qnnbridge.dropin` gives modules of this package the names of onnxruntime's modules.
    package = sys.modules.get("qnnbridge")
    file = getattr(package, "__file__", None)
    return bool(file) and frame.f_code.co_filename.startswith(os.path.dirname(str(file)) + os.sep)


def notebook_traceback(error: BaseException) -> list[str]:
    """Return the traceback of an error for IPython, without qnnbridge's frames.

    IPython hides frames with a true local variable `__tracebackhide__`, but always shows the innermost frame. So
    qnnbridge's frames at the end are removed, and those between frames of the application are marked.
    """
    from IPython.core.getipython import get_ipython

    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    # The innermost frame of the application. All deeper frames belong to qnnbridge.
    last = max((at for at, one in enumerate(frames) if not _is_inner(one.tb_frame)), default=len(frames) - 1)
    shown: TracebackType | None = None
    for one in reversed(frames[: last + 1]):
        if is_ours(one.tb_frame):
            one.tb_frame.f_locals["__tracebackhide__"] = True
        # Build a new chain, so that the error's own traceback stays complete for %debug and for a caller that
        # raises the error again.
        shown = type(one)(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    shell: Any = get_ipython()
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, shown)
    hidden = len(frames) - last - 1
    if hidden:
        lines.insert(-1, f"[... {hidden} frames of qnnbridge; %debug shows them]\n")
    return lines


def _is_inner(frame: FrameType) -> bool:
    return is_ours(frame) or frame.f_globals.get("__name__") in ("contextlib", "functools", "threading")
