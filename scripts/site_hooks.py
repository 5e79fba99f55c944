"""Hooks of mkdocs.yml: pages outside of docs/ become pages of the site, and links to source files become text."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

ROOT: Final = Path(__file__).parents[1]
# Pages of the checkout's root; in the site they are in the folder `project`.
OUTSIDE: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PROJECT: Final = "project"

_FENCE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for name in OUTSIDE:
        files.append(File.generated(config, f"{PROJECT}/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt links to the site: correct the paths to its pages, and replace links to other files by their text."""
    source = page.file.src_uri
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda found: _link(found, source), part) for part in parts
    )


def _link(found: re.Match[str], source: str) -> str:
    folder = posixpath.dirname(source)
    # Folder of the page in the checkout.
    folder = "" if folder == PROJECT else posixpath.join("docs", folder)
    target = posixpath.normpath(posixpath.join(folder, found["path"]))
    if target in OUTSIDE:
        target = f"{PROJECT}/{target}"
    elif target.startswith("docs/") and not (ROOT / target).is_dir():
        target = target.removeprefix("docs/")
    else:
        return found["text"]
    path = os.path.relpath(target, posixpath.dirname(source) or ".").replace(os.sep, "/")
    return f"[{found['text']}]({path}{found['anchor'] or ''})"
