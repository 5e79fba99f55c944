"""Sessions of models that QNN computes wrong are rewritten or warn, also if compiled or from the cache."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lab.sweep.cases import float_model

import qnnbridge
from qnnbridge._session import create as _create
from qnnbridge._session import remote_session
from qnnbridge._session.create import CreateRequest
from qnnbridge_host.model.known_wrong import table
from qnnbridge_host.numerics.cases import Case, feeds_of
from qnnbridge_protocol.shell import fixed_file

pytestmark = [pytest.mark.simulator, pytest.mark.process]
ROW = next(row for row in table() if row.name == "conv-equal-padding")
CHIP = [{"soc_model": "60"}]


def warnings_of(caplog: pytest.LogCaptureFixture, model: Path, **options: object) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING), qnnbridge.InferenceSession(model, fix=False, **options):  # type: ignore[arg-type]
        return [record.message for record in caplog.records if "known to compute" in record.message]


def test_a_session_warns_of_a_known_wrong_operator_with_and_without_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(float_model(Case.from_words(ROW.example)), str(model))
    for cache in (False, True, True):
        (text,) = warnings_of(caplog, model, provider_options=CHIP, cache=cache)
        assert "Conv node0" in text
        assert ROW.says in text
        assert f"qnnbridge fix {model} -o {fixed_file(model)} --only conv-padding" in text
    assert warnings_of(caplog, model, providers=["CPUExecutionProvider"]) == []


@pytest.mark.parametrize("cache", [True, False])
def test_a_known_wrong_operator_is_rewritten_unless_the_application_forbids_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cache: bool
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    case, model = Case.from_words(ROW.example), tmp_path / "m.onnx"
    onnx.save(float_model(case), str(model))
    feeds = feeds_of(case)
    for state in ("miss", "hit") if cache else ("off",):
        caplog.clear()
        with (
            caplog.at_level(logging.INFO, "qnnbridge"),
            qnnbridge.InferenceSession(model, provider_options=CHIP, cache=cache, verify="raise") as session,
        ):
            session.run(None, feeds)
            assert (session.cache.state, session.verified.state) == (state, "agrees")
            assert [line for line in session.fixed if line.startswith("conv-padding")]
        told = [record for record in caplog.records if "known to compute" in record.message]
        assert [record.levelno for record in told] == [logging.INFO]
        assert "Use fix=False to keep them" in told[0].message
    # A model compiled for a session that forbids the rewrite is not used by one that allows it.
    with qnnbridge.InferenceSession(model, provider_options=CHIP, cache=cache, fix=False) as session:
        assert session.fixed == ()
    with qnnbridge.InferenceSession(model, provider_options=CHIP, cache=cache) as session:
        assert session.fixed


def test_a_known_wrong_operator_is_rewritten_in_the_next_host_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request to the next host contains the setting: without it, results would change silently."""
    case, model = Case.from_words(ROW.example), tmp_path / "m.onnx"
    onnx.save(float_model(case), str(model))
    feeds, asked = feeds_of(case), []

    def create(host: Any, process: Any, request: CreateRequest, *arguments: Any) -> Any:
        asked.append(request.spec.fix)
        return _create.create(host, process, request, *arguments)

    monkeypatch.setattr(remote_session, "create", create)
    with (
        qnnbridge.Host() as host,
        qnnbridge.InferenceSession(model, provider_options=CHIP, cache=False, verify="off", host=host) as session,
    ):
        (before,), fixed = session.run(None, feeds), session.fixed
        for _ in range(2):
            host.restart()
            np.testing.assert_array_equal(session.run(None, feeds)[0], before)
            assert session.fixed == fixed
    assert [fix is not None and (fix.when, "conv-padding" in fix.only) for fix in asked] == [
        False,
        ("always", True),
        ("always", True),
    ]


def test_a_size_that_a_session_fixes_is_considered_in_the_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = Case.from_words(ROW.example)
    made = float_model(words)
    length = words.tensors["x"].shape[-1]
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[2].dim_param = "length"
    model = tmp_path / "m.onnx"
    onnx.save(made, str(model))
    for size, count in ((length, 1), (length + 1, 0)):
        options = qnnbridge.SessionOptions()
        options.add_free_dimension_override_by_name("length", size)
        found = warnings_of(caplog, model, provider_options=CHIP, sess_options=options)
        assert len(found) == count
        for text in found:
            # The command contains the size: without it the rewrite finds nothing to change.
            words = shlex.split(text.partition("Fix: run: ")[2].rstrip("."))
            assert words[0] == "qnnbridge"
            command = [sys.executable, "-m", "qnnbridge_tools", *words[1:]]
            subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
            assert warnings_of(caplog, tmp_path / "m_fixed.onnx", provider_options=CHIP) == []


def test_a_compiled_model_with_a_known_wrong_operator_is_delivered_with_a_warning(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(float_model(Case.from_words(ROW.example)), str(model))
    with pytest.raises(qnnbridge.errors.CompileFailed, match="--only conv-padding"):
        qnnbridge.compile(model, tmp_path / "refused", soc_model="60")
    result = qnnbridge.compile(model, tmp_path / "out", soc_model="60", validate=False)
    assert any(ROW.says in text for text in result.warnings)
