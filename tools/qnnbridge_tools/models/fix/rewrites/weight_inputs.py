"""Before IR version 4 every weight is also an input: the caller could change it, so QNN cannot compile it in."""

from __future__ import annotations

from qnnbridge_tools.models.fix.editor import Editor


def apply(editor: Editor) -> list[str]:
    defaults = {tensor.name for tensor in editor.graph.initializer}
    kept = [value for value in editor.graph.input if value.name not in defaults]
    moved = len(editor.graph.input) - len(kept)
    if not moved:
        return []
    del editor.graph.input[:]
    editor.graph.input.extend(kept)
    editor.model.ir_version = max(editor.model.ir_version, 4)  # from which on a weight need not be an input
    editor.changed()
    return [f"{moved} weights were inputs, too"]
