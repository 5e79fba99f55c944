"""The Python that `qnnbridge setup` downloads: the program for each machine, and the real uv with a mirror.

The mirror is a server on loopback, and the archive contains a working Python: this interpreter and its library,
packed as python-build-standalone packs its own. The install manager of Windows is a recorded program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.tools.test_tools_setup_host import QUICK_COMMAND, TIMEOUT_S, Setup, host_wheels
from tests.tools.test_tools_setup_host_parts import surroundings

from qnnbridge._launch import Surroundings, configured_host
from qnnbridge_tools.options import SetupOptions
from qnnbridge_tools.setup_host import bring_python, made_host, steps, this_machine
from qnnbridge_tools.setup_host.bring_python import BroughtPython, python_folder, python_to_bring
from qnnbridge_tools.setup_host.environment import FREE_SPACE, RECORD, AlreadyThere, SetupFailed, python_in
from qnnbridge_tools.setup_host.plan import make_plan
from qnnbridge_tools.setup_host.this_machine import NpuTraits, program_on_path
from qnnbridge_tools.versions.packages import Source, find_source

VERSION = "{}.{}".format(*sys.version_info[:2])
PLATFORM = "linux-x86_64-gnu"
RELEASE = "20990101"
GITHUB = "https://github.com/astral-sh/python-build-standalone/releases/download"
ARCHIVE = f"cpython-{VERSION}.{sys.version_info[2]}+{RELEASE}-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


# --- simulated machines ----------------------------------------------------------------------------


def nobody(path: str) -> str:
    return "is not there"


def found(**programs: str) -> Callable[[str], str | None]:
    return programs.get


def on_arm(**environ: str) -> Surroundings:
    return dataclasses.replace(surroundings("x64", "ARM64"), environ=environ)


def brought(
    machine: Surroundings, folder: Path, find: Callable[[str], str | None], source: Source | None = None
) -> BroughtPython:
    told = python_to_bring(machine, folder, source or Source(), nobody, find)
    assert told is not None
    return told


def test_on_windows_on_arm_the_install_manager_installs_an_arm64_python(tmp_path: Path) -> None:
    told = brought(on_arm(), tmp_path / "host", found(pymanager="pymanager.exe", uv="uv.exe"))
    target = tmp_path / "host-python" / "python"
    assert told.commands == (("pymanager.exe", "install", "--yes", "--target", str(target), "3.13-arm64"),)
    assert told.candidate.path == str(target / "python.exe")
    assert told.candidate.answer.platform == "win-arm64"


def test_without_the_install_manager_or_with_a_mirror_uv_installs_it(tmp_path: Path) -> None:
    folder = tmp_path / "host-python"
    expected = (
        *("uv.exe", "python", "install", "--install-dir", str(folder), "--no-bin", "--no-registry"),
        "cpython-3.13-windows-aarch64-none",
    )
    mirrored = on_arm(UV_PYTHON_INSTALL_MIRROR="https://mirror.example")
    for machine, programs in ((on_arm(), {}), (mirrored, {"pymanager": "pymanager.exe"})):
        told = brought(machine, tmp_path / "host", found(uv="uv.exe", **programs))
        assert told.commands == (expected,)
        assert told.candidate.path == str(folder / "cpython-3.13-windows-aarch64-none" / "python.exe")


def test_the_launcher_of_older_installers_is_not_mistaken_for_the_install_manager(tmp_path: Path) -> None:
    told = brought(on_arm(), tmp_path / "host", found(py="py.exe", uv="uv.exe"))
    assert told.by == "uv"


def test_without_any_program_pip_installs_uv_first(tmp_path: Path) -> None:
    first, second = brought(on_arm(), tmp_path / "host", found()).commands
    assert first[:4] == (sys.executable, "-m", "pip", "install")
    assert first[-3:] == ("--target", str(tmp_path / "host-python" / "uv"), "uv")
    assert second[0] == str(tmp_path / "host-python" / "uv" / "bin" / "uv.exe")


def test_a_folder_of_downloads_is_the_only_source(tmp_path: Path) -> None:
    (tmp_path / "numpy-1-py3-none-any.whl").write_text("")
    source = find_source(tmp_path)
    assert source.index_words == ("--no-index", "--find-links", str(tmp_path))
    first, second = brought(on_arm(), tmp_path / "host", found(pymanager="pymanager.exe"), source).commands
    assert {"--no-index", str(tmp_path)} <= set(first)
    assert second[second.index("--mirror") + 1] == tmp_path.as_uri()
    (tmp_path / "index.json").write_text("{}")
    (command,) = brought(on_arm(), tmp_path / "host", found(pymanager="pymanager.exe"), source).commands
    assert command[3:5] == ("--source", str(tmp_path / "index.json"))


def test_a_program_in_the_current_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "downloads", tmp_path / "bin"
    for folder in (here, there):
        folder.mkdir()
        for name in ("uv.exe", "uv"):
            (folder / name).write_text("")
            (folder / name).chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", os.pathsep.join(("", ".", str(there))))
    assert program_on_path("uv") == str(there / ("uv.exe" if os.name == "nt" else "uv"))
    monkeypatch.setenv("PATH", "")
    assert program_on_path("uv") is None


@needs.posix
def test_on_windows_a_program_is_a_file_with_an_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setenv("PATH", r"C:\bin;relative;D:\x")
    monkeypatch.setattr(this_machine.shutil, "which", asked.append)
    assert program_on_path("uv", "Windows") is None
    assert [one.replace("/", "\\") for one in asked] == [r"C:\bin\uv.exe", r"D:\x\uv.exe"]


@pytest.mark.parametrize(
    ("process", "computer", "request_", "platform"),
    [
        ("x64", "x64", "cpython-3.13-windows-x86_64-none", "win-amd64"),
        ("x86_64", "x86_64", "cpython-3.13-linux-x86_64-gnu", "linux-x86_64"),
        ("aarch64", "aarch64", "cpython-3.13-linux-aarch64-gnu", "linux-aarch64"),
    ],
)
def test_other_computers_get_a_python_of_their_own_type(
    tmp_path: Path, process: str, computer: str, request_: str, platform: str
) -> None:
    told = brought(surroundings(process, computer), tmp_path / "host", found(uv="uv"))
    assert told.commands[-1][-1] == request_
    assert told.candidate.answer.platform == platform


def test_a_platform_without_such_a_python_gets_the_address_instead(tmp_path: Path) -> None:
    assert python_to_bring(surroundings("riscv64"), tmp_path / "host", Source(), nobody, found(uv="uv")) is None


def test_a_folder_of_another_program_is_not_changed(tmp_path: Path) -> None:
    python_folder(tmp_path / "host").mkdir()
    (tmp_path / "host-python" / "notes.txt").write_text("mine")
    with pytest.raises(AlreadyThere, match="was not created by"):
        brought(on_arm(), tmp_path / "host", found(uv="uv.exe"))
    (tmp_path / "other-python").write_text("mine")
    with pytest.raises(AlreadyThere, match="was not created by"):
        brought(on_arm(), tmp_path / "other", found(uv="uv.exe"))


def test_a_windows_on_arm_machine_without_python_gets_a_complete_plan(tmp_path: Path) -> None:
    """The only Python is an emulated one, which is named with the reason and never becomes the host."""
    options = SetupOptions(folder=tmp_path / "host", write_config=False)
    machine = on_arm()
    plan = make_plan(options, NpuTraits("2.40", 73), machine, nobody, found(pymanager="pymanager.exe"))
    assert plan.choice is not None
    assert plan.choice.release.version == "1.23.2", "the newest one for this driver"
    assert plan.choice.release.wheel_for((3, 13)) is not None
    assert plan.all_commands[0][0] == "pymanager.exe"
    assert plan.all_commands[1][:3] == (str(tmp_path / "host-python" / "python" / "python.exe"), "-m", "venv")
    assert list(tmp_path.iterdir()) == []


# --- the install manager, as a recorded program ----------------------------------------------------

# Output of version 26, without colours, for an installation into a folder.
MANAGER = """#!/bin/sh
printf '%s\\n' "$@" > "{record}"
echo "Installing Python 3.13.9 (ARM64)."
echo "Downloading: ........................................"
while [ "$1" != "--target" ]; do shift; done
mkdir -p "$2" && ln -s "{python}" "$2/python.exe"
"""


def manager(tmp_path: Path, text: str = MANAGER) -> str:
    program = tmp_path / "pymanager"
    program.write_text(text.format(record=tmp_path / "record", python=sys.executable))
    program.chmod(0o755)
    return str(program)


@needs.posix
def test_the_install_manager_is_called_as_it_expects(tmp_path: Path) -> None:
    told = brought(on_arm(), tmp_path / "host", found(pymanager=manager(tmp_path)))
    said: list[str] = []
    steps._bring(told, said.append, said.append)
    assert (tmp_path / "record").read_text().split() == [
        *("install", "--yes", "--target", str(tmp_path / "host-python" / "python"), "3.13-arm64"),
    ]
    assert "Installing Python 3.13.9 (ARM64)." in said
    assert (tmp_path / "host-python" / RECORD).is_file()


@needs.posix
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho '[ERROR] urlopen error [WinError 10060]'; exit 1\n", "cannot be downloaded"),
        ("#!/bin/sh\nexit 0\n", "cannot be used"),
    ],
)
def test_an_install_manager_that_fails_leaves_nothing(tmp_path: Path, text: str, message: str) -> None:
    told = brought(on_arm(), tmp_path / "host", found(pymanager=manager(tmp_path, text)))
    with pytest.raises(SetupFailed, match=message) as raised:
        steps._bring(told, lambda line: None, lambda line: None)
    assert "https://www.python.org" in str(raised.value.fix) or "venv module" in str(raised.value.fix)
    assert not (tmp_path / "host-python").exists()


# --- output of uv ----------------------------------------------------------------------------------

REFUSED = """error: Failed to install cpython-3.13.18-windows-aarch64-none
  cause: Failed to download `http://127.0.0.1:9/x/20261110/cpython-3.13.18.tar.gz`
  cause: error sending request for url (http://127.0.0.1:9/x/20261110/cpython-3.13.18.tar.gz)
  cause: client error (Connect)"""


@pytest.mark.parametrize(
    ("lines", "free", "fix"),
    [
        (REFUSED, None, "HTTPS_PROXY"),
        ("error: Failed to extract\n  cause: No space left on device (os error 28)", None, FREE_SPACE),
        ("error: Failed to extract", 1000, FREE_SPACE),
        ("error: failed to create directory\n  cause: Permission denied (os error 13)", None, "--dir"),
        ("ERROR: No matching distribution found for uv", None, "index"),
        ("error: Hash mismatch for `cpython-3.13.18`", None, "nstall Python 3.1"),
    ],
)
def test_the_fix_depends_on_the_output_of_the_program(lines: str, free: int | None, fix: str) -> None:
    error = steps._why("python", 1, lines.splitlines(), free)
    assert error.message == "Python cannot be downloaded."
    assert fix in str(error.fix)
    assert error.evidence


# --- the real uv, and a mirror on loopback ---------------------------------------------------------

linux_x64 = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the packed Python is for Linux x86_64"
)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("site-packages/", "/test/", "/tests/", "__pycache__", "/config-3", "idlelib", "lib2to3")
    return None if any(word in member.name for word in left_out) else member


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder as a mirror has it, with uv's list of downloads."""
    pytest.importorskip("uv")
    folder = tmp_path_factory.mktemp("mirror")
    archive = folder / RELEASE / ARCHIVE
    archive.parent.mkdir()
    base = Path(sys.base_prefix)
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(os.path.realpath(sys.executable), f"python/bin/python{VERSION}")
        packed.add(base / "lib" / f"python{VERSION}", f"python/lib/python{VERSION}", filter=_kept)
        for library in base.glob("lib/libpython*.so*"):
            packed.add(library, f"python/lib/{library.name}")
    entry = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        **dict(zip(("major", "minor", "patch"), sys.version_info[:3], strict=True)),
        "prerelease": "",
        "variant": None,
        "build": RELEASE,
        "url": f"{GITHUB}/{RELEASE}/{ARCHIVE.replace('+', '%2B')}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    name = ARCHIVE.partition("+")[0]
    (folder / "downloads.json").write_text(json.dumps({f"{name}-{PLATFORM}": entry}))
    return folder


class Mirror:
    """Serve the folder on loopback. `break_off`: close the connection in the middle; `stall`: never send the end."""

    def __init__(self, folder: Path) -> None:
        mirror = self
        self.break_off = self.stall = False
        self.asked: list[str] = []
        self.stalled, self.ended = threading.Event(), threading.Event()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_GET(self) -> None:
                mirror.asked.append(self.path)
                if not (mirror.break_off or mirror.stall):
                    super().do_GET()
                    return
                data = Path(self.translate_path(self.path)).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2])
                if mirror.stall:
                    mirror.stalled.set()
                    mirror.ended.wait(TIMEOUT_S)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Mirror:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


