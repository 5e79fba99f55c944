"""`--html` of long commands on models: the page contains what is printed, and never costs a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fakes.commands import qnnbridge
from tests.fakes.pages import Read

pytest.importorskip("onnxruntime")

import model_work_models as models

# A name that contains a piece of HTML.
NAME = "a <b>&'net.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, a folder with samples, and a metric."""
    made = tmp_path_factory.mktemp("page")
    source = models.saved(models.conv_net(), made / NAME)
    models.samples_for(source, {}, 4, made / "samples")
    (made / "metrics.py").write_text("def score(outputs, samples):\n    return {'<i>score</i>': len(outputs)}\n")
    return made


def arguments(command: str, folder: Path, target: Path) -> list[str | Path]:
    if command == "quantize":
        return ["quantize", folder / NAME, "-o", target, "--calibration", folder / "samples", "--no-check-qnn"]
    metric = f"{folder / 'metrics.py'}:score"
    return ["evaluate", folder / NAME, "--input", folder / "samples", "--on", "cpu", "--metric", metric]


@pytest.mark.process
@pytest.mark.parametrize("command", ["evaluate", "quantize"])
def test_evaluate_and_quantize_write_the_printed_report_to_the_page(
    command: str, folder: Path, tmp_path: Path
) -> None:
    target, place = tmp_path / "<u>q.onnx", tmp_path / "page.html"
    given = arguments(command, folder, target)
    done = qnnbridge(*given, "--html", place)
    assert done.returncode == 0, done.output
    read = Read(place.read_text("utf-8"))
    printed = set(done.stdout.split())
    assert len(printed) > 10
    assert printed <= set(read.words), printed - set(read.words)
    assert not {"b", "i", "u"} & set(read.tags), "names are escaped"
    assert "&lt;b&gt;&amp;&#x27;net.onnx" in place.read_text("utf-8")
    if command == "evaluate":
        assert "<th>&lt;i&gt;score&lt;/i&gt;</th>" in place.read_text("utf-8")

    before = {one: one.stat().st_mtime_ns for one in tmp_path.iterdir()}
    refused = qnnbridge(*arguments(command, folder, tmp_path / "other.onnx"), "--html", place)
    assert refused.returncode == 2
    assert f"{place} exists already." in refused.stderr
    assert "--overwrite" in refused.stderr
    assert {one: one.stat().st_mtime_ns for one in tmp_path.iterdir()} == before, "refused before the work"
    place.write_text("an older page")
    again = qnnbridge(*given, "--html", place, "--overwrite", "--json")
    assert again.returncode == 0, again.output
    assert json.loads(again.stdout)
    assert place.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.process
@pytest.mark.parametrize("command", ["evaluate", "quantize"])
def test_evaluate_and_quantize_can_print_a_page_to_stdout(command: str, folder: Path, tmp_path: Path) -> None:
    done = qnnbridge(*arguments(command, folder, tmp_path / "q.onnx"), "--html", "-")
    assert done.returncode == 0, done.output
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.endswith("</html>\n")
    assert NAME in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command", ["evaluate", "quantize"])
def test_a_page_never_replaces_the_model_or_a_folder(command: str, folder: Path, tmp_path: Path) -> None:
    given = arguments(command, folder, tmp_path / "q.onnx")
    before = (folder / NAME).read_bytes()
    for place, message in ((folder / NAME, "is the input itself"), (tmp_path, "is a folder")):
        refused = qnnbridge(*given, "--html", place, "--overwrite")
        assert refused.returncode == 2
        assert message in refused.stderr
    assert (folder / NAME).read_bytes() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["q.onnx", "link.onnx", "-"])
def test_a_page_of_quantize_is_refused_at_the_path_of_its_model(place: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to("q.onnx")
    target = "-" if place == "-" else tmp_path / "q.onnx"
    page_place = "-" if place == "-" else tmp_path / place
    refused = qnnbridge(*arguments("quantize", folder, Path(target)), "--html", page_place, "--overwrite")
    assert refused.returncode == 2
    assert f"--html {page_place} and -o {target} are the same file." in refused.stderr
    assert refused.stdout == ""
    assert not (tmp_path / "q.onnx").exists()
