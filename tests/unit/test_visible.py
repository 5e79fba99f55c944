"""Foreign text on a terminal is shown, but its control characters have no effect."""

from __future__ import annotations

import logging

import pytest

from qnnbridge_models.prepare.preparation import escaped
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.visible import log_of, quoted, visible, visible_lines

BAD = "a\x1b]0;title\x07\x1b[2J\x9b2J\u009d52;c;x\u202egnp\u2066\rb\nError: forged\x00\u2028\u200b"


@pytest.mark.parametrize("text", ["", "model.onnx", "größe 尺寸", "a\\b"])
def test_printable_text_is_not_changed(text: str) -> None:
    assert visible(text) == visible_lines(text) == text


def test_everything_else_is_escaped() -> None:
    assert visible(BAD).isprintable()
    assert visible("a\x1b\n\x9b\u202e") == r"a\x1b\n\x9b\u202e"
    assert visible("\ud800") == r"\ud800"
    assert visible_lines("a\n\tb\x1b") == "a\n\tb\\x1b"


def test_a_line_of_foreign_text_is_marked_as_a_quotation() -> None:
    assert quoted("a\nError: forged") == "a\n  | Error: forged"


def test_all_parts_of_an_error_are_shown() -> None:
    text = str(OptionError(BAD, cause=BAD, evidence=[BAD], fix=BAD))
    assert all(line.replace("\t", "").isprintable() for line in text.split("\n"))
    assert not any(line.startswith("Error: forged") for line in text.split("\n"))


def test_arguments_of_log_records_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_of("qnnbridge.test_visible").warning("model %s of %d", BAD, 5)
    assert caplog.messages == [f"model {visible(BAD)} of 5"]


@pytest.mark.parametrize("name", ["<img src=x onerror=y>", "a|b", "`x`", "[a](http://b)", "**bold**", "a\n# title"])
def test_names_are_not_markup_in_the_report_of_prepare(name: str) -> None:
    shown = escaped(name)
    assert "<" not in shown
    assert "\n" not in shown
    for character in "|`[*#":
        assert f"\\{character}" in shown or character not in name


def test_a_report_marks_continuation_lines_of_an_error_without_cause_and_fix_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = BridgeError("a name\nError: forged\n  Fix: forged\x1b[2J")
    assert str(error).splitlines()[1] == "Error: forged", "programs compare ONNX Runtime's texts"
    assert error.shown() == "a name\n  | Error: forged\n  |   Fix: forged\\x1b[2J"
    log_of("qnnbridge.test_visible").warning("failed: %s", error)
    assert caplog.messages == ["failed: " + error.shown()]
