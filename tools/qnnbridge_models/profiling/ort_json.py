"""Reads the profile of an ONNX Runtime session: loading, and for each run the time of every node.

ONNX Runtime writes one event a line, so the file is read line by line and never held whole. Events of a run stand
before the event `model_run` that ends it; a node that runs within another (the body of If, Loop, Scan) is nested,
and its time is contained in the outer one's. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qnnbridge_models.profiling import files

_WHOSE: Final = "ONNX Runtime"
_NODE_SUFFIX: Final = "_kernel_time"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRun:
    """One execution of one node. Bytes are those of its tensors that are no constants."""

    name: str
    op: str
    provider: str
    start_us: float
    time_us: float
    bytes_in: int
    bytes_out: int
    nested: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class OrtRun:
    """One run of the session.

    Args:
        nodes: in the order in which they began.
    """

    time_us: float
    nodes: tuple[NodeRun, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OrtProfile:
    parse_us: float
    initialize_us: float
    runs: tuple[OrtRun, ...]


def read(path: Path) -> OrtProfile:
    """Raises `BridgeError` for a file that is missing, cut off or something else."""
    files.check(path, _WHOSE)
    parse_us = initialize_us = 0.0
    runs: list[OrtRun] = []
    nodes: list[NodeRun] = []
    for event in _events(path):
        category, name = event.get("cat"), str(event.get("name", ""))
        if category == "Node" and name.endswith(_NODE_SUFFIX):
            nodes.append(_node(event, name.removesuffix(_NODE_SUFFIX)))
        elif category != "Session":
            continue
        elif name.startswith("model_loading"):
            parse_us += float(event["dur"])
        elif name == "session_initialization":
            initialize_us += float(event["dur"])
        elif name == "model_run":
            runs.append(OrtRun(float(event["dur"]), _nested(nodes)))
            nodes = []
    return OrtProfile(parse_us, initialize_us, tuple(runs))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    ended = False
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            # The file is one JSON list with an event on each line; read as a whole it would take several times its
            # size.
            text = line.strip().removeprefix("[" if number == 1 else "")
            if text.endswith("]"):
                ended, text = True, text[:-1]
            if not (text := text.strip().rstrip(",")):
                continue
            try:
                event = json.loads(text)
                # An event without a duration is none of a profile, and means that the file is damaged.
                float(event["dur"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise files.unusable(path, _WHOSE, f"line {number} is no event") from None
            yield event
    if not ended:
        raise files.unusable(path, _WHOSE, "its end is missing")


def _node(event: dict[str, Any], name: str) -> NodeRun:
    args = event.get("args")
    known: dict[str, Any] = args if isinstance(args, dict) else {}
    return NodeRun(
        name=name,
        op=str(known.get("op_name", "")),
        provider=str(known.get("provider", "")),
        start_us=float(event.get("ts", 0)),
        time_us=float(event["dur"]),
        bytes_in=_count(known.get("activation_size")),
        bytes_out=_count(known.get("output_size")),
    )


def _count(text: object) -> int:
    return int(text) if isinstance(text, (str, int)) and str(text).isdecimal() else 0


def _nested(nodes: list[NodeRun]) -> tuple[NodeRun, ...]:
    """In order of their beginning, with those marked that lie within another one."""
    ordered = sorted(nodes, key=lambda node: (node.start_us, -node.time_us))
    marked: list[NodeRun] = []
    # The outer nodes come first: they begin earlier, or at the same time and take longer.
    outer_end = 0.0
    for node in ordered:
        end = node.start_us + node.time_us
        inside = bool(marked) and end <= outer_end and node.start_us < outer_end
        marked.append(dataclasses.replace(node, nested=inside))
        if not inside:
            outer_end = end
    return tuple(marked)
