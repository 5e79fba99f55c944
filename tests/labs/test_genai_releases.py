"""Generation with older releases of onnxruntime-genai in the host; some run the sliding layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import demand
from tests.genai.conftest import Folders, folders, prompt
from tests.genai.kills import run
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import PAD

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import GenerationUnsupported, PromptRefused
from qnnbridge_host.model.genai_folder import beside_table, is_untried, refusal

__all__ = ["folders"]

pytestmark = [pytest.mark.process, pytest.mark.simulator]

VERSIONS = ["0.13.2", "0.15.2", "0.16.0"]


@pytest.fixture(scope="module", params=VERSIONS)
def old_host(request: pytest.FixtureRequest) -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(python=demand(f"genai/{request.param}/bin/python", "setup_genai.sh")) as host:
        host.start()
        yield host


def generate(one: genai.Generator, count: int) -> list[int]:
    made = []
    for _ in range(count):
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


def begin(model: genai.Model, tokens: list[int], **options: object) -> genai.Generator:
    params = genai.GeneratorParams(model)
    params.set_search_options(**options)
    one = genai.Generator(model, params)
    one.append_tokens(tokens)
    return one


@pytest.mark.parametrize("kind", ["dynamic", "window-qnn", "sliding", "sliding-qnn"])
def test_every_layout_and_the_crash_table_work_with_each_release(
    kind: str, old_host: qnnbridge.Host, folders: Folders
) -> None:
    version = str(old_host.info.executable).split("/")[-3]
    assert version in VERSIONS
    layout: Any = kind.removesuffix("-qnn")
    if refusal(layout, version) is not None:
        with pytest.raises(GenerationUnsupported, match=f"{version} cannot run"):
            genai.Model(folders(kind), host=old_host)
        return
    model, truth = genai.Model(folders(kind), host=old_host), PlainLoop(folders(kind))
    assert model.info.genai == version
    short = begin(model, prompt(5), max_length=20)
    made = generate(short, 15)
    assert short.is_done()
    assert made == truth.generate(prompt(5), 15)
    one = begin(model, prompt(10))
    first = generate(one, 5)
    one.append_tokens(prompt(8, 11))
    assert generate(one, 8) == truth.generate([*prompt(10), *first, *prompt(8, 11)], 8)
    long = begin(model, prompt(70))
    assert len(generate(long, 26)) == 26
    assert long.is_done()
    assert old_host.stats.crashes == 0


@pytest.mark.parametrize("kind", ["dynamic", "window-qnn"])
def test_the_newest_release_in_the_index_works(
    kind: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that the table lacks is tried in a worker first; the tokens are right in either case."""
    python = demand("genai/newest/bin/python", "setup_genai.sh")
    monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path))
    with qnnbridge.Host(python=python) as host:
        model, truth = genai.Model(folders(kind), host=host), PlainLoop(folders(kind))
        assert generate(begin(model, prompt(9)), 12) == truth.generate(prompt(9), 12)
        tried = [text for text in model.info.notes if beside_table(model.info.genai) in text]
        assert bool(tried) is is_untried(model.info.genai)
        assert host.stats.crashes == 0


def test_a_prompt_with_pad_tokens_is_refused(old_host: qnnbridge.Host, folders: Folders) -> None:
    model = genai.Model(folders("sliding"), host=old_host)
    for tokens in ([PAD] * 4, [PAD, 5, 6]):
        with pytest.raises(PromptRefused, match="pad token 0"):
            begin(model, tokens)
    assert len(generate(begin(model, [7, 5, 6]), 4)) == 4


def test_kills_with_the_sliding_layout_change_no_token(folders: Folders) -> None:
    python = demand("genai/0.15.2/bin/python", "setup_genai.sh")
    told = run(folders("sliding-qnn"), generations=6, kills=4, tokens=16, seed=2, python=python)
    assert (told.equal, told.kills) == (6, 4)
