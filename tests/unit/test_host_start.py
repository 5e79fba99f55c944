"""Work that the host does before its first session, and work that it defers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs

from qnnbridge_host import machine

pytestmark = needs.a_host_python

ROOT = Path(__file__).parents[2]


def told_by(program: str) -> list[str]:
    """Run code in a new interpreter and return the words of its stderr."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.mark.process
def test_garbage_collection_is_off_while_the_host_imports() -> None:
    told = told_by(
        "import gc, runpy, sys, qnnbridge_host.start as host\n"
        "host.main = lambda *_: print(gc.isenabled(), file=sys.stderr)\n"
        "runpy.run_module('qnnbridge_host', run_name='__main__')\n"
    )
    assert told == ["False"]


@pytest.mark.process
@pytest.mark.parametrize("fails", [False, True])
def test_garbage_collection_is_on_again_when_the_engine_is_loaded_or_has_failed(fails: bool) -> None:
    told = told_by(
        "import contextlib, gc, sys, qnnbridge_host.start as host\n"
        "gc.disable()\n"
        "def load(on_phase):\n"
        "    print(gc.isenabled(), file=sys.stderr)\n"
        f"    if {fails}: raise ImportError\n"
        "with contextlib.suppress(ImportError):\n"
        "    host._then_collect(load)(print)\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1000, gc.get_count()[0] < 700, file=sys.stderr)\n"
    )
    assert told == ["False", "True", "True", "True"]


@pytest.mark.process
def test_a_session_is_ready_before_modules_for_runs_and_errors_are_loaded() -> None:
    told = told_by(
        "import sys, qnnbridge_host.start, qnnbridge_host.serve.handlers, qnnbridge_host.serve.server\n"
        "import qnnbridge_host.engine.ort_engine, qnnbridge_host.engine.providers, qnnbridge_host.engine.providers\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    assert "qnnbridge_host.engine.ort_engine" in told
    for_lines = {
        "qnnbridge_host.fastpath",
        "qnnbridge_protocol.fastpath",
        "mmap",
    }
    for_values = {"qnnbridge_protocol.elements", "qnnbridge_protocol.tensors", "qnnbridge_protocol.values"}
    assert not {*for_lines, *for_values, "difflib"} & set(told)


@pytest.mark.process
def test_modules_for_runs_are_loaded_after_the_session_was_answered() -> None:
    told = told_by(
        "import sys, numpy\n"
        "from qnnbridge_host.serve.handlers import HostHandlers\n"
        "from qnnbridge_host.request.in_flight import Request\n"
        "from qnnbridge_protocol.specs import SessionSpec\n"
        "from tests.fakes.fake_engine import FakeEngine\n"
        "from qnnbridge_host.start import introduction\n"
        "handlers = HostHandlers(lambda on_phase: FakeEngine(), introduction())\n"
        "handlers.start(lambda phase: None)\n"
        "model = numpy.frombuffer(b'{}', numpy.uint8)\n"
        "header = {'op': 'session.create', 'spec': SessionSpec(None).to_wire()}\n"
        "request = Request(1, header, (model,))\n"
        "handlers.handle(request, lambda phase: None)\n"
        "needed = ('qnnbridge_host.fastpath', 'qnnbridge_host.engine.ort_values', 'qnnbridge_protocol.values')\n"
        "before = [name in sys.modules for name in needed]\n"
        "request.after()\n"
        "print(*before, *(name in sys.modules for name in needed), file=sys.stderr)\n"
    )
    assert told[-6:] == ["False"] * 3 + ["True"] * 3


def test_installed_packages_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    look = machine.installed

    def counting() -> machine.Installed:
        looks.append(None)
        return look()

    monkeypatch.setattr(machine, "_here", None)
    monkeypatch.setattr(machine, "installed", counting)
    told = machine.installed_versions()
    found = machine.installed_here()
    assert told.get("numpy") == found.distributions.get("numpy")
    assert len(looks) == 1
