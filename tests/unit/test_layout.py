"""The structure of the project: allowed imports of packages, the cost of importing, and the contents of the
wheel."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from tests import needs

import qnnbridge
import qnnbridge_protocol

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
BELOW = {"qnnbridge_protocol", "qnnbridge_os"}
MAY_IMPORT = {
    "qnnbridge_protocol": set(),
    "qnnbridge_os": {"qnnbridge_protocol"},
    "qnnbridge_host": BELOW,
    "qnnbridge": BELOW,
    "qnnbridge_daemon": {*BELOW, "qnnbridge", "qnnbridge_host"},
    "qnnbridge_tools": {*BELOW, "qnnbridge", "qnnbridge_daemon", "qnnbridge_host"},
    "qnnbridge_models": {*BELOW, "qnnbridge", "qnnbridge_host", "qnnbridge_tools"},
    "qnnbridge_serve": {*BELOW, "qnnbridge", "qnnbridge_daemon", "qnnbridge_host", "qnnbridge_tools"},
}
# The one command `qnnbridge` has the subcommands of all packages.
COMMAND_LINE = ROOT / "tools" / "qnnbridge_tools" / "cli.py"
HEAVY = ("numpy", "onnx", "onnxruntime", "onnxruntime_qnn", "ml_dtypes", "rich", "typer")
MODULES = [(package, path) for package, root in SOURCES.items() for path in sorted((root / package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Return the top-level names of all imports in a file, including those for type checkers only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("import_module", "find_spec"):
            names.update(arg.value for arg in node.args if isinstance(arg, ast.Constant) and type(arg.value) is str)
    return {name.partition(".")[0] for name in names}


def loaded_after(code: str) -> set[str]:
    """Return the modules of a new interpreter that ran `code`."""
    program = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


# --- source folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", SOURCES)
def test_a_source_root_contains_only_its_packages(package: str) -> None:
    root = SOURCES[package]
    importable = [
        entry.name
        for entry in root.iterdir()
        if (entry.is_dir() or entry.suffix == ".py") and entry.name.partition(".")[0].isidentifier()
    ]
    assert {name for name in importable if name != "__pycache__"} == {
        name for name, other in SOURCES.items() if other == root
    }
    assert (root / package / "__init__.py").is_file()
    assert (root / package / "py.typed").is_file()


@pytest.mark.parametrize("package", SOURCES)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): forbidden
        for owner, path in MODULES
        if owner == package
        and path != COMMAND_LINE
        and (forbidden := imported(path) & (SOURCES.keys() - MAY_IMPORT[package] - {package}))
    }
    assert not wrong


def test_the_application_side_never_imports_onnxruntime() -> None:
    """The bridge looks up onnxruntime in `sys.modules` if the application has imported it, but does not import it."""
    users = [str(path) for package, path in MODULES if package == "qnnbridge" and "onnxruntime" in imported(path)]
    assert not users


def test_no_module_has_the_name_of_a_standard_library_module() -> None:
    """Such a module would shadow the standard one for every script that is started in its folder."""
    paths = [path for _, path in MODULES] + [path.parent for _, path in MODULES]
    assert not {path.stem for path in paths} & set(sys.stdlib_module_names)


@pytest.mark.parametrize("package", SOURCES)
def test_every_folder_of_a_package_can_be_imported(package: str) -> None:
    """Type checkers and tools that search packages would miss a folder without `__init__.py`."""
    folders = {path.parent for owner, path in MODULES if owner == package}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


# --- the cost of an import -------------------------------------------------------------------------------


@pytest.mark.process
def test_the_errors_import_nothing_that_may_be_broken() -> None:
    """Errors must work in a half-broken installation."""
    loaded = loaded_after("import qnnbridge_protocol.errors, qnnbridge_protocol.limits")
    assert not loaded & {*HEAVY, "msgpack", "psutil"}


@pytest.mark.process
def test_hello_can_be_sent_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_after("import qnnbridge_protocol.connection, qnnbridge_os.descriptors")
    assert not loaded & set(HEAVY)


@pytest.mark.process
@needs.a_host_python
def test_the_host_sends_hello_before_anything_heavy_is_loaded() -> None:
    loaded = loaded_after("import qnnbridge_host.start as main; main.introduction()")
    assert "qnnbridge_host.start" in loaded
    assert not loaded & {*HEAVY, "qnnbridge_host.serve.server"}


@pytest.mark.process
@needs.a_host_python
def test_slow_imports_are_loaded_after_hello() -> None:
    """Each of these modules takes longer to import than all that HELLO needs."""
    loaded = loaded_after("import qnnbridge_host.start as main; main.introduction()")
    assert not loaded & {"typing", "dataclasses", "inspect", "re", "argparse", "logging", "traceback", "ctypes"}


@pytest.mark.process
@needs.a_host_python
def test_crash_diagnosis_is_loaded_after_the_host_has_sent_hello() -> None:
    """The diagnosis is not loaded for the start, which would wait, nor at the crash, when no descriptor may be
    free.
    """
    program = "import qnnbridge; host = qnnbridge.Host(); "
    assert "qnnbridge._diagnosis.crash" not in loaded_after(program)
    assert "qnnbridge._diagnosis.crash" in loaded_after(program + "host.start(); host.close()")


@pytest.mark.process
def test_a_command_imports_no_other_command() -> None:
    run = "import sys; from qnnbridge_tools.cli import app; app(sys.argv[1:] or ['explain', '127'], standalone_mode=False)"
    loaded = loaded_after(f"import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()):\n    {run}")
    assert "qnnbridge_tools.crashes" in loaded
    assert not loaded & {"numpy", "rich", "onnx", "qnnbridge_models", "qnnbridge_serve", "qnnbridge_tools.commands"}


def test_a_missing_package_is_reported_by_the_command_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from qnnbridge_tools.__main__ import main

    for name in [name for name in sys.modules if name.partition(".")[0] == "qnnbridge_models"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "qnnbridge_models", None)
    monkeypatch.setattr(sys, "argv", ["qnnbridge", "analyze", "model.onnx"])
    assert main() == 1
    assert "is incomplete" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["qnnbridge", "explain", "127"])
    assert main() == 0


WITH_A_SESSION = """
import contextlib, sys
told = []
def listen(event, arguments):
    if event == "subprocess.Popen" and "qnnbridge_host" in " ".join(map(str, arguments[1])):
        told.append("start")
        print("at the start:", *sys.modules)
    elif event == "import" and arguments[0] == "numpy":
        told.append(arguments[0])