def test_uv_knows_every_python_that_is_requested() -> None:
    uv = pytest.importorskip("uv").find_uv_bin()
    version = "{}.{}".format(*bring_python.BROUGHT_VERSION)
    for target in (*bring_python._WINDOWS.values(), *bring_python._LINUX.values()):
        asked = [uv, "python", "list", "--only-downloads", "--all-platforms", "--all-arches", "--offline"]
        told = subprocess.run(
            [*asked, "--no-config", "--output-format", "json", bring_python._request(target)],
            capture_output=True,
            check=True,
            timeout=60,
            env={name: value for name, value in os.environ.items() if not name.startswith("UV_")},
        )
        (found,) = json.loads(told.stdout)
        assert found["version"].startswith(f"{version}."), target
        assert found["key"].endswith(f"-{target.uv}")


# The machine has an interpreter, which the command must not find; the Python to download has the same version.
BARE = (
    "import sys\n"
    "from qnnbridge_tools.setup_host import bring_python, plan\n"
    "bring_python.BROUGHT_VERSION = sys.version_info[:2]\n"
    "plan.candidates = lambda *_: []\n"
)


class BareSetup(Setup):
    """Run the command on a machine without a Python that could be the host's."""

    def __init__(self, home: Path, mirror: Path, url: str, *, with_uv: bool = True) -> None:
        super().__init__(home)
        import uv

        path = [str(Path(uv.find_uv_bin()).parent)] if with_uv else []
        self.environ |= {
            "PATH": os.pathsep.join([*path, "/usr/bin", "/bin"]),
            "UV_PYTHON_DOWNLOADS_JSON_URL": str(mirror / "downloads.json"),
            "UV_CACHE_DIR": str(self.config.with_name("uv")),
            "UV_HTTP_RETRIES": "0",
            "UV_NO_CONFIG": "1",
        }
        self.environ.pop("UV_PYTHON_INSTALL_MIRROR", None)
        if url:
            self.environ["UV_PYTHON_INSTALL_MIRROR"] = url

    def command(self, *arguments: str) -> list[str]:
        program = BARE + (QUICK_COMMAND if "PYTHONPATH" in self.environ else QUICK_COMMAND.partition("cleaned")[0])
        if "PYTHONPATH" not in self.environ:
            program += "from qnnbridge_tools.__main__ import main\nsys.exit(main())\n"
        return [sys.executable, "-c", program, "setup", "--dir", str(self.folder), *arguments]

    @property
    def python(self) -> Path:
        return python_folder(self.folder)


