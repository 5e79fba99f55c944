"""Answers from kept generators against onnxruntime_genai in this process, which gets the whole prompt each time."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.bench import conversations

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import OptionError
from tests import needs
from tests.genai.conftest import Folders, prompt
from tests.genai.kills import Killer
from tests.genai.tiny_decoders import Sizes, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator]

og = pytest.importorskip("onnxruntime_genai")

CONTEXT = 512


class Pair:
    """The model here and in the host."""

    def __init__(self, folder: Path, host: qnnbridge.Host) -> None:
        self.folder = folder
        self.there, self.here = genai.Model(folder, host=host), og.Model(str(folder))
        self.tokenizer = genai.Tokenizer(self.there)
        self.pool = genai.GeneratorPool(4)

    def fresh(self, tokens: Sequence[int], count: int, **search: Any) -> list[int]:
        """The answer of a new generator of onnxruntime_genai."""
        params = og.GeneratorParams(self.here)
        params.set_search_options(max_length=len(tokens) + count, **search)
        generator = og.Generator(self.here, params)
        generator.append_tokens(np.array(tokens, np.int32))
        made: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            made.append(int(generator.get_next_tokens()[0]))
        return made

    def ask(self, tokens: Sequence[int], count: int, **options: Any) -> genai.TextStream:
        """A finished answer with the pool."""
        given = {"temperature": 0, "pool": self.pool, **options}
        with genai.generate(self.there, tokens, tokenizer=self.tokenizer, max_tokens=count, **given) as stream:
            for _ in stream:
                pass
        return stream


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, host: qnnbridge.Host) -> Pair:
    folder = tmp_path_factory.mktemp("prefix") / "dynamic"
    write_model(folder, "dynamic", sizes=Sizes(context=CONTEXT))
    return Pair(folder, host)


def test_a_turn_processes_only_its_new_tokens(pair: Pair) -> None:
    tokens = prompt(40)
    first = pair.ask(tokens, 8)
    longer = [*tokens, *first.tokens[:-1], *prompt(5, 3)]
    second = pair.ask(longer, 8)
    assert first.cached_tokens == 0
    assert second.cached_tokens == len(tokens) + len(first.tokens) - 1
    assert second.tokens == pair.fresh(longer, 8)
    assert second.stats.replays == 0


def test_the_same_prompt_again_keeps_all_but_its_last_token(pair: Pair) -> None:
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
        {"num_beams": 2},
        {"past_present_share_buffer": False},
    ],
    ids=str,
)
def test_what_a_kept_generator_cannot_repeat_gets_a_new_one(pair: Pair, options: dict[str, Any]) -> None:
    pair.pool.clear()
    tokens = prompt(20, 9)
    first, second = pair.ask(tokens, 6, **options), pair.ask(tokens, 6, **options)
    assert (second.tokens, second.cached_tokens, len(pair.pool)) == (first.tokens, 0, 0)


def test_an_answer_with_guidance_takes_a_generator_with_the_same_guidance(pair: Pair) -> None:
    pair.pool.clear()
    words, digits = ("regex", "(ab|cd|efg)+[0-9]{3}"), ("regex", "[0-9]{4}x?")
    tokens, cached = prompt(20, 9), []
    for _ in range(3):
        answer, fresh = (pair.ask(tokens, 9, guidance=words, pool=pool) for pool in (pair.pool, None))
        assert (answer.tokens, answer.stats.replays) == (fresh.tokens, 0)
        cached.append(answer.cached_tokens)
        tokens = [*tokens, *answer.tokens[:-2], *prompt(5, 3)]  # cut within the last answer, and goes on
    assert cached == [0, 27, 39]
    other, none = pair.ask(tokens, 9, guidance=digits), pair.ask(tokens, 9)
    assert (other.cached_tokens, none.cached_tokens, len(pair.pool)) == (0, 0, 3)


def test_a_look_at_logits_within_an_answer_does_not_begin_its_grammar_again(pair: Pair) -> None:
    params = genai.GeneratorParams(pair.there)
    params.set_search_options(max_length=100, do_sample=False)
    params.set_guidance("regex", "abcdefghijklmnop")
    generator, made = genai.Generator(pair.there, params), list[int]()
    generator.append_tokens(prompt(9))
    while not generator.is_done():
        generator.generate_next_token()
        made += map(int, generator.get_next_tokens())
        if len(made) == 4:  # the host has made more by now
            generator.get_logits()
    assert pair.tokenizer.decode(made) == "abcdefghijklmnop"


def test_prompts_with_another_salt_share_no_generator(pair: Pair) -> None:
    pair.pool.clear()
    tokens = prompt(40, 11)
    first = pair.ask(tokens, 8, cache_salt="ann")
    other, none, same = (pair.ask(tokens, 8, cache_salt=salt) for salt in ("bob", "", "ann"))
    assert (other.cached_tokens, none.cached_tokens, same.cached_tokens) == (0, 0, len(tokens) - 1)
    assert first.tokens == other.tokens == none.tokens == same.tokens


def test_a_pool_keeps_no_more_bytes_than_it_may(pair: Pair) -> None:
    each = pair.there.info.kv_bytes
    assert each == 4 * CONTEXT * 16 * 4  # four tensors, one head of 16 floats
    pool = genai.GeneratorPool(8, 2 * each + 1)
    for first in (3, 5, 7, 3):  # prompts that have nothing in common
        last = pair.ask(prompt(20, first), 4, pool=pool)
    assert (pool.stats.idle, pool.stats.in_use, pool.stats.kept_bytes) == (2, 0, 2 * each)
    assert last.cached_tokens == 0  # the first one has made room
    again = pair.ask(prompt(20, 3), 4, pool=pool)
    assert (again.cached_tokens, again.tokens) == (19, last.tokens)
    assert (pool.stats.hits, pool.stats.misses, pool.stats.reused_tokens) == (1, 4, 19)
    pool.clear()
    assert pool.stats.kept_bytes == 0


def test_a_model_whose_cache_is_larger_than_the_pool_has_its_answers_as_without_a_pool(pair: Pair) -> None:
    pool = genai.GeneratorPool(8, pair.there.info.kv_bytes - 1)
    for _ in range(2):
        with genai.generate(pair.there, prompt(20), max_tokens=4, temperature=0, pool=pool) as answer:
            list(answer)
            # Not the whole context, as a kept generator has.
            assert answer._generator._params.get_search_options()["max_length"] == 24
        assert answer.cached_tokens == 0
    assert pool.stats == genai.PoolStats()


@pytest.mark.parametrize("limits", [{"most": -1}, {"max_bytes": -1}])
def test_limits_below_none_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="less than none"):
        genai.GeneratorPool(**limits)


def test_pipelines_get_new_generators(folders: Folders, host: qnnbridge.Host) -> None:
    model, pool = genai.Model(folders("window"), host=host), genai.GeneratorPool()
    for _ in range(2):
        with genai.generate(model, prompt(20), max_tokens=4, temperature=0, pool=pool) as stream:
            list(stream)
        assert (stream.cached_tokens, len(pool)) == (0, 0)
    model.close()


def test_a_cancelled_answer_and_one_left_early_keep_no_generator(pair: Pair) -> None:
    pair.pool.clear()
    for cancel in (True, False):
        with genai.generate(pair.there, prompt(20), max_tokens=9, temperature=0, pool=pair.pool) as stream:
            next(stream)
            if cancel:
                stream.cancel()
        assert len(pair.pool) == 0


def test_a_late_cancel_does_not_reach_the_next_answer(pair: Pair) -> None:
    pair.pool.clear()
    first = pair.ask(prompt(20), 5)
    first.cancel()
    second = pair.ask(prompt(20), 5)
    assert (second.tokens, second.finish_reason) == (first.tokens, first.finish_reason)
    assert second.cached_tokens == 19


class Walk:
    """Conversations that grow, branch, are cut, change parameters, are cancelled and outlive the host."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self.chance, self.tokens = pair, random.Random(seed), 0
        self.cached = 0
        self.talks: list[list[int]] = [prompt(12, seed)]

    def step(self, killer: Killer | None = None) -> None:
        chance, pair = self.chance, self.pair
        talk = list(chance.choice(self.talks))
        if chance.random() < 0.25:
            talk = talk[: chance.randint(1, len(talk))]
        if len(talk) > CONTEXT - 60:
            talk = talk[:20]
        talk += [chance.randint(4, 280) for _ in range(chance.randint(1, 12))]
        count = chance.randint(1, 24)
        if chance.random() < 0.1:
            with genai.generate(pair.there, talk, max_tokens=count, temperature=0, pool=pair.pool) as stream:
                next(stream, None)
                stream.cancel()
        if killer is not None and chance.random() < 0.1:
            killer.kill()
        search = {"repetition_penalty": 1.3} if chance.random() < 0.3 else {}
        answer = pair.ask(talk, count, **search)
        assert answer.tokens == pair.fresh(talk, count, do_sample=False, **search), (talk, count, search)
        self.tokens += len(answer.tokens)
        self.cached += answer.cached_tokens
        self.talks = [*self.talks[-5:], [*talk, *answer.tokens]]


