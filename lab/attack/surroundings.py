"""Run qnnbridge in hostile environments: bad variables, few descriptors, little memory, another user."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from lab.attack.report import Report

END_TIMEOUT_S = 60.0

# The program, which creates a session with the scripted engine, runs it and prints the result.
USE = """
import sys; sys.path.insert(0, {root!r})
import numpy as np, qnnbridge
from tests.fakes.hosts import fake_host, script
try:
    with fake_host() as host:
        y = qnnbridge.InferenceSession({model}, host=host).run(None, {{"x": np.ones(4, np.float32)}})[0]
        print("result", y.tolist())
except qnnbridge.errors.BridgeError as error:
    print("typed", type(error).__name__, error.message)
"""
ROOT = str(Path(__file__).parents[2])
RIGHT = "result [3.0, 3.0, 3.0, 3.0]"


def attack(every: int = 1) -> Report:
    """Run the program in each environment.

    Args:
        every: use only every n-th variable and limit.
    """
    report = Report("surroundings")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        os.chmod(folder, 0o755)
        poison = Path(folder, "poison")
        poison.mkdir()
        for name in ("sitecustomize", "msgpack", "numpy", "qnnbridge_os", "qnnbridge_protocol"):
            Path(poison, f"{name}.py").write_text("raise SystemExit('poisoned')\n")
        for name, value in list(_variables(poison).items())[::every]:
            _check(report, name, _run({name: value}, host_only=name.startswith("PYTHON")))
        for count in (12, 16, 24, 32)[::every]:
            said = _run({}, limit=(resource.RLIMIT_NOFILE, count))
            _check(report, f"{count} descriptors", said, may_fail=True)
        for megabytes in (300, 600)[::every]:
            said = _run({}, limit=(resource.RLIMIT_AS, megabytes * 2**20))
            _check(report, f"{megabytes} MB", said, may_fail=True)
        if os.geteuid() == 0:
            _another_user(report, folder)
    return report


def _variables(poison: Path) -> dict[str, str]:
    return {
        "QNNBRIDGE_CACHE_DIR": "/dev/null/cache",
        "QNNBRIDGE_STATE_DIR": "/proc/nowhere",
        "QNNBRIDGE_RUNTIME_DIR": "relative/..",
        "QNNBRIDGE_CACHE_MAX_BYTES": "many",
        "QNNBRIDGE_CACHE": "\x01",
        "QNNBRIDGE_SHARED_MEMORY": "perhaps",
        "TMPDIR": "/nowhere",
        "HOME": "/nowhere",
        "LANG": "xx_XX.nonsense",
        "LD_BIND_NOW": "1",
        "PYTHONPATH": str(poison),
        "PYTHONSTARTUP": str(poison / "msgpack.py"),
        "PYTHONIOENCODING": "ascii",
        "PYTHONWARNINGS": "error",
    }


def _run(
    variables: dict[str, str],
    *,
    limit: tuple[int, int] | None = None,
    user: int | None = None,
    host_only: bool = False,
    model: str = "script(scale=3)",
) -> str:
    """Run the program and return its output.

    Args:
        host_only: set the variables after the program has started, so that they affect only the host.
    """
    code = textwrap.dedent(USE).format(root=ROOT, model=model)
    if host_only:
        code = f"import os; os.environ.update({variables!r})\n{code}"

    def prepare() -> None:
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], limit[1]))
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)

    environment = os.environ | ({} if host_only else variables)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=environment,
        preexec_fn=prepare,
        timeout=END_TIMEOUT_S,
    )
    return (done.stdout + done.stderr).decode(errors="replace").strip()


def _check(report: Report, name: str, said: str, *, may_fail: bool = False) -> None:
    """Check the output. Python may fail to start without resources, but qnnbridge must raise `BridgeError`s."""
    right, typed = RIGHT in said, said.startswith("typed")
    own_defect = "Traceback" in said and "/qnnbridge" in said and not may_fail
    report.count("result" if right else "typed error" if typed else "Python did not start")
    report.expect(right or may_fail, f"{name}: {said[-500:]}")
    report.expect(not own_defect, f"{name}: {said[-800:]}")


def _another_user(report: Report, folder: str) -> None:
    """Check that files and folders of the bridge are not writable by other users."""
    from qnnbridge_host.cache.memo import NegativeEntries
    from qnnbridge_host.cache.store import Store

    private = Path(folder, "private")
    environment = {f"QNNBRIDGE_{name}_DIR": str(private / name.lower()) for name in ("CACHE", "STATE", "RUNTIME")}
    previous = os.umask(0)
    try:
        # Crash the host, so that qnnbridge writes a crash report and the quarantine file.
        _run(environment, model='script(on_run=["segv"])')
        Store(private / "cache").prepare()
        NegativeEntries(private / "cache").write("k", "refused", "a reason", "a label")
    finally:
        os.umask(previous)
    for found in (private, *(p for p in private.rglob("*") if not p.is_symlink())):
        report.count("checked files and folders")
        if any(
            not parent.stat().st_mode & 0o005 for parent in found.parents if private in (parent, *parent.parents)
        ):
            continue  # other users cannot reach the file, because a parent folder is private
        report.expect(not found.stat().st_mode & 0o002, f"{found.relative_to(private)} is writable by everybody")
