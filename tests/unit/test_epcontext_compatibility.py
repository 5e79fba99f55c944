"""The compatibility text of compiled models, in both forms that occur in real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_host.model.compatibility import CompiledTarget, parse


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("v2:6:2.51.0:5.51.0:0:0:0:0", [CompiledTarget()]),
        ("v2:6:2.51.0:5.51.0:0:60:0:0", [CompiledTarget(soc_model=60)]),
        ("v2:6:2.51.0:5.51.0:73:60:0:0", [CompiledTarget(73, 60)]),
        ("v2:6:2.51.0:5.51.0:0:60:8:0", [CompiledTarget(0, 60, 8)]),
        ("v2:6:2.51.0:5.51.0:0,0:60,88:0,0:0", [CompiledTarget(soc_model=60), CompiledTarget(soc_model=88)]),
    ],
)
def test_the_second_format_is_parsed(text: str, targets: list[CompiledTarget]) -> None:
    found = parse(text)
    assert found is not None
    assert (found.form, found.backend, found.sdk, found.backend_api) == (2, 6, "2.51.0", "5.51.0")
    assert list(found.targets) == targets
    assert not found.user_driver


def test_the_first_format_is_parsed() -> None:
    found = parse("6:2.48.40:5.48.0:0.0.0:68:1")
    assert found is not None
    assert (found.form, found.sdk, found.context_blob, found.targets) == (
        1,
        "2.48.40",
        "0.0.0",
        (CompiledTarget(68),),
    )
    assert found.user_driver


@pytest.mark.parametrize(
    ("target", "arch", "label"),
    [
        (CompiledTarget(), None, "no chip named"),
        (CompiledTarget(soc_model=60), 73, "SoC 60 (V73)"),
        (CompiledTarget(81, 60), 73, "SoC 60 (V73)"),
        (CompiledTarget(81), 81, "V81"),
        (CompiledTarget(soc_model=12345), None, "SoC 12345"),
    ],
    ids=["nothing", "a chip", "the chip wins over another architecture", "only an architecture", "unknown chip"],
)
def test_a_target_is_interpreted_as_chip_and_architecture(
    target: CompiledTarget, arch: int | None, label: str
) -> None:
    assert (target.known_arch, target.label) == (arch, label)


def test_a_compatibility_string_is_explained() -> None:
    found = parse("v2:6:2.51.0:5.51.0:0,0:60,88:0,8:0")
    assert found is not None
    assert found.words == (
        "HTP backend, QNN SDK 2.51.0, backend API 5.51.0",
        "for SoC 60 (SC8380XP, V73), SoC 88 (SC8480XP, V81), 8 MB of VTCM; not on a runtime driver (HNRD)",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v2",
        "v3:6:2.51.0:5.51.0:0:60:0:0",
        "v2:6:2.51.0:5.51.0:0:60:0",
        "v2:six:2.51.0:5.51.0:0:60:0:0",
        "v2:6:2.51.0:5.51.0:0,0:60:0:0",
        "6:2.48.40:5.48.0:0.0.0:sixty:0",
        "1:2:3",
    ],
)
def test_a_string_in_neither_format_is_ignored(text: str) -> None:
    assert parse(text) is None


@given(st.text(alphabet="v026:,.x-", max_size=40))
def test_no_string_raises(text: str) -> None:
    parse(text)
