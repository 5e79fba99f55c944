"""The short form of ``python -m lab.attack``.

Other files test HTTP, compiled models and the storm.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from lab.attack import daemon, entries, hosts, models, names, streams, surroundings, swaps, users
from tests.needs import length

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals, limits and users of POSIX"),
]


def test_any_byte_stream_ends_a_host_with_its_exit_code_and_a_message() -> None:
    """The complete attack is ``python -m lab.attack streams --scale 300``."""
    report = streams.attack(length(10, 15), seed=1)
    assert report.good, str(report)
    assert report.counts["exit code 0"]
    assert report.counts["exit code 3"]


def test_a_hostile_host_causes_a_typed_error_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "CALL_S", 1.5)  # most damaged replies lead to a timeout
    report = hosts.attack(length(4, 8), seed=1)
    assert report.good, str(report)


@pytest.mark.parametrize("outputs", [{}, {"outputs": 1}])
def test_an_answer_whose_fields_have_other_types_is_a_typed_error(
    outputs: dict[str, object], tmp_path: Path
) -> None:
    assert hosts.use(hosts.command_of(hosts.answers(outputs), tmp_path)) == "ProtocolDesync"


def test_hostile_environments_cause_a_typed_error_at_most() -> None:
    """Use every second variable and limit, in the short form every third. The complete attack is
    ``python -m lab.attack surroundings``."""
    report = surroundings.attack(every=length(3, 2))
    assert report.good, str(report)


def test_the_attack_on_streams_can_find_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EXIT_PROTOCOL", 5)
    assert not streams.attack(6, seed=1).good


@pytest.mark.simulator
def test_files_that_are_exchanged_during_reading_are_never_mistaken_for_others() -> None:
    """The complete attack is ``python -m lab.attack swaps --scale 100``."""
    pytest.importorskip("onnxruntime_qnn")
    report = swaps.attack(length(2, 3), seed=1)
    assert report.good, str(report)
    assert report.counts["cache miss"]


def test_a_daemon_serves_clients_despite_half_open_connections_random_bytes_and_stopped_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete attack is ``python -m lab.attack daemon --scale 10``."""
    for name in ("RUNTIME", "STATE", "CACHE"):
        monkeypatch.setenv(f"QNNBRIDGE_{name}_DIR", str(tmp_path / name.lower()))
    report = daemon.attack(0.5, seed=1)
    assert report.good, str(report)
    assert report.counts["half-open connections"]


def test_tools_answer_hostile_models_with_little_time_and_memory() -> None:
    """The complete attack is ``python -m lab.attack models --scale 10``."""
    tools = ("analyze", "quantize", "fix", "optimize")[: length(2, 4)]
    report = models.attack(tools, ("gigantic_pad", "endless_loop", "false_size"))
    report.add(models.attack(("prepare",), ("gigantic_pad", "endless_loop")))
    report.add(models.attack(("inspect", "quantize", "prepare"), ("long_chain",)))
    assert report.good, str(report)
    assert report.counts["answers"] == 3 * len(tools) + 5


def test_names_in_a_model_cannot_control_the_terminal_or_forge_messages() -> None:
    """The complete attack is ``python -m lab.attack names --scale 10``."""
    report = names.attack(("optimize", "run-cpu")[: length(1, 2)], ("operator", "missing", "a"))
    # `run-cpu` gives ONNX Runtime's own text, which has line feeds.
    report.add(names.attack(("run-cpu",), ("refused",)))
    assert report.good, str(report)
    assert report.counts["exit code 1"] + report.counts["exit code 2"] >= 3


@pytest.mark.simulator
def test_no_damaged_entry_of_the_cache_is_loaded() -> None:
    """The complete attack is ``python -m lab.attack entries --scale 25``."""
    pytest.importorskip("onnxruntime_qnn")
    report = entries.attack(6, seed=2)
    assert report.good, str(report)
    assert report.counts["cache miss"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becoming another user takes root")
def test_another_user_gets_no_access_and_is_never_mistaken_for_the_daemon() -> None:
    """The complete attack is ``python -m lab.attack users --scale 10``."""
    report = users.attack(0.3, seed=1)
    assert report.good, str(report)
    assert report.counts["attempts"]
    assert report.counts["attempts to connect"]
