"""`qnnbridge setup`, from the command line to a host that answers.

pip installs from a folder of wheels instead of an index: the project's own wheel, built from the checkout, and
empty wheels for its requirements. The wheel of onnxruntime-qnn puts the packages of this very interpreter on the
path, so that the new environment runs the real ONNX Runtime and QNN without a download.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import site
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests import needs

from qnnbridge._launch import configured_host
from qnnbridge_protocol import __version__
from qnnbridge_tools.setup_host import steps
from qnnbridge_tools.setup_host.environment import MARKER, RECORD, SetupFailed, python_in
from qnnbridge_tools.setup_host.steps import run_program
from qnnbridge_tools.versions.fitness import HostMachine, newest_fitting
from qnnbridge_tools.versions.packages import IndexUnreachable

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = [ROOT / name for name in ("protocol", "host_arm64", "bridge_x86", "daemon", "tools")]
TIMEOUT_S = 180.0

# An environment takes eight seconds on an idle machine, and a minute on a busy one.
pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)

# Half of that is pip, which Python unpacks and compiles in each environment. This code links the existing pip
# instead.
QUICK_VENV = """
import sys
if sys.orig_argv[1:3] == ["-m", "venv"]:
    import sysconfig, venv
    from pathlib import Path

    def link_pip(self, context):
        site = Path(sysconfig.get_path("purelib", "venv", {"base": context.env_dir}))
        for entry in Path(PLACE).glob("pip*"):
            (site / entry.name).symlink_to(entry)

    venv.EnvBuilder._setup_pip = link_pip
