"""Presentation of objects and errors: `repr` for a terminal, `_repr_html_` and short tracebacks for a notebook.

Text and HTML are made from one list of facts. A class lists its facts in `_shown_facts`, from existing data:
without requests to a host, waiting for a lock or starting anything. Presentation never raises. A text contains no
folder of a user, and HTML escapes every character of it. Imports nothing heavy.
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

    # "more": shown in HTML only. "problem": marked there.
    Weight = Literal["", "problem", "more"]
    Fact = tuple[str, Weight]


class Shown:
    """Base class of objects with a presentation of their facts."""

    __slots__ = ()

    def _shown_name(self) -> str:
        """Return the name of the model or file; '' for an object without one."""
        return ""

    def _shown_facts(self) -> Iterable[Fact]:
        """Return the facts, the most important first; by default none."""
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

    # A sign and not a colour marks problems: notebooks are light or dark, and some remove styles from outputs.
    main = "".join(
        f"<li>&#9888; <b>{escape(text)}</b></li>" if weight else f"<li>{escape(text)}</li>"
        for text, weight in facts
        if weight != "more"
    )
    more = "".join(f"<li>{escape(text)}</li>" for text, weight in facts if weight == "more")
    details = f"<details><summary>more</summary><ul>{more}</ul></details>" if more else ""
    return f'<div class="qnnbridge"><b>{escape(head)}</b><ul>{main}</ul>{details}</div>'


def more(lines: Iterable[str]) -> Iterator[Fact]:
    """Yield the lines that are not empty as facts for HTML only."""
    for line in lines:
        if line:
            yield line, "more"


def beginning(text: str, most: int = 60) -> str:
    """Return the text in quotes, on one line and cut to a length."""
    line = " ".join(text[: 4 * most].split())
    return f'"{line}"' if len(line) <= most and len(text) <= 4 * most else f'"{line[:most].rstrip()}..."'


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 token" and "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def closest(name: str, among: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar name, or ``None`` if none is similar enough. cutoff: as that of `difflib`."""
    import difflib  # imports heapq: only for errors

    return next(iter(difflib.get_close_matches(name, list(among), n=1, cutoff=cutoff)), None)


# Folders that contain users' files. Names of nodes such as `/model.0/conv/Conv` look like paths, too, but not like
# these.
_ROOTS = (
    r"(?:[A-Za-z]:[\\/]+|\\\\[\w.$-]+\\+"
    r"|[\\/](?:home|[Uu]sers|root|tmp|mnt|media|opt|var|srv|usr|private|[Vv]olumes)[\\/]+)"
)
# A folder of several words ends at a separator, so that a sentence after a path is not part of the path.
_FOLDER = r"[^\s\\/\"'<>|:*?,;()]+(?: [^\s\\/\"'<>|:*?,;()]+){0,3}[\\/]+"


def without_folders(text: str) -> str:
    """Return the text with each absolute path shortened to the name of its file."""
    # Most texts contain no path, and importing `re` costs time in an application that shows nothing else.
    if "/" not in text and "\\" not in text:
        return text
    import re

    return re.sub(rf"(?<![\w.~/\\]){_ROOTS}(?:{_FOLDER})*", "", text)


# --- frames of the bridge ------------------------------------------------------------------------------------


_PACKAGES = frozenset(
    f"qnnbridge{part}" for part in ("", "_protocol", "_os", "_host", "_tools", "_models", "_serve", "_daemon")
)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to qnnbridge, and not to the application or another library."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] in _PACKAGES:
        return True
    # `qnnbridge.dropin` renames modules of this package like those of onnxruntime.
    package = sys.modules.get("qnnbridge")
    file = getattr(package, "__file__", None)
    return bool(file) and frame.f_code.co_filename.startswith(os.path.dirname(str(file)) + os.sep)


def notebook_traceback(error: BaseException) -> list[str]:
    """Return the traceback of an error for IPython, without the frames of the bridge.

    IPython hides frames with a true local `__tracebackhide__`, but always shows the innermost frame. So the frames
    at the end are cut off, and those between frames of the application are marked.
    """
    from IPython.core.getipython import get_ipython

    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    # The innermost frame of the application; deeper frames belong to the bridge.
    last = max((at for at, one in enumerate(frames) if not _is_inner(one.tb_frame)), default=len(frames) - 1)
    shown: TracebackType | None = None
    for one in reversed(frames[: last + 1]):
        if is_ours(one.tb_frame):
            one.tb_frame.f_locals["__tracebackhide__"] = True
        # A new chain, so that the error's own traceback stays complete for %debug and for a caller that raises it
        # again.
        shown = type(one)(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    shell: Any = get_ipython()
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, shown)
    hidden = len(frames) - last - 1
    if hidden:
        lines.insert(-1, f"[... {hidden} frames of qnnbridge; %debug shows them]\n")
    return lines


def _is_inner(frame: FrameType) -> bool:
    return is_ours(frame) or frame.f_globals.get("__name__") in ("contextlib", "functools", "threading")