@pytest.fixture
def served(mirror: Path) -> Iterator[Mirror]:
    with Mirror(mirror) as server:
        yield server


@linux_x64
@pytest.mark.simulator
def test_set_up_installs_a_python_and_a_host_and_removal_removes_both(
    tmp_path: Path, mirror: Path, served: Mirror
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    setup = BareSetup(tmp_path, mirror, served.url)
    setup.config.parent.mkdir(exist_ok=True)
    dry = setup.run("--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "cpython-" in dry.stdout
    assert served.asked == []
    # The Python is downloaded, but the packages are not: it is kept for the next attempt.
    wheel = str(host_wheels(tmp_path / "later"))
    setup.wheels.mkdir()
    failed = setup.run("--yes", "--from", wheel)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert len(served.asked) == 1
    assert "Downloading cpython-" in failed.stderr, "progress"
    assert not setup.folder.exists()
    assert not setup.config.exists()
    setup.environ["PIP_FIND_LINKS"] = str(tmp_path / "later")
    done = setup.run("--yes", "--from", wheel)
    assert len(served.asked) == 1, "nothing is downloaded twice"
    assert configured_host(setup.config) == str(python_in(setup.folder)), done.stdout + done.stderr
    home = (setup.folder / "pyvenv.cfg").read_text()
    assert str(setup.python) in home, "its base is the Python that was brought"
    again = setup.run("--yes")
    assert again.stdout.startswith("Already set up"), again.stdout + again.stderr
    # A broken Python is named with the command that repairs it, and that command works.
    (setup.folder / "pyvenv.cfg").write_text("home = /nowhere\n")
    for module in setup.folder.glob("lib/*/site-packages/everything.pth"):
        module.unlink()
    broken = setup.run("--yes")
    assert broken.returncode == 1
    assert "qnnbridge setup --repair --dir" in broken.stderr
    mended = setup.run("--yes", "--repair", "--from", wheel)
    assert "The host is set up" in mended.stdout, mended.stdout + mended.stderr
    removed = setup.run("--remove", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not setup.folder.exists()
    assert not setup.python.exists()
    assert configured_host(setup.config) is None
    assert setup.run("--remove", "--yes").stdout == "There is no host to remove.\n"


@linux_x64
@pytest.mark.simulator
def test_a_folder_with_all_downloads_needs_no_network(tmp_path: Path, mirror: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    setup = BareSetup(tmp_path, mirror, "", with_uv=False)
    setup.environ = {name: value for name, value in setup.environ.items() if not name.startswith("PIP_NO_INDEX")}
    setup.environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
    downloads = tmp_path / "wheels"
    host_wheels(downloads)
    uv_wheel(downloads)
    (downloads / RELEASE).symlink_to(mirror / RELEASE)
    done = setup.run("--yes", "--from", str(downloads))
    assert configured_host(setup.config) == str(python_in(setup.folder)), done.stdout + done.stderr
    assert str(setup.python) in (setup.folder / "pyvenv.cfg").read_text()
    assert not (setup.python / "uv").exists(), "uv was only needed to bring it"


def uv_wheel(folder: Path) -> None:
    """Return the installed uv as the wheel from which it was installed."""
    import uv

    version = importlib.metadata.version("uv")
    found = importlib.metadata.distribution("uv")
    with zipfile.ZipFile(folder / f"uv-{version}-py3-none-any.whl", "w") as archive:
        for file in found.files or []:
            path = Path(str(found.locate_file(file)))
            is_its_own = file.parts[0] in ("uv", f"uv-{version}.dist-info")
            if is_its_own and path.suffix in (".py", "") and path.name != "RECORD":
                archive.write(path, str(file))
        program = zipfile.ZipInfo(f"uv-{version}.data/scripts/uv")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, Path(uv.find_uv_bin()).read_bytes())
        archive.writestr(f"uv-{version}.dist-info/RECORD", "")


@linux_x64
@pytest.mark.parametrize("kind", ["cut", "closed", "wrong"])
def test_a_failed_download_leaves_nothing_and_names_the_fix(
    tmp_path: Path, mirror: Path, served: Mirror, kind: str
) -> None:
    served.break_off = kind == "cut"
    url = {"cut": served.url, "closed": "http://127.0.0.1:9", "wrong": f"{served.url}/elsewhere"}[kind]
    setup = BareSetup(tmp_path, mirror, url)
    failed = setup.run("--yes", "--from", str(host_wheels(setup.wheels)))
    assert failed.returncode == 1
    assert "Python cannot be downloaded" in failed.stderr
    assert "Fix:" in failed.stderr
    setup.assert_nothing_was_made()


@linux_x64
def test_an_interrupted_download_leaves_nothing(tmp_path: Path, mirror: Path, served: Mirror) -> None:
    served.stall = True
    setup = BareSetup(tmp_path, mirror, served.url)
    command = setup.command("--yes", "--from", str(host_wheels(setup.wheels)))
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=setup.environ
    )
    with contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert served.stalled.wait(TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    setup.assert_nothing_was_made()


# --- simultaneous set-ups and foreign folders ------------------------------------------------------


def test_two_simultaneous_set_ups_do_not_collide(tmp_path: Path) -> None:
    from filelock import FileLock

    setup = Setup(tmp_path)
    setup.config.with_name("state").mkdir(parents=True)
    with FileLock(setup.config.with_name("state") / made_host.LOCK_NAME):
        second = setup.run("--yes", "--json")
        assert setup.run("--dry-run").returncode == 0, "a dry run always works"
    assert second.returncode == 1
    assert json.loads(second.stdout)["error"]["code"] == "setup.Busy"
    setup.assert_nothing_was_made()


def test_an_environment_of_another_tool_is_neither_removed_nor_repaired(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.folder.mkdir()
    (setup.folder / "pyvenv.cfg").write_text("home = /nowhere\n")
    for words in ("--remove", "--repair", "--upgrade"):
        refused = setup.run(words, "--yes")
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert (setup.folder / "pyvenv.cfg").is_file()
    assert "was not created by" in setup.run("--remove", "--yes").stderr


def test_only_one_action_can_be_requested(tmp_path: Path) -> None:
    done = Setup(tmp_path).run("--repair", "--remove", "--yes")
    assert done.returncode == 2
    assert "--repair does not go with --remove" in done.stderr


def test_the_installed_version_has_wheels_for_windows_on_arm() -> None:
    from qnnbridge_tools.versions.fitness import HostMachine, newest_fitting

    for sdk in (None, "2.40"):
        machine = HostMachine("win_arm64", computer="ARM64", python=bring_python.BROUGHT_VERSION, system_sdk=sdk)
        assert newest_fitting(machine) is not None, sdk
