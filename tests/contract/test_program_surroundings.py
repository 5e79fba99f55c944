"""Programs during the end of their interpreter, in other locales, and in the environment of frozen applications."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qnnbridge._daemon.discovery import daemon_command
from qnnbridge._launch import Surroundings, find_host_in, host_environment
from qnnbridge_protocol.connection import check_releases
from qnnbridge_protocol.errors import HostNotFound, VersionMismatch
from tests import needs
from tests.contract.small_models import doubling

AT_THE_END = """
import numpy as np
import qnnbridge
class Owner:
    def __init__(self):
        self.session = qnnbridge.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
        self.feeds = {"x": np.ones((1, 4), np.float32)}
        self.make, self.file, self.base = qnnbridge.InferenceSession, "model.onnx", qnnbridge.BridgeError
        for _ in range(CALLS):
            self.session.run(None, self.feeds)
        self.acts = {
            "run": lambda: self.session.run(None, self.feeds),
            "bind": lambda: self.session.io_binding(),
            "empty": lambda: self.session.empty_input("x"),
            "make": lambda: self.make(self.file),
        }
    def __del__(self):
        for name, act in self.acts.items():
            try:
                act()
                print(name, "nothing")
            except self.base as error:
                print(name, type(error).__name__)
owner = Owner()
"""


def run(folder: Path, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "model.onnx").write_bytes(doubling())
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHONUTF8", "LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
@needs.a_host_python
@pytest.mark.parametrize("calls", [0, 3])
def test_an_open_session_is_closed_at_the_exit_of_the_interpreter(tmp_path: Path, calls: int) -> None:
    """Nothing can be imported at that time, including modules that a first call needs."""
    done = run(tmp_path, AT_THE_END.replace("CALLS", str(calls)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == ["run Closed", "bind Closed", "empty Closed", "make Closed"]


OPEN = """
import sys
import qnnbridge
from qnnbridge_protocol.model_records import absolute_model_path
try:
    print(ascii(absolute_model_path(sys.argv[1] if len(sys.argv) > 1 else "Gr\\u00f6\\u00dfe.onnx")))
except qnnbridge.BridgeError as error:
    print(type(error).__name__, ascii(str(error)))
"""


WITHOUT_IMPORTS = """
import os, sys, threading, time, importlib.abc
import numpy as np
import DROP_IN as module
session = module.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
late = []
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        late.append(name)
        raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
x = {"x": np.ones((1, 4), np.float32)}
for _ in range(4):
    session.run(None, x)
given, taken = session.empty_input("x"), session.empty_output("y")
given[:] = 1
for _ in range(3):
    session.run(None, {"x": given}, out=[taken])
session.run(None, x, borrow=True)
binding = session.io_binding()
binding.bind_cpu_input("x", x["x"])
binding.bind_output("y")
for _ in range(3):
    session.run_with_iobinding(binding)
binding.copy_outputs_to_cpu()
session.run_with_ort_values(None, {"x": module.OrtValue.ortvalue_from_numpy(x["x"])})
session.run(None, x, module.RunOptions())
session.run(None, x, timeout=50)
came = threading.Event()
session.run_async(None, x, lambda *_: came.set(), None)
came.wait(50)
for wrong in ({}, {"x": np.ones(3, np.float32)}, {"z": 1}):
    try:
        session.run(None, wrong)
    except Exception:
        pass
