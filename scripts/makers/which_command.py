"""Draw docs/images/which-command.svg: the commands for each task.

``python -m scripts.makers.which_command`` writes the picture. A row starts with the user's situation, followed by
commands in the order of their use.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).parents[2] / "docs" / "images" / "which-command.svg"

# The user's situation, and the commands (without the word qnnbridge) with their effect.
ROWS: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = (
    ("Nothing yet", (("setup", "make the host"), ("demo", "try it"), ("doctor", "check the computer"))),
    (
        "The name of a model",
        (("pull OWNER/NAME", "download it"), ("models", "list what is here"), ("run MODEL --random", "run it")),
    ),
    (
        "A model to ship",
        (
            ("prepare MODEL -o DIR", "fix, compile, verify"),
            ("inspect DIR", "can it run here?"),
            ("run DIR --random", "run it"),
        ),
    ),
    (
        "Nodes on the CPU",
        (
            ("analyze MODEL", "which, and why"),
            ("fix MODEL -o OUT", "rewrite them"),
            ("compile MODEL -o OUT", "for a chip"),
        ),
    ),
    (
        "Doubts: right? fast?",
        (
            ("verify MODEL", "compare with the CPU"),
            ("profile MODEL", "where the time goes"),
            ("quantize MODEL -o OUT", "smaller, faster"),
        ),
    ),
    (
        "An onnxruntime program",
        (("exec --report PROGRAM", "see what runs where"), ("exec --provider qnn PROGRAM", "on the NPU")),
    ),
    (
        "Text or speech",
        (("chat FOLDER", "talk to a language model"), ("transcribe FILE --model FOLDER", "write down speech")),
    ),
    (
        "Several programs",
        (("host start", "share one NPU host"), ("serve --model NAME=FILE", "over HTTP"), ("top", "watch it")),
    ),
    (
        "Something failed",
        (("doctor", "find the cause"), ("explain CODE", "an exit code"), ("report", "write a bug report")),
    ),
)

_WIDTH, _ROW, _TOP = 1000, 62, 16
_FIRST, _BOX, _GAP = 200, 236, 22
_LETTER = 7.3

_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1b2733}.c{font:13px ui-monospace,monospace;font-weight:600}"
    ".n{font-size:12px;fill:#51606f}.h{font-weight:600}.b{fill:#fff;stroke:#8fa3b5}.s{fill:#dfe9f3;stroke:#8fa3b5}"
    ".a{stroke:#8fa3b5;stroke-width:2;fill:none}.p{fill:#f5f8fb}"
    "@media(prefers-color-scheme:dark){text{fill:#e8eef4}.n{fill:#a9b8c6}.b{fill:#1c2630}.s{fill:#2b3a49}.p{fill:#141b22}}"
)


def picture() -> str:
    """Return the SVG document."""
    height = _TOP * 2 + _ROW * len(ROWS) - 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            "<title>Which command of qnnbridge for which task</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="p" width="{_WIDTH}" height="{height}" rx="8"/>',
            *(part for number, row in enumerate(ROWS) for part in _row(_TOP + number * _ROW, *row)),
            "</svg>\n",
        ]
    )


def _row(y: int, has: str, commands: tuple[tuple[str, str], ...]) -> Iterator[str]:
    yield f'<rect class="s" x="12" y="{y}" width="{_FIRST}" height="50" rx="6"/>'
    yield f'<text class="h" x="24" y="{y + 30}">{escape(has)}</text>'
    end = 12 + _FIRST
    for command, what in commands:
        start = end + _GAP
        width = max(_BOX if len(commands) == 3 else 300, round(len(command) * _LETTER) + 24)
        yield f'<path class="a" d="M{end} {y + 25}H{start - 3}m-6 -5l6 5l-6 5"/>'
        yield f'<rect class="b" x="{start}" y="{y}" width="{width}" height="50" rx="6"/>'
        yield f'<text class="c" x="{start + 12}" y="{y + 21}">{escape(command)}</text>'
        yield f'<text class="n" x="{start + 12}" y="{y + 39}">{escape(what)}</text>'
        end = start + width


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
