"""The picture of `qnnbridge analyze`, in a real browser: what it shows, clicks, keys, thousands of nodes, no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import browser
import model_work_models as models
import numpy as np
import pytest
from tests import needs

pytest.importorskip("onnxruntime")

from qnnbridge_models.analyze import analysis as report
from qnnbridge_models.analyze import analyze_model
from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol.errors import OptionError

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'


def cut_in_two() -> Any:
    """Return a model with two nodes on QNN, one on the CPU, one on QNN, and a weight that is folded."""
    node = models.helper.make_node
    return models.model(
        [
            node("Transpose", ["w"], ["wt"], perm=[1, 0], name="turned"),
            node("MatMul", ["x", "wt"], ["a"], name="first"),
            node("Relu", ["a"], ["b"], name="second"),
            node("Hardmax", ["b"], ["c"], name=HOSTILE),
            node("Sigmoid", ["c"], ["y"], name="last"),
        ],
        [models.value("x", [1, 4])],
        [models.value("y", [1, 4])],
        [models.weights("w", 4, 4)],
    )


def chain(count: int, problem: int = -1) -> Any:
    ops = ["Hardmax" if number == problem else "Relu" for number in range(count)]
    names = ["x", *(f"t{number}" for number in range(count - 1)), "y"]
    nodes = [
        models.helper.make_node(op, [names[k]], [names[k + 1]], name=f"/blocks.{k}/act") for k, op in enumerate(ops)
    ]
    return models.model(nodes, [models.value("x", [1, 8])], [models.value("y", [1, 8])])


def many(count: int) -> Any:
    node = models.helper.make_node
    ops = np.random.default_rng(3).integers(0, 3, count)
    nodes, names = [], ["x"]
    for number in range(count):
        name = f"t{number}"
        if ops[number] == 0 and number > 5:
            nodes.append(node("Add", [names[-1], names[-4]], [name], name=f"node{number}"))
        else:
            nodes.append(
                node("Hardmax" if number % 500 == 250 else "Relu", [names[-1]], [name], name=f"node{number}")
            )
        names.append(name)
    return models.model(nodes, [models.value("x", [1, 8])], [models.value(names[-1], [1, 8])])


def drawn(made: Any, folder: Path) -> Path:
    analysis = analyze_model(models.saved(made, folder / "m.onnx"), offline=True)
    OutputFile(folder / "m.html", overwrite=True).write_text(report.picture_page(analysis))
    return folder / "m.html"


def place_of(page: browser.Page, index: int) -> tuple[float, float]:
    """Return the position of a node on the screen."""
    x, y = page.value(
        f"(() => {{ const n = nodes[{index}], b = graph.getBoundingClientRect(); "
        "return [b.x + (n.x - left) * scale, b.y + (n.y - top_) * scale]; })()"
    )
    return x, y


def panel(page: browser.Page) -> str:
    return str(page.value('document.getElementById("node").innerText'))


def colour_at(page: browser.Page, x: float, y: float) -> list[int]:
    """Return a colour of the canvas after drawing."""
    found: list[int] = page.value(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => { const r = devicePixelRatio, "
        f"b = graph.getBoundingClientRect(); done([...pen.getImageData(({x} - b.x) * r, ({y} - b.y) * r, 1, 1).data]"
        ".slice(0, 3)); })))"
    )
    return found


needs_a_browser = pytest.mark.skipif(browser.program() is None, reason="needs Chromium")


@needs_a_browser
def test_the_graph_is_coloured_by_place_and_a_click_shows_the_reason(tmp_path: Path) -> None:
    with browser.page(drawn(cut_in_two(), tmp_path)) as page:
        assert page.errors == []
        assert page.value("document.title") == "m.onnx: where it runs"
        summary = page.value('document.getElementById("summary").textContent')
        assert (
            "cut into 2 pieces. Nodes: 5 in the file: 3 on the NPU, 1 on the CPU, 1 computed in advance. Work: 85.7 % of 28 mult"
            in summary
        )
        assert page.value("shown.length") == 4, "what is computed before is not shown"
        colours = {}
        for index in (1, 3):
            x, y = place_of(page, index)
            colours[index] = colour_at(page, x - page.value("scale") * 46, y)
        assert colours[1] == [0x2A, 0x7D, 0xE1]
        assert colours[3] == [0xE8, 0x83, 0x2A]
        page.click(*place_of(page, 3))
        text = panel(page)
        assert "on the CPU" in text
        assert "QNN has no operator Hardmax" in text
        assert "What to do: " in text
        page.click(*place_of(page, 4))
        assert "on the NPU, part 2 of 2" in panel(page)


@needs_a_browser
def test_a_node_that_qnn_computes_wrong_has_its_own_colour(tmp_path: Path) -> None:
    node = models.helper.make_node
    chained = [
        node("Relu", ["x"], ["a"], name="first"),
        node("LogSoftmax", ["a"], ["b"], name="scores", axis=-1),
        node("Neg", ["b"], ["y"], name="last"),
    ]
    made = models.model(chained, [models.value("x", [2, 65])], [models.value("y", [2, 65])])
    with browser.page(drawn(made, tmp_path)) as page:
        assert page.errors == []
        assert page.value("problems()") == [1]
        page.value('document.getElementById("next").click()')
        text = panel(page)
        assert "QNN computes LogSoftmax wrong here" in text
        assert "qnnbridge fix" in text
        assert "on the NPU" in text
        assert "QNN computes wrong results" in page.value('document.getElementById("keys").innerText')
        edge = page.value("[scale, nodes[1].width / 2]")
        x, y = place_of(page, 1)
        page.value("(() => { selected = -1; draw(); })()")
        assert colour_at(page, x - edge[0] * edge[1], y) == [0xD8, 0x1B, 0x78]


@needs_a_browser
def test_parts_are_drawn_as_separate_islands(tmp_path: Path) -> None:
    with browser.page(drawn(cut_in_two(), tmp_path)) as page:
        (x1, y1), (x2, y2), (x3, y3), (x4, y4) = (place_of(page, index) for index in (1, 2, 3, 4))
        beside = [page.value("scale") * (page.value(f"nodes[{index}].width") / 2 + 5) for index in (1, 3)]
        island = colour_at(page, x1 - beside[0], y1)
        ground = colour_at(page, x3 - beside[1], y3)
        assert island == [0xCF, 0xE3, 0xFB]
        assert ground == [255, 255, 255]
        assert colour_at(page, (x1 + x2) / 2 + 12, (y1 + y2) / 2) == island
        assert colour_at(page, (x3 + x4) / 2 + 12, (y3 + y4) / 2 - 1) != island


@needs_a_browser
def test_names_from_the_model_are_text_and_never_markup(tmp_path: Path) -> None:
    with browser.page(drawn(cut_in_two(), tmp_path), "#node=3") as page:
        assert HOSTILE in panel(page)
        assert page.value("document.title") == "m.onnx: where it runs"
        assert page.value('document.querySelectorAll("img").length') == 0
        assert page.errors == []


@needs_a_browser
def test_the_page_sends_no_network_request(tmp_path: Path) -> None:
    path = drawn(cut_in_two(), tmp_path)
    with browser.page(path) as page:
        page.click(*place_of(page, 1))
        assert [url for url in page.requests if not url.startswith("file:")] == []
        blocked = page.value('fetch("https://example.org").then(() => "went out", () => "blocked")')
        assert blocked == "blocked", "the page's own policy forbids it"


@needs_a_browser
def test_keys_search_buttons_and_folded_nodes_work(tmp_path: Path) -> None:
    with browser.page(drawn(cut_in_two(), tmp_path)) as page:
        page.value('document.getElementById("next").click()')
        assert "Hardmax" in panel(page)
        page.value('document.getElementById("graph").focus()')
        page.press("ArrowUp")
        assert "second" in panel(page)
        page.press("ArrowDown")
        assert "Hardmax" in panel(page)
        page.value('(() => { const s = document.getElementById("search"); s.value = "sigm"; s.oninput(); })()')
        assert page.value('document.querySelectorAll("#found button").length') == 1
        page.value('document.querySelector("#found button").click()')
        assert "last" in panel(page)
        page.value('document.getElementById("folded").click()')
        assert page.value("shown.length") == 5


@needs.long_form
@needs_a_browser
def test_a_graph_of_five_thousand_nodes_stays_usable(tmp_path: Path) -> None:
    path = drawn(many(5000), tmp_path)
    assert path.stat().st_size < 3_000_000
    with browser.page(path) as page:
        assert page.value("shown.length") == 5000
        assert page.errors == []
        # One frame contains what is visible, however many nodes there are.
        page.value('document.getElementById("next").click()')
        assert "Hardmax" in panel(page)
        assert page.value("visible().nodes.length") < 200
        following = page.value("nodes[selected].to[0]")
        page.click(*place_of(page, following))
        assert f"node{following}" in panel(page)
        page.value('document.getElementById("all").click()')
        assert page.value("visible().nodes.length") == 5000


@needs_a_browser
def test_a_long_chain_starts_at_its_first_problem_in_a_readable_size(tmp_path: Path) -> None:
    with browser.page(drawn(chain(178, problem=120), tmp_path)) as page:
        assert page.errors == []
        assert page.value("scale") == 1
        assert page.value("nodes[selected].n") == "/blocks.120/act"
        x, y = place_of(page, 120)
        assert abs(x - page.value("width") / 2) < 2
        assert 0 < y < browser.HEIGHT
        assert "Hardmax" in panel(page)
        # The node's neighbours are visible, one below the other, each wide enough for its name.
        near = page.value("visible().nodes.map((n) => [nodes[n].n, nodes[n].y, nodes[n].width])")
        assert 8 <= len(near) <= 30
        assert {"/blocks.119/act", "/blocks.121/act"} <= {name for name, _, _ in near}
        assert all(
            width >= page.value(f"pen.font = NAME_FONT, pen.measureText({name!r}).width") for name, _, width in near
        )


@needs_a_browser
def test_a_graph_without_a_problem_starts_at_its_first_node(tmp_path: Path) -> None:
    with browser.page(drawn(chain(178), tmp_path)) as page:
        assert page.errors == []
        assert page.value("scale") == 1
        assert page.value("selected") == -1
        assert 0 in page.value("visible().nodes")
        _, y = place_of(page, 0)
        assert 0 < y < 300


@needs_a_browser
def test_branches_are_drawn_side_by_side_and_nodes_never_overlap(tmp_path: Path) -> None:
    node = models.helper.make_node
    nodes = [node("Relu", ["x"], ["r"], name="stem")]
    nodes += [node("Sigmoid", ["r"], [f"s{k}"], name=f"branch {k}") for k in range(6)]
    nodes += [node("Concat", [f"s{k}" for k in range(6)] + ["x"], ["y"], name="join", axis=1)]
    made = models.model(nodes, [models.value("x", [1, 4])], [models.value("y", [1, 28])])
    with browser.page(drawn(made, tmp_path)) as page:
        boxes = page.value("shown.map((n) => [nodes[n].x, nodes[n].y, nodes[n].width])")
        assert len({y for _, y, _ in boxes[1:7]}) == 1
        for k, (x, y, width) in enumerate(boxes):
            for other_x, other_y, other_width in boxes[:k]:
                assert abs(x - other_x) >= (width + other_width) / 2 or abs(y - other_y) >= page.value("H")


def test_the_page_is_one_file_without_external_resources(tmp_path: Path) -> None:
    text = drawn(cut_in_two(), tmp_path).read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "src=" not in text.partition('id="data">')[0]
    start = text.index('id="data">') + len('id="data">')
    data = json.loads(text[start : text.index("</script>", start)])
    assert "Copyright (c) 2012-2014 Chris Pettitt" in text, "the layout library goes with its licence"
    assert [node["p"] for node in data["nodes"]] == ["folded", "qnn", "qnn", "cpu", "qnn"]
    assert [node["g"] for node in data["nodes"]] == [-1, 0, 0, -1, 1]
    assert data["nodes"][3]["n"] == HOSTILE


def test_an_existing_file_and_the_model_are_not_overwritten(tmp_path: Path) -> None:
    model = models.saved(cut_in_two(), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="is the input itself"):
        OutputFile(model, overwrite=True, inputs=[model])
    (tmp_path / "m.html").write_text("mine")
    with pytest.raises(OptionError, match="exists already"):
        OutputFile(tmp_path / "m.html", overwrite=False, inputs=[model])
    with pytest.raises(OptionError, match="folder"):
        OutputFile(tmp_path, overwrite=True, inputs=[model])
