"""Parts of `qnnbridge chat` and `bench --llm` that need no model, and options that they refuse."""

from __future__ import annotations

import stat
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import needs
from tests.fakes.commands import qnnbridge

from qnnbridge_tools import inspection
from qnnbridge_tools.bench import measuring as bench
from qnnbridge_tools.generation import chat, measuring
from qnnbridge_tools.generation.measuring import Pace

WAIT_TIMEOUT_S = 20.0


def test_an_answer_whose_end_marker_was_lost_still_ends() -> None:
    """Ctrl+C arrives exactly when the end marker is taken out of the queue."""

    def fails(_on_begin: Any) -> Any:
        raise ValueError("no answer")

    answer = chat.SpokenAnswer(fails)
    assert answer.pieces.get(timeout=WAIT_TIMEOUT_S) is None
    talk = chat.Chat(None, None, chat.ChatOptions(None, None, {}), print)  # type: ignore[arg-type]
    waiting = threading.Thread(target=talk._print_pieces, args=(answer,), daemon=True)
    waiting.start()
    waiting.join(WAIT_TIMEOUT_S)
    assert not waiting.is_alive()


def _problem_of(program: str, *, wait: bool = False) -> str | None:
    begun = time.monotonic()
    with bench.DirectProcess(sys.executable, "-c", program) as direct:
        if wait:
            direct._child.wait(WAIT_TIMEOUT_S)  # so that writing the question fails
        answer, problem = measuring._asked(direct, {"folder": "", "prompt": [1], "tokens": 2})
    assert answer[1] == []
    assert time.monotonic() - begun < WAIT_TIMEOUT_S
    return problem


@pytest.mark.process
def test_a_failed_process_without_the_bridge_is_reported_as_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "END_TIMEOUT_S", 0.2)
    assert _problem_of("raise SystemExit(3)", wait=True) == "The process without the bridge crashed (exit code 3)"
    assert _problem_of("""print('{"error": "no model"}', flush=True)""") == "no model"
    nonsense = _problem_of("print('nonsense', flush=True); import time; time.sleep(60)")
    assert "an unreadable answer" in str(nonsense)
    monkeypatch.setattr(bench, "ANSWER_TIMEOUT_S", 0.5)
    assert "did not answer within 0.5 s" in str(_problem_of("import time; time.sleep(60)"))


def test_an_answer_of_one_token_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """A model may end its answer immediately; 0 tokens/s would be a wrong number."""
    rounds = [(Pace(0.0, 0.5, 0.5, 1), [2])] * 3
    ways = {measuring.BRIDGE: measuring._paces(rounds, rounds)}
    info: Any = SimpleNamespace(label="m", layout="dynamic", genai="0.18.0")
    measured = measuring.MeasuredPaces(info, measuring.BenchLength(16, 1, 2), ways, 1.0, "none")
    measuring.print_measured(measured)
    assert "unknown" in capsys.readouterr().out
    assert measuring.document(measured)["ways"]["bridge"]["tokens_per_second"]["median"] is None
    assert measuring.document(measured)["ways"]["bridge"]["first_token_s"]["median"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "--llm", "FOLDER", "--shape", "x=1,2"], "--llm does not go with --shape"),
        (["bench", "--llm", "FOLDER", "--provider", "cpu"], "--llm does not go with --provider"),
        (["bench", "--llm", "FOLDER", "--no-pin"], "--llm does not go with --no-pin"),
        (["inspect", "FOLDER", "--soc-model", "60"], "does not go with --soc-model"),
        (["inspect", "FILE", "--load"], "does not go with --load"),
        (["serve", "--llm", "a=FOLDER", "--provider-option", "soc_model=60"], "not go with --provider-option"),
    ],
)
def test_an_option_without_an_effect_is_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    places = {"FOLDER": str(tmp_path), "FILE": str(tmp_path / "m.onnx"), "a=FOLDER": f"a={tmp_path}"}
    result = qnnbridge(*(places.get(one, one) for one in arguments))
    assert result.returncode == 2
    assert words in result.stderr


@needs.posix
@pytest.mark.process
def test_the_stages_of_a_folder_are_judged_in_one_start_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho started >> {tmp_path}/starts; exec {sys.executable} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("qnnbridge._launch.find_host", lambda _python: SimpleNamespace(path=str(program)))
    chips = {"prompt": "60", "token": "88"}
    stages = [
        SimpleNamespace(name=name, path=name, qnn_options={"soc_model": chip}) for name, chip in chips.items()
    ]
    monkeypatch.setattr(
        inspection,
        "examine",
        lambda _path, _scan, host: SimpleNamespace(verdict=SimpleNamespace(message=str(host.soc_model))),
    )
    scans: Any = (SimpleNamespace(is_compiled=True),) * 2
    assert inspection._verdicts(SimpleNamespace(stages=stages), scans, None) == chips  # type: ignore[arg-type]
    assert (tmp_path / "starts").read_text() == "started\n"
