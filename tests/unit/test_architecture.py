"""The rules of `docs/dev/architecture.md` that a program can check, on the syntax trees of all modules.

All imports count: at the top, inside of functions, and for type checkers only.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qnnbridge

ROOT = Path(__file__).parents[2]
SOURCES = {
    "qnnbridge_protocol": ROOT / "protocol",
    "qnnbridge_os": ROOT / "protocol",
    "qnnbridge_host": ROOT / "host_arm64",
    "qnnbridge": ROOT / "bridge_x86",
    "qnnbridge_daemon": ROOT / "daemon",
    "qnnbridge_tools": ROOT / "tools",
    "qnnbridge_models": ROOT / "tools",
    "qnnbridge_serve": ROOT / "tools",
}
# Limits for lines without comments and for all lines, so that more comments do not force a split of a file.
MOST_LINES = 640
MOST_LINES_WITH_COMMENTS = 750

# Parts of the host that run without a host process. The commands for model files are a second package of the tools.
PARTS_FOR_TOOLS = (
    "qnnbridge_host.model",
    "qnnbridge_host.cache",
    # The part without processes: file names, and writing results atomically.
    "qnnbridge_host.create.publish",
    # Installed packages and the provider in a folder: read from disk, without loading anything.
    "qnnbridge_host.machine",
    "qnnbridge_host.engine.sources",
    # Parts that change ONNX models, which commands do in the application's interpreter.
    "qnnbridge_host.graph",
    "qnnbridge_host.numerics",
    "qnnbridge_host.rewrite",
    "qnnbridge_host.engine.cpu",
)

# Imports that each package may use of the others. `test_layout.py` checks the packages; this table names the parts
# of the host that the daemon and the tools may use.
PARTS_OF_THE_HOST = {
    "qnnbridge_daemon": (
        "qnnbridge_host.serve.server",
        "qnnbridge_host.request.in_flight",
        "qnnbridge_host.fastpath",
        "qnnbridge_host.engine.calls",
    ),
    "qnnbridge_tools": PARTS_FOR_TOOLS,
    "qnnbridge_models": PARTS_FOR_TOOLS,
}

# Modules that change models need the package onnx, and are imported on demand.
NEEDING_ONNX = ("qnnbridge_host.graph", "qnnbridge_host.numerics", "qnnbridge_host.rewrite", "qnnbridge_host.wrap")

# `model/` and `cache/` of the host run in tools and in tests without ONNX Runtime.
PURE = ("qnnbridge_host.model", "qnnbridge_host.cache")
PURE_MAY_IMPORT = {*sys.stdlib_module_names, "filelock", "platformdirs", "qnnbridge_os", "qnnbridge_protocol"}
# The package's waits and children raise the project's errors, and a host process has a name defined in the
# protocol.
OS_MAY_IMPORT = ("qnnbridge_protocol.errors", "qnnbridge_protocol.process_names", "qnnbridge_os")

PUBLIC_MODULES = {
    "qnnbridge",
    "qnnbridge.aio",
    "qnnbridge.dropin",
    "qnnbridge.errors",
    "qnnbridge.futures",
    "qnnbridge.genai",
    "qnnbridge.speech",
    "qnnbridge.testing",
}
# The package has the modules of onnxruntime.
MIMICRY = "qnnbridge.ort"
# The session for asyncio has the name of the session.
NAMES_TWICE = {"InferenceSession"}


def name_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    name_of(path, root): path for package, root in SOURCES.items() for path in (root / package).rglob("*.py")
}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_bytes(), str(MODULES[module]))


@functools.cache
def imports(module: str) -> frozenset[str]:
    """Return the full names of all modules that a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else base for name in names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found |= {
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            }
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The table of commands: "package.module:function", imported when it is looked up.
            named, colon, _ = node.value.partition(":")
            found |= {named} & MODULES.keys() if colon else set()
    return frozenset(found)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# --- import rules ----------------------------------------------------------------------------------------

# Products on the runtime of the bridge, and the modules of the public interface that may hand over to one.
PRODUCTS = ("_buckets", "genai", "speech", "ort")
HANDING_OVER = ("", ".dropin", "._inference_session", "._runner", "._session_arguments")


def modules_of_products() -> dict[str, tuple[str, ...]]:
    """Return the table of the page: product -> modules of the runtime that it may import."""
    rows = re.findall(r"^\| `(\w+)` \| ((?:those of `\w+`, )?`_.*) \|$", architecture(), re.MULTILINE)
    table: dict[str, tuple[str, ...]] = {}
    for product, text in rows:
        if product in PRODUCTS:
            base = re.match(r"those of `(\w+)`, ", text)
            own = tuple(re.findall(r"`([\w.]+)`", text[base.end() :] if base else text))
            table[product] = own + (table[base[1]] if base else ())
    return table


