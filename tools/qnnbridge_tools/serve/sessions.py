"""Where sessions come from: the host, shared or private, and a session for one model with the command's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from qnnbridge_protocol.errors import BridgeError, PlacementRefused
from qnnbridge_tools import free_dimensions
from qnnbridge_tools.arguments import Dimensions
from qnnbridge_tools.serve.datatypes import make_contract
from qnnbridge_tools.serve.infer_reply import ServedModel
from qnnbridge_tools.serve.model_files import ModelFile

if TYPE_CHECKING:
    from qnnbridge import Host, InferenceSession
    from qnnbridge_protocol.specs import Placement

FIGURES_TIMEOUT_S: Final = 5.0

Where = Literal["daemon", "private"]


@dataclasses.dataclass(frozen=True, slots=True)
class SessionOptions:
    """What all models are loaded with; as for `qnnbridge run`."""

    providers: tuple[str, ...]
    provider_options: dict[str, str]
    fallback: Literal["error", "cpu"]
    dimensions: Dimensions


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """A session that is served. summary: where it runs, in words."""

    model: ServedModel
    session: InferenceSession
    summary: str

    def close(self) -> None:
        self.session.close()


def open_host(where: Where, python: str | None) -> Host:
    """The host of all sessions: the daemon, which is started if there is none, or one that starts at first use."""
    import qnnbridge

    return qnnbridge.connect(python=python) if where == "daemon" else qnnbridge.Host(python)


def daemon_figures(host: Host) -> Callable[[], Mapping[str, Any]]:
    """Asks a host that is the daemon for its status document."""

    def ask() -> Mapping[str, Any]:
        document: Mapping[str, Any] = host.call({"op": "daemon.status"}, timeout=FIGURES_TIMEOUT_S).header["status"]
        return document

    return ask


def open_model(file: ModelFile, options: SessionOptions, host: Host) -> LoadedModel:
    """Load one model and find out what it takes and gives. Raises the errors of `qnnbridge.errors`."""
    from qnnbridge import InferenceSession

    try:
        session = InferenceSession(
            str(file.path),
            free_dimensions.session_options(options.dimensions),
            providers=list(options.providers),
            provider_options=[options.provider_options],
            host=host,
            fallback=options.fallback,
        )
    except PlacementRefused as refused:
        free_dimensions.in_options(refused)
        raise
    try:
        contract = make_contract(
            session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
        )
    except BridgeError:
        session.close()
        raise
    served = ServedModel(file.name, file.version, contract, session)
    return LoadedModel(served, session, _summary(session.placement))


def _summary(placement: Placement) -> str:
    if not placement.known:
        return "ready"
    parts: list[str] = []
    for count, where in ((placement.qnn_nodes, "QNN"), (placement.cpu_nodes, "the CPU")):
        if count:
            parts.append(f"{count} {'node' if count == 1 else 'nodes'} on {where}")
    return ", ".join(parts) or "ready"
