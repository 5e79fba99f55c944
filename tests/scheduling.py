"""Distribution of the tests among the workers of ``pytest -n``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests import needs

# Folders whose tests spend half of their time waiting for deadlines and for the end of processes.
WAITING = ("tests/daemon/", "tests/fault/")
# Folders and markers of the tests that `scripts/test` runs: tests of these folders without these markers.
QUICK = ("tests/unit/", "tests/doctor/", "tests/fuzz/")
NOT_QUICK = ("process", "simulator")


class RunOfAllTests:
    """Plugin of a worker that runs all tests: order of collection and of the tests.

    Each worker starts to collect with a different folder, so that each file is compiled by one worker and only read
    by the others. In a fresh clone, workers with the same order would compile every file three times, 18 s of
    processor time each. All workers run the files in the same order, in which waiting tests are spread among
    computing ones: consecutive waiting tests would leave a third of two cores idle. Waiting files end before the
    last ones, since a long waiting file at the end would run alone. With QNNBRIDGE_TEST_QUICK_PASSED=1 the tests of
    `scripts/test` are left out, because they have passed before.
    """

    def __init__(self, config: pytest.Config) -> None:
        (place,) = config.args
        tests = config.rootpath / place
        folders = sorted((one for one in tests.iterdir() if any(one.rglob("test_*.py"))), key=_size, reverse=True)
        first = int(config.workerinput["workerid"].removeprefix("gw")) % len(folders)  # type: ignore[attr-defined, unused-ignore]
        config.args = list(map(str, folders[first:] + folders[:first]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if os.environ.get("QNNBRIDGE_TEST_QUICK_PASSED") == "1":
            items[:] = [item for item in items if not _is_quick(item)]
        files = sorted({_file(item) for item in items})
        place: dict[str, float] = {}
        for waits, share in ((True, 0.9), (False, 1.0)):
            group = [file for file in files if file.startswith(WAITING) is waits]
            place |= {file: share * number / len(group) for number, file in enumerate(group)}
        items.sort(key=lambda item: (place[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _is_quick(item: pytest.Item) -> bool:
    return _file(item).startswith(QUICK) and not any(map(item.get_closest_marker, NOT_QUICK))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.py"))


class ByFileOrLab(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Scheduler that keeps the tests of a file together, and those of a lab, which is one machine.

    If a worker crashes, its current test has failed, and other workers run the tests that the worker had not
    started. A worker starts a test only when it has the next one, or was told that there is none. xdist 3.8 ignores
    this and the run hangs: it assigns the crashed worker's finished files again, and a single test to the new
    worker. It also repeats the test that crashed the worker, and fails if it sends work to a crashed worker before
    it has noticed the crash.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        lab = needs.lab_of(file)
        return f"lab {lab}" if lab else file

    def remove_node(self, node: Any) -> str | None:
        workload = self.assigned_work[node]
        deadly = next((test for unit in workload.values() for test, done in unit.items() if not done), None)
        for scope, unit in list(workload.items()):
            workload[scope] = {test: False for test, done in unit.items() if not done and test != deadly}
            if not workload[scope]:
                del workload[scope]
        super().remove_node(node)
        return deadly

    def _assign_work_unit(self, node: Any) -> None:
        with contextlib.suppress(OSError):  # the worker has crashed, and its end is reported after its results
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
