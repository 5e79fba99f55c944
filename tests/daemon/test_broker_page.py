"""The operations of a daemon in `docs/dev/protocol.md` match the code."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

import numpy as np
import pytest

import qnnbridge
from qnnbridge_daemon import accounts, clients, handlers
from qnnbridge_daemon.accounts import ClientLimits
from qnnbridge_daemon.handlers import BrokerHandlers
from tests.daemon.brokers import Lab
from tests.fakes.hosts import script
from tests.unit.test_protocol_page import OPERATIONS, bare, fields_read, keys_answered, rows, section

TITLE = "Operations of a daemon"
TEXT = " ".join(section(TITLE).split())

HANDLERS = BrokerHandlers(cast(Any, None), cast(Any, None))


def test_a_daemon_has_its_own_operations_and_those_of_a_host_except_compiling() -> None:
    listed = [bare(row[0]) for row in rows(TITLE, "`op`", "fields")]
    assert [name for name in HANDLERS.operations if name not in OPERATIONS] == listed
    compiling = ["model.compile", "worker.compile", "worker.create", "worker.fix", "worker.generate", "worker.wrap"]
    assert sorted(name for name in OPERATIONS if name not in HANDLERS.operations) == compiling


def test_the_page_lists_the_fields_that_the_daemon_own_operations_read() -> None:
    for row in rows(TITLE, "`op`", "fields"):
        needed, asked = fields_read(HANDLERS.operations[bare(row[0])])
        assert not needed
        assert asked == set(re.findall(r"\[`(\w+)`\]", row[1]))
        assert keys_answered(HANDLERS.operations[bare(row[0])]) == set(re.findall(r"`(\w+)`", row[2]))


@pytest.mark.parametrize(
    ("operation", "function"), [("session.create", BrokerHandlers._open), ("session.run", BrokerHandlers._run)]
)
def test_the_page_lists_the_additional_fields_that_the_daemon_reads(operation: str, function: Any) -> None:
    needed, asked = fields_read(OPERATIONS[operation])
    read = set.union(*fields_read(function))
    listed = {bare(row[0]) for row in rows(TITLE, f"field of `{operation}`")}
    assert listed <= read
    assert read - needed - asked <= listed


def test_the_page_lists_the_additional_fields_of_the_reply_to_a_creation() -> None:
    listed = {bare(row[0]): row[2] for row in rows(TITLE, "more in the reply to `session.create`")}
    assert set(listed) == keys_answered(BrokerHandlers._create) - keys_answered(OPERATIONS["session.create"])
    assert keys_answered(BrokerHandlers._create) >= {"session", "info", "model", "cache", "blame"}


def test_the_numbers_and_limits_of_the_page_equal_those_of_the_code() -> None:
    assert f"After GOODBYE it answers for {clients.DRAIN_TIMEOUT_S:g} seconds at most" in TEXT
    assert f"under it; {handlers.DEFAULT_RETRY} if missing" in TEXT
    names = [field.name for field in dataclasses.fields(ClientLimits)]
    assert f"`limit` ({', '.join(f'`{name}`' for name in names)})" in TEXT
    assert list(accounts.HIGHER) == names


def test_the_status_has_the_fields_of_the_page(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(), host=lab.client())
    session.run(None, {"x": np.ones(2, np.float32)})
    told = lab.broker.status()
    table = rows("Status of a daemon", "part", "members")
    assert [bare(row[0]) for row in table] == list(told)
    for row in table:
        part = told[bare(row[0])]
        assert re.findall(r"`(\w+)`", row[1]) == list(part[0] if isinstance(part, list) else part)
    text = " ".join(section("Status of a daemon").split())
    assert (
        f"a map of {', '.join(f'`{name}`' for name in list(told['models'][0]['latency_ms'])[:-1])} and `max`"
        in text
    )
    assert (
        f"a map of {', '.join(f'`{name}`' for name in list(told['totals']['latency_s'])[:-1])} and `buckets`"
        in text
    )
