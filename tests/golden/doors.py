"""Golden files of public interfaces: options of all commands, JSON documents, and models that `fix` rewrites.

``python -m tests.golden.doors`` rewrites `doors/*.json`. Each change of them needs an entry in the changelog, since
programs parse these documents and scripts use these options. `tests/unit/test_doors.py` compares the files. Frames
of the wire are in `v1`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import typer
from typer.testing import CliRunner

from qnnbridge_tools.cli import app

FOLDER = Path(__file__).parent / "doors"
ROOT = Path(__file__).parents[2]

# Commands that run in this process and need files only.
ANSWERS: dict[str, list[str]] = {
    "inspect": ["inspect", "tests/models/mul_1.onnx", "--json"],
    "inspect compiled": ["inspect", "tests/models/compiled/good.onnx", "--json"],
    "inspect nothing": ["inspect", "tests/models/nothing.onnx", "--json"],
    "explain": ["explain", "0xC0000005", "--json"],
    "explain nothing": ["explain", "hello", "--json"],
    "fix compiled": ["fix", "tests/models/compiled/good.onnx", "-o", "unused.onnx", "--json"],
    "versions": ["versions", "--json"],
}


def options() -> dict[str, Any]:
    """Return summary, arguments and options (names, placeholder, help, default, required) of each command."""
    return dict(_commands(typer.main.get_command(app), ""))


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if name:
        yield name, {"help": command.help, "parameters": [_parameter(one) for one in command.params]}
    for below, child in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(child, f"{name} {below}".strip())


def _parameter(parameter: Any) -> dict[str, Any]:
    # The default of a repeatable option is None or an empty list, depending on typer's version.
    default = parameter.default if isinstance(parameter.default, (bool, int, float, str)) else None
    return {
        "names": [*parameter.opts, *parameter.secondary_opts],
        "metavar": parameter.metavar,
        "help": getattr(parameter, "help", None),
        "default": default,
        "required": parameter.required,
    }


def documents() -> dict[str, Any]:
    """Return exit code, and keys and types of the JSON document, by name. Values depend on versions and folders."""
    found = {}
    for name, arguments in ANSWERS.items():
        done = CliRunner().invoke(app, [str(ROOT / one) if one.startswith("tests/") else one for one in arguments])
        found[name] = {"exit code": done.exit_code, "document": shape_of(json.loads(done.stdout))}
    return found


def shape_of(value: Any) -> Any:
    """Return the keys and types of a document; for a list the shape of its first element."""
    if isinstance(value, dict):
        return {key: shape_of(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


def rewritten() -> dict[str, str]:
    """Return the SHA-256 of each rewritten model's graph, which contains no name or version of the package onnx."""
    sys.path.insert(0, str(ROOT / "tests" / "tools"))
    import fix_models
    import model_work_models as models

    from qnnbridge_models.fix import fix_model

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (what, (rewrite, make)) in enumerate(sorted(fix_models.ONE_OF_EACH.items())):
            source, target = Path(folder) / f"{number}.onnx", Path(folder) / f"{number}-fixed.onnx"
            fix_model(models.saved(make(), source), target, only=[rewrite], check=False)
            graph = onnx.load(target).graph
            found[what] = hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()
    return found


DOORS = {"options": options, "documents": documents, "rewritten": rewritten}


def text_of(name: str) -> str:
    return json.dumps(DOORS[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    for name in DOORS:
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.json").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
