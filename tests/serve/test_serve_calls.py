"""Function calls with the templates of known families: several per answer, in streams, with three client libraries."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from call_templates import TEMPLATES, write_calling_model
from serving import Server, serving
from tests import needs

from qnnbridge_serve.openai_tools import MOST_CALLS, CallForm, CallReader, grammar_of, learn_form, read_tools

pytest.importorskip("onnxruntime_genai")
openai = needs.package("openai")

pytestmark = pytest.mark.process

PRIVATE = ("--host", "private", "--http", "127.0.0.1:0")
HELLO = [{"role": "user", "content": "hello"}]
PLACES, DAYS, TEXTS = ["Oslo", "Lima"], [1, 2], ['a "}{" b', "c\\]"]
# All templates except that of Llama write several calls in one answer.
SEVERAL = ("qwen2.5", "qwen3", "mistral")


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": schema}}


TOOLS = [function("weather", place={"enum": PLACES}, days={"enum": DAYS}), function("say", text={"enum": TEXTS})]
FITS = {
    "weather": [{"place": place, "days": days} for place in PLACES for days in DAYS],
    "say": [{"text": text} for text in TEXTS],
}


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("calls")
    folders = {name: write_calling_model(root / name, name, end=-5.0) for name in TEMPLATES}
    named = [option for name, folder in folders.items() for option in ("--llm", f"{name}={folder}")]
    with serving(*PRIVATE, *named) as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=90) as found:
        yield found


def chat(client: Any, model: str, **options: Any) -> Any:
    given = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_tokens": 1200, **options}
    return client.chat.completions.create(model=model, **given)


def checked(choice: Any) -> list[tuple[str, Any]]:
    """Return name and arguments of each call, which must match their schemas."""
    calls = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert len({one.id for one in calls}) == len(calls)
    found = [(one.function.name, json.loads(one.function.arguments)) for one in calls]
    assert all(arguments in FITS[name] for name, arguments in found)
    return found


# --- call syntax ---

FORMS = {
    "qwen2.5": CallForm(
        ('<tool_call>\n{"name": "',),
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        ("}\n</tool_call>",),
        ('\n<tool_call>\n{"name": "',),
        (),
        (", ", ": "),
    ),
    "llama3.1": CallForm(('{"name": "',), '{"name": "', '", "parameters": ', (), None, ("}",), (", ", ": ")),
    "mistral": CallForm(
        (9, ' [{"name": "'),
        '[TOOL_CALLS] [{"name": "',
        '", "arguments": ',
        ("}",),
        (', {"name": "',),
        ("]",),
        (", ", ": "),
        short_ids=True,
    ),
}
FORMS["qwen3"] = FORMS["qwen2.5"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_call_syntax_of_known_templates_is_learned(name: str) -> None:
    jinja2 = pytest.importorskip("jinja2")

    def refuse(message: str) -> None:
        from qnnbridge_serve.errors import Refused

        raise Refused(400, message)

    environment = jinja2.Environment()
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # as in Transformers
    template = environment.from_string(TEMPLATES[name][0])

    def render(messages: str, tools: str | None, add: bool) -> str:
        given = None if tools is None else json.loads(tools)
        return str(
            template.render(
                messages=json.loads(messages), tools=given, add_generation_prompt=add, raise_exception=refuse
            )
        )

    assert learn_form(render, {"[TOOL_CALLS]": 9, "</s>": 1}.get, json.dumps(TOOLS)) == FORMS[name]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_several_calls_are_parsed_from_pieces_of_any_size(name: str, size: int) -> None:
    use, form = read_tools({"tools": TOOLS}), FORMS[name]
    assert use is not None
    wanted = [("say", '{"text": "a \\"}{\\" b"}'), ("weather", '{"days": 1}'), ("say", '{"x": [{}, "]}"]}')]
    calls = [function + form.between + arguments + "".join(map(str, form.after)) for function, arguments in wanted]
    answer = form.shown + "".join(map(str, form.more or ())).join(calls) + "".join(map(str, form.end))
    reader = CallReader(form, use)
    found = list(reader.feed("well "))
    for at in range(0, len(answer), size):
        found += reader.feed(answer[at : at + size], special=form.special is not None and at == 0)
        assert not reader.complete or at + size >= len(form.shown + calls[0]) - len("".join(map(str, form.after)))
    found += reader.end()
    by_kind = [
        (key, "".join(text for _, text in some)) for key, some in itertools.groupby(found, lambda one: one[0])
    ]
    assert by_kind[0][1].strip() == "well"
    assert by_kind[1:] == [part for one in wanted for part in (("name", one[0]), ("arguments", one[1]))]
    assert reader.complete


def test_a_truncated_call_is_not_a_complete_answer() -> None:
    use, form = read_tools({"tools": TOOLS, "tool_choice": "required"}), FORMS["qwen2.5"]
    assert use is not None
    reader = CallReader(form, use)
    for piece, complete in (
        (form.shown + "say" + form.between + "{}", True),
        ('}\n</tool_call>\n<tool_call>\n{"name": "', True),
        ("say" + form.between, False),
        ('{"text', False),
        ('": 1}', True),
    ):
        list(reader.feed(piece))
        assert reader.complete is complete


def test_the_grammar_allows_parallel_calls_if_they_are_requested() -> None:
    def grammar(**fields: Any) -> str:
        use = read_tools({"tools": TOOLS, **fields})
        assert use is not None
        return grammar_of(FORMS["qwen2.5"], use)

    named = {"type": "function", "function": {"name": "say"}}
    assert f"more{{0,{MOST_CALLS - 1}}}" in grammar()
    assert f"more{{0,{MOST_CALLS - 1}}}" in grammar(parallel_tool_calls=True, tool_choice="required")
    assert "more" not in grammar(parallel_tool_calls=False)
    assert "more" not in grammar(tool_choice=named)


# --- answers ---


@pytest.mark.parametrize("model", SEVERAL)
def test_an_answer_has_several_calls_with_valid_arguments(client: Any, model: str) -> None:
    counts = {len(checked(chat(client, model, temperature=1.2, seed=seed).choices[0])) for seed in range(5)}
    assert max(counts) > 1
    assert max(counts) <= MOST_CALLS
    for options in (
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ):
        for seed in range(3):
            one = checked(chat(client, model, temperature=1.2, seed=seed, **options).choices[0])
            assert len(one) == 1
            assert "tool_choice" not in options or one[0][0] == "weather"


def test_a_template_with_one_call_per_answer_allows_only_one_call(client: Any) -> None:
    for seed in range(3):
        assert len(checked(chat(client, "llama3.1", temperature=1.2, seed=seed).choices[0])) == 1


def test_calls_after_a_text_are_parsed(client: Any) -> None:
    options = {"tool_choice": "auto", "temperature": 1.2, "max_tokens": 3000}
    answers = [chat(client, "mistral", seed=seed, **options).choices[0] for seed in range(4)]
    some = [one for one in answers if one.message.tool_calls]
    assert some
    for one in some:
        assert one.message.content is None or "TOOL_CALLS" not in one.message.content
        assert len(checked(one)) > 1


@pytest.mark.parametrize("model", SEVERAL)
def test_a_stream_has_the_calls_of_the_complete_answer_by_index(client: Any, model: str) -> None:
    options = {"temperature": 1.2, "seed": 4}
    whole = checked(chat(client, model, **options).choices[0])
    assert len(whole) > 1
    calls: list[dict[str, str]] = []
    for part in chat(client, model, **options, stream=True):
        for call in part.choices[0].delta.tool_calls or ():
            if call.id:
                assert call.index == len(calls)
                calls.append({"name": call.function.name, "arguments": ""})
            assert call.index == len(calls) - 1
            calls[-1]["arguments"] += call.function.arguments
    assert [(one["name"], json.loads(one["arguments"])) for one in calls] == whole
    # The library's own reader of streams finds the same.
    given = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_tokens": 1200, **options}
    with client.chat.completions.stream(model=model, **given) as stream:
        assert checked(stream.get_final_completion().choices[0]) == whole


def test_several_answers_number_their_calls_separately(client: Any) -> None:
    options = {"temperature": 1.2, "seed": 3, "n": 2}
    whole = [checked(one) for one in chat(client, "qwen2.5", **options).choices]
    counts: dict[int, set[int]] = {0: set(), 1: set()}
    for part in chat(client, "qwen2.5", **options, stream=True):
        choice = part.choices[0]
        counts[choice.index] |= {call.index for call in choice.delta.tool_calls or ()}
    assert [counts[number] for number in (0, 1)] == [set(range(len(one))) for one in whole]


def test_responses_have_an_item_for_each_call(client: Any) -> None:
    tools = [{"type": "function", **one["function"]} for one in TOOLS]
    given = {"model": "qwen2.5", "input": "hello", "tools": tools, "tool_choice": "required", "temperature": 1.2}
    found = client.responses.create(**given, max_output_tokens=1200, extra_body={"seed": 4})
    assert len(found.output) > 1
    assert found.parallel_tool_calls is True
    for one in found.output:
        assert (one.type, one.status) == ("function_call", "completed")
        assert json.loads(one.arguments) in FITS[one.name]
    events = list(client.responses.create(**given, max_output_tokens=1200, extra_body={"seed": 4}, stream=True))
    added = [one.output_index for one in events if one.type == "response.output_item.added"]
    assert added == list(range(len(found.output)))
    alone = client.responses.create(**given, max_output_tokens=1200, parallel_tool_calls=False)
    assert (len(alone.output), alone.parallel_tool_calls) == (1, False)


# --- conversations ---


@pytest.mark.parametrize("model", TEMPLATES)
def test_results_are_sent_back_and_the_conversation_reuses_its_prefix(client: Any, model: str) -> None:
    messages: list[Any] = [*HELLO]
    options: dict[str, Any] = {"temperature": 0}
    if model == "mistral":  # this tiny model generates as many calls as allowed
        options["parallel_tool_calls"] = False
    reused, before = [], 0
    for turn in range(3):
        salts = [{"cache_salt": salt} for salt in ("a conversation", f"new {turn}")]
        answer, fresh = (chat(client, model, messages=messages, extra_body=salt, **options) for salt in salts)
        assert checked(answer.choices[0]) == checked(fresh.choices[0])
        assert fresh.usage.prompt_tokens_details.cached_tokens == 0
        reused.append(answer.usage.prompt_tokens_details.cached_tokens)
        calls = answer.choices[0].message.tool_calls
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": one.id, "content": "rain"} for one in calls]
        # The prompt, and its calls, which the template writes as the model did; Mistral's adds ids to them.
        assert reused[-1] >= before
        written = 0 if model == "mistral" else answer.usage.completion_tokens
        # The end token is not kept, and the last token of a text may be split differently in the next prompt.
        before = answer.usage.prompt_tokens + written - 3


def test_langchain_calls_functions_and_gets_their_results(server: Server) -> None:
    langchain = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def weather(place: Literal["Oslo", "Lima"]) -> str:
        """Tell the weather."""
        return f"rain in {place}"

    given = {"model": "qwen2.5", "base_url": f"http://{server.address}/v1", "api_key": "none", "temperature": 1.2}
    models = [langchain.ChatOpenAI(**given, seed=seed, max_tokens=1200) for seed in range(8)]
    messages: list[Any] = [HumanMessage("hello")]
    for model in models:
        # Strict: without it LangChain's schema allows any further argument.
        bound = model.bind_tools([weather], tool_choice="required", strict=True)
        answer = bound.invoke(messages)
        if len(answer.tool_calls) > 1:
            break
    assert len(answer.tool_calls) > 1
    messages.append(answer)
    for call in answer.tool_calls:
        assert call["args"]["place"] in PLACES
        messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    assert bound.invoke(messages).tool_calls
    total: Any = None
    for chunk in bound.stream([HumanMessage("hello")]):
        total = chunk if total is None else total + chunk
    assert [one["args"] for one in total.tool_calls] == [one["args"] for one in answer.tool_calls]
    alone = model.bind_tools([weather], tool_choice="required", strict=True, parallel_tool_calls=False)
    assert len(alone.invoke(messages[:1]).tool_calls) == 1


def test_instructor_reads_its_models_from_calls(server: Server) -> None:
    instructor = pytest.importorskip("instructor")
    from instructor.core import IncompleteOutputException
    from pydantic import BaseModel, ConfigDict, Field

    class Weather(BaseModel):
        model_config = ConfigDict(extra="forbid")
        days: int = Field(ge=1, le=9)

    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", timeout=90) as plain:
        options = {"messages": HELLO, "max_tokens": 3000, "temperature": 1.2, "max_retries": 0}

        def ask(mode: Any, **given: Any) -> Any:
            return instructor.from_openai(plain, mode=mode).chat.completions.create(**options, **given)

        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            assert 1 <= ask(mode, model="qwen2.5", response_model=Weather, seed=2).days <= 9
        # LangChain lets the model choose, and this model calls a function after some text.
        several = list[Weather]()
        for seed in range(5):
            with contextlib.suppress(IncompleteOutputException, TypeError):
                several += ask(
                    instructor.Mode.PARALLEL_TOOLS, model="mistral", response_model=Iterable[Weather], seed=seed
                )
        assert len(several) > 1
        assert all(1 <= one.days <= 9 for one in several)
