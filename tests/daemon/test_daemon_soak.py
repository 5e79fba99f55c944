"""A short run of ``python -m lab.faultlab --daemon``: several applications, and a host that is killed repeatedly."""

from __future__ import annotations

import pytest
from lab.faultlab.shared_daemon import daemon_soak

pytest.importorskip("onnxruntime")


def test_no_call_is_lost_or_wrong_while_the_host_of_a_daemon_is_killed() -> None:
    result = daemon_soak(clients=3, seconds=6.0, kill_every_s=2.0, seed=1)
    assert result.kills
    assert [(client["wrong"], client["errors"]) for client in result.clients] == [(0, {})] * 3, result
    assert all(client["calls"] for client in result.clients), result
    assert all(client["late_s"] <= 1.0 for client in result.clients), result
    assert not result.left, result
    assert result.status["totals"]["sessions_created"] == 4, "each model is open once"
