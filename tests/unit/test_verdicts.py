"""Verdicts on results are stored by key, bounded in number and age, and never cause an error."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qnnbridge._session import SessionRecipe
from qnnbridge._session.numbers_check import numbers_differ
from qnnbridge_host.cache import memo
from qnnbridge_host.cache.files import SCHEMA
from qnnbridge_host.cache.memo import MAX_ATTEMPTS, Verdicts
from qnnbridge_host.serve import numbers_service
from qnnbridge_protocol.model_records import MADE_UP, NumbersReport, OutputNumbers
from qnnbridge_protocol.specs import FixSpec, ProviderSpec, SessionSpec

BAD = OutputNumbers("differs", 100, 3.5, 2.0, 0.5, 0.7, output="y")
REPORT = NumbersReport(
    "differs", (BAD,), "the inputs of a call", "y is wrong", 0.4, time.time(), cause="Pad", calls=9, compared=3
)
GOOD = OutputNumbers("agrees", 100, 44.0, 0.01, 0.01, 0.0, output="y")
AGREES = NumbersReport("agrees", (GOOD,), "the inputs of a call", seconds=0.4, when=time.time())


def test_a_stored_verdict_is_read_back_and_marked_as_kept(tmp_path: Path) -> None:
    Verdicts(tmp_path).write("key", REPORT)
    assert Verdicts(tmp_path).read("key") == dataclasses.replace(REPORT, kept=True)
    assert Verdicts(tmp_path).read("other") is None


def test_a_verdict_by_other_rules_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Verdicts(tmp_path).write("key", REPORT)
    monkeypatch.setattr(memo, "RULES", memo.RULES + 1)
    assert Verdicts(tmp_path).read("key") is None


def test_comparisons_are_added_up_and_a_difference_is_kept(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.add("key", AGREES, 1)
    worse = dataclasses.replace(AGREES, outputs=(dataclasses.replace(GOOD, snr_db=31.0),))
    kept.add("key", worse, 2)
    kept.add("key", AGREES, 3)
    kept.count("key", 994)
    found = kept.read("key")
    assert found is not None
    assert (found.state, found.snr_db, found.calls, found.compared) == ("agrees", 31.0, 1000, 3)
    assert str(found).startswith("agrees on 3 of 1,000 calls")
    kept.add("key", dataclasses.replace(REPORT, calls=0, compared=0), 1)
    kept.add("key", AGREES, 1)
    found = kept.read("key")
    assert found is not None
    assert (found.state, found.cause, found.calls, found.compared) == ("differs", "Pad", 1002, 5)


def test_a_real_call_overrides_a_difference_of_generated_inputs(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.add("key", dataclasses.replace(REPORT, inputs=MADE_UP), 1)
    assert kept.add("key", AGREES, 1).state == "agrees"


def test_an_inconclusive_comparison_does_not_change_the_verdict(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.add("key", AGREES, 1)
    assert kept.add("key", NumbersReport("unknown", reason="NaN", when=time.time()), 1).state == "agrees"


@pytest.mark.parametrize(("compared", "next_call"), [(0, 1), (1, 2), (2, 4), (5, 32), (10**9, 2**53)])
def test_comparisons_become_less_frequent(compared: int, next_call: int) -> None:
    assert dataclasses.replace(AGREES, compared=compared).next_call == next_call


def test_a_record_of_an_earlier_version_counts_as_one_compared_call(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    old = {name: value for name, value in AGREES.to_wire().items() if name not in ("calls", "compared")}
    kept._write("key", {"schema": SCHEMA, "rules": memo.RULES, "report": old})
    assert kept.read("key") == dataclasses.replace(AGREES, kept=True, calls=1, compared=1)


def test_unknown_fields_in_a_record_are_ignored() -> None:
    wire = {**AGREES.to_wire(), "added_later": 5}
    assert NumbersReport.from_wire(wire) == AGREES


def test_an_attempt_does_not_change_the_verdict(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.write("key", REPORT)
    assert kept.begin("key")
    assert kept.read("key") == dataclasses.replace(REPORT, kept=True)


@pytest.mark.process
def test_no_process_overwrites_a_difference_of_another(tmp_path: Path) -> None:
    """Each of four processes adds comparisons that agree; one of them adds a single one that differs."""
    program = """if True:
        import sys
        from pathlib import Path
        from qnnbridge_host.cache import memo
        from qnnbridge_host.cache.memo import Verdicts
        from qnnbridge_protocol.model_records import MADE_UP, NumbersReport, OutputNumbers
        import time
        memo.LOCK_WAIT_S = 60  # on a busy machine a process would give up the lock and not count its comparison
        kept = Verdicts(Path(sys.argv[1]))
        for number in range(25):
            state = "differs" if (sys.argv[2], number) == ("2", 12) else "agrees"
            one = OutputNumbers(state, 100, 40.0, output="y")
            kept.add("key", NumbersReport(state, (one,), "a call", when=time.time()), 2)
    """
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(one)]) for one in range(4)]
    assert [process.wait(60) for process in running] == [0] * 4
    found = Verdicts(tmp_path).read("key")
    assert found is not None
    assert (found.state, found.compared, found.calls) == ("differs", 100, 200)


def test_an_infinite_difference_survives(tmp_path: Path) -> None:
    lost = dataclasses.replace(BAD, max_relative=float("inf"), lost=3)
    Verdicts(tmp_path).write("key", dataclasses.replace(REPORT, outputs=(lost,)))
    found = Verdicts(tmp_path).read("key")
    assert found is not None
    assert found.outputs == (lost,)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"sha256": "0", "content": {}}', b"\xff" * 100])
def test_a_damaged_verdict_is_ignored(content: bytes, tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.write("key", REPORT)
    (tmp_path / "verdicts" / "key.json").write_bytes(content)
    assert kept.read("key") is None
    assert kept.begin("key")


def test_an_expired_verdict_is_ignored(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    kept.write("key", dataclasses.replace(REPORT, when=time.time() - memo.VERDICTS_MAX_AGE_S - 1))
    assert kept.read("key") is None


def test_comparisons_that_never_finish_are_not_started_forever(tmp_path: Path) -> None:
    kept = Verdicts(tmp_path)
    assert [kept.begin("key") for _ in range(MAX_ATTEMPTS + 1)] == [True] * MAX_ATTEMPTS + [False]
    assert kept.read("key") is None
    kept.write("key", REPORT)
    assert kept.begin("key"), "one that came to an end counts anew"


def test_the_oldest_verdicts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "MAX_VERDICTS", 3)
    kept = Verdicts(tmp_path)
    for number in range(5):
        kept.write(f"key{number}", REPORT)
        time.sleep(0.01)
    assert kept.keys() == ["key2", "key3", "key4"]
    assert kept.remove("key3")
    assert not kept.remove("key3")


def test_a_folder_that_cannot_be_written_only_prevents_storing_verdicts(tmp_path: Path) -> None:
    (tmp_path / "verdicts").write_text("a file")
    kept = Verdicts(tmp_path)
    kept.write("key", REPORT)
    assert kept.begin("key")
    assert (kept.read("key"), kept.keys()) == (None, [])


def test_a_model_that_does_not_fit_into_memory_is_not_loaded_for_a_comparison() -> None:
    assert numbers_service._too_large(0) == ""
    assert "MiB are free" in numbers_service._too_large(1 << 60)


def test_the_suggested_command_compares_the_file_with_the_sizes_and_chip_of_the_session() -> None:
    providers = (ProviderSpec("QNNExecutionProvider", {"soc_model": "88"}),)
    sizes = {"batch": 4, "seq len": 32}
    spec = SessionSpec("/models/my bert.onnx", providers, free_dimensions_by_name=sizes)
    words = shlex.split(SessionRecipe(spec).command("verify"))
    assert words == [
        *("qnnbridge", "verify", "/models/my bert.onnx", "--dim", "batch=4", "--dim", "seq len=32"),
        *("--soc-model", "88"),
    ]
    report = NumbersReport("differs", reason="y: SNR 3.5 dB")
    assert "qnnbridge verify '/models/my bert.onnx' --dim batch=4" in (
        numbers_differ(SessionRecipe(spec), report).fix or ""
    )
    in_memory = SessionRecipe(SessionSpec(None, providers), data=b"model")
    assert in_memory.command("verify") == ""
    assert "Save the model to a file" in (numbers_differ(in_memory, report).fix or "")


def test_the_fix_for_a_session_without_rewrites_suggests_to_allow_them() -> None:
    report = NumbersReport(
        "differs", reason="y: SNR 3.5 dB", cause="AveragePool is wrong; run: qnnbridge fix m.onnx"
    )
    for fix, advised in ((FixSpec(when="never"), True), (None, False), (FixSpec(when="refused"), False)):
        error = numbers_differ(SessionRecipe(SessionSpec("/m.onnx", (), fix=fix)), report)
        assert ("without fix=False" in (error.fix or "")) is advised


def test_a_finished_comparison_resets_its_attempts_and_keeps_the_verdict(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    for _ in range(3 * MAX_ATTEMPTS):
        assert verdicts.begin("k")
        verdicts.ended("k")
    verdicts.add("k", NumbersReport("agrees", when=time.time()), 1)
    assert verdicts.begin("k")
    verdicts.ended("k")
    report = verdicts.read("k")
    assert report is not None
    assert report.state == "agrees"
    for _ in range(MAX_ATTEMPTS):
        verdicts.begin("k")
    assert not verdicts.begin("k"), "none of them came to an end"
