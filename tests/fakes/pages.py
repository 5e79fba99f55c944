"""Extract programs from pages of docs/, for tests that run them, and words from HTML pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def program_of(page: str, replaced: Mapping[str, str], number: int = 0) -> str:
    """Return a Python block of a page in docs/, with some texts replaced by values of the test."""
    code = [found["code"] for found in _PYTHON.finditer((DOCS / page).read_text("utf-8"))][number]
    for old, new in replaced.items():
        assert old in code, f"{page} has no {old}"
        code = code.replace(old, new)
    return code


class Read(HTMLParser):
    """Parser that collects the words and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.words += data.split()
