"""No information is duplicated: no constant is assigned twice in a module, and no table exists on both sides."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path
    for package in ("protocol", "host_arm64", "bridge_x86", "daemon", "tools")
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)
# A literal with at least this many strings is a table.
KEYS_IN_A_TABLE = 10
# Two tables count as one if one contains this share of the other.
SHARED = 0.8


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def assigned_twice(path: Path) -> list[str]:
    assigned: Counter[str] = Counter()
    for node in parsed(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        assigned.update(target.id for target in targets if isinstance(target, ast.Name))
    return [f"{path.relative_to(ROOT)}: {name}" for name, count in assigned.items() if count > 1]


def test_a_name_is_assigned_once_in_a_module() -> None:
    assert len(MODULES) > 100
    assert [name for path in MODULES for name in assigned_twice(path)] == []


def tables(path: Path) -> list[frozenset[str]]:
    found = []
    for node in ast.walk(parsed(path)):
        items = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
        items = [key for key in node.keys if key is not None] if isinstance(node, ast.Dict) else items
        texts = frozenset(i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str))
        if len(texts) >= KEYS_IN_A_TABLE:
            found.append(texts)
    return found


def test_no_table_exists_in_two_packages() -> None:
    known = [(path, table) for path in MODULES for table in tables(path)]
    twice = []
    for number, (path, table) in enumerate(known):
        for other, its_table in known[number + 1 :]:
            if path.relative_to(ROOT).parts[0] == other.relative_to(ROOT).parts[0]:
                continue
            common = len(table & its_table)
            if common >= SHARED * min(len(table), len(its_table)):
                twice.append(
                    f"{path.relative_to(ROOT)} and {other.relative_to(ROOT)}: {sorted(table & its_table)[:5]}"
                )
    assert twice == []