@pytest.mark.timeout(900)  # the long form takes three minutes on two idle cores
def test_a_random_walk_gives_the_tokens_of_new_generators(pair: Pair) -> None:
    total = needs.length(600, 50_000)
    clients = [Walk(pair, seed) for seed in range(3)]

    def walk(client: Walk) -> None:
        while client.tokens < total / len(clients):
            client.step()

    with concurrent.futures.ThreadPoolExecutor(len(clients)) as threads:
        for one in [threads.submit(walk, client) for client in clients]:
            one.result()
    assert sum(client.cached for client in clients) > 0
    assert len(pair.pool) <= 4


def test_twenty_conversations_share_four_generators(pair: Pair) -> None:
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


def test_a_host_that_dies_costs_the_state_and_not_the_conversation(pair: Pair) -> None:
    with qnnbridge.Host() as host:
        die_and_go_on(Pair(pair.folder, host), Killer(host))


def die_and_go_on(own: Pair, killer: Killer) -> None:
    tokens = prompt(30)
    first = own.ask(tokens, 6)
    killer.kill()
    longer = [*tokens, *first.tokens, *prompt(5)]
    second = own.ask(longer, 6)
    assert (second.tokens, second.cached_tokens) == (own.fresh(longer, 6), 0)
    walk = Walk(own, 11)
    while walk.tokens < needs.length(200, 5_000):
        walk.step(killer)
    assert killer.kills > 1
    assert walk.cached > 0


def test_the_first_token_of_turn_ten_comes_five_times_earlier(tmp_path: Path, host: qnnbridge.Host) -> None:
    figures = conversations.measure(tmp_path / "slow", host, needs.length(2, 9))
    print(figures)
    assert figures["turn tokens"] > 1_900
    assert figures["turn new"] > 5 * figures["turn kept"]
