"""`qnnbridge chat`, `inspect FOLDER` and `bench --llm`, as programs."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.genai.conftest import Folders
from tests.genai.tiny_decoders import Sizes, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator]

pytest.importorskip("onnxruntime_genai")

COMMAND = [sys.executable, "-m", "qnnbridge_tools"]
TIMEOUT_S = 120


def run(*arguments: str | Path, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=said,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )


# --- inspect ---


def test_inspect_reports_stages_window_cache_and_chip(folders: Folders) -> None:
    told = json.loads(run("inspect", folders("window-qnn"), "--json").stdout)
    assert (told["layout"], told["window"], told["context_length"]) == ("window", 32, 96)
    assert [one["stage"] for one in told["stages"]] == ["embeddings", "context", "iterator", "lm_head"]
    assert [one["chip"] for one in told["stages"]] == [
        None,
        "SoC 60 (SC8380XP, V73)",
        "SoC 60 (SC8380XP, V73)",
        None,
    ]
    assert [one["runs_on"] for one in told["stages"]] == ["both", "prompt", "token", "both"]
    # Two layers, keys and values of one head with 16 numbers of 4 bytes, for each of 96 tokens.
    assert told["kv_cache"] == {"types": ["float"], "tensors": 4, "size_bytes": 4 * 96 * 16 * 4}
    assert "0.16.0" not in told["releases"]
    assert told["placement"] is None


def test_inspect_reports_where_the_stages_run_when_it_loads(folders: Folders) -> None:
    told = json.loads(run("inspect", folders("window-qnn"), "--load", "--json").stdout)
    placed = {one["stage"]: one for one in told["placement"]}
    assert placed["context"]["placement"]["qnn_nodes"] > 10
    assert placed["context"]["by_design"]
    assert not placed["lm_head"]["wanted"]
    text = run("inspect", folders("window-qnn"), "--load").stdout
    assert "on the CPU, after optimisation, by design" in text


def test_inspect_shows_the_sliding_layout_and_a_plain_folder(folders: Folders, tmp_path: Path) -> None:
    text = run("inspect", folders("sliding")).stdout
    assert "uint8, 4 tensors" in text
    assert "0.16.0 (tested)" in text
    refused = run("inspect", tmp_path)
    assert refused.returncode == 2
    assert "genai_config.json" in refused.stderr
    assert "Traceback" not in refused.stderr


# --- chat ---


def test_a_conversation_runs_on_the_command_line(folders: Folders) -> None:
    done = run("chat", folders("dynamic"), "--max-tokens", 8, said="hello\n/stats\n/nonsense\n/clear\nagain\n")
    assert done.returncode == 0, done.stderr
    assert "7 of the prompt, 8 of the answer (length)" in done.stdout
    assert "tokens/s" in done.stdout
    assert done.stdout.count("/quit: end") == 2


def test_a_second_turn_reuses_the_first(folders: Folders) -> None:
    done = run("chat", folders("dynamic"), "--max-tokens", 4, "--temperature", 0, said="hello\nmore\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"reused +\d+ tokens of the prompt", done.stdout)


def test_an_error_leaves_the_conversation_unchanged(folders: Folders) -> None:
    done = run("chat", folders("dynamic"), "--max-tokens", 4, said="x" * 500 + "\nhello\n/stats\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "7 of the prompt, 4 of the answer" in done.stdout


def test_an_invalid_byte_or_a_null_character_does_not_end_the_conversation(folders: Folders) -> None:
    done = subprocess.run(
        [*COMMAND, "chat", str(folders("dynamic")), "--max-tokens", "2"],
        input=b"a\xffb\na\0b\n/stats\n",
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"Error: ") == 1
    assert b"Error: A text with a null character cannot be encoded" in done.stderr
    assert b"2 of the answer" in done.stdout


@needs.posix
def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "long", "dynamic", sizes=Sizes(context=30_000))
    process = subprocess.Popen(
        [*COMMAND, "chat", str(folder), "--temperature", "1", "--seed", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        for turn in range(2):
            process.stdin.write(f"question {turn}\n".encode())
            process.stdin.flush()
            assert select.select([process.stdout], [], [], TIMEOUT_S)[0]
            process.send_signal(signal.SIGINT)
            said = b""
            while b"(stopped)\n" not in said:
                part = os.read(process.stdout.fileno(), 65536)
                assert part, said
                said += part
        rest, errors = process.communicate(b"/stats\n/quit\n", timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert b"of the answer (cancelled)" in rest
    assert b"Traceback" not in errors


# --- bench ---


@pytest.mark.parametrize("kind", ["dynamic", "window"])
def test_bench_measures_with_and_without_the_bridge(kind: str, folders: Folders) -> None:
    done = run("bench", "--llm", folders(kind), "--quick", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["ways"]) == {"bridge", "without"}
    assert all(way["tokens_per_second"]["median"] > 1 for way in told["ways"].values())
    assert all(0 < way["first_token_s"]["median"] < TIMEOUT_S for way in told["ways"].values())
    assert told["ways"]["without"]["same_tokens"]
    assert told["notes"] == []


def test_bench_refuses_two_subjects(folders: Folders, tmp_path: Path) -> None:
    done = run("bench", "--llm", folders("dynamic"), "--model", tmp_path / "m.onnx")
    assert done.returncode == 2
    assert "--llm does not go with --model" in done.stderr
