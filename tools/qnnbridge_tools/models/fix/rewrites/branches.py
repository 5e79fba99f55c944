"""An If whose condition is known is replaced by the branch that it takes.

The other branch is often impossible for the sizes at hand (it handles another rank), and then the model with fixed
sizes cannot even be loaded: ONNX Runtime looks into both.
"""

from __future__ import annotations

from typing import Any

from qnnbridge_tools.models.fix import folding
from qnnbridge_tools.models.fix.editor import Editor
from qnnbridge_tools.models.shared import graphs


def apply(editor: Editor) -> list[str]:
    taken = 0
    while node := _decided(editor):
        _inline(editor, node)
        taken += 1
        folding.fold(editor)
    return [f"{taken} {'branch' if taken == 1 else 'branches'} decided"] if taken else []


def _decided(editor: Editor) -> Any | None:
    for node in editor.graph.node:
        if (
            node.op_type == "If"
            and node.domain in graphs.ONNX_DOMAINS
            and editor.constant(node.input[0]) is not None
        ):
            return node
    return None


def _inline(editor: Editor, node: Any) -> None:
    condition = editor.constant(node.input[0])
    assert condition is not None
    wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    branch = next(attribute.g for attribute in node.attribute if attribute.name == wanted)
    renamed = {
        name: editor.fresh(name)
        for name in dict.fromkeys(
            [tensor.name for tensor in branch.initializer]
            + [name for n in branch.node for name in n.output if name]
        )
    }
    # What a branch gives may be the same tensor twice, or one from outside of it: then a copy is needed.
    copies: list[tuple[str, str]] = []
    for inner, outer in zip(branch.output, node.output, strict=True):
        if not outer:
            continue
        made = {name for n in branch.node for name in n.output}
        if inner.name in made and renamed[inner.name] not in node.output:
            renamed[inner.name] = outer
        else:
            copies.append((renamed.get(inner.name, inner.name), outer))
    for graph in graphs.subgraphs(branch):
        _rename(graph, renamed, is_branch=graph is branch)
    from onnx import helper

    identities = [helper.make_node("Identity", [a], [b], name=editor.fresh(f"{b}/copy")) for a, b in copies]
    tensors, nodes = list(branch.initializer), list(branch.node)
    editor.map_nodes(lambda one: [*nodes, *identities] if list(one.output) == list(node.output) else None)
    editor.graph.initializer.extend(tensors)
    editor.changed(shapes=True)


def _rename(graph: Any, renamed: dict[str, str], *, is_branch: bool) -> None:
    for number, one in enumerate(graph.node):
        for at, name in enumerate(one.input):
            one.input[at] = renamed.get(name, name)
        if is_branch:
            for at, name in enumerate(one.output):
                one.output[at] = renamed.get(name, name)
            one.name = one.name and f"{one.name}/{number}"
    if is_branch:
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
    else:
        for value in graph.output:
            value.name = renamed.get(value.name, value.name)