sys.addaudithook(listen)
import qnnbridge
from qnnbridge._transport.channel import Channel
send = Channel._send
def sent(self, message, *rest):
    send(self, message, *rest)
    told.append(message[1]["op"])
Channel._send = sent
with contextlib.suppress(qnnbridge.BridgeError):  # whether there is an ONNX Runtime does not matter
    qnnbridge.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]).close()
print("order:", *told)
"""


@pytest.fixture(scope="module")
def first_session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the modules that a new application has loaded when it starts the host, and the order of its steps."""
    model = ROOT / "tests" / "models" / "sigmoid.onnx"
    state = {f"QNNBRIDGE_{name}_DIR": str(tmp_path_factory.mktemp(name)) for name in ("STATE", "CACHE")}
    command = [sys.executable, "-c", WITH_A_SESSION, str(model)]
    environment = {**os.environ, **state}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return {name: said.split() for name, _, said in lines}


@pytest.mark.process
@needs.linux
@needs.a_host_python
def test_the_host_starts_before_the_application_loads_modules_for_runs(
    first_session: dict[str, list[str]],
) -> None:
    loaded = set(first_session["at the start"])
    assert "qnnbridge._supervision.host_process" in loaded
    assert not loaded & {*HEAVY, "difflib", "zipfile", "ctypes", "platform"}
    for name in ("feeds", "io_binding", "ort_value", "repeated.runner", "diagnosis.crash", "chips", "cache.store"):
        assert f"qnnbridge.{name}" not in loaded


