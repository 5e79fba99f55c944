"""`/v1/responses` of `qnnbridge serve --llm` with the real `openai` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, serving
from test_serve_choices import LETTER, PRIVATE, TAGGED, template
from tests import needs
from tests.genai.tiny_decoders import Sizes, write_model

from qnnbridge_serve.errors import Refused
from qnnbridge_serve.openai_answers import Counts, Finished, Piece
from qnnbridge_serve.openai_forms import owner_of
from qnnbridge_serve.openai_responses import read_response
from qnnbridge_serve.openai_stored import StoredResponses

pytest.importorskip("onnxruntime_genai")
openai = needs.package("openai")

pytestmark = pytest.mark.process

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Lima"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
    "strict": True,
}
ONE_OR_TWO = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("responses")
    named = []
    for name, marks in (("tiny", TAGGED), ("letter", LETTER)):
        folder = write_model(root / name, "dynamic", sizes=Sizes(context=2000))
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        settings["chat_template"] = template(*marks)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
        named += ["--llm", f"{name}={folder}"]
    with serving(*PRIVATE, *named) as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=90) as found:
        yield found


def respond(client: Any, told: Any = "hello", **options: Any) -> Any:
    return client.responses.create(**{"model": "tiny", "input": told, "max_output_tokens": 8, **options})


def chat(client: Any, messages: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)


def test_a_response_equals_the_answer_of_the_chat_endpoint(client: Any) -> None:
    known = chat(client, [{"role": "system", "content": "short"}, {"role": "user", "content": "hello"}])
    found = respond(client, instructions="short", metadata={"a": "b"})
    assert found.output_text == known.choices[0].message.content
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (found.usage.input_tokens, found.usage.output_tokens) == (known.usage.prompt_tokens, 8)
    assert found.usage.total_tokens == known.usage.total_tokens
    assert (found.instructions, found.metadata, found.store) == ("short", {"a": "b"}, True)
    (item,) = found.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    # The answer is sent back with the next question, as the library has it.
    second = respond(
        client,
        [
            {"role": "developer", "content": "short"},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            item.model_dump(exclude_none=True),
            {"type": "message", "role": "user", "content": "more"},
        ],
    )
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": found.output_text},
        {"role": "user", "content": "more"},
    ]
    assert second.output_text == chat(client, messages).choices[0].message.content


def test_a_stream_has_the_content_of_the_complete_response(client: Any) -> None:
    whole = respond(client)
    events = list(respond(client, stream=True))
    kinds = [one.type for one in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [one.sequence_number for one in events] == list(range(len(events)))
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == whole.output_text == events[-4].text == events[-1].response.output_text
    assert events[-1].response.usage == whole.usage
    assert len({one.item_id for one in events if hasattr(one, "item_id")}) == 1
    # The library assembles the same from the pieces.
    wanted = {"format": {"type": "json_schema", "name": "s", "schema": ONE_OR_TWO, "strict": True}}
    with client.responses.stream(model="tiny", input="hello", max_output_tokens=60, text=wanted) as stream:
        assert json.loads(stream.get_final_response().output_text)["a"] in (1, 2)


def test_a_response_follows_the_schema(client: Any) -> None:
    wanted = {"format": {"type": "json_schema", "name": "s", "schema": ONE_OR_TWO, "strict": True}}
    found = respond(client, text=wanted, max_output_tokens=60)
    assert json.loads(found.output_text)["a"] in (1, 2)
    assert found.status == "completed"
    assert found.text.format.type == "json_schema"


def cached(found: Any) -> int:
    return int(found.usage.input_tokens_details.cached_tokens)


def test_a_request_continues_from_a_previous_response(client: Any) -> None:
    options = {"temperature": 0, "instructions": "short"}
    first = respond(client, "the harbour of the sea", **options)
    second = respond(client, "and more", previous_response_id=first.id, **options)
    third = respond(client, [{"role": "user", "content": "and the end"}], previous_response_id=second.id, **options)
    assert (first.previous_response_id, third.previous_response_id) == (None, second.id)
    messages = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "the harbour of the sea"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "and more"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "and the end"},
    ]
    whole = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0, user="other"
    )
    assert third.output_text == whole.choices[0].message.content
    assert third.usage.input_tokens == whole.usage.prompt_tokens
    assert first.usage.input_tokens < cached(second) < cached(third)
    # A second continuation of the first response; the instructions of a request apply only to its answer.
    branch = respond(client, "and more", previous_response_id=first.id, temperature=0, stream=True)
    *_, end = branch
    messages = [*messages[1:4]]
    whole = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=8, temperature=0, user="other"
    )
    assert end.response.output_text == whole.choices[0].message.content
    # Responses of a stream are stored, too.
    assert respond(client, "on", previous_response_id=end.response.id).previous_response_id == end.response.id


def test_calls_are_in_the_stored_conversation(client: Any) -> None:
    options = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    first = respond(client, **options)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = respond(client, [result], previous_response_id=first.id, **options)
    back = [{"role": "user", "content": "hello"}, call.model_dump(exclude_none=True), result]
    whole = respond(client, back, **options)
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert second.output[0].arguments == whole.output[0].arguments


def test_responses_of_others_and_those_that_were_not_stored_are_not_found(client: Any) -> None:
    mine = respond(client, user="ann")
    not_stored = respond(client, store=False)
    assert (mine.store, not_stored.store) == (True, False)
    for number, options in (
        ("resp_1", {}),
        (not_stored.id, {}),
        (mine.id, {}),
        (mine.id, {"user": "bob"}),
        (mine.id, {"user": "ann", "extra_body": {"cache_salt": "x"}}),
    ):
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as caught:
                respond(client, previous_response_id=number, stream=stream, **options)
            assert (caught.value.param, caught.value.code) == (
                "previous_response_id",
                "previous_response_not_found",
            )
    assert respond(client, previous_response_id=mine.id, user="ann").output_text


def test_stored_responses_are_limited_in_number_and_size() -> None:
    stored = StoredResponses(3, 200)
    for number in range(5):
        stored.put(f"r{number}", "ann", [number])
        assert stored.find("r0" if number < 3 else "r2", "ann")
    # r0 was the last one used before r3 was stored; then r2.
    assert len(stored) == 3
    for gone in ("r1", "r3x"):
        with pytest.raises(Refused):
            stored.find(gone, "ann")
    stored.put("large", "ann", ["x" * 150])
    stored.put("too large", "ann", ["x" * 300])
    assert stored.find("large", "ann") == ["x" * 150]
    with pytest.raises(Refused):
        stored.find("too large", "ann")
    stored.put("next", "ann", ["x" * 150])
    assert len(stored) == 1
    assert stored.find("next", "ann")
    with pytest.raises(Refused):
        stored.find("next", "bob")


def test_a_server_can_run_without_stored_responses() -> None:
    for document in ({"store": None}, {"store": False}, {}):
        asked, make_form = read_response({"model": "m", "input": "x", **document}, StoredResponses(0))
        assert make_form(asked, 0, "").whole([Finished(0, "stop")], Counts(1, 0))["store"] is False
    with pytest.raises(Refused) as caught:
        read_response({"model": "m", "input": "x", "store": True}, StoredResponses(0))
    assert (caught.value.status, caught.value.field) == (400, "store")
    with pytest.raises(Refused) as caught:
        read_response({"model": "m", "input": "x", "previous_response_id": "resp_1"}, StoredResponses(0))
    assert caught.value.status == 404


def test_a_call_that_a_stop_sequence_truncated_is_not_in_the_conversation() -> None:
    stored = StoredResponses(3)
    asked, make_form = read_response({"model": "m", "input": "x"}, stored)
    pieces = [Piece(0, "say", "name", call="c1"), Piece(0, '{"a"', "arguments"), Finished(0, "stop")]
    whole = make_form(asked, 0, "").whole(pieces, Counts(1, 0))
    assert whole["output"][0]["arguments"] == '{"a"'
    owner = owner_of("", asked)
    assert stored.find(whole["id"], owner)[-1] == {"role": "assistant", "content": ""}


def test_functions_are_called(client: Any) -> None:
    options = {
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    found = respond(client, **options)
    (call,) = found.output
    assert (call.type, call.name, call.status, found.status) == (
        "function_call",
        "weather",
        "completed",
        "completed",
    )
    assert json.loads(call.arguments)["place"] in ("Oslo", "Lima")
    events = list(
        respond(client, **{**options, "tool_choice": {"type": "function", "name": "weather"}}, stream=True)
    )
    deltas = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].arguments == call.arguments
    assert [one.arguments for one in events if one.type == "response.function_call_arguments.done"] == [
        call.arguments
    ]
    back = [
        {"role": "user", "content": "hello"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    assert respond(client, back, tools=[WEATHER], tool_choice="none").output_text


def test_a_text_and_a_call_are_two_items(client: Any) -> None:
    options = {"model": "letter", "tools": [WEATHER], "temperature": 1.5, "max_output_tokens": 900}
    events = list(respond(client, **options, extra_body={"seed": 1}, stream=True))
    added = [one for one in events if one.type == "response.output_item.added"]
    assert [one.output_index for one in added] == list(range(len(added)))
    assert added[-1].item.type == "function_call"
    whole = respond(client, **options, extra_body={"seed": 1})
    assert [one.type for one in whole.output] == [one.type for one in events[-1].response.output]
    assert whole.output_text == events[-1].response.output_text


def test_logprobs_are_included(client: Any) -> None:
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    content = respond(client, **options).output[0].content[0]
    assert len(content.logprobs) == 8
    assert all(len(one.top_logprobs) == 2 for one in content.logprobs)
    events = list(respond(client, **options, stream=True))
    told = [score for one in events if one.type == "response.output_text.delta" for score in one.logprobs]
    assert [one.logprob for one in told] == [one.logprob for one in content.logprobs]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": "x" * 9000}, "input"),
        ({"extra_body": {"previous_response_id": 3}}, "previous_response_id"),
        ({"extra_body": {"store": "yes"}}, "store"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"verbosity": "high"}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "no"}}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "a b", "parameters": {}}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"instructions": ["x"]}, "instructions"),
        ({"metadata": 3}, "metadata"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"frequency_penalty": 1}}, "frequency_penalty"),
        ({"extra_body": {"presence_penalty": 1}}, "presence_penalty"),
        ({"extra_body": {"logit_bias": {"1": 5}}}, "logit_bias"),
        ({"extra_body": {"max_tokens": 5}}, "max_output_tokens"),
        ({"extra_body": {"max_completion_tokens": 5}}, "max_output_tokens"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "text.format"),
        ({"extra_body": {"messages": []}}, "input"),
    ],
)
def test_unsupported_options_are_refused_by_name(client: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, **options)
    assert caught.value.param == param
    assert caught.value.message


def test_other_endpoints_of_the_api_are_closed(server: Server, client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    assert server.ask("POST", "/v1/responses", b"[]").status == 400
    with pytest.raises(openai.NotFoundError) as caught:
        respond(client, model="gone")
    assert caught.value.code == "model_not_found"


def test_an_answer_that_fails_in_the_middle_reports_an_error() -> None:
    asked, make_form = read_response({"model": "m", "input": "x"})
    form = make_form(asked, 0, "")
    said = form.opening() + form.part(Piece(0, "so far"))
    said += form.failure(Refused(503, "The host is gone.", field="messages"))
    events = [json.loads(one.split(b"data: ")[1]) for one in said]
    assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["message"], events[-2]["param"]) == ("The host is gone.", "input")
    assert events[-1]["response"]["error"]["message"] == "The host is gone."
    empty = make_form(asked, 0, "").whole([Finished(0, "stop")], Counts(1, 0))
    assert empty["output"][0]["content"][0]["text"] == ""
    assert empty["status"] == "completed"
