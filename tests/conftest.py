"""Guards for all tests: no process and no temporary file may remain, and nothing in the user's home may change.

With QNNBRIDGE_REQUIRE_LABS=1, as in CI, a skipped test fails. With ``-m "not process"`` a test that starts a
process fails, so that the marker stays complete.

The guards read the real process table and the real temporary folder. They take 2 ms per test and apply to all
tests. `no_leaks` also counts file descriptors; tests request it by name, because counting needs a garbage
collection. Tests run one after another in the main thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import needs
from tests.orphan_watch import orphans_end_with_this_process
from tests.process_table import descendants

# Write bytecode: otherwise every command that a test starts compiles its modules again, and every worker of `pytest
# -n` rewrites the assertions of all tests. Hosts ignore the environment and write bytecode anyway.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if needs.length(1, 0):
    # In the short form, sessions and numpy have one thread each. Further threads of a pool spin for some ms after
    # each run and took more than half of the processor time: 33 s instead of 11 s for `qnnbridge transcribe`.
    os.environ.setdefault("ORT_INTRA_OP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

with contextlib.suppress(ImportError):  # the labs lack hypothesis
    import hypothesis

    # No deadline: the duration of an example depends on the machine's load.
    hypothesis.settings.register_profile(
        "no clock",
        deadline=None,
        max_examples=needs.length(40, 100),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("no clock")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a shell ignores SIGINT, and its child processes inherit that setting.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Time in which a host must end after its application has ended (promised by the README).
PROCESS_GRACE_S = 5.0

OWN_FOLDERS = ("QNNBRIDGE_STATE_DIR", "QNNBRIDGE_CACHE_DIR", "QNNBRIDGE_RUNTIME_DIR")
USER_FOLDERS = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA", "APPDATA")
FROM_THE_USER = (
    "QNNBRIDGE_HOST",
    "QNNBRIDGE_HOST_PYTHON",
    "QNNBRIDGE_CONFIG",
    "QNNBRIDGE_DEBUG",
    "QNNBRIDGE_DROPIN_PROVIDER",
    "QNNBRIDGE_DROPIN_SIZES",
    "QNNBRIDGE_VERIFY",
)


_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.spawn", "os.system")
_starts_allowed = True
_watcher = 0  # the pid of the process that ends orphans


def _refuse_start(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS and not _starts_allowed:
        raise AssertionError(f"{arguments!r:.200}: a test that starts a process has the marker `process`")


def pytest_configure(config: pytest.Config) -> None:
    if "not process" in config.option.markexpr:
        sys.addaudithook(_refuse_start)
    if hasattr(config, "workerinput") and config.args == config.getini("testpaths"):
        from tests.scheduling import RunOfAllTests

        config.pluginmanager.register(RunOfAllTests(config))


@contextlib.contextmanager
def _starts(*, allowed: bool) -> Iterator[None]:
    global _starts_allowed
    before, _starts_allowed = _starts_allowed, allowed
    try:
        yield
    finally:
        _starts_allowed = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    with _starts(allowed=False):
        return (yield)


def _processes() -> set[psutil.Process]:
    found = set()
    for pid in descendants() - {_watcher}:
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            found.add(psutil.Process(pid))
    return {process for process in found if not _is_service_of_windows(process)}


def _is_service_of_windows(process: psutil.Process) -> bool:
    """Return whether it is a service of Wine, which starts on first use and ends with the lab's machine."""
    try:
        return any(word.lower().startswith("c:\\windows\\system32\\") for word in process.cmdline())
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline()) or process.name()} ({process.status()})"
    except psutil.Error:
        return f"{process.pid}: gone"


def _belongs_to(process: psutil.Process, folder: str) -> bool:
    try:
        return bool(process.environ().get("TMPDIR") == folder)
    except (psutil.Error, OSError):
        return False


