"""The table of onnxruntime-genai's releases: rules, page and command agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnbridge_host.model.genai_folder import EVERY_LAYOUT, LAYOUTS, TRIED, Layout, is_too_old, refusal, releases_of
from qnnbridge_tools.versions.view import genai_text

PAGE = (Path(__file__).parents[2] / "docs" / "genai.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("layout", "version", "runs"),
    [
        ("dynamic", "0.16.0", True),
        ("window", "0.13.2", True),
        ("window", "0.16.0", False),
        ("window", "0.17.0", True),
        ("sliding", "0.16.0", True),
        ("sliding", "0.17.1", False),
        ("sliding", "0.18.0", False),
        ("sliding", "0.19.0", True),  # unknown, so tried
        ("sliding", None, True),
    ],
)
def test_unsupported_releases_are_refused(layout: Layout, version: str | None, runs: bool) -> None:
    assert (refusal(layout, version) is None) == runs


def test_the_recommended_release_runs_everything_and_is_the_newest() -> None:
    everything = [version for version in TRIED if all(refusal(row.layout, version) is None for row in LAYOUTS)]
    assert everything[-1] == EVERY_LAYOUT


def test_old_releases_are_refused_or_limited() -> None:
    assert is_too_old("0.12.1")
    assert not is_too_old("0.13.2")
    assert not is_too_old(None)


def test_the_page_and_the_command_show_the_table() -> None:
    for row in LAYOUTS:
        assert f"| `{row.layout}` | {row.what} |" in PAGE
        assert f"{row.layout} ({row.what}): {releases_of(row.layout)}" in genai_text()
        if row.refused is not None:
            assert f"| {releases_of(row.layout)} |" in PAGE
