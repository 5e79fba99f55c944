"""Record the signatures of ONNX Runtime's bindings that `qnnbridge.ort` needs, in `qnnbridge.ort._recorded`.

``python -m scripts.makers.signatures`` imports the installed onnxruntime, which should be the newest release: texts
of errors follow it. The drop-in cannot ask onnxruntime, because applications run without it. Recorded are the
functions whose names occur in the package as ``@bound("NAME")`` or ``refused("NAME", ...)``, and all methods of the
classes in ``@remote("CLASS")``. A signature that only an older release has is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnbridge.ort import _recorded

TABLE = Path(_recorded.__file__)
_NAMED = re.compile(r'\b(?:bound|refused)\("([\w.]+)"')
_REMOTE = re.compile(r'@remote\("(\w+)"')
# A signature in a docstring of pybind11, on a line of its own; overloads are numbered.
_SIGNATURE = re.compile(r"^(?:\d+\. )?\w*(\(.*\) -> .+)$", re.MULTILINE)
_BEGIN, _END = "SIGNATURES: Final = {\n", "}\n"


def wanted(bindings: Any) -> Iterator[str]:
    """Yield the names to record."""
    text = "".join(path.read_text("utf-8") for path in TABLE.parent.rglob("*.py"))
    yield from _NAMED.findall(text)
    for cls in _REMOTE.findall(text):
        members = vars(getattr(bindings, cls, object))
        yield from (f"{cls}.{name}" for name in members if not name.startswith("_"))


def signature(bindings: Any, name: str) -> str | None:
    """Return the signature with ``C.`` for the module, one line for each overload; ``None`` without such a name."""
    value = bindings
    for part in name.split("."):
        value = vars(value).get(part)
        if value is None:
            return None
    value = getattr(value, "fset", getattr(value, "__func__", value))
    # The first line of an overloaded function's docstring is (*args, **kwargs), without a result.
    found = _SIGNATURE.findall(value.__doc__)
    return "\n".join(found).replace(f"{bindings.__name__}.", "C.")


def recorded(bindings: Any) -> dict[str, str]:
    """Return the signatures of this release, and of older releases for names that this release lacks."""
    names = sorted(set(wanted(bindings)) | {*_recorded.SIGNATURES})
    found = {name: signature(bindings, name) or _recorded.SIGNATURES.get(name) for name in names}
    return {name: text for name, text in found.items() if text}


def main() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as bindings

    head, _, _ = TABLE.read_text("utf-8").partition(_BEGIN)
    rows = "".join(f"    {_quoted(name)}: {_quoted(text)},\n" for name, text in recorded(bindings).items())
    TABLE.write_text(head + _BEGIN + rows + _END, "utf-8", newline="\n")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


if __name__ == "__main__":
    main()
