"""A worker of ``pytest -n`` that crashes fails one test; the others run, each once, and the run ends."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import needs
from tests.scheduling import NOT_QUICK, QUICK, ByFileOrLab, RunOfAllTests

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """A worker like that of xdist: it starts a test when it has the next one, or knows that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.waiting: list[int] = []
        self.shutting_down = self.dead = False

    def send_runtest_some(self, indices: list[int]) -> None:
        if self.dead:
            raise OSError("cannot send (already closed?)")
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def begins(self) -> bool:
        return len(self.waiting) > (0 if self.shutting_down else 1)


def the_run(tests: list[str], deadly: set[str], workers: int, order: random.Random) -> tuple[list[str], list[str]]:
    """Return the tests that ran and those that crashed a worker. Advances like xdist's session."""
    config: Any = SimpleNamespace(
        option=SimpleNamespace(loadscopereorder=False), getvalue=lambda _: ["popen"] * workers
    )
    scheduler = ByFileOrLab(config, None)
    alive: list[Worker] = []
    ran: list[str] = []
    blamed: list[str] = []

    def join() -> None:
        alive.append(Worker(f"gw{len(blamed) + len(alive)}"))
        scheduler.add_node(alive[-1])  # type: ignore[arg-type]
        scheduler.add_node_collection(alive[-1], tests)  # type: ignore[arg-type]

    for _ in range(workers):
        join()
    scheduler.schedule()
    while alive:
        if scheduler.tests_finished:
            for worker in alive:
                worker.shutdown()
        able = [w for w in alive if w.begins or (w.shutting_down and not w.waiting)]
        assert able, f"the run hangs: {len(ran)} of {len(tests)} tests, {list(scheduler.workqueue)} wait"
        worker: Any = order.choice(able)
        if not worker.waiting:
            assert worker not in scheduler.nodes or scheduler.remove_node(worker) is None
            alive.remove(worker)
            continue
        index = worker.waiting.pop(0)
        ran.append(tests[index])
        # The worker may have crashed before its last report has been read.
        worker.dead = worker.begins and tests[worker.waiting[0]] in deadly and order.random() < 0.5
        if tests[index] in deadly:
            alive.remove(worker)
            blamed.append(scheduler.remove_node(worker) or "nothing")
            join()
            scheduler.schedule()
        else:
            scheduler.mark_test_complete(worker, index)
    return ran, blamed


def test_every_test_runs_once_and_every_test_that_crashes_its_worker_is_blamed() -> None:
    for seed in range(500):
        order = random.Random(seed)
        files = [f"tests/test_{n}.py" for n in range(order.randint(1, 9))]
        tests = [f"{file}::test_{n}" for file in files for n in range(order.choice([1, 1, 2, 5]))]
        deadly = set(order.sample(tests, min(len(tests), order.randint(0, 4))))
        ran, blamed = the_run(tests, deadly, order.randint(1, 3), order)
        assert sorted(ran) == sorted(tests)
        assert sorted(blamed) == sorted(deadly)


@pytest.mark.process
def test_a_real_run_finishes_and_names_the_test_that_crashed_its_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "conftest.py").write_text(
        "import tests.scheduling as s\ndef pytest_xdist_make_scheduler(config, log): return s.ByFileOrLab(config, log)"
    )
    for name, second in {"a": "pass", "b": "__import__('os')._exit(9)", "c": "pass"}.items():
        program = f"def test_first(): pass\ndef test_second(): {second}\ndef test_third(): pass"
        (tmp_path / f"test_{name}.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "xdist", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 8 passed" in ended.stdout, ended.stdout
    assert "crashed while running 'test_b.py::test_second'" in ended.stdout
    assert ended.returncode == 1


def test_each_worker_starts_with_other_folders_and_covers_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNNBRIDGE_TEST_QUICK_PASSED", raising=False)
    for name in ("a", "b", "c", "data"):
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / ("test_x.py" if name != "data" else "x.py")).touch()
    begun = []
    for number in range(4):
        config: Any = SimpleNamespace(args=["tests"], rootpath=tmp_path, workerinput={"workerid": f"gw{number}"})
        run = RunOfAllTests(config)
        assert sorted(Path(one).name for one in config.args) == ["a", "b", "c"]
        begun.append(Path(config.args[0]).name)
    assert len(set(begun[:3])) == 3
    assert begun[3] == begun[0]
    names = [
        f"{folder}/test_{n}.py::test_{m}"
        for folder in ("contract", "fault", "unit")
        for n in range(9)
        for m in (2, 1)
    ]
    orders = []
    for _ in range(2):
        random.shuffle(names)
        items: list[Any] = [
            SimpleNamespace(nodeid=f"tests/{name}") for name in sorted(names, key=lambda name: name[:-1])
        ]
        run.pytest_collection_modifyitems(items)
        orders.append([item.nodeid.split("::")[0] for item in items])
    assert orders[0] == orders[1], "all workers have one order, or xdist refuses to begin"
    files = orders[0][::2]
    assert files == orders[0][1::2], "the tests of a file stay together"
    waits = [number for number, file in enumerate(files) if "fault" in file]
    assert max(after - before for before, after in pairwise(waits)) <= 4
    assert "fault" not in files[-1]


def test_collecting_a_test_file_does_not_import_optional_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_slow_package.py").write_text("value = 1\n")
    later = needs.package("a_slow_package")
    for name in ("_mock_name", "__wrapped__", "__test__", "__bases__"):
        assert getattr(later, name, None) is None
    assert "a_slow_package" not in sys.modules
    assert later.value == 1
    del sys.modules["a_slow_package"]


def test_a_run_after_the_quick_tests_leaves_out_these_tests_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").touch()
    run = RunOfAllTests(
        SimpleNamespace(args=["tests"], rootpath=tmp_path, workerinput={"workerid": "gw0"})  # type: ignore[arg-type]
    )

    def test(name: str, *markers: str) -> Any:
        return SimpleNamespace(nodeid=f"tests/{name}", get_closest_marker=lambda one: one in markers or None)

    tests = [
        test("unit/test_a.py::test_plain"),
        test("unit/test_a.py::test_with_a_process", "process"),
        test("fuzz/test_b.py::test_with_qnn", "simulator", "timeout"),
        test("fuzz/test_b.py::test_plain", "timeout"),
        test("contract/test_c.py::test_plain"),
    ]
    monkeypatch.setenv("QNNBRIDGE_TEST_QUICK_PASSED", "1")
    left = list(tests)
    run.pytest_collection_modifyitems(left)
    assert sorted(one.nodeid for one in left) == sorted(tests[n].nodeid for n in (1, 2, 4))
    command = (ROOT / "scripts" / "test").read_text()
    assert f"pytest {' '.join(folder.rstrip('/') for folder in QUICK)} " in command
    assert f'-m "{" and ".join(f"not {one}" for one in NOT_QUICK)}"' in command
