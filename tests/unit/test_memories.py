"""The page of memories lists every cache in the sources that outlives a call, with its key."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dev" / "memories.md"
PACKAGES = (
    ROOT / "protocol" / "qnnbridge_protocol",
    ROOT / "protocol" / "qnnbridge_os",
    ROOT / "bridge_x86" / "qnnbridge",
    ROOT / "host_arm64" / "qnnbridge_host",
    ROOT / "daemon" / "qnnbridge_daemon",
    ROOT / "tools" / "qnnbridge_tools",
    ROOT / "tools" / "qnnbridge_models",
    ROOT / "tools" / "qnnbridge_serve",
)
KINDS = {
    *("dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter"),
    *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
}
# Files whose attributes on the page include some that are not containers.
PLAIN_ATTRIBUTES = ("_session/remote_session.py", "_session/replay.py", "_session/numbers_check.py")
CHANGES = {
    *("add", "append", "appendleft", "update", "setdefault", "pop", "popitem", "popleft", "clear", "discard"),
    *("extend", "insert", "remove"),
}


def name_of(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_container(value: ast.expr | None, *, empty: bool) -> bool:
    """Return whether an expression is a container. empty: only containers that are filled later."""
    if isinstance(value, ast.Dict):
        return not (empty and value.keys)
    if isinstance(value, (ast.List, ast.Set)):
        return not (empty and value.elts)
    if not isinstance(value, ast.Call):
        return False
    return name_of(value) in KINDS and not (empty and value.args and name_of(value) not in ("deque", "defaultdict"))


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) and node.value is not None else []


def kept_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names in a module that store data: ``Class.attribute``, ``name`` or ``function``."""
    changed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed.add(getattr(node.func.value, "id", ""))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed.add(getattr(node.value, "id", ""))
        decorators = {name_of(one) for one in getattr(node, "decorator_list", ())}
        if isinstance(node, ast.FunctionDef) and decorators & {"lru_cache", "cache", "cached_property"}:
            yield node.name
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                for target in targets(part):
                    own = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
                    if own and is_container(part.value, empty=True):  # type: ignore[attr-defined]
                        yield f"{node.name}.{target.attr}"  # type: ignore[attr-defined]
    for statement in tree.body:
        for target in targets(statement):
            value = statement.value  # type: ignore[attr-defined]
            if isinstance(target, ast.Name) and is_container(value, empty=target.id not in changed):
                yield target.id


@functools.cache
def found() -> frozenset[tuple[str, str]]:
    return frozenset(
        (path.relative_to(package).as_posix(), name)
        for package in PACKAGES
        for path in package.rglob("*.py")
        for name in kept_in(ast.parse(path.read_text("utf-8")))
    )


def listed() -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return (file, name) of each row, and (file, class) of those that last for one call."""
    memories, short = set(), set()
    page, one_call = PAGE.read_text("utf-8").split("## Live no longer than one call")
    for text, into in ((page, memories), (one_call, short)):
        for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
            file = owner = ""
            for word in re.findall(r"`([^`]+)`", row.split("(attribute")[0] if ": `" in row else row):
                if word.endswith((".py", "/")):
                    file, owner = word, ""
                    continue
                if "." in word:
                    owner = word.split(".")[0]
                into.add((file, word))
                if owner and "." not in word:
                    into.add((file, f"{owner}.{word}"))
    return memories, short


def test_each_cache_in_the_code_is_on_the_page() -> None:
    memories, short = listed()
    missing = sorted(
        f"{file}: {name}"
        for file, name in found()
        if (file, name) not in memories and (file, name.split(".")[0]) not in short
    )
    assert not missing, (
        "These outlive a call. docs/dev/memories.md gets a row for each: what it remembers, its key and why nothing else can "
        f"matter, what ends an entry, what covers it. {missing}"
    )


def test_each_row_of_the_page_is_in_the_code() -> None:
    memories, short = listed()
    names = found()
    files = {path.relative_to(package).as_posix() for package in PACKAGES for path in package.rglob("*.py")}
    gone = []
    for file, name in memories | short:
        if not file.endswith(".py"):
            continue
        # A name after another name of the same file may be an attribute of that name, or a separate name.
        known = {(file, name), (file, name.split(".")[-1])} & names or file in PLAIN_ATTRIBUTES
        if file not in files:
            gone.append(file)
        elif (file, name) in memories and "." in name and not known:
            gone.append(f"{file}: {name}")
    assert not gone, f"docs/dev/memories.md has rows of what is not there: {sorted(gone)}"


@pytest.mark.parametrize(
    "source",
    [
        "import functools\n@functools.lru_cache(maxsize=8)\ndef f(x): return x",
        "known = {}\ndef f(x): known[x] = 1",
        "last = None\ndef f(x):\n    global last\n    last = x",
        "class A:\n    def __init__(self):\n        self._last: dict[str, int] = {}",
        "import collections\nclass A:\n    def __init__(self):\n        self.seen = collections.OrderedDict()",
    ],
)
def test_a_new_cache_is_detected(source: str) -> None:
    assert list(kept_in(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["TABLE = {'a': 1}", "class A:\n    def f(self):\n        found = []\n        return found"]
)
def test_constants_and_variables_are_not_caches(source: str) -> None:
    assert not list(kept_in(ast.parse(source)))
