"""Kept generators of `qnnbridge serve`: twenty concurrent conversations share four of them, and the figures report
this."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from tests import needs
from tests.genai.tiny_decoders import Sizes, write_model

pytest.importorskip("onnxruntime_genai")
openai = needs.package("openai")

pytestmark = pytest.mark.process

CONTEXT = 20_000
# Four tensors, one head of 16 floats.
EACH = 4 * CONTEXT * 16 * 4
KEPT, THREADS, TALKS, TURNS = 4, 8, 20, 3


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_model(tmp_path_factory.mktemp("reuse") / "tiny", "dynamic", sizes=Sizes(context=CONTEXT))
    options = (
        "--host",
        "private",
        "--http",
        "127.0.0.1:0",
        "--keep-generators",
        str(KEPT),
        "--threads",
        str(THREADS),
    )
    with serving(*options, "--llm", f"tiny={folder}", "--keep-bytes", "1G") as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=90) as found:
        yield found


def figures(server: Server) -> dict[str, int]:
    found: dict[str, int] = server.ask("GET", "/status").document["generators"]
    return found


def test_twenty_conversations_share_four_generators(server: Server, client: Any) -> None:
    def talk(number: int, salt: str) -> tuple[list[str], int]:
        messages: list[dict[str, str]] = []
        cached = 0
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"question {turn} of conversation {number} " * 8})
            given = {"model": "tiny", "messages": messages, "max_tokens": 16, "temperature": 0, "user": str(number)}
            answer = client.chat.completions.create(
                **given, extra_body={"cache_salt": salt + str(turn * bool(salt))}
            )
            cached += answer.usage.prompt_tokens_details.cached_tokens
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        return [one["content"] for one in messages[1::2]], cached

    # Each turn has a different salt, so no generator is kept for it.
    alone = [talk(number, "alone ") for number in range(TALKS)]
    assert sum(cached for _, cached in alone) == 0
    before, memory = figures(server), server.host().memory_info().rss
    with ThreadPoolExecutor(TALKS) as pool:
        # Each conversation ends: none waits for another's generator.
        together = list(pool.map(lambda number: talk(number, ""), range(TALKS), timeout=90))
    after = figures(server)
    assert [texts for texts, _ in together] == [texts for texts, _ in alone]
    assert after["idle"] <= KEPT
    assert (after["in_use"], after["kept_bytes"]) == (0, after["idle"] * EACH)
    asked = after["hits"] + after["misses"] - before["hits"] - before["misses"]
    assert asked == TALKS * TURNS
    assert after["reused_tokens"] - before["reused_tokens"] == sum(cached for _, cached in together)
    # At most the kept generators and those of running answers are added to the earlier memory.
    assert server.host().memory_info().rss - memory < (KEPT + THREADS + 2) * EACH + (64 << 20)


def test_metrics_count_kept_generators(server: Server, client: Any) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    given = {"model": "tiny", "messages": [{"role": "user", "content": "the sea " * 20}], "max_tokens": 4}
    before = figures(server)
    cached = [
        client.chat.completions.create(**given, temperature=0).usage.prompt_tokens_details.cached_tokens
        for _ in range(2)
    ]
    after = figures(server)
    assert cached[0] == 0 < cached[1]
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1)
    assert after["reused_tokens"] - before["reused_tokens"] == cached[1]
    assert set(after) == {"idle", "in_use", "kept_bytes", "hits", "misses", "reused_tokens"}
    text = server.ask("GET", "/metrics").body.decode()
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["qnnbridge_llm_generators", "idle"] == after["idle"]
    assert values["qnnbridge_llm_generators", "in_use"] == 0
    assert values["qnnbridge_llm_generators_kv_bytes",] == after["kept_bytes"]
    assert values["qnnbridge_llm_prefixes_total", "hit"] == after["hits"]
    assert values["qnnbridge_llm_prefixes_total", "miss"] == after["misses"]


def test_a_kv_cache_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny", "dynamic", sizes=Sizes(context=CONTEXT))
    options = ("--host", "private", "--http", "127.0.0.1:0", "--llm", f"tiny={folder}", "--keep-bytes", "1M")
    with serving(*options) as server:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
            "temperature": 0,
        }
        for _ in range(2):
            usage = server.ask("POST", "/v1/chat/completions", body).document["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert set(figures(server).values()) == {0}