def test_products_import_only_the_modules_of_their_row() -> None:
    table = modules_of_products()
    assert set(table) == set(PRODUCTS)
    wrong = [
        f"{module}: {name}"
        for product, allowed in table.items()
        for module in MODULES
        if within(module, f"qnnbridge.{product}")
        for name in imports(module)
        if name in MODULES and within(name, "qnnbridge") and not within(name, f"qnnbridge.{product}")
        if name != "qnnbridge" and not within(name, *(f"qnnbridge.{one}" for one in allowed))
    ]
    assert wrong == []


def test_the_runtime_imports_no_product() -> None:
    products = tuple(f"qnnbridge.{one}" for one in PRODUCTS)
    wrong = [
        f"{module}: {name}"
        for module in MODULES
        if within(module, "qnnbridge") and not within(module, *products)
        if module.removeprefix("qnnbridge") not in HANDING_OVER
        for name in imports(module)
        if within(name, *products)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PARTS_OF_THE_HOST)
def test_only_some_parts_of_the_host_are_used_by_other_packages(package: str) -> None:
    wrong = [
        f"{module}: {name}"
        for module in MODULES
        if within(module, package)
        for name in imports(module)
        if within(name, "qnnbridge_host") and not within(name, *PARTS_OF_THE_HOST[package])
    ]
    assert wrong == []


def test_model_and_cache_need_neither_onnxruntime_nor_numpy() -> None:
    wrong = [
        f"{module}: {name}"
        for module in MODULES
        if within(module, *PURE)
        for name in imports(module)
        if name.partition(".")[0] not in PURE_MAY_IMPORT and not within(name, *PURE)
    ]
    assert wrong == []


def test_the_package_of_the_operating_system_imports_only_errors_and_names() -> None:
    wrong = [
        f"{module}: {name}"
        for module in MODULES
        if within(module, "qnnbridge_os")
        for name in imports(module)
        if name.partition(".")[0] not in sys.stdlib_module_names and not within(name, *OS_MAY_IMPORT)
    ]
    assert wrong == []


def test_only_the_engine_of_the_host_imports_onnxruntime() -> None:
    users = {m for m in MODULES if any(within(name, "onnxruntime", "onnxruntime_qnn") for name in imports(m))}
    of_the_host = {module for module in users if within(module, "qnnbridge_host")}
    assert of_the_host
    assert {module for module in of_the_host if not within(module, "qnnbridge_host.engine")} == set()


def test_only_the_packages_for_onnx_models_import_onnx() -> None:
    users = {m for m in MODULES if within(m, "qnnbridge_host") and any(within(n, "onnx") for n in imports(m))}
    assert users
    assert {module for module in users if not within(module, *NEEDING_ONNX)} == set()


def test_model_does_not_import_the_cache() -> None:
    users = [
        module for module in MODULES if within(module, PURE[0]) if any(within(n, PURE[1]) for n in imports(module))
    ]
    assert users == []


# --- circles ---------------------------------------------------------------------------------------------


def reachable(start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports(waiting.pop()):
            if name in MODULES and name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def circles() -> Iterator[list[str]]:
    """Yield groups of modules that import each other, directly or indirectly."""
    reaches = {module: reachable(module) - {module} | ({module} & imports(module)) for module in MODULES}
    done: set[str] = set()
    for module in sorted(MODULES):
        group = {other for other in reaches[module] if module in reaches[other]} - {module}
        if group and module not in done:
            done |= group | {module}
            yield sorted(group | {module})


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert list(circles()) == []


# --- files -----------------------------------------------------------------------------------------------


def test_no_file_is_too_long() -> None:
    lengths: dict[str, tuple[int, int]] = {}
    for module, path in MODULES.items():
        lines = path.read_text("utf-8").splitlines()
        lengths[module] = sum(not line.lstrip().startswith("#") for line in lines), len(lines)
    too_long = {
        module: (code, whole)
        for module, (code, whole) in lengths.items()
        if code > MOST_LINES or whole > MOST_LINES_WITH_COMMENTS
    }
    assert too_long == {}, (
        f"At most {MOST_LINES} lines without comments and {MOST_LINES_WITH_COMMENTS} in all: move one job of the module to another "
        "module."
    )


def forwards(statements: list[ast.stmt]) -> bool:
    """Return whether statements only import names and assign them to other names."""
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass)):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Name, ast.Attribute)):
            continue
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
            continue
        if isinstance(statement, ast.If) and "sys.platform" in ast.unparse(statement.test):
            return False  # it chooses between modules
        if isinstance(statement, ast.If) and forwards([*statement.body, *statement.orelse]):
            continue
        return False
    return True


