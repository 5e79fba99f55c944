"""Record the signatures of ONNX Runtime's bindings that the bridge needs, in `qnnbridge._bindings`.

``python -m scripts.makers.signatures`` imports the installed onnxruntime, which should be the newest release,
because error messages quote its signatures. The bridge itself cannot import onnxruntime, because applications run
without it. The program records the functions whose names occur in the bridge as ``@bound("NAME")`` or
``refused("NAME", ...)``, and all methods of the classes in ``@remote("CLASS")``. Signatures that this release lacks
are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnbridge import _bindings

TABLE = Path(_bindings.__file__)
_NAMED = re.compile(r'\b(?:bound|refused)\("([\w.]+)"')
_REMOTE = re.compile(r'@remote\("(\w+)"')
# In a docstring of pybind11, a signature is on a separate line, and overloads are numbered.
_SIGNATURE = re.compile(r"^(?:\d+\. )?\w*(\(.*\) -> .+)$", re.MULTILINE)


def wanted(bindings: Any) -> Iterator[str]:
    """Yield the names to record."""
    text = "".join(path.read_text("utf-8") for path in TABLE.parent.rglob("*.py"))
    yield from _NAMED.findall(text)
    for cls in _REMOTE.findall(text):
        yield from (f"{cls}.{name}" for name in vars(getattr(bindings, cls)) if not name.startswith("_"))
        yield from (name for name in _bindings.SIGNATURES if name.startswith(f"{cls}."))


def signature(bindings: Any, name: str) -> str | None:
    """Return the signature with ``C.`` for the module, one line for each overload; ``None`` for a missing name."""
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
    """Return all wanted signatures. Raises `KeyError` for a name that no release has."""
    return {name: signature(bindings, name) or _bindings.SIGNATURES[name] for name in sorted(set(wanted(bindings)))}


def main() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as bindings

    head, begin, _ = TABLE.read_text("utf-8").partition("SIGNATURES: Final = {\n")
    rows = "".join(f"    {json.dumps(name)}: {json.dumps(text)},\n" for name, text in recorded(bindings).items())
    TABLE.write_text(f"{head}{begin}{rows}}}\n", "utf-8", newline="\n")


if __name__ == "__main__":
    main()