"""
# The command removes Python's variables for its child processes, which is right; tests of `setup_environment` check
# it.
QUICK_COMMAND = """
import sys
from qnnbridge_tools.setup_host import steps
cleaned = steps.setup_environment
steps.setup_environment = lambda environ: {**cleaned(environ), "PYTHONPATH": environ["PYTHONPATH"]}
from qnnbridge_tools.__main__ import main
sys.exit(main())
"""


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str], extras: dict[str, str]) -> Path:
    """Write a wheel that pip accepts. extras: requirement by extra."""
    info = f"{name}-{version}.dist-info"
    lines = [
        f"Provides-Extra: {extra}\nRequires-Dist: {need}; extra == '{extra}'" for extra, need in extras.items()
    ]
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]) + "\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        record = []
        for file, text in contents.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(text.encode())}")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return path


def best_release() -> str:
    release = newest_fitting(HostMachine.current())
    assert release is not None
    return release.version


def built_index(folder: Path) -> Path:
    """Write the project's wheel and a stand-in for each of its requirements; return the project's wheel."""
    folder.mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
    (wheel,) = folder.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"qnnbridge-{__version__}.dist-info/METADATA").decode()
    needs = [line for line in Parser().parsestr(metadata).get_all("Requires-Dist") or [] if needed_by_host(line)]
    names = {re.split(r"[^\w.-]", line)[0].replace("-", "_") for line in needs} - {"onnxruntime_qnn"}
    assert {"numpy", "onnxruntime", "onnx"} <= names
    for name in names:
        make_wheel(folder, name, importlib.metadata.version(name), {}, {})
    modules = folder.with_name("modules")
    link_modules(modules, {*names, "onnxruntime_qnn"})
    make_wheel(folder, "onnxruntime_qnn", best_release(), {"everything.pth": f"{modules}\n"}, {})
    return wheel


def link_modules(folder: Path, stand_ins: set[str]) -> None:
    """Link the packages of this interpreter, without the metadata of those that are installed as stand-ins.

    With the metadata, the doctor would rightly report that these packages are installed twice.
    """
    folder.mkdir()
    for place in map(Path, site.getsitepackages()):
        for entry in place.iterdir():
            is_note = entry.suffix == ".dist-info" and entry.name.split("-")[0].lower() in stand_ins
            if not is_note and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)


def needed_by_host(line: str) -> bool:
    return "python_version <" not in line and (
        "extra" not in line or re.search(r"extra == .host\b", line) is not None
    )


def host_wheels(folder: Path, *, whole: bool = True) -> Path:
    """Write the wheels that a set-up requests; return qnnbridge's. whole: include the host, unlike a broken
    package.
    """
    folder.mkdir()
    make_wheel(folder, "onnxruntime_qnn", best_release(), {}, {})
    paths = "".join(f"{path}\n" for path in [*SOURCE_ROOTS, *site.getsitepackages()])
    files = {"everything.pth": paths if whole else ""}
    return make_wheel(folder, "qnnbridge", __version__, files, {"host": "onnxruntime-qnn"})


def quick_venv(home: Path) -> dict[str, str]:
    """Return variables that let Python create an environment in half a second; none in the long form."""
    pip = importlib.util.find_spec("pip")
    if os.name != "posix" or pip is None or pip.origin is None or needs.length(0, 1):
        return {}
    folder = home / "settings" / "quick"
    folder.mkdir(parents=True)
    program = QUICK_VENV.replace("PLACE", repr(str(Path(pip.origin).parents[1])))
    (folder / "sitecustomize.py").write_text(program, "utf-8")
    return {"PYTHONPATH": str(folder)}


class Setup:
    """Runner of the command with a separate configuration, folder and index."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "my host"
        self.config = home / "settings" / "config.toml"
        self.wheels = home / "wheels"
        self.environ = {
            **os.environ,
            "QNNBRIDGE_CONFIG": str(self.config),
            "QNNBRIDGE_STATE_DIR": str(self.config.with_name("state")),
            "QNNBRIDGE_CACHE_DIR": str(self.config.with_name("cache")),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_COMPILE": "1",
            **quick_venv(home),
        }

    def command(self, *arguments: str) -> list[str]:
        words = ["-c", QUICK_COMMAND] if "PYTHONPATH" in self.environ else ["-m", "qnnbridge_tools"]
        words = [sys.executable, *words, "setup", "--python", sys.executable]
        return [*words, "--dir", str(self.folder), *arguments]

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**self.environ, **environ},
            timeout=TIMEOUT_S,
        )

    def document(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        read: dict[str, Any] = json.loads(done.stdout)
        return read

    def assert_nothing_was_made(self) -> None:
        assert not self.folder.exists()
        assert not self.config.exists()
        assert [
            path.name for path in self.home.iterdir() if path.name not in ("wheels", "modules", "settings")
        ] == []


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


# --- success ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setup, dict[str, Any]]:
    """Run a set-up; return it with its output."""
    pytest.importorskip("onnxruntime_qnn")
    setup = Setup(tmp_path_factory.mktemp("ready"))
    wheel = built_index(setup.wheels)
    setup.config.parent.mkdir(exist_ok=True)
    setup.config.write_text("# mine\n[other]\na = 1\n", "utf-8")
    return setup, setup.document("--from", str(wheel), "--yes")


@pytest.mark.simulator
def test_set_up_on_an_empty_machine_makes_a_host_that_answers(ready: tuple[Setup, dict[str, Any]]) -> None:
    setup, told = ready
    python = python_in(setup.folder)
    assert told["done"] is True
    assert told["onnxruntime_qnn"] == best_release()
    assert told["python"] == str(python)
    assert Path(told["host"]["executable"]) == python
    assert told["host"]["versions"]["onnxruntime"]
    assert told["host"]["qnnbridge"] == __version__
    assert configured_host(setup.config) == str(python)
    assert setup.config.read_text("utf-8").startswith("# mine\n[other]\na = 1\n")
    assert not (setup.folder / MARKER).exists()


@pytest.mark.simulator
def test_the_host_in_the_environment_uses_the_wheel_of_the_project(ready: tuple[Setup, dict[str, Any]]) -> None:
    setup, told = ready
    code = "import qnnbridge_host; print(qnnbridge_host.__file__)"
    python = python_in(setup.folder)
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert Path(done.stdout.strip()).is_relative_to(setup.folder), done.stderr
    assert Path(told["source"]).name == f"qnnbridge-{__version__}-py3-none-any.whl"


@pytest.mark.simulator
def test_doctor_has_examined_the_new_host(ready: tuple[Setup, dict[str, Any]]) -> None:
    setup, told = ready
    doctor = told["doctor"]
    assert doctor["exit_code"] == 0, doctor["findings"]
    healthy = {line["check"]: line["text"] for line in doctor["healthy"]}
    assert str(python_in(setup.folder)) in healthy["host"]
    assert "a tiny model ran" in healthy["live probe"]


@pytest.mark.simulator
def test_the_application_finds_the_new_host_by_itself(ready: tuple[Setup, dict[str, Any]]) -> None:
    """The configuration file is sufficient: a session runs in the new host, and the command lists the host."""
    setup, _ = ready
    model = ROOT / "tests" / "models" / "mul_1.onnx"
    code = (
        "import numpy, qnnbridge\n"
        "with qnnbridge.Host() as host:\n"
        f"    session = qnnbridge.InferenceSession({str(model)!r}, host=host)\n"
        "    (result,) = session.run(None, {'X': numpy.ones([3, 2], numpy.float32)})\n"
        "    print(numpy.round(result, 3).ravel().tolist(), session.placement.qnn_nodes, host.info.executable)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=setup.environ, timeout=60
    )
    assert found.stdout.strip() == f"[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] 1 {python_in(setup.folder)}", found.stderr
    command = [sys.executable, "-m", "qnnbridge_tools", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, env=setup.environ, timeout=60)
    assert str(python_in(setup.folder)) in told.stdout, told.stdout + told.stderr


@pytest.mark.simulator
def test_doctor_sets_up_a_host_after_two_confirmations(ready: tuple[Setup, dict[str, Any]], tmp_path: Path) -> None:
    """Run `doctor --fix` in a terminal, with an interpreter that has qnnbridge but not onnxruntime."""
    pty = pytest.importorskip("pty")
    setup, _ = ready
    python = application_without_a_host(tmp_path / "application", setup.wheels)
    environ = {
        **setup.environ,
        "QNNBRIDGE_CONFIG": str(tmp_path / "config.toml"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PATH": str(tmp_path),  # only the interpreter from which the application's environment was created
    }
    environ.pop("PYTHONPATH", None)  # this environment has Python's own pip in the short form, too
    (tmp_path / "config.toml").write_text("", "utf-8")
    ours, theirs = pty.openpty()
    command = [python, "-m", "qnnbridge_tools", "doctor", "--quick", "--fix"]
    with contextlib.closing(os.fdopen(ours, "wb", 0)) as keyboard:
        keyboard.write(b"y\ny\n")
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, env=environ, timeout=TIMEOUT_S)
        os.close(theirs)
    assert "[host.packages-missing]" in done.stdout, done.stdout + done.stderr
    assert "done (host.packages-missing): ran qnnbridge setup: done" in done.stdout, done.stdout + done.stderr
    made = python_in(tmp_path / "data" / "qnnbridge" / "host")
    assert configured_host(tmp_path / "config.toml") == str(made)
    after = subprocess.run(
        [*command[:-1], "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, timeout=60
    )
    assert json.loads(after.stdout)["findings"] == []


def application_without_a_host(folder: Path, wheels: Path) -> Path:
    """An environment with the project's wheel and this interpreter's packages, except onnxruntime."""
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=TIMEOUT_S)
    python = python_in(folder)
    asked = [str(python), "-c", "import site; print(site.getsitepackages()[0])"]
    packages = Path(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip())
    left_out = ("onnxruntime", "qnnbridge", "_qnnbridge", "__editable__", "pip")
    for place in map(Path, site.getsitepackages()):
        for entry in place.iterdir():
            if not entry.name.startswith(left_out) and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    with zipfile.ZipFile(next(wheels.glob("qnnbridge-*.whl"))) as archive:
        archive.extractall(packages)
    return python


@pytest.mark.simulator
def test_the_next_set_up_finds_a_healthy_host_and_changes_nothing(ready: tuple[Setup, dict[str, Any]]) -> None:
    setup, _ = ready
    before = (setup.folder / "pyvenv.cfg").stat().st_mtime_ns, setup.config.read_bytes()
    for words in (("--yes",), ("--dry-run",)):
        again = setup.run(*words)
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("Already set up and healthy")
        assert again.stdout.splitlines()[-1] == "Next: qnnbridge demo"
    for words, head in ((("--repair",), "Nothing to repair"), (("--upgrade",), "Nothing newer works here")):
        again = setup.run(*words, "--yes", "--from", str(next(setup.wheels.glob("qnnbridge-*.whl"))))
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith(head)
    assert ((setup.folder / "pyvenv.cfg").stat().st_mtime_ns, setup.config.read_bytes()) == before


@pytest.mark.simulator
def test_another_version_or_source_than_the_installed_one_is_refused(ready: tuple[Setup, dict[str, Any]]) -> None:
    setup, _ = ready
    for words in (("--version", "2.4.0"), ("--ep-path", str(setup.home))):
        refused = setup.run("--yes", *words)
        assert refused.returncode != 0
        assert "Already set up" not in refused.stdout
        assert (setup.folder / RECORD).is_file()


@pytest.mark.simulator
def test_a_replacement_whose_host_does_not_start_restores_the_old_one(
    ready: tuple[Setup, dict[str, Any]], tmp_path: Path
) -> None:
    setup, _ = ready
    before = (setup.folder / "pyvenv.cfg").stat().st_mtime_ns
    wheel = host_wheels(tmp_path / "broken", whole=False)
    done = setup.run("--from", str(wheel), "--yes", "--replace", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "setup.Failed"
    assert error["details"]["step"] == "check"
    assert "No module named" in "\n".join([error["cause"], *error["evidence"]])
    assert (setup.folder / "pyvenv.cfg").stat().st_mtime_ns == before
    assert configured_host(setup.config) == str(python_in(setup.folder))
    assert sorted(path.name for path in setup.home.iterdir()) == ["modules", "my host", "settings", "wheels"]


@pytest.mark.simulator
def test_a_host_that_cannot_use_qnn_is_kept_and_reported(setup: Setup, ready: tuple[Setup, dict[str, Any]]) -> None:
    """The host starts, so the set-up succeeded; doctor reports the fault of QNN."""
    done, told = ready
    modules = setup.home / "modules"
    modules.mkdir()
    for entry in (done.home / "modules").iterdir():
        if entry.name != "onnxruntime_qnn":
            (modules / entry.name).symlink_to(entry)
    (modules / "onnxruntime_qnn").mkdir()
    for file in (done.home / "modules" / "onnxruntime_qnn").iterdir():
        if file.name != "libQnnHtp.so":
            (modules / "onnxruntime_qnn" / file.name).symlink_to(file)
    setup.wheels.mkdir()
    make_wheel(setup.wheels, "onnxruntime_qnn", best_release(), {"everything.pth": f"{modules}\n"}, {})
    links = f"{setup.wheels} {done.wheels / 'others'}"
    (done.wheels / "others").mkdir()
    for wheel in done.wheels.glob("*.whl"):
        if not wheel.name.startswith("onnxruntime_qnn-"):
            (done.wheels / "others" / wheel.name).symlink_to(wheel)
    result = setup.run("--from", told["source"], "--yes", "--json", PIP_FIND_LINKS=links)
    assert result.returncode == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["done"] is True
    assert document["doctor"]["status"] == "blocked"
    assert document["doctor"]["findings"][0]["code"].startswith("files.")
    assert configured_host(setup.config) == str(python_in(setup.folder))


# --- failures --------------------------------------------------------------------------------------


def test_the_output_of_pip_is_the_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines: list[str] = []
    command = [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "none"), "qnnbridge==99"]
    with pytest.raises(SetupFailed) as raised:
        steps._run("install", command, lines.append, tmp_path)
    assert raised.value.details == {"step": "install", "exit_code": 1}
    assert any("No matching distribution found for qnnbridge==99" in line for line in raised.value.evidence)
    assert "--from" in str(raised.value.fix)
    assert lines


def test_a_network_that_does_not_answer_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    command = [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "none"), "qnnbridge==99"]
    with pytest.raises(IndexUnreachable, match="cannot be reached"):
        steps._run("install", command, lambda line: None, tmp_path)


