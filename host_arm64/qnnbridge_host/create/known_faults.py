"""What a session's creation says about its model: operators that QNN is known to compute wrong. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.hello import Hello
    from qnnbridge_protocol.model_records import Notice
    from qnnbridge_protocol.specs import SessionInfo, SessionSpec


def known_faults(source: ModelSource, spec: SessionSpec, hello: Hello, soc_model: str | None = None) -> str:
    """What is known against a model on QNN, in sentences; "" for nothing. soc_model: the chip, if it is known."""
    from qnnbridge_host.model.known_wrong import find_for_session, warning_of

    simulator = hello.machine != "ARM64"
    found = find_for_session(source, spec, hello.versions, simulator=simulator, soc_model=soc_model)
    return warning_of(source.label, found, source.path)


def curing_rewrites(source: ModelSource, spec: SessionSpec, hello: Hello) -> tuple[str, ...]:
    """The rewrites for what `known_faults` finds; none where nothing is found or no rewrite cures it."""
    from qnnbridge_host.model.known_wrong import find_for_session

    found = find_for_session(source, spec, hello.versions, simulator=hello.machine != "ARM64")
    return tuple(dict.fromkeys(one.fault.rewrite for one in found if one.fault.rewrite))


def against(source: ModelSource, spec: SessionSpec, hello: Hello, info: SessionInfo) -> list[Notice]:
    """The notice of `known_faults` about a session, if a part of it may be on QNN."""
    from qnnbridge_protocol.model_records import Notice

    if info.placement.known and not info.placement.qnn_nodes:
        return []
    warning = known_faults(source, spec, hello)
    return [Notice("model", warning)] if warning else []
