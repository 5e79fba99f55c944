"""The fixtures of qnnbridge for pytest. pytest loads this module when it starts, so the module imports little at
its top level.

A test that uses a fixture is skipped if the host has no QNN. With ``--require-qnn`` the test fails instead.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from qnnbridge.testing import SessionWatch

_WATCHES = "_qnnbridge_watches"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("qnnbridge").addoption(
        "--require-qnn",
        action="store_true",
        help="Fail tests that use npu_placement or npu_numbers if there is no QNN. Default: skip them.",
    )


@pytest.fixture(scope="session")
def qnn_host_missing() -> str:
    """Return why the default host has no QNN, or '' if it has QNN. The first call starts the host."""
    from qnnbridge.testing import qnn_missing

    return qnn_missing()


def _watch(
    request: pytest.FixtureRequest, missing: str, *, placement: bool, numbers: bool
) -> Iterator[SessionWatch]:
    if missing and request.config.getoption("--require-qnn"):
        pytest.fail(f"--require-qnn is given, but QNN is not available: {missing}", pytrace=False)
    if missing:
        pytest.skip(f"QNN is not available: {missing}")
    from qnnbridge._session.remote_runner import watchers
    from qnnbridge.testing import SessionWatch

    watch = SessionWatch(placement=placement, numbers=numbers)
    watches: list[SessionWatch] = request.node.__dict__.setdefault(_WATCHES, [])
    watches.append(watch)
    watchers.append(watch.add)
    yield watch
    watchers.remove(watch.add)
    watches.remove(watch)


@pytest.fixture
def npu_placement(request: pytest.FixtureRequest, qnn_host_missing: str) -> Iterator[SessionWatch]:
    """Fail the test if a node of a session that the test creates does not run on the NPU."""
    yield from _watch(request, qnn_host_missing, placement=True, numbers=False)


@pytest.fixture
def npu_numbers(request: pytest.FixtureRequest, qnn_host_missing: str) -> Iterator[SessionWatch]:
    """Fail the test if the results of a session that the test creates differ from the CPU's."""
    yield from _watch(request, qnn_host_missing, placement=False, numbers=True)


# Check in a hook and not in the fixtures, because an exception at the end of a fixture would be reported as a
# separate error after a passed test. The old style of hook wrappers works with every pytest.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    if outcome.excinfo is not None:
        return
    for watch in item.__dict__.get(_WATCHES, ()):
        try:
            watch.check()
        except AssertionError as failure:
            # Leave out the traceback, because it would only show this hook.
            outcome.force_exception(pytest.fail.Exception(str(failure), pytrace=False))