@needs.posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_set_up_leaves_nothing_that_is_used(setup: Setup, number: signal.Signals) -> None:
    host_wheels(setup.wheels)
    process = subprocess.Popen(
        setup.command("--yes"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=setup.environ
    )
    assert process.stderr is not None
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        for line in process.stderr:
            if line.startswith("Making the environment"):
                break
        started: list[psutil.Process] = []
        while number == signal.SIGKILL and not started and process.poll() is None:
            started = psutil.Process(process.pid).children()
        process.send_signal(number)
        process.communicate()
    finally:
        watchdog.cancel()
    assert not setup.config.exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        setup.assert_nothing_was_made()
        return
    # No process could clean up; the next call recognizes the leftovers.
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.killpg(child.pid, signal.SIGKILL)
    psutil.wait_procs(started, timeout=10)
    assert (setup.folder / MARKER).exists()
    assert setup.document("--dry-run")["replaces_environment"] is False


@needs.posix
def test_a_program_is_ended_with_all_its_children() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    pids: list[int] = []

    def interrupted(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program([sys.executable, "-c", code], os.environ, interrupted, timeout_s=60)
    assert len(pids) == 1
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pids[0]).wait(timeout=10)


def test_a_program_over_its_time_limit_is_ended() -> None:
    code, lines = run_program(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"],
        os.environ,
        lambda line: None,
        timeout_s=3,
    )
    assert code != 0
    assert lines in (["here"], [])


# --- questions and the plan ------------------------------------------------------------------------


@pytest.fixture
def dry_run(setup: Setup) -> Iterator[dict[str, Any]]:
    yield setup.document("--dry-run")
    setup.assert_nothing_was_made()


def test_a_dry_run_changes_nothing_and_prints_everything(setup: Setup, dry_run: dict[str, Any]) -> None:
    assert dry_run["done"] is False
    assert dry_run["host"] is None
    make, install = dry_run["commands"]
    assert make[1:] == ["-m", "venv", str(setup.folder)]
    assert install[:4] == [str(python_in(setup.folder)), "-m", "pip", "install"]
    assert f"onnxruntime-qnn=={best_release()}" in install
    assert dry_run["configuration_text"] == f"[host]\npython = '{python_in(setup.folder)}'\n"


@needs.posix
@pytest.mark.simulator
def test_the_printed_commands_do_the_same_work_by_hand(setup: Setup, ready: tuple[Setup, dict[str, Any]]) -> None:
    done, told = ready
    printed = setup.run("--dry-run", "--from", told["source"])
    assert printed.returncode == 0
    lines = printed.stdout.splitlines()
    start = lines.index("Commands:") + 1
    commands = [line.strip() for line in lines[start : lines.index("", start)]]
    environ = {**setup.environ, "PIP_FIND_LINKS": str(done.wheels)}
    for command in commands:
        by_hand = subprocess.run(
            ["/bin/sh", "-c", command], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert by_hand.returncode == 0, command + by_hand.stdout + by_hand.stderr
    assert "Verdict: QNN works here" in by_hand.stdout, "the last one is the doctor"


def test_set_up_asks_no_question_without_a_terminal(setup: Setup) -> None:
    done = setup.run()
    assert done.returncode == 2
    assert "--yes" in done.stderr
    setup.assert_nothing_was_made()


def test_another_host_in_the_configuration_is_not_replaced_without_permission(setup: Setup) -> None:
    setup.config.parent.mkdir(exist_ok=True)
    setup.config.write_text("[host]\npython = '/opt/other/python'\n", "utf-8")
    done = setup.run("--dry-run")
    assert done.returncode == 2
    assert "/opt/other/python" in done.stderr
    told = setup.document("--dry-run", "--replace")
    assert told["replaced_setting"] == "/opt/other/python"
    assert setup.document("--dry-run", "--no-config")["configuration"] is None


def test_a_variable_that_overrides_the_configuration_is_reported(setup: Setup) -> None:
    done = setup.run("--dry-run", QNNBRIDGE_HOST_PYTHON=sys.executable)
    assert f"QNNBRIDGE_HOST_PYTHON is set to {sys.executable}, which overrides" in done.stdout
