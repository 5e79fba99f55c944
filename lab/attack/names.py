"""Use names with terminal escape sequences for all parts of a model, with every command that prints names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lab.attack.report import Report

# A name that sets the window title and the clipboard, clears the screen, reorders text (bidirectional controls),
# forges a message and contains HTML. C1 control characters occur as bytes and as Unicode characters.
BAD = (
    "a\x1b]0;title\x07\x1b[2J\x9b2J\u009d52;c;x\x07\u202egnp\u2066\rb\nError: forged\n  Fix: forged\x00<img src=x>"
)
# Text that must not occur in any output: control characters, and a line that begins with the forged message.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]|^(Error|  Fix): forged", re.M
)

TOOLS: dict[str, list[str]] = {
    "inspect": ["inspect"],
    "run": ["run"],
    "run-cpu": ["run", "--provider", "cpu"],
    "analyze": ["analyze"],
    "analyze-offline": ["analyze", "--offline"],
    "verify": ["verify"],
    "compile": ["compile", "-o", "OUT.onnx"],
    "profile": ["profile"],
    "fix": ["fix", "-o", "OUT.onnx"],
    "optimize": ["optimize", "-o", "OUT.onnx"],
    "quantize": ["quantize", "--random", "4", "-o", "OUT.onnx"],
    "prepare": ["prepare", "-o", "OUT"],
    "doctor": ["doctor", "--model"],
    "wrap": ["wrap", "-o", "OUT.onnx"],
    "adopt": ["compile", "--adopt"],
    "chat": ["chat"],
    "transcribe": ["transcribe"],
}


def models(folder: Path) -> list[Path]:
    """Write a valid model and models with different faults, with `BAD` in all their names; return their paths."""
    bad = BAD.replace("\0", "")
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), f"w{bad}")
    x, y = value(f"x{bad}", TensorProto.FLOAT, [1, 4]), value(f"y{bad}", TensorProto.FLOAT, [1, 4])
    good = helper.make_node("MatMul", [x.name, weight.name], [y.name], name=f"node{bad}")
    free = value(x.name, TensorProto.FLOAT, [f"batch{bad}", 4])
    nodes = {
        "good": (good, x, [weight]),
        "free": (good, free, [weight]),
        "operator": (helper.make_node(f"Op{bad}", [x.name], [y.name], name=f"node{bad}"), x, []),
        "domain": (helper.make_node("Relu", [x.name], [y.name], name=f"node{bad}", domain=f"d{bad}"), x, []),
        "missing": (helper.make_node("Relu", [f"none{bad}"], [y.name], name=f"node{bad}"), x, []),
        "attribute": (helper.make_node("Relu", [x.name], [y.name], name=f"node{bad}", **{f"at{bad}": 1}), x, []),
        "refused": (helper.make_node("Det", [x.name], [y.name], name=f"node{bad}"), x, []),
    }
    made = []
    for kind, (node, given, weights) in nodes.items():
        graph = helper.make_graph([node], f"graph{bad}", [given], [y], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model.producer_name = f"producer{bad}"
        entry = model.metadata_props.add()
        entry.key, entry.value = f"key{bad}", f"value{bad}"
        made.append(folder / f"{kind}.onnx")
        made[-1].write_bytes(model.SerializeToString())
    outside = onnx.load(made[0])
    tensor = outside.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    place = tensor.external_data.add()
    place.key, place.value = "location", f"none{bad.replace('/', '')}"
    made.append(folder / "outside.onnx")
    made[-1].write_bytes(outside.SerializeToString())
    if sys.platform != "win32":
        name = bad.replace("/", "")
        made += [folder / f"{name}.onnx", folder / f"broken{name}.onnx"]
        made[-2].write_bytes(made[0].read_bytes())
        made[-1].write_bytes(b"no model")
    return made


def attack(tools: Sequence[str] = (), kinds: Sequence[str] = ()) -> Report:
    """Run commands on models.

    Args:
        tools: names of commands; all by default.
        kinds: prefixes of the models' names; all by default.
    """
    report = Report("names")
    with tempfile.TemporaryDirectory(prefix="names-") as folder:
        chosen = [path for path in models(Path(folder)) if not kinds or path.name.startswith(tuple(kinds))]
        for tool in tools or TOOLS:
            for number, model in enumerate(chosen):
                place = Path(folder, f"{tool}-{number}")
                place.mkdir()
                _one(report, tool, model, place)
    return report


def _one(report: Report, tool: str, model: Path, place: Path) -> None:
    words = [word.replace("OUT", str(place / "out")) for word in TOOLS[tool]]
    done = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", *words[:1], *words[1:], str(model)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        cwd=place,
        env={**os.environ, "PYTHONUTF8": "1", "COLUMNS": "200"},
    )
    report.count("commands")
    report.count(f"exit code {done.returncode}")
    if b"Unexpected" in done.stderr:
        report.finding(f"{tool} {model.name!r:.20}: {done.stderr.decode(errors='replace')[:500]!r}")
    for kind, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        found = _OBEYED.search(text.decode("utf-8", "replace"))
        if found is not None:
            report.finding(f"{tool} {model.name!r:.20}: {kind}: {text.decode('utf-8', 'replace')[:600]!r}")
    for page in (*place.rglob("*.md"), *place.rglob("*.html")):
        text_of_page = page.read_text("utf-8", "replace")
        if "<img" in text_of_page or _OBEYED.search(text_of_page):
            report.finding(f"{tool} {model.name!r:.20}: {page.name}")
