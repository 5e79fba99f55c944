"""Answers from kept generators against onnxruntime_genai in this process, which gets the whole prompt each time."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any

import pytest
from lab.bench import conversations as turns
from lab.walk import conversations as walk
from lab.walk.conversations import CONTEXT
from lab.walk.steps import Wrong

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import OptionError
from qnnbridge.genai import _pool
from tests import needs
from tests.genai.conftest import Folders, prompt
from tests.genai.kills import Killer
from tests.genai.tiny_decoders import Sizes, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator]

pytest.importorskip("onnxruntime_genai")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, host: qnnbridge.Host) -> walk.Pair:
    folder = tmp_path_factory.mktemp("prefix") / "dynamic"
    write_model(folder, "dynamic", sizes=Sizes(context=CONTEXT))
    return walk.Pair(folder, host)


def test_a_turn_processes_only_its_new_tokens(pair: walk.Pair) -> None:
    tokens = prompt(40)
    first = pair.ask(tokens, 8)
    longer = [*tokens, *first.tokens[:-1], *prompt(5, 3)]
    second = pair.ask(longer, 8)
    assert first.cached_tokens == 0
    assert second.cached_tokens == len(tokens) + len(first.tokens) - 1
    assert second.tokens == pair.fresh(longer, 8)
    assert second.stats.replays == 0


def test_the_same_prompt_again_keeps_all_but_its_last_token(pair: walk.Pair) -> None:
    pair.pool.clear()
    tokens = prompt(40, 5)
    first, second = pair.ask(tokens, 8), pair.ask(tokens, 8)
    assert second.cached_tokens == len(tokens) - 1
    assert first.tokens == second.tokens == pair.fresh(tokens, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "seed": 3},
        {"logprobs": 1},
        {"past_present_share_buffer": False},
    ],
    ids=str,
)
def test_a_prompt_that_a_kept_generator_cannot_continue_gets_a_new_one(
    pair: walk.Pair, options: dict[str, Any]
) -> None:
    pair.pool.clear()
    tokens = prompt(20, 9)
    first, second = pair.ask(tokens, 6, **options), pair.ask(tokens, 6, **options)
    assert (second.tokens, second.cached_tokens, len(pair.pool)) == (first.tokens, 0, 0)


def test_an_answer_with_guidance_uses_a_generator_with_the_same_guidance(pair: walk.Pair) -> None:
    pair.pool.clear()
    words, digits = ("regex", "(ab|cd|efg)+[0-9]{3}"), ("regex", "[0-9]{4}x?")
    tokens, cached = prompt(20, 9), []
    for _ in range(3):
        answer, fresh = (pair.ask(tokens, 9, guidance=words, pool=pool) for pool in (pair.pool, None))
        assert (answer.tokens, answer.stats.replays) == (fresh.tokens, 0)
        cached.append(answer.cached_tokens)
        tokens = [*tokens, *answer.tokens[:-2], *prompt(5, 3)]  # stopped within the last answer, and continued
    assert cached == [0, 27, 39]
    other, none = pair.ask(tokens, 9, guidance=digits), pair.ask(tokens, 9)
    assert (other.cached_tokens, none.cached_tokens, len(pair.pool)) == (0, 0, 3)


def test_reading_logits_within_an_answer_does_not_restart_its_grammar(pair: walk.Pair) -> None:
    params = genai.GeneratorParams(pair.there)
    params.set_search_options(max_length=100, do_sample=False)
    params.set_guidance("regex", "abcdefghijklmnop")
    generator, made = genai.Generator(pair.there, params), list[int]()
    generator.append_tokens(prompt(9))
    while not generator.is_done():
        generator.generate_next_token()
        made += map(int, generator.get_next_tokens())
        if len(made) == 4:  # the host has generated more by now
            generator.get_logits()
    assert pair.tokenizer.decode(made) == "abcdefghijklmnop"


def test_prompts_with_different_salts_share_no_generator(pair: walk.Pair) -> None:
    pair.pool.clear()
    tokens = prompt(40, 11)
    first = pair.ask(tokens, 8, cache_salt="ann")
    other, none, same = (pair.ask(tokens, 8, cache_salt=salt) for salt in ("bob", "", "ann"))
    assert (other.cached_tokens, none.cached_tokens, same.cached_tokens) == (0, 0, len(tokens) - 1)
    assert first.tokens == other.tokens == none.tokens == same.tokens


def test_a_pool_keeps_no_more_bytes_than_its_limit(pair: walk.Pair) -> None:
    each = pair.there.info.kv_bytes
    assert each == 4 * CONTEXT * 16 * 4  # four tensors, one head of 16 floats
    pool = genai.GeneratorPool(8, 2 * each + 1)
    for first in (3, 5, 7, 3):  # prompts without a common prefix
        last = pair.ask(prompt(20, first), 4, pool=pool)
    assert (pool.stats.idle, pool.stats.in_use, pool.stats.kept_bytes) == (2, 0, 2 * each)
    assert last.cached_tokens == 0  # the first generator has been released
    again = pair.ask(prompt(20, 3), 4, pool=pool)
    assert (again.cached_tokens, again.tokens) == (19, last.tokens)
    assert (pool.stats.hits, pool.stats.misses, pool.stats.reused_tokens) == (1, 4, 19)
    pool.clear()
    assert pool.stats.kept_bytes == 0


def test_a_model_whose_kv_cache_exceeds_the_pool_answers_as_without_a_pool(pair: walk.Pair) -> None:
    pool = genai.GeneratorPool(8, pair.there.info.kv_bytes - 1)
    for _ in range(2):
        with genai.generate(pair.there, prompt(20), max_tokens=4, temperature=0, pool=pool) as answer:
            list(answer)
            # Unlike a kept generator, this one does not get the whole context.
            assert answer._generator._params.get_search_options()["max_length"] == 24
        assert answer.cached_tokens == 0
    assert pool.stats == genai.PoolStats()


@pytest.mark.parametrize("limits", [{"most": -1}, {"max_bytes": -1}])
def test_negative_limits_of_a_pool_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="is negative"):
        genai.GeneratorPool(**limits)


def test_pipelines_get_new_generators(folders: Folders, host: qnnbridge.Host) -> None:
    model, pool = genai.Model(folders("window"), host=host), genai.GeneratorPool()
    for _ in range(2):
        with genai.generate(model, prompt(20), max_tokens=4, temperature=0, pool=pool) as stream:
            list(stream)
        assert (stream.cached_tokens, len(pool)) == (0, 0)
    model.close()


def test_a_cancelled_or_abandoned_answer_keeps_no_generator(pair: walk.Pair) -> None:
    pair.pool.clear()
    for cancel in (True, False):
        with genai.generate(pair.there, prompt(20), max_tokens=9, temperature=0, pool=pair.pool) as stream:
            next(stream)
            if cancel:
                stream.cancel()
        assert len(pair.pool) == 0


def test_a_late_cancel_does_not_reach_the_next_answer(pair: walk.Pair) -> None:
    pair.pool.clear()
    first = pair.ask(prompt(20), 5)
    first.cancel()
    second = pair.ask(prompt(20), 5)
    assert (second.tokens, second.finish_reason) == (first.tokens, first.finish_reason)
    assert second.cached_tokens == 19


@pytest.mark.timeout(900)  # the long form takes minutes on idle cores
def test_a_random_walk_gives_the_tokens_of_new_generators(tmp_path: Path) -> None:
    """Walk in a host, in a host that is killed, and through a daemon; also with adapters, guidance, seeds and
    cancels.
    """
    counts = walk.conversations(needs.length(1_000, 5_000), 7, tmp_path / "model")
    print(counts)
    assert counts.compared >= needs.length(1_000, 5_000)
    assert min(counts.cached, counts.kills, counts.cancelled) > 0


@pytest.mark.parametrize("left_out", ["guidance", "search"])
def test_the_random_walk_detects_a_pool_that_mixes_generators_up(
    pair: walk.Pair, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fits(kept: Any, model: Any, params: Any, salt: str) -> bool:
        asked = {"guidance": params._guidance, "search": params._search}
        del asked[left_out]
        return all(getattr(kept, name) == value for name, value in asked.items())

    monkeypatch.setattr(_pool._Kept, "fits", fits)
    pair.pool.clear()
    with pytest.raises(Wrong):
        walk.walk([walk.Client(pair, 1)], 3_000)


def test_twenty_conversations_share_four_generators(pair: walk.Pair) -> None:
    pair.pool.clear()
    most: list[int] = []

    def talk(number: int) -> None:
        tokens = prompt(10 + number, number)
        for turn in range(3):
            answer = pair.ask(tokens, 6)
            assert answer.tokens == pair.fresh(tokens, 6)
            most.append(len(pair.pool))
            tokens = [*tokens, *answer.tokens, *prompt(4, turn)]

    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        for one in [threads.submit(talk, number) for number in range(20)]:
            one.result(timeout=300)
    assert max(most) <= 4


def test_a_crash_of_the_host_loses_the_kv_cache_and_not_the_conversation(pair: walk.Pair) -> None:
    with qnnbridge.Host() as host:
        own, killer = walk.Pair(pair.folder, host), Killer(host)
        tokens = prompt(30)
        first = own.ask(tokens, 6)
        killer.kill()
        longer = [*tokens, *first.tokens, *prompt(5)]
        second = own.ask(longer, 6)
        assert (second.tokens, second.cached_tokens) == (own.fresh(longer, 6), 0)


def test_the_first_token_of_turn_ten_comes_five_times_earlier(tmp_path: Path, host: qnnbridge.Host) -> None:
    figures = turns.measure(tmp_path / "slow", host, needs.length(2, 9))
    print(figures)
    assert figures["turn tokens"] > 1_900
    assert figures["turn new"] > 5 * figures["turn kept"]
