"""The windows of one session: measured when it is made, used by its calls. See `chunks` for what windows are."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qnnbridge._buckets import chunks
from qnnbridge._buckets.arguments import Relation
from qnnbridge._buckets.batches import OutputShapes
from qnnbridge._buckets.chunks import Chunk, Context
from qnnbridge._buckets.plan import BucketPlan, Sizes

_log = logging.getLogger("qnnbridge.buckets")


@dataclasses.dataclass(frozen=True, slots=True)
class Windowing:
    """number: of the symbol. ends: of each output, how it follows from the symbol and in which dimension."""

    number: int
    context: Context
    ends: Mapping[str, tuple[Relation, int]]

    def length(self, plan: BucketPlan, true: Sizes) -> int:
        """Of the windows of a call; its own size if no bucket is short enough, so that nothing is ever padded."""
        size = true[self.number]
        return chunks.window_length(plan.buckets[self.number], size, self.context) or size

    def cut_up(
        self, plan: BucketPlan, feeds: Mapping[str, Any], true: Sizes, length: int
    ) -> tuple[list[Chunk], Iterator[dict[str, Any]]]:
        """The windows of a call and their feeds."""
        cuts = chunks.windows(true[self.number], length, self.context)
        return cuts, chunks.window_feeds(plan, feeds, self.number, cuts, length)

    def join(
        self, names: Sequence[str], results: Sequence[Sequence[Any]], cuts: Sequence[Chunk], true: Sizes
    ) -> list[Any]:
        """The outputs of the call."""
        relations, axes = zip(*(self.ends[name] for name in names), strict=True)
        return chunks.join(results, cuts, relations, axes, true[self.number])


def windowing_of(
    plan: BucketPlan,
    shapes: OutputShapes,
    names: Sequence[str],
    given: int | None,
    zeros: chunks.Zeros,
    run: chunks.Run,
) -> Windowing:
    """Measured on the CPU, or as given, and tried there. Raises `OptionError` for a model that has no windows."""
    assert plan.chunk is not None
    number = plan.chunk
    relations, axes = chunks.output_relations(plan, shapes, names, number)
    as_given = None if given is None else Context(given, given)
    context = as_given or chunks.measure(plan, number, relations, axes, zeros, run)
    chunks.check_exact(plan, number, relations, axes, context, zeros, run)
    name = plan.symbols[number]
    _log.info("an output looks at %d steps of %s before it and %d behind it", context.left, name, context.right)
    return Windowing(number, context, dict(zip(names, zip(relations, axes, strict=True), strict=True)))
