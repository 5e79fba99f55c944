"""Which provider has which nodes, in the classes of ``get_provider_graph_assignment_info``. Immutable data."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    name: str
    domain: str
    op_type: str


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """Nodes that one provider took together."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self.nodes)
