"""`--html`: the report of a command as a page, which contains the terminal's output and loads no other files."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from tests.fakes.commands import qnnbridge
from tests.fakes.models import MODELS
from tests.fakes.pages import Read

from qnnbridge_os.outputs import OutputFile
from qnnbridge_tools import output, page

MUL = MODELS / "mul_1.onnx"


def test_a_page_has_tables_pairs_and_lines_in_their_order(tmp_path: Path) -> None:
    def report() -> None:
        print("A line <b>of</b> its own")
        output.print_table(["name", "value"], [["<x>", 1]])
        print("one   two\nthree four\n")
        output.print_pairs("Heading", [("label", "text & more"), ("", "below")])
        print("The end.")

    place = tmp_path / "page.html"
    page.write(OutputFile(place, overwrite=False), "Title <of> it", report)
    text = place.read_text("utf-8")
    body = text.partition("<body>")[2]
    order = ["Title &lt;of&gt; it", "A line &lt;b&gt;of&lt;/b&gt; its own", "<th>name</th>", "<td>&lt;x&gt;</td>"]
    order += ["<pre>one   two\nthree four</pre>", "<h2>Heading</h2>", "<td>text &amp; more</td>", "<p>The end.</p>"]
    assert [body.index(one) for one in order] == sorted(body.index(one) for one in order)
    assert "default-src 'none'" in text
    assert not {"script", "img", "link", "iframe"} & set(Read(text).tags)


@pytest.mark.parametrize("as_json", [False, True])
def test_inspect_writes_the_printed_report_to_the_page(as_json: bool, tmp_path: Path) -> None:
    plain = qnnbridge("inspect", MUL)
    place = tmp_path / "page.html"
    done = qnnbridge("inspect", MUL, "--html", place, *(["--json"] if as_json else []))
    assert done.returncode == plain.returncode == 0
    assert as_json or done.stdout == plain.stdout
    assert set(plain.stdout.split()) <= set(Read(place.read_text("utf-8")).words)
    again = qnnbridge("inspect", MUL, "--html", place)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert qnnbridge("inspect", MUL, "--html", place, "--overwrite").returncode == 0


def test_a_page_on_stdout_moves_the_report_to_stderr() -> None:
    done = qnnbridge("versions", "--html", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    shown = set(Read(done.stdout).words)
    assert len(set(done.stderr.split()) - shown) == 0, set(done.stderr.split()) - shown


@pytest.mark.simulator
def test_verify_has_its_rows_on_the_page(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    place = tmp_path / "page.html"
    done = qnnbridge("verify", MUL, "--html", place, "--no-bisect")
    body = html.unescape(place.read_text("utf-8"))
    assert "<th>inputs</th><th>output</th><th>result</th>" in body
    verdict = re.search(r"^[A-Z ]+: mul_1\.onnx\.", done.stdout, re.MULTILINE)
    assert verdict is not None
    assert verdict[0] in body
