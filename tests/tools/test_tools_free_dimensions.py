"""What `--dim` means for a session, and what is said of dimensions on the command line."""

from __future__ import annotations

import pytest

from qnnbridge_host.model.scan import ModelScan
from qnnbridge_protocol.errors import OptionError, PlacementRefused
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.arguments import in_options, read_dimensions, refuse_unknown, session_options

MODEL = ModelScan(
    1, inputs=(NodeInfo("x", "tensor(float)", ("N", None, -1, 3)), NodeInfo("s", "tensor(float)", None))
)
FIXED = ModelScan(1, inputs=(NodeInfo("x", "tensor(float)", (2, 3)),))


def test_a_dimension_has_the_name_of_the_file_or_its_input_and_axis() -> None:
    refuse_unknown((MODEL,), read_dimensions(["N=1", "x:0=1", "x:1=2", "x:2=3"]))
    refuse_unknown((FIXED, MODEL), read_dimensions(["N=1"]))
    with pytest.raises(OptionError, match='no free dimension "x:3"') as caught:
        refuse_unknown((MODEL,), read_dimensions(["x:3=3"]))
    assert caught.value.cause == "Its free dimensions: N, x:1, x:2."
    with pytest.raises(OptionError, match='no free dimension "N"') as caught:
        refuse_unknown((FIXED,), read_dimensions(["N=1"]))
    assert caught.value.fix == "Leave --dim away."


def test_what_nobody_can_look_into_is_not_judged() -> None:
    refuse_unknown((ModelScan(1, "ort"),), read_dimensions(["N=1"]))


def test_no_dimension_needs_no_options() -> None:
    assert session_options(read_dimensions([])) is None
    options = session_options(read_dimensions(["N=1"]))
    assert options is not None
    assert options.to_spec_parts()["free_dimensions_by_name"] == {"N": 1}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Fix the dimensions: add_free_dimension_override_by_name('N', SIZE), "
            "add_free_dimension_override_by_name(\"a 'b'\", SIZE), or export the model with fixed shapes. "
            "To let such nodes run on the CPU, create the session with fallback='cpu'.",
            "Fix the dimensions: --dim N=SIZE --dim \"a 'b'=SIZE\", or export the model with fixed shapes. "
            "To let such nodes run on the CPU, add --fallback cpu.",
        ),
        (
            "Export the model with fixed shapes (those with a name can be fixed in the session options: "
            "add_free_dimension_override_by_name('N', SIZE)).",
            "Export the model with fixed shapes (those with a name can be fixed: --dim N=SIZE).",
        ),
        (None, None),
    ],
    ids=["all have names", "some have names", "no fix"],
)
def test_a_fix_for_python_becomes_one_for_the_command_line(said: str | None, shown: str | None) -> None:
    refused = PlacementRefused("No node.", fix=said)
    in_options(refused)
    assert refused.fix == shown