def test_no_module_only_forwards_names_of_others() -> None:
    found = {
        module
        for module, path in MODULES.items()
        if path.name != "__init__.py" and not within(module, f"{MIMICRY}.capi") and forwards(tree(module).body)
    }
    assert found - PUBLIC_MODULES == set()


# --- names -----------------------------------------------------------------------------------------------


# Names that gevent and eventlet replace, and the module from which the bridge imports them.
REPLACED = {
    "threading": {
        "Lock",
        "RLock",
        "Event",
        "Condition",
        "Semaphore",
        "BoundedSemaphore",
        "Barrier",
        "Timer",
        "local",
        "Thread",
    },
    "queue": {"SimpleQueue", "Queue", "LifoQueue", "PriorityQueue"},
    "select": {"poll", "select", "epoll"},
    "subprocess": {"Popen", "run", "call", "check_call", "check_output"},
    "socket": {"socket", "socketpair", "create_connection"},
    "time": {"sleep"},
    "os": {"waitpid"},
}
# The unpatched original, and a thread that is started inside of a thread of the operating system.
MAY_BE_REPLACED = {
    ("qnnbridge_os.native", "Popen"),
    ("qnnbridge_os.shield", "Thread"),
    # Host and daemon are separate programs without greenlets.
    ("qnnbridge_os.parent", "poll"),
    ("qnnbridge_os.parent", "sleep"),
    ("qnnbridge_os._posix_daemon_endpoint", "poll"),
    ("qnnbridge_os._posix_daemon_endpoint", "socket"),
    ("qnnbridge_os._posix_daemon_endpoint", "Lock"),
    ("qnnbridge_os._win32_daemon_endpoint", "Lock"),
}


def test_the_bridge_waits_with_primitives_that_greenlets_do_not_replace() -> None:
    found = set()
    for name in [name for name in MODULES if within(name, "qnnbridge", "qnnbridge_os")]:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                base, word = node.func.value, node.func.attr
                if isinstance(base, ast.Name) and word in REPLACED.get(base.id, ()):
                    found.add((name, word))
            elif isinstance(node, ast.ImportFrom) and name != "qnnbridge_os.native":
                found |= {(name, one.name) for one in node.names if one.name in REPLACED.get(node.module or "", ())}
    assert found <= MAY_BE_REPLACED


def test_a_class_name_is_used_for_one_class() -> None:
    """Exceptions are the two implementations per platform, and classes with deliberate names of onnxruntime."""
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        if not within(module, MIMICRY) and not re.search(r"\._?(posix|win32)", module):
            for node in tree(module).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(module)
    several = {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}
    assert {name: modules for name, modules in several.items() if name not in NAMES_TWICE} == {}


# --- public interface ------------------------------------------------------------------------------------


def test_the_bridge_is_private_except_for_documented_modules() -> None:
    public = {
        module
        for module in MODULES
        if within(module, "qnnbridge") and not any(part.startswith("_") for part in module.split("."))
    }
    assert {module for module in public if not within(module, MIMICRY)} == PUBLIC_MODULES


@functools.cache
def pages() -> str:
    return "\n".join(
        path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    )


@pytest.mark.parametrize("name", sorted(PUBLIC_MODULES | {MIMICRY}))
def test_a_public_module_is_documented(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", pages())


@pytest.mark.parametrize("name", sorted(qnnbridge.__all__))
def test_a_public_name_is_documented(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", pages())


@functools.cache
def architecture() -> str:
    return (ROOT / "docs" / "dev" / "architecture.md").read_text("utf-8")


def test_every_path_that_the_architecture_names_exists() -> None:
    roots = "|".join(root.name for root in (*SOURCES.values(), ROOT / "docs", ROOT / "tests"))
    named = set(re.findall(rf"`((?:{roots})/[^`\s]+)`", architecture()))
    assert len(named) > 20
    assert {path for path in named if not (ROOT / path).exists()} == set()


# --- the checks themselves -------------------------------------------------------------------------------


def test_lazy_imports_and_those_for_type_checkers_count() -> None:
    module = "qnnbridge"
    lazily = {f"{module}._session.remote_runner", f"{module}._host"}
    assert lazily <= imports(module), "the names behind TYPE_CHECKING"
    assert len(MODULES) > 100
