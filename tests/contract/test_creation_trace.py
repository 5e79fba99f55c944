"""Bound how often the host calls from one file into another to create a session on a cache miss.

The test counts calls into a file of `STORY` from another file, in the thread that serves `session.create`. Returns,
imports, threads that show progress and the worker do not count.
"""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest

import qnnbridge
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.fakes.hosts import patched_host

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

MODEL = Path(__file__).parents[1] / "models" / "mul_1.onnx"
# Files that take part in the decision: the package `create`, and the files of cache and model that it calls.
STORY = ("create/", "cache/key.py", "model/source.py", "model/compiled_checks.py")
# The code before the package `create` had 13 files and 68 entries. The eleventh file finds optimizers that harm the
# model, for which it reads the model's fingerprint and operators. The twelfth refuses a model before it is
# compiled. The thirteenth chooses the model to load, for which it reads the cache: nine entries. The last two
# entries check whether the results of an earlier session differ.
MOST_FILES = 13
MOST_ENTRIES = 72

TRACED = """
    import json, os, sys
    from qnnbridge_host.create.service import ModelService

    ROOT = os.path.dirname(os.path.dirname(sys.modules[ModelService.__module__].__file__)) + os.sep
    create = ModelService.create

    def place(frame):
        # Bodies of modules and classes have no locals of their own (CO_NEWLOCALS).
        name = frame.f_code.co_filename.removeprefix(ROOT).replace(os.sep, "/")
        return name if frame.f_code.co_flags & 2 and name.startswith(STORY) else None

    def traced(self, request, enter):
        entered = []

        def profile(frame, event, _):
            here, caller = place(frame) if event == "call" else None, frame.f_back
            if here is None:
                return
            while caller is not None and place(caller) is None:
                caller = caller.f_back
            if caller is None or place(caller) != here:
                entered.append(here)

        sys.setprofile(profile)
        try:
            return create(self, request, enter)
        finally:
            sys.setprofile(None)
            with open(OUT, "w") as file:
                json.dump(entered, file)

    ModelService.create = traced
"""


def test_a_cache_miss_is_logged_as_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    out = tmp_path / "entered.json"
    with patched_host(tmp_path, f"    OUT, STORY = {str(out)!r}, {STORY!r}\n{TRACED}") as host:
        providers = [(QNN, {"soc_model": SOC_MODEL})]
        session = qnnbridge.InferenceSession(MODEL, providers=providers, host=host, cache=True)
        assert session.cache.state == "miss"
    entered = collections.Counter(json.loads(out.read_text("utf-8")))
    assert "create/service.py" in entered
    assert "create/lookup.py" in entered
    longer = (
        "The story of a creation got longer. If each step is needed, raise the limit, with the reason above it."
    )
    assert len(entered) <= MOST_FILES, f"{longer} Files: {entered}"
    assert entered.total() <= MOST_ENTRIES, f"{longer} Calls by file: {entered}"
