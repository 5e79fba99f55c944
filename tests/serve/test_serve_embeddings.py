"""`qnnbridge serve --embed` with the real `openai` package, against the arithmetic of sentence-transformers in numpy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import serve_models as models
from embedding_models import NORMALIZE, POOLING, TRANSFORMER, WIDTH, WORDS, embedding_of, ids_of, write_encoder
from onnx import TensorProto
from serving import PRIVATE, Server, refused, serving
from tests import needs
from tests.fakes.pages import program_of

from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_serve.embeddings import BatchShapes, read_folder
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.options import read_buckets

openai = needs.package("openai")

pytestmark = pytest.mark.process

TEXTS = [
    "the cat sat on the mat",
    "a dog",
    "the house",
    "dog ran",
    "a cat ran in the house on the mat unknown",
    "mat",
]
SIZES = ("--bucket", "sized:batch=1,4", "--bucket", "sized:length=4,8,16")


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("embedding")
    folders = {
        "mean": write_encoder(root / "mean"),
        "cls": write_encoder(
            root / "cls", pooling="pooling_mode_cls_token", normalize=False, kind=TensorProto.INT32
        ),
        "plain": write_encoder(root / "plain", pooling=None),
        "sized": write_encoder(root / "sized"),
        "unmasked": write_encoder(root / "unmasked", masked=False),
        "asks": write_encoder(
            root / "asks",
            lower=True,
            config_sentence_transformers={"prompts": {"query": "query : "}, "default_prompt_name": "query"},
        ),
        "bare": write_encoder(root / "bare"),
    }
    tokenizer = folders["bare"] / "tokenizer.json"
    without = json.loads(tokenizer.read_text("utf-8")) | {"post_processor": None}
    tokenizer.write_text(json.dumps(without), "utf-8")
    text_model = models.write_identity(root / "text.onnx", models.ELEMENTS["FP32"], ["n", 2])
    named = [option for name, folder in folders.items() for option in ("--embed", f"{name}={folder}")]
    with serving(*PRIVATE, *named, *SIZES, "--model", f"x={text_model}", "--bucket", "x:n=2,4") as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0, timeout=90) as found:
        yield found


def vectors(client: Any, told: Any = TEXTS, **options: Any) -> Any:
    answer = client.embeddings.create(**{"model": "mean", "input": told, **options})
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def check(found: Any, **options: Any) -> None:
    for one, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(one, embedding_of(ids_of(text), **options), atol=1e-5)


def test_embeddings_equal_those_of_sentence_transformers(client: Any) -> None:
    check(vectors(client))
    check(vectors(client, model="plain"))  # the mean, of length 1
    check(vectors(client, model="cls"), pooling="cls", normalize=False)
    check(vectors(client, model="unmasked"))  # no text was padded
    check(vectors(client, dimensions=3), dimensions=3)
    check(vectors(client, model="cls", dimensions=3), pooling="cls", normalize=False, dimensions=3)
    np.testing.assert_allclose(np.linalg.norm(vectors(client, dimensions=3), axis=1), 1, atol=1e-6)


def test_the_client_of_the_how_to_page_gets_vectors(server: Server) -> None:
    names: dict[str, Any] = {}
    exec(program_of("howto/embeddings.md", {"127.0.0.1:8000": server.address, '"mini"': '"mean"'}), names)
    with names["client"]:
        assert [len(vector) for vector in names["vectors"]] == [WIDTH, WIDTH]


def test_langchain_gets_the_vectors_of_its_how_to_page(server: Server) -> None:
    pytest.importorskip("langchain_openai")
    names: dict[str, Any] = {}
    exec(program_of("howto/langchain.md", {"127.0.0.1:8000": server.address, '"mini"': '"mean"'}, 1), names)
    for vector, text in zip(names["vectors"], ("What is an NPU?", "A processor for neural networks."), strict=True):
        np.testing.assert_allclose(vector, embedding_of(ids_of(text)), atol=1e-5)


def test_the_prompt_is_prepended_and_the_text_is_in_lower_case(client: Any) -> None:
    (found,) = vectors(client, "  A DOG ", model="asks")
    np.testing.assert_allclose(found, embedding_of(ids_of("query : a dog")), atol=2e-6)


def test_batches_are_padded_to_their_sizes(client: Any) -> None:
    check(vectors(client, model="sized"))
    for text in TEXTS:
        (found,) = vectors(client, text, model="sized")
        np.testing.assert_allclose(found, embedding_of(ids_of(text)), atol=2e-6)
    many = [f"{'cat ' * (number % 14)}dog" for number in range(100)]
    for found, text in zip(vectors(client, many, model="sized"), many, strict=True):
        np.testing.assert_allclose(found, embedding_of(ids_of(text)), atol=2e-6)


def test_both_encodings_and_token_input_work(client: Any, server: Server) -> None:
    said = {"model": "mean", "input": TEXTS}
    answer = server.ask("POST", "/v1/embeddings", said).document
    assert isinstance(answer["data"][0]["embedding"], list)
    packed = server.ask("POST", "/v1/embeddings", {**said, "encoding_format": "base64"}).document
    assert isinstance(packed["data"][0]["embedding"], str)
    # The library requests base64 by default, and decodes float32 from it.
    np.testing.assert_array_equal(vectors(client), [np.float32(one["embedding"]) for one in answer["data"]])
    assert answer["usage"]["prompt_tokens"] == sum(len(ids_of(text)) for text in TEXTS)
    ids = [ids_of(text) for text in TEXTS]
    np.testing.assert_allclose(vectors(client, ids), vectors(client), atol=1e-6)
    np.testing.assert_allclose(vectors(client, ids[0])[0], vectors(client)[0], atol=1e-6)
    bare = embedding_of([5, 6])  # token input gets no special tokens
    np.testing.assert_allclose(vectors(client, [5, 6])[0], bare, atol=2e-6)


def test_many_concurrent_clients_get_the_same_vectors_as_a_single_one(client: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda number: vectors(client, model=("mean", "sized")[number % 2]), range(24)):
            check(found)


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"input": ""}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ["a", ""]}, "input", None),
        ({"model": "bare", "input": ["a", "  "]}, "input", None),
        ({"input": [1.5]}, "input", None),
        ({"input": [True]}, "input", None),
        ({"input": [[]]}, "input", None),
        ({"input": [-1]}, "input", None),
        ({"input": [len(WORDS)]}, "input", None),
        ({"input": [10**30]}, "input", None),
        ({"input": ["a"] * 2049}, "input", None),
        ({"input": "cat " * 23}, "input", "context_length_exceeded"),
        ({"input": [4] * 25}, "input", "context_length_exceeded"),
        ({"input": "x" * 100_000}, "input", "context_length_exceeded"),
        ({"model": "sized", "input": [4] * 17}, "input", "context_length_exceeded"),
        ({"dimensions": 0}, "dimensions", None),
        ({"dimensions": WIDTH + 1}, "dimensions", None),
        ({"encoding_format": "int8"}, "encoding_format", None),
    ],
)
def test_the_error_for_an_invalid_field_names_the_field(
    client: Any, options: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(**{"model": "mean", "input": "a", **options})
    assert (caught.value.param, caught.value.code) == (param, code)


def test_embedding_models_are_listed_and_counted_in_the_metrics(client: Any, server: Server) -> None:
    assert [one.id for one in client.models.list()] == ["mean", "cls", "plain", "sized", "unmasked", "asks", "bare"]
    assert client.models.retrieve("cls").kind == "embedding model"
    for call in (
        lambda: client.embeddings.create(model="gone", input="a"),
        lambda: client.chat.completions.create(model="mean", messages=[{"role": "user", "content": "a"}]),
        lambda: client.models.retrieve("gone"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "model_not_found"
    vectors(client, ["a dog"])
    text = server.ask("GET", "/metrics").body.decode()
    assert 'qnnbridge_embedding_requests_total{model="mean",outcome="ok"}' in text
    assert 'qnnbridge_embedding_requests_running{model="mean"} 0.0' in text


# --- buckets of models ---


def test_a_model_accepts_any_size_up_to_its_largest_bucket(server: Server) -> None:
    assert server.ask("GET", "/v2/models/x").document["inputs"][0]["shape"] == [-1, 2]
    for rows in (1, 2, 3, 4):
        data = list(np.arange(2.0 * rows))
        given = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": data}
        answer = server.infer("x", given).document["outputs"][0]
        assert (answer["shape"], answer["data"]) == ([rows, 2], data)
    given = {"name": "x", "datatype": "FP32", "shape": [5, 2], "data": [0.0] * 10}
    assert server.infer("x", given).status == 400


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        (["a:n=1,2"], {"a": {"n": [1, 2]}}),
        (["a:b:n=1", "a:x:0=2,1"], {"a:b": {"n": [1]}, "a": {"x:0": [1, 2]}}),
        (["n=1"], None),
        (["c:n=1"], None),
        (["a:n"], None),
        (["a:n=0"], None),
        (["a:n=1", "a:n=2"], None),
    ],
)
def test_a_bucket_option_names_its_model(texts: list[str], known: Any) -> None:
    if known is None:
        with pytest.raises(OptionError):
            read_buckets(texts, ["a", "a:b"])
    else:
        assert read_buckets(texts, ["a", "a:b"]) == known


def test_a_bucket_for_a_missing_dimension_is_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "one")
    done = refused(*PRIVATE, "--embed", f"one={folder}", "--bucket", "one:wide=4")
    assert done.returncode == 2
    assert "a dimension that the model does not have: wide" in done.stderr
    model = models.write_identity(tmp_path / "x.onnx", models.ELEMENTS["FP32"], ["n", 2])
    done = refused(*PRIVATE, "--model", f"x={model}", "--bucket", "x:m=4")
    assert done.returncode != 0
    assert '"m"' in done.stderr or "'m'" in done.stderr


def test_a_size_by_input_and_axis_is_refused_with_the_command_that_sets_it(tmp_path: Path) -> None:
    """Sessions of the server accept sizes by name only, and would ignore the option."""
    model = models.write_identity(tmp_path / "x.onnx", models.ELEMENTS["FP32"], ["n", 2])
    done = refused(*PRIVATE, "--model", f"x={model}", "--dim", "x:0=4")
    assert done.returncode == 2
    assert 'qnnbridge fix MODEL -o FIXED.onnx --dim "x:0=SIZE"' in done.stderr


# --- without a server ---


def test_each_text_is_in_exactly_one_batch() -> None:
    lengths = [3, 30, 7, 16, 1, 8, 9, 16, 2]
    for shapes in (
        BatchShapes((1, 4), (8, 16, 32), 32),
        BatchShapes((), (), 32),
        BatchShapes((2,), (), 32),
        BatchShapes((1,), (32,), 32),
    ):
        plan = list(shapes.plan(lengths))
        assert sorted(index for part, _, _ in plan for index in part) == list(range(len(lengths)))
        for part, rows, columns in plan:
            assert len(part) <= rows
            assert max(lengths[index] for index in part) <= columns
            assert not shapes.batches or rows in shapes.batches
            assert not shapes.lengths or columns in shapes.lengths
    # By default, batches of long texts have few rows.
    long = [
        (len(part), columns) for part, _, columns in BatchShapes((), (), 20_000).plan([20_000] * 2 + [6000] * 3)
    ]
    assert long == [(2, 6000), (1, 6000), (1, 20_000), (1, 20_000)]
    assert [len(part) for part, _, _ in BatchShapes((), (), 512).plan([512] * 40)] == [32, 8]
    assert [columns for _, _, columns in BatchShapes((1, 4), (8, 16, 32), 32).plan([3, 30])] == [8, 32]


def test_pooling_and_normalization_are_read_from_the_files_of_the_folder(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "one", pooling="pooling_mode_cls_token", normalize=False)
    found = read_folder(folder)
    assert (found.pooling, found.normalize, found.most_tokens) == ("cls", False, 24)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    assert read_folder(folder).pooling == "mean"
    (folder / "sentence_bert_config.json").unlink()
    assert read_folder(folder).most_tokens == 512
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1e30, "pad_token": {"content": "[PAD]"}}')
    (folder / "config.json").write_text('{"max_position_embeddings": 514, "model_type": "xlm-roberta"}')
    assert (read_folder(folder).most_tokens, read_folder(folder).pad) == (512, "[PAD]")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    assert read_folder(folder).most_tokens == 128
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    assert read_folder(folder).model == folder / "onnx" / "model.onnx"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}'),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true, "pooling_mode_mean_tokens": true}'),
        ("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true, "include_prompt": false}'),
        ("1_Pooling/config.json", "{}"),
        ("1_Pooling/config.json", "["),
        (
            "modules.json",
            json.dumps([TRANSFORMER, POOLING, {**NORMALIZE, "type": "sentence_transformers.models.Dense"}]),
        ),
        ("modules.json", "[3]"),
        ("tokenizer.json", None),
        ("model.onnx", None),
    ],
)
def test_folders_that_cannot_be_served_are_refused(name: str, text: str | None, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "one")
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(BridgeError):
        read_folder(folder)


@pytest.mark.simulator
def test_embeddings_are_computed_on_qnn(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "one", kind=TensorProto.INT32)
    options = ("--host", "private", "--provider-option", "soc_model=60", "--http", "127.0.0.1:0")
    sizes = ("--bucket", "one:batch=1,2", "--bucket", "one:length=16")
    with serving(*options, "--embed", f"one={folder}", *sizes) as server:
        assert any("nodes on QNN" in line and "CPU" not in line for line in server.said), server.said
        with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", timeout=90) as client:
            for one, text in zip(vectors(client, model="one"), TEXTS, strict=True):
                assert one @ embedding_of(ids_of(text)) > 0.999


def test_a_model_without_an_attention_mask_is_not_served_at_fixed_lengths(tmp_path: Path) -> None:
    """The padding of a text would change its embedding."""
    folder = write_encoder(tmp_path / "unmasked", masked=False)
    done = refused(*PRIVATE, "--embed", f"m={folder}", "--bucket", "m:length=4,8")
    assert done.returncode == 2
    assert "has no input attention_mask" in done.stderr
    assert list(BatchShapes((), (), 9, masked=False).plan([3, 2, 3])) == [([1], 1, 2), ([0, 2], 2, 3)]


def outputs(**ranks: int) -> Any:
    nodes = [SimpleNamespace(name=name, shape=[1] * rank) for name, rank in ranks.items()]
    return SimpleNamespace(get_outputs=lambda: nodes)


@pytest.mark.parametrize(
    ("ranks", "pooling", "found"),
    [
        ({"last_hidden_state": 3, "pooler_output": 2}, None, ("last_hidden_state", False)),
        ({"token_embeddings": 3, "sentence_embedding": 2}, None, ("sentence_embedding", True)),
        ({"token_embeddings": 3, "sentence_embedding": 2}, "cls", ("token_embeddings", False)),
        ({"hidden": 3}, "mean", ("hidden", False)),
        ({"hidden": 3, "other": 3, "sentence_embedding": 2}, "mean", ("sentence_embedding", True)),
        ({"hidden": 3, "other": 3}, "mean", None),
        ({"logits": 3}, None, None),
    ],
)
def test_embeddings_are_computed_from_the_output_with_the_right_meaning(
    ranks: dict[str, int], pooling: Any, found: Any
) -> None:
    from qnnbridge_serve.embeddings import _output_of

    folder: Any = SimpleNamespace(pooling=pooling)
    if found is None:
        with pytest.raises(OptionError, match="no output"):
            _output_of(outputs(**ranks), folder)
    else:
        assert _output_of(outputs(**ranks), folder) == found


def test_token_ids_may_have_gaps(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    from qnnbridge_serve.embeddings import Embedder

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 700}, unk_token="[UNK]"))
    session: Any = outputs(last_hidden_state=3)
    session.get_inputs = list
    made = Embedder("m", read_folder(write_encoder(tmp_path / "m")), tokenizer, session, BatchShapes((), (), 9))
    assert made.given([700, 3]).ids == [700, 3]
    with pytest.raises(Refused, match="no token 701"):
        made.given([701])
