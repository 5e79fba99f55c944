"""What a small file may ask for is bounded, in a time that is in proportion to the file."""

from __future__ import annotations

import pytest
from tests.attack import models

from qnnbridge_host.graph import bounds, graphs
from qnnbridge_host.rewrite import folding
from qnnbridge_protocol.errors import InvalidGraph


def test_functions_that_are_too_many_nodes_when_written_out_are_refused() -> None:
    with pytest.raises(InvalidGraph, match=r"more than 1,000,000 nodes") as caught:
        bounds.check_functions(models.exponential_functions())
    assert "40 functions stand for 10^12 nodes" in str(caught.value.cause)
    bounds.check_functions(models.exponential_functions(depth=18))


def test_a_function_that_calls_itself_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="F of the model calls itself"):
        bounds.check_functions(models.recursive_function())


def test_tensors_of_sizes_that_grow_without_end_are_not_computed() -> None:
    assert bounds.computes_many_sizes(models.gigantic_range())
    assert bounds.computes_many_sizes(models.doubling_sizes())
    assert not bounds.computes_many_sizes(models.doubling_sizes(depth=10))
    assert graphs.types_of(models.doubling_sizes())["y"] is not None


@pytest.mark.parametrize("make", [models.gigantic_constant, models.gigantic_tile, models.gigantic_expand])
def test_gigantic_constants_are_not_folded(make: object, tmp_path: object) -> None:
    from pathlib import Path

    from qnnbridge_host.graph.editor import Editor

    model = make()  # type: ignore[operator]
    assert folding.fold(Editor(model, Path(str(tmp_path)))) == 0