session.host.ping(), session.host.stats, session.get_modelmeta(), session.get_inputs(), session.get_provider_options()
process = session.host.supervisor.running
process._check()
os.kill(session.host.info.pid, 11)
print(session.run(None, x)[0].tolist(), taken.tolist())
session.close()
session.host.close()
print(late)
"""


@pytest.mark.process
@needs.linux
@needs.a_host_python
@pytest.mark.parametrize("module", ["qnnbridge", "qnnbridge.ort"])
def test_an_open_session_imports_nothing_more(tmp_path: Path, module: str) -> None:
    """A program may drop its privileges, or its root folder, once its sessions are open."""
    done = run(tmp_path, WITHOUT_IMPORTS.replace("DROP_IN", module))
    assert done.stdout.splitlines() == ["[[2.0, 2.0, 2.0, 2.0]] [[2.0, 2.0, 2.0, 2.0]]", "[]"], done.stderr


@pytest.mark.process
@needs.linux
def test_a_name_that_the_locale_cannot_decode_is_not_called_invalid(tmp_path: Path) -> None:
    name = "Gr\u00f6\u00dfe.onnx"
    (tmp_path / name).write_bytes(doubling())
    for arguments in ((name,), ()):
        done = run(tmp_path, OPEN, *arguments, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert r"Gr\\xf6\\xdfe.onnx" in done.stdout, done.stderr
        assert "in this locale" in done.stdout
        assert "LC_ALL=C." in done.stdout
        assert "PYTHONUTF8=1" in done.stdout
        assert "not valid Unicode" not in done.stdout
        mended = run(tmp_path, OPEN, *arguments, LC_ALL="C", PYTHONUTF8="1")
        assert mended.stdout.strip().endswith(r"Gr\xf6\xdfe.onnx'"), mended.stderr


@pytest.mark.process
@needs.linux
def test_a_name_that_is_not_utf8_is_called_invalid(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.onnx")
    (tmp_path / name).write_bytes(doubling())
    for variables in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        done = run(tmp_path, OPEN, name, **variables)
        assert "is not valid Unicode" in done.stdout, done.stderr
        assert "locale" not in done.stdout


# --- environment of a frozen application ------------------------------------------------------------------


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "_MEIPASS", "/app/_internal", raising=False)


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"LD_LIBRARY_PATH": "/app/_internal"}, None),
        ({"LD_LIBRARY_PATH": "/app/_internal:/opt/qnn/lib"}, "/opt/qnn/lib"),
        ({"LD_LIBRARY_PATH": "/app/_internal:/a", "LD_LIBRARY_PATH_ORIG": "/a"}, "/a"),
        ({"LD_LIBRARY_PATH": "/app/_internal", "LD_LIBRARY_PATH_ORIG": ""}, None),
        ({}, None),
    ],
)
def test_the_host_does_not_use_the_libraries_of_the_application(before: dict[str, str], after: str | None) -> None:
    environ = host_environment(base={**before, "_PYI_ARCHIVE_FILE": "/app/app", "PATH": "/bin"})
    assert environ.get("LD_LIBRARY_PATH") == after
    assert not [name for name in environ if name.endswith("_ORIG") or name.startswith("_PYI")]
    assert environ["PATH"] == "/bin"


def test_the_library_path_of_a_plain_python_is_kept() -> None:
    before = {"LD_LIBRARY_PATH": "/opt/qnn/lib:/x", "LD_LIBRARY_PATH_ORIG": "/y"}
    assert {name: host_environment(base=before)[name] for name in before} == before


@pytest.mark.usefixtures("frozen")
def test_the_daemon_uses_the_python_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/app/app")
    host = os.path.realpath("/proc/self/exe") if sys.platform == "linux" else sys.base_prefix + "/python.exe"
    monkeypatch.setenv("QNNBRIDGE_HOST_PYTHON", host)
    assert daemon_command() == [host, "-I", "-X", "utf8", "-m", "qnnbridge_daemon"]
    assert daemon_command("/other/python")[0] == "/other/python"


@pytest.mark.parametrize(("process", "computer"), [("x64", "ARM64"), ("x86_64", "x86_64")])
def test_a_frozen_application_without_a_host_gets_an_error(tmp_path: Path, process: str, computer: str) -> None:
    surroundings = Surroundings(
        environ={"QNNBRIDGE_CONFIG": ""},
        process=process,
        computer=computer,
        executable="",
        version=(3, 12),
        not_isolated=(),
        registered=list,
        frozen=True,
    )
    with pytest.raises(HostNotFound) as caught:
        find_host_in(surroundings)
    text = str(caught.value)
    assert "The application has to be shipped with a host" in text
    assert ("ARM64 Python 3.11" in text) == (computer == "ARM64")
    assert "pip install" not in text
    assert "qnnbridge setup" not in text


@pytest.mark.usefixtures("frozen")
def test_the_error_for_a_frozen_application_that_is_too_old_asks_to_build_it_again() -> None:
    with pytest.raises(VersionMismatch) as caught:
        check_releases("0.2.0", "0.9.0")
    assert "Build this application again" in str(caught.value)
    assert "pip install" not in str(caught.value)
