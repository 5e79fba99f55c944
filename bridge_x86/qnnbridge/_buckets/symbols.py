"""What a session with buckets shows of the model's shapes, and what it takes as sizes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge._buckets.cutting import OutputShapes
from qnnbridge._buckets.plan import Plan, Sizes
from qnnbridge._suggestions import suggest
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo


def shown_inputs(inputs: Sequence[NodeInfo], fixed: Mapping[str, int]) -> list[NodeInfo]:
    """With the names of the free dimensions, as ONNX Runtime shows them. fixed: overrides of the session."""
    return [NodeInfo(node.name, node.type, _with(fixed, node.shape)) for node in inputs]


def shown_outputs(outputs: Sequence[NodeInfo], shapes: OutputShapes, fixed: Mapping[str, int]) -> list[NodeInfo]:
    """Dimensions that the model does not declare have the name of the size that they are."""
    shown = []
    for node in outputs:
        relations = shapes.relations(node.name)
        declared: tuple[int | str | None, ...] | None = node.shape
        if relations is not None and (declared is None or len(declared) != len(relations)):
            declared = (None,) * len(relations)
        if declared is not None and relations is not None:
            declared = tuple(
                relation.symbol if dim is None and relation is not None and relation.is_identity else dim
                for dim, relation in zip(declared, relations, strict=True)
            )
        shown.append(NodeInfo(node.name, node.type, _with(fixed, declared)))
    return shown


def wanted_variants(plan: Plan, sizes: Any) -> list[Sizes]:
    """The variants that `warm` is asked for; all if ``None``. Raises `OptionError`."""
    if sizes is None:
        return list(plan.variants())
    found = []
    for wanted in [sizes] if isinstance(sizes, Mapping) else sizes:
        if not isinstance(wanted, Mapping):
            raise OptionError(f"sizes: {wanted!r:.100} is no size.", fix=_example(plan))
        for name in wanted:
            if name not in plan.symbols:
                known = ", ".join(plan.symbols)
                hint = suggest(str(name), plan.symbols)
                raise OptionError(f"sizes: {name!r} has no buckets.", fix=f"Give {known}.{hint}")
        chosen = []
        for name, buckets in zip(plan.symbols, plan.buckets, strict=True):
            size = wanted.get(name, buckets[0] if len(buckets) == 1 else None)
            if size not in buckets:
                what = f"{size!r} is none of the buckets of {name!r}" if name in wanted else f"{name!r} is missing"
                raise OptionError(f"sizes: {what}.", fix=f"Its buckets are {', '.join(map(str, buckets))}.")
            chosen.append(size)
        found.append(tuple(chosen))
    return list(dict.fromkeys(found))


def _with(fixed: Mapping[str, int], shape: tuple[int | str | None, ...] | None) -> Any:
    if shape is None:
        return None
    return tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)


def _example(plan: Plan) -> str:
    named = ", ".join(f"{name!r}: {size}" for name, size in plan.named(plan.smallest()).items())
    return f"Give sizes for each: [{{{named}}}]."
