"""An EPContext node as a model has it. Immutable data."""

from __future__ import annotations

import dataclasses

from qnnbridge_host.model.protobuf import Span

OP_TYPE = "EPContext"
DOMAIN = "com.microsoft"

QNN_SOURCES = frozenset({"QNNExecutionProvider", "QNN"})
"""Values of ``source`` for which the QNN provider takes a node."""


@dataclasses.dataclass(frozen=True, slots=True)
class EpContextNode:
    """One compiled part of a model, or (`ModelScan.lookalikes`) a node that only looks like one.

    where: the graph that holds it, in words ("the main graph", "then_branch of the If node 'if1'").
    Attributes are as the file has them, ``None`` if it does not: see `owns_blob` and `embeds` for their defaults.
    cache_path: the context binary's file, if there is one. embedded: where in the model file it is, if it is
    inside; bytes if it is so short that it cannot be one.
    """

    name: str
    op_type: str
    domain: str
    where: str
    source: str | None = None
    main_context: int | None = None
    embed_mode: int | None = None
    cache_path: str | None = None
    embedded: Span | bytes | None = None
    sdk_version: str | None = None
    partition_name: str | None = None
    multi_soc: bool = False
    dlc_path: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def is_real(self) -> bool:
        """ONNX Runtime takes it for a compiled part."""
        return self.op_type == OP_TYPE and self.domain == DOMAIN

    @property
    def embeds(self) -> bool:
        """The context binary is inside of the model, also where the node does not say: so the operator's schema."""
        return self.embed_mode != 0

    @property
    def owns_blob(self) -> bool:
        """It is a main node: it names or holds the context binary. Others are parts of one that a main node has."""
        return self.main_context in (None, 1)

    @property
    def label(self) -> str:
        return self.name or "(unnamed)"

    @property
    def provider(self) -> str:
        """Which execution provider made it, for a person."""
        return self.source or "an execution provider that it does not name"
