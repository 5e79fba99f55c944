"""Check that no test leaves a thread, a descriptor or a mapping of shared memory behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qnnbridge_daemon.accounts import BrokerSettings
from tests.daemon.brokers import Lab
from tests.fakes.hosts import fake_host
from tests.fault.conftest import nothing_left_open

__all__ = ["nothing_left_open"]


@pytest.fixture
def settings() -> BrokerSettings:
    return BrokerSettings(keep_unused_s=0.0)


@pytest.fixture
def lab(settings: BrokerSettings) -> Iterator[Lab]:
    """A broker in front of a host with the scripted engine."""
    made = Lab(fake_host(), settings)
    yield made
    made.close()
