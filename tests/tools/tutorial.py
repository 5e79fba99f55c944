"""Execute docs/tutorial.md: run its commands, write its programs. ``python -m tests.tools.tutorial`` writes the
outputs into the page.

In a block ``console`` each line after ``$`` is a command, and the lines below it are its standard output, and its
errors if it fails. A block ``python`` that begins with a comment ``# NAME.py`` is written to that file.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.hub import serving_hub

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
NAME = "PaddlePaddle/text-direction"
MODEL = ROOT / "tests" / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
TIMEOUT_S = 300

_BLOCK = re.compile(r"^```(?P<kind>console|python)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^\$ (?P<command>.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_FILE = re.compile(r"# (?P<name>\w+\.py)\n")


def done(page: str, home: Path) -> Iterator[tuple[str, str, str]]:
    """Execute the page in `home`. Yield each command, the text on the page, and the printed text."""
    folder = home / "tutorial"
    folder.mkdir(parents=True)
    with _surroundings(home) as environment:
        for block in _BLOCK.finditer(page):
            if block["kind"] == "python":
                if named := _FILE.match(block["body"]):
                    (folder / named["name"]).write_text(block["body"], "utf-8")
                continue
            for typed in _TYPED.finditer(block["body"]):
                ended = subprocess.run(
                    ["bash", "-c", typed["command"]],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                )
                printed = ended.stdout + (ended.stderr if ended.returncode else "")
                printed = printed.replace(sys.executable, "~/.venv/bin/python").replace(str(home), "~")
                yield typed["command"], typed["shown"], printed


@contextlib.contextmanager
def _surroundings(home: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a new user: an empty home, a hub on loopback, and the commands of this very Python."""
    programs = home / "bin"
    programs.mkdir()
    for name, module in (("qnnbridge", "-m qnnbridge_tools"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (programs / name).chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QNNBRIDGE_", "XDG_", "HF_", "HUGGING"))
    }
    with serving_hub() as hub:
        hub.add(NAME, {"model.onnx": MODEL.read_bytes(), "README.md": b"# Text direction\n"})
        yield {
            **kept,
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{kept.get('PATH', '')}",
            "COLUMNS": "110",
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(home / ".cache" / "huggingface"),
            "QNNBRIDGE_RUNTIME_DIR": str(home / "run"),
        }


def comparable(text: str) -> str:
    """Return the text without parts that differ between computers: times, sizes, versions, dates, widths of
    columns.
    """
    text = re.sub(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2})?Z?", "DATE", text)
    text = re.sub(r"\b[0-9a-f]{8,64}\b", "HASH", text)
    text = re.sub(r"\b(?:\d+ min )?\d+(?:\.\d+)? (?:ms|s|min)\b", "TIME", text)
    text = re.sub(r"\d+(?:[.,]\d+)+|\d+(?= (?:KB|KiB|MB|MiB|GB|bytes|dB)\b)", "N", text)
    return "\n".join(" ".join(line.split()) for line in re.sub(r"-{3,}", "---", text).splitlines())


def rewritten(page: str, home: Path) -> str:
    """Return the page with its outputs replaced by the printed text."""
    printed = iter([text for _, _, text in done(page, home)])

    def block(found: re.Match[str]) -> str:
        if found["kind"] == "python":
            return found[0]
        body = _TYPED.sub(lambda typed: f"$ {typed['command']}\n{_ended(next(printed))}", found["body"])
        return f"```console\n{body}```"

    return _BLOCK.sub(block, page)


def _ended(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*lines, ""]) if lines else ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(rewritten(PAGE.read_text("utf-8"), Path(made).resolve()), "utf-8")
