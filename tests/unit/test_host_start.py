"""What the host does, and leaves for later, on its way to a first session."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests import needs

from qnnbridge_host import distributions

pytestmark = needs.a_host_python


def told_by(program: str) -> list[str]:
    """What a fresh interpreter that runs this writes to stderr, word by word."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


def test_no_garbage_is_looked_for_while_the_host_imports() -> None:
    told = told_by(
        "import gc, runpy, sys, qnnbridge_host.main as host\n"
        "host.main = lambda *_: print(gc.isenabled(), file=sys.stderr)\n"
        "runpy.run_module('qnnbridge_host', run_name='__main__')\n"
    )
    assert told == ["False"]


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_collected_again_when_the_engine_is_there_or_never_will_be(fails: bool) -> None:
    told = told_by(
        "import contextlib, gc, sys, qnnbridge_host.main as host\n"
        "gc.disable()\n"
        "def load(on_phase):\n"
        "    print(gc.isenabled(), file=sys.stderr)\n"
        f"    if {fails}: raise ImportError\n"
        "with contextlib.suppress(ImportError):\n"
        "    host._then_collect(load)(print)\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000, gc.get_count()[0] < 700, file=sys.stderr)\n"
    )
    assert told == ["False", "True", "True", "True"]


def test_a_session_is_ready_without_what_only_repeated_calls_and_mistakes_need() -> None:
    told = told_by(
        "import sys, qnnbridge_host.main, qnnbridge_host.handlers, qnnbridge_host.server\n"
        "import qnnbridge_host.engine.common, qnnbridge_host.engine.plugin, qnnbridge_host.engine.builtin\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    assert "qnnbridge_host.engine.ort_session" in told
    for_lines = {"qnnbridge_host.lines", "qnnbridge_host.sharing", "qnnbridge_protocol.lines", "mmap"}
    assert not {*for_lines, "difflib"} & set(told)


def test_what_is_installed_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    look = distributions.installed

    def counting() -> distributions.Installed:
        looks.append(None)
        return look()

    monkeypatch.setattr(distributions, "_here", None)
    monkeypatch.setattr(distributions, "installed", counting)
    told = distributions.installed_versions()
    found = distributions.installed_here()
    assert told.get("numpy") == found.distributions.get("numpy")
    assert len(looks) == 1
