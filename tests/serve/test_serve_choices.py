"""`qnnbridge serve --llm` with the real `openai` package: n, lists of prompts, logprobs, functions to call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serving import Server, serving
from tests import needs
from tests.genai.tiny_decoders import Sizes, write_model

from qnnbridge_protocol.errors import GenerationError, TooLarge
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.openai_answers import AnswerPlan, open_choice
from qnnbridge_serve.openai_forms import read_generation
from qnnbridge_serve.openai_tools import CallReader, grammar_of, learn_form, read_calls, read_tools

pytest.importorskip("onnxruntime_genai")
openai = needs.package("openai")

pytestmark = pytest.mark.process

PRIVATE = ("--host", "private", "--http", "127.0.0.1:0")
HELLO = [{"role": "user", "content": "hello"}]
# Call syntax of Hermes and Qwen.
TAGGED = ("<tool_call>\n", "\n</tool_call>")
# A letter that this model generates soon, so that it calls a function without being forced.
LETTER = ("S", "")
_OBJECT = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'


def template(begin: str, end: str) -> str:
    return (
        "{% if tools %}<|user|>Call: {{ tools | tojson }}<|end|>{% endif %}"
        "{% for m in messages %}<|{{ m['role'] }}|>"
        "{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}"
        + begin
        + _OBJECT
        + end
        + "{% endfor %}{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    function("weather", place={"enum": ["Oslo", "Lima"]}, days={"enum": [1, 2]}),
    function("say", text={"enum": ['a "}{" b', "c\\"]}),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("calling")
    found = {"tiny": write_model(root / "tiny", "dynamic"), "window": write_model(root / "window", "window")}
    for name, marks in (("tagged", TAGGED), ("letter", LETTER)):
        folder = write_model(root / name, "dynamic", sizes=Sizes(context=2000))
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        settings["chat_template"] = template(*marks)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
        found[name] = folder
    return found


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, folders: dict[str, Path]) -> Iterator[Server]:
    named = [option for name, folder in folders.items() for option in ("--llm", f"{name}={folder}")]
    with serving(*PRIVATE, *named) as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=90) as found:
        yield found


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 8, **options})


# --- several answers ---


def test_several_answers_equal_those_of_their_seeds(client: Any) -> None:
    whole = chat(client, n=3, seed=5)
    assert [one.index for one in whole.choices] == [0, 1, 2]
    texts = [one.message.content for one in whole.choices]
    assert texts == [chat(client, seed=seed).choices[0].message.content for seed in (5, 6, 7)]
    assert len(set(texts)) > 1
    alone = chat(client).usage
    assert whole.usage.prompt_tokens == alone.prompt_tokens
    assert whole.usage.completion_tokens == 24
    streamed = {0: "", 1: "", 2: ""}
    ends = []
    for part in chat(client, n=3, seed=5, stream=True):
        (choice,) = part.choices
        streamed[choice.index] += choice.delta.content or ""
        ends += [choice.finish_reason] if choice.finish_reason else []
    assert list(streamed.values()) == texts
    assert ends == ["length"] * 3


def test_lists_of_prompts_are_answered(client: Any) -> None:
    def complete(prompt: Any, **options: Any) -> Any:
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=5, **options)

    prompts = ["hello", "bye", "hello"]
    alone = [complete(one).choices[0].text for one in prompts]
    assert len(set(alone)) == 2
    whole = complete(prompts)
    assert [one.text for one in whole.choices] == alone
    assert whole.usage.prompt_tokens == sum(complete(one).usage.prompt_tokens for one in prompts)
    assert [one.text for one in complete(prompts, n=2).choices] == [alone[0]] * 2 + [alone[1]] * 2 + [alone[2]] * 2
    tokens = [[10, 20, 30], [40]]
    assert [one.text for one in complete(tokens).choices] == [complete(one).choices[0].text for one in tokens]
    streamed = {0: "", 1: "", 2: ""}
    for part in complete(prompts, stream=True):
        streamed[part.choices[0].index] += part.choices[0].text
    assert list(streamed.values()) == alone


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "extra_body": {"tools": TOOLS}}, "tools"),
    ],
)
def test_completions_refuse_unsupported_options(client: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", **options)
    assert caught.value.param == param


# --- logprobs ---


def truth(folder: Path, prompt: list[int], count: int) -> list[tuple[int, Any]]:
    """Return the tokens of a greedy search, with the logarithms of all probabilities, computed from the logits."""
    import qnnbridge
    from qnnbridge import genai

    found = []
    with qnnbridge.Host() as host:
        model = genai.Model(folder, host=host)
        generator = genai.Generator(model, genai.GeneratorParams(model))
        generator.append_tokens(prompt)
        for _ in range(count):
            row = np.asarray(generator.get_logits(), np.float64).reshape(-1)
            generator.generate_next_token()
            found.append((int(generator.get_next_tokens()[0]), row - np.logaddexp.reduce(row)))
    return found


@pytest.mark.parametrize("model", ["tiny", "window"])
def test_logprobs_equal_those_of_the_logits(client: Any, folders: dict[str, Path], model: str) -> None:
    prompt = list(range(10, 30))
    known = truth(folders[model], prompt, 6)
    choice = client.completions.create(model=model, prompt=prompt, max_tokens=6, logprobs=3).choices[0]
    figures = choice.logprobs
    assert figures.token_logprobs == pytest.approx([row[token] for token, row in known], abs=1e-9)
    for told, (_, row) in zip(figures.top_logprobs, known, strict=True):
        best = np.sort(row)[::-1][:3]
        assert max(told.values()) == pytest.approx(best[0], abs=1e-9)
        assert all(np.isclose(best, one, rtol=0, atol=1e-9).any() for one in told.values())
    assert figures.text_offset[0] == 0
    assert figures.text_offset == sorted(figures.text_offset)


def test_logprobs_of_a_chat_are_the_same_complete_and_streamed(client: Any) -> None:
    whole = chat(client, logprobs=True, top_logprobs=2).choices[0]
    scores = whole.logprobs.content
    assert len(scores) == 8
    for one in scores:
        assert one.top_logprobs[0].token == one.token  # a greedy search
        assert one.top_logprobs[0].logprob == one.logprob >= one.top_logprobs[1].logprob
        assert one.bytes is None or bytes(one.bytes).decode() == one.token
    parts = [part.choices[0] for part in chat(client, logprobs=True, top_logprobs=2, stream=True)]
    assert [one for part in parts if part.logprobs for one in part.logprobs.content] == scores
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None
    # Text removed by a stop sequence has no log probabilities.
    text = whole.message.content
    cut = chat(client, logprobs=True, stop=[text[3:5]]).choices[0]
    assert len(cut.logprobs.content) <= sum(bool(one.token) for one in scores[: len(cut.message.content) * 4])
    assert "".join(one.token for one in cut.logprobs.content).startswith(cut.message.content[:1])
    assert len(cut.logprobs.content) < 8


# --- functions ---


def called(choice: Any) -> tuple[str, Any]:
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    return call.function.name, json.loads(call.function.arguments)


def test_a_required_function_is_called(client: Any) -> None:
    options = {"model": "tagged", "tools": TOOLS, "max_tokens": 200, "parallel_tool_calls": False}
    choice = chat(client, **options, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    name, arguments = called(choice)
    assert name in ("weather", "say")
    for one in TOOLS:
        wanted = one["function"]["name"]
        chosen = {"type": "function", "function": {"name": wanted}}
        name, arguments = called(chat(client, **options, tool_choice=chosen).choices[0])
        assert name == wanted
        for key, rule in one["function"]["parameters"]["properties"].items():
            assert arguments[key] in rule["enum"]


def test_calls_are_streamed_in_pieces(client: Any) -> None:
    chosen = {"type": "function", "function": {"name": "say"}}
    options = {"model": "tagged", "tools": TOOLS, "tool_choice": chosen, "max_tokens": 200}
    whole = called(chat(client, **options).choices[0])
    name, arguments, finish = "", "", None
    pieces = 0
    for part in chat(client, **options, stream=True):
        choice = part.choices[0]
        finish = choice.finish_reason or finish
        assert not choice.delta.content
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            assert bool(call.id) == bool(call.function.name)
            name += call.function.name or ""
            arguments += call.function.arguments
            pieces += 1
    assert (name, json.loads(arguments)) == whole
    assert finish == "tool_calls"
    assert pieces > 3
    cut = chat(client, **{**options, "max_tokens": 32}).choices[0]
    assert cut.finish_reason == "length"


def test_with_automatic_tool_choice_a_model_calls_a_function_or_answers_in_text(client: Any) -> None:
    said = chat(client, model="tagged", tools=TOOLS, max_tokens=30).choices[0]
    assert said.message.tool_calls is None
    assert said.message.content
    assert said.finish_reason == "length"
    found = chat(
        client, model="letter", tools=TOOLS, temperature=1.5, seed=1, max_tokens=900, parallel_tool_calls=False
    ).choices[0]
    assert found.finish_reason == "tool_calls"
    assert called(found)[0] in ("weather", "say")
    assert "S" not in (found.message.content or "")
    text = ""
    for part in chat(
        client,
        model="letter",
        tools=TOOLS,
        temperature=1.5,
        seed=1,
        max_tokens=900,
        parallel_tool_calls=False,
        stream=True,
    ):
        text += part.choices[0].delta.content or ""
    assert text == (found.message.content or "")
    assert chat(client, model="tagged", tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None


def test_the_conversation_continues_after_a_call(client: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert chat(client, model="tagged", messages=messages, tools=TOOLS).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="omits function calls of earlier messages: weather") as caught:
        chat(client, messages=messages)
    assert caught.value.param == "messages"


MANY = function("many", items={"type": "array", "items": {"type": "integer"}, "minItems": 10**9})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"model": "tiny", "tools": TOOLS}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": "weather"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "logprobs": True}, "logprobs"),
        ({"tools": TOOLS, "parallel_tool_calls": "x"}, "parallel_tool_calls"),
        ({"tools": [MANY], "tool_choice": "required"}, "tools"),
        ({"tools": [function("x", y={"type": "nonsense"})]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "description": "\0"}}]}, "tools"),
    ],
)
def test_invalid_function_options_are_refused(client: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **{"model": "tagged", **options})
    assert caught.value.param == param


# --- call syntax, without a model ---


def rendering(begin: str, between: str, end: str, *, results: bool = True) -> Any:
    def render(messages: str, tools: str | None, add: bool) -> str:
        text = f"[{tools}]"
        for one in json.loads(messages):
            if one["role"] == "tool" and not results:
                raise Refused(400, "no results here")
            text += f"<|{one['role']}|>\n"
            for call in one.get("tool_calls", ()):
                text += begin + call["function"]["name"] + between
                text += json.dumps(call["function"]["arguments"]) + end
            text += one["content"] + "<|end|>\n"
        return text + ("<|assistant|>\n" if add else "")

    return render


SPECIAL = {"<|call|>": 7, "[TOOL_CALLS]": 9}
KINDS = [
    ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    ('{"name": "', '", "parameters": ', "}"),
    ('<|call|>[{"name": "', '", "arguments": ', "}]"),
    ('[TOOL_CALLS] [{"name": "', '", "arguments": ', "}]"),
    ("<function=", ">", "</function>"),
    ('\n\n<tool_call>{"name": "', '","arguments":', "}</tool_call>"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("results", [True, False])
def test_call_syntax_of_any_template_is_learned_and_parsed_from_pieces_of_any_size(
    kind: tuple[str, str, str], results: bool
) -> None:
    use = read_tools({"tools": TOOLS})
    assert use is not None
    begin, between, _ = kind
    form = learn_form(rendering(*kind, results=results), SPECIAL.get, use.tools)
    assert (form.written, form.between) == (begin, between)
    number = next((SPECIAL[one] for one in SPECIAL if begin.startswith(one)), None)
    assert form.special == number
    grammar = grammar_of(form, use)
    assert "%json" in grammar
    arguments = '{"text": "a \\"}{\\" b", "more": [{"x": 1}]}'
    shown = begin.replace("<|call|>", "").replace("[TOOL_CALLS]", "")
    says = "" if begin == '{"name": "' else "well < "
    answer = shown + "say" + between + arguments
    for size in (1, 2, 3, 7, 1000):
        reader, found = CallReader(form, use), []
        if says:
            found += list(reader.feed(says))
        for at, index in enumerate(range(0, len(answer), size)):
            found += list(reader.feed(answer[index : index + size], special=number is not None and at == 0))
        found += list(reader.end())
        by_kind = {
            key: "".join(text for _, text in some) for key, some in itertools.groupby(found, lambda one: one[0])
        }
        assert reader.complete
        assert by_kind.pop("text", "").strip() == says.strip()
        assert by_kind == {"name": "say", "arguments": arguments}


@pytest.mark.parametrize("kind", KINDS[2:4])
@pytest.mark.parametrize("held", ["\n", "well", 'say {"'])
def test_text_that_is_held_back_for_a_stop_sequence_hides_no_call(kind: tuple[str, str, str], held: str) -> None:
    use = read_tools({"tools": TOOLS})
    assert use is not None
    form = learn_form(rendering(*kind), SPECIAL.get, use.tools)
    reader = CallReader(form, use)
    found = [*reader.feed("so "), *reader.feed(held + form.shown[:2], special=True)]
    found += [*reader.feed(form.shown[2:] + "say" + form.between), *reader.feed("{}"), *reader.end()]
    said = ["so ", held] if held.strip() else ["so "]
    assert found == [*(("text", text) for text in said), ("name", "say"), ("arguments", "{}")]
    assert reader.complete


@pytest.mark.parametrize(
    ("kind", "body"), [("chat", {"messages": [{"role": "user", "content": "x"}]}), ("text", {"prompt": "x"})]
)
def test_the_error_for_a_prompt_that_is_too_large_names_its_field(
    monkeypatch: pytest.MonkeyPatch, kind: Any, body: Any
) -> None:
    def too_large(*_given: Any, **_options: Any) -> Any:
        raise TooLarge("too large")

    monkeypatch.setattr("qnnbridge.genai.generate", too_large)
    model: Any = SimpleNamespace(model=None, tokenizer=None)
    plan = AnswerPlan(0, 0, "x", None, None, None)
    with pytest.raises(Refused) as caught:
        open_choice(read_generation({"model": "m", **body}, kind), model, plan, None, lambda stream: None)
    assert caught.value.field == next(iter(body))


def test_texts_that_resemble_calls_stay_texts() -> None:
    use = read_tools({"tools": TOOLS})
    assert use is not None
    form = learn_form(rendering(*KINDS[0]), SPECIAL.get, use.tools)
    for text in ("a <tool_cal", "<", "<tool_cal>l", '{"name": "say"}'):
        reader = CallReader(form, use)
        found = [*(one for letter in text for one in reader.feed(letter)), *reader.end()]
        assert "".join(one for kind, one in found if kind == "text") == text
        assert not reader.complete


@pytest.mark.parametrize(
    "render",
    [
        lambda messages, tools, add: "nothing",
        rendering("", "", ""),
        rendering("", '("', '")'),  # a text could be the beginning of a name
    ],
)
def test_templates_without_call_syntax_are_refused(render: Any) -> None:
    with pytest.raises(Refused) as caught:
        learn_form(render, SPECIAL.get, "[]")
    assert (caught.value.status, caught.value.field) == (400, "tools")


@pytest.mark.parametrize("arguments", ["", None, "{}", '{"a": 1}'])
def test_arguments_of_earlier_calls_are_parsed_into_objects(arguments: Any) -> None:
    (call,) = read_calls([{"id": "a", "function": {"name": "f", "arguments": arguments}}], "m")
    assert call["function"]["arguments"] == json.loads(arguments or "{}")


@pytest.mark.parametrize("told", [3, [3], [{}], [{"function": {"name": "f", "arguments": "["}}]])
def test_invalid_tool_calls_in_earlier_messages_are_refused(told: Any) -> None:
    with pytest.raises(Refused):
        read_calls(told, "m")


def test_a_grammar_with_a_very_long_array_is_refused_by_the_host() -> None:
    from qnnbridge_host.genai.guidance import check_guidance

    check_guidance("lark_grammar", 'start: "a" %json {"type": "array", "maxItems": 3} | %json {"minItems": 4}')
    with pytest.raises(GenerationError, match="more than"):
        check_guidance("lark_grammar", 'start: %json {"type": "array"} | %json {"minItems": 1000000000}')
