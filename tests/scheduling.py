"""Which worker of ``pytest -n`` runs which tests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests import needs

# Their tests wait half of the time: for deadlines, and for processes to end.
WAITING = ("tests/daemon/", "tests/fault/")


class RunOfAllTests:
    """Each worker begins to collect with other folders, so that one compiles what the others only read.

    Together they would compile every file three times, in a fresh clone: 18 s of a processor each. The files are run in
    one order all the same, in which those that wait are spread among those that compute: side by side they leave a third
    of two cores idle. They are through before the end, since no short file fills up what a long one leaves there.
    """

    def __init__(self, config: pytest.Config) -> None:
        (place,) = config.args
        tests = config.rootpath / place
        folders = sorted((one for one in tests.iterdir() if any(one.rglob("test_*.py"))), key=_size, reverse=True)
        first = int(config.workerinput["workerid"].removeprefix("gw")) % len(folders)  # type: ignore[attr-defined, unused-ignore]
        config.args = list(map(str, folders[first:] + folders[:first]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = sorted({_file(item) for item in items})
        place: dict[str, float] = {}
        for waits, share in ((True, 0.9), (False, 1.0)):
            group = [file for file in files if file.startswith(WAITING) is waits]
            place |= {file: share * number / len(group) for number, file in enumerate(group)}
        items.sort(key=lambda item: (place[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.py"))


class ByFileOrLab(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """A file's tests stay together, and so do those of one lab, which is one machine.

    When a worker dies, the test that it ran has failed, and others run what it had not begun. A worker begins a test when
    it knows the next one or that there is none. xdist 3.8 forgets that here and the run never ends: it hands out the dead
    worker's finished files again, and to the new worker a single test. It also runs again the test that was deadly, and
    gives up when it sends work to a worker of which it does not know yet that it is dead.
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
        with contextlib.suppress(OSError):  # it is dead, and its end comes behind what it has reported
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