@pytest.mark.process
@needs.linux
@needs.a_host_python
def test_numpy_is_loaded_while_the_host_creates_the_session(first_session: dict[str, list[str]]) -> None:
    order = first_session["order"]
    assert order.index("start") < order.index("session.create")
    assert order[order.index("session.create") + 1] == "numpy"
    assert order.count("start") == 1


def test_a_refused_session_starts_no_host(tmp_path: Path) -> None:
    model = ROOT / "tests" / "models" / "sigmoid.onnx"
    with qnnbridge.Host() as host:
        with pytest.raises(qnnbridge.BridgeError):
            qnnbridge.InferenceSession(tmp_path / "none.onnx", host=host)
        with pytest.raises(qnnbridge.BridgeError):
            qnnbridge.InferenceSession(model, providers=[("QNNExecutionProvider", 1)], host=host)
        assert host.stats.generation == 0


@pytest.mark.process
def test_the_application_loads_no_model_library_and_no_terminal_library() -> None:
    loaded = loaded_after("import qnnbridge; qnnbridge.InferenceSession")
    assert "qnnbridge._session.remote_session" in loaded
    assert not loaded & {"onnx", "onnxruntime", "onnxruntime_qnn", "rich", "typer", "ml_dtypes"}


@pytest.mark.process
@needs.linux
def test_the_session_class_needs_few_modules() -> None:
    loaded = loaded_after("from qnnbridge import InferenceSession")
    modules = sorted(name for name in loaded if name.partition(".")[0] in SOURCES)
    assert len(modules) <= 57, f"each module costs time: import it where it is used, or merge it. Loaded: {modules}"


# --- the wheel -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the distribution as pip does, without its isolated environment, which would need a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return path


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str) -> str:
    version = qnnbridge_protocol.__version__
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"qnnbridge-{version}.dist-info/{name}").decode()


@pytest.mark.process
def test_one_wheel_works_for_every_interpreter_and_machine(wheel: Path) -> None:
    assert wheel.name == f"qnnbridge-{qnnbridge_protocol.__version__}-py3-none-any.whl"
    assert "Root-Is-Purelib: true" in metadata(wheel, "WHEEL")


@pytest.mark.process
def test_the_wheel_contains_the_five_packages_and_nothing_else(wheel: Path) -> None:
    top_level = {name.partition("/")[0] for name in names_in(wheel)}
    assert top_level == {*SOURCES, f"qnnbridge-{qnnbridge_protocol.__version__}.dist-info"}


@pytest.mark.process
def test_the_wheel_contains_every_file_of_the_packages(wheel: Path) -> None:
    """Check modules, the markers for type checkers, and assets such as the scripts of the page of `serve`."""
    files = {
        path.relative_to(root).as_posix()
        for package, root in SOURCES.items()
        for path in (root / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    held = names_in(wheel)
    assert (
        {"qnnbridge_serve/page.py", "qnnbridge_serve/py.typed", "qnnbridge_serve/assets/page.js"} <= files <= held
    )
    assert not [name for name in held if name.endswith((".pyc", ".so", ".pyd", ".dll"))]


@pytest.mark.process
def test_the_wheel_has_the_command_and_the_licence(wheel: Path) -> None:
    assert "qnnbridge = qnnbridge_tools.__main__:main" in metadata(wheel, "entry_points.txt")
    assert any(name.endswith("/licenses/LICENSE") for name in names_in(wheel))


@pytest.mark.process
def test_the_base_installation_has_no_model_library(wheel: Path) -> None:
    required = Parser().parsestr(metadata(wheel, "METADATA")).get_all("Requires-Dist") or []
    base = {line.partition(";")[0].split(">")[0].strip() for line in required if "extra ==" not in line}
    assert {"numpy", "msgpack"} <= base
    assert not base & {"onnx", "onnxruntime", "onnxruntime-qnn", "ml_dtypes"}