def _comes(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true; return False after a timeout."""
    until = time.monotonic() + PROCESS_GRACE_S
    while not condition():
        if time.monotonic() >= until:
            return False
        threading.Event().wait(0.01)
    return True


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("QNNBRIDGE_REQUIRE_LABS") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{reason}\nQNNBRIDGE_REQUIRE_LABS=1 forbids skipping."


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.fixture(scope="session", autouse=True)
def private_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create a temporary folder for this run, so that other programs of the machine cannot disturb the guards.

    At the end of the run, the folder identifies orphaned processes, which have inherited it but are not children of
    this process. If the run is killed, the orphan watch ends them.
    """
    global _watcher
    folder = tmp_path_factory.mktemp("tmp")
    with contextlib.ExitStack() as stack:
        with _starts(allowed=True):
            _watcher = stack.enter_context(orphans_end_with_this_process(folder))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        for name in (*OWN_FOLDERS, *USER_FOLDERS):
            patch.setenv(name, str(tmp_path_factory.mktemp("home") / name.lower()))
        for name in FROM_THE_USER:
            patch.delenv(name, raising=False)
        # Most tests concern a single session; the tests of the cache enable it.
        patch.setenv("QNNBRIDGE_CACHE", "0")
        # The tests of the comparison with the CPU enable it.
        patch.setenv("QNNBRIDGE_VERIFY", "off")
        yield folder
    heirs = [p for p in psutil.process_iter() if p.pid != os.getpid() and _belongs_to(p, str(folder))]
    _, alive = psutil.wait_procs(heirs, timeout=PROCESS_GRACE_S)
    if alive:
        names = "\n".join(map(_describe, alive))
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        pytest.fail("processes outlived the tests:\n" + names)


@pytest.fixture(scope="module", autouse=True)
def freeze_existing_objects() -> None:
    """Exclude existing objects from garbage collection.

    The guards collect garbage several times per test. Traversing the objects of all imported modules takes a tenth
    of a second each time, which was most of the duration of many tests.
    """
    gc.collect()
    gc.freeze()


# pytest orders autouse fixtures by name. Those with `monkeypatch` must sort after the `no_...` guards, which then run
# after the patches of a test have been undone.
@pytest.fixture(autouse=True)
def own_state_folders(
    request: pytest.FixtureRequest, private_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test empty state and cache folders. They do not exist yet, since the product creates them."""
    own = private_temporary_folder / f"state-{abs(hash(request.node.nodeid)):x}"
    for name in OWN_FOLDERS:
        monkeypatch.setenv(name, str(own / name.lower()))


@pytest.fixture(autouse=True)
def unabridged_error_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the change of error texts that importing `qnnbridge.ort` makes for the whole process."""
    from qnnbridge_protocol.errors import OrtError, RemoteError

    for root in (OrtError, RemoteError):
        monkeypatch.setattr(root, "_brief", "dropin" in request.path.parts)


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail if a test leaves more child processes than before. A shared host may have been replaced by a new one."""
    before = _processes()
    yield
    if "qnnbridge._host" in sys.modules:
        # The default host normally runs until its process ends; in tests it ends with the test.
        sys.modules["qnnbridge._host"].default_host().close()
    after = _processes()
    added, gone = after - before, before - after
    if len(added) > len(gone):
        _, alive = psutil.wait_procs(list(added), timeout=PROCESS_GRACE_S)
        if len(alive) > len(gone):
            # Do not kill the process: it may be a shared one that this test started instead of its fixture.
            pytest.fail(
                "processes left behind (a test that restarts a shared host ends with `host.start()`; the host of a test "
                "before this one may have been replaced here):\n" + "\n".join(map(_describe, alive))
            )


@pytest.fixture(autouse=True)
def no_temporary_file_left_behind(private_temporary_folder: Path) -> Iterator[None]:
    def ours() -> set[str]:
        return {entry.name for entry in private_temporary_folder.glob("*qnnbridge*")}

    before = ours()
    yield
    if not _comes(lambda: ours() <= before):
        pytest.fail(f"temporary files left behind: {sorted(ours() - before)}")


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, private_temporary_folder: Path) -> Iterator[Any]:
    """Start a real host, with QNN on the simulator, for the tests of a module.

    ``HOST`` of the module contains settings for `qnnbridge.Host`. A start takes 0.3 s of processor time. Modules do
    not share a host, because a host keeps state about models.
    """
    pytest.importorskip("onnxruntime_qnn")
    import qnnbridge

    with qnnbridge.Host(**getattr(request.module, "HOST", {})) as host:
        host.start()  # now, or the guards would report it as left behind by the first test
        yield host


def _handles() -> int:
    count: int = psutil.Process().num_handles()  # type: ignore[attr-defined, unused-ignore] # on Windows only
    return count


@pytest.fixture
def pools_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use ONNX Runtime's default number of threads for sessions of this process; `run_async` needs two."""
    monkeypatch.delenv("ORT_INTRA_OP_NUM_THREADS", raising=False)


class LeakGuard:
    """Count of the open files of this process. A test that keeps files open on purpose sets `allowed_growth`."""

    def __init__(self) -> None:
        self.allowed_growth = 0
        self._before = self._open()

    @staticmethod
    def _open() -> dict[str, str]:
        gc.collect()
        listing = Path("/proc/self/fd")
        if not listing.is_dir():  # Windows: handles cannot be listed by name
            return {str(n): "handle" for n in range(_handles())}
        found = {}
        for entry in os.listdir(listing):
            with contextlib.suppress(OSError):  # the descriptor of this listing is closed
                found[entry] = os.readlink(listing / entry)
        return found

    def check(self) -> None:
        _comes(lambda: len(self._open()) - len(self._before) <= self.allowed_growth)
        after = self._open()
        new = {fd: name for fd, name in after.items() if self._before.get(fd) != name}
        growth = len(after) - len(self._before)
        assert growth <= self.allowed_growth, f"{growth} more open files than before the test; new ones: {new}"


@pytest.fixture
def no_leaks() -> Iterator[LeakGuard]:
    """Fail the test if more files are open after it than before."""
    guard = LeakGuard()
    yield guard
    guard.check()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import ByFileOrLab

    return ByFileOrLab(config, log)
