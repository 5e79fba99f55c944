"""Sizes, axes, paddings and masks that are computed from fixed shapes become constants, as QNN wants them."""

from __future__ import annotations

from qnnbridge_tools.models.fix import folding
from qnnbridge_tools.models.fix.editor import Editor


def apply(editor: Editor) -> list[str]:
    saved = folding.fold(editor)
    return [f"{saved} nodes computed"] if saved else []
