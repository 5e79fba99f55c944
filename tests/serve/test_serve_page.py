"""The page of `qnnbridge serve` in a real browser: each action is done by clicking, and the results are compared
with those of numpy and the library."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("python_multipart")
pytest.importorskip("onnxruntime_genai")

import serve_models as models
from embedding_models import embedding_of, ids_of, write_encoder
from onnx import helper
from serving import PRIVATE, Server, serving
from tests import needs
from tests.daemon.real_daemon import daemon_of_its_own
from tests.genai.tiny_decoders import Sizes, write_model
from tests.speech import tiny_whisper
from tests.tools import browser

from qnnbridge_protocol import __version__

Image = needs.package("PIL.Image")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(browser.program() is None, reason="needs Chromium"),
]

# Without a slash, which no name in a URL may have.
HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'"
TOKEN = "0123456789abcdef0123456789abcdef"


def write_hostile(path: Path) -> Path:
    """Write a model whose input and output names are markup."""
    floats = models.ELEMENTS["FP32"]
    return models.write(
        path,
        [helper.make_node("Identity", [f"in{HOSTILE}"], [f"out{HOSTILE}"])],
        [models.tensor(f"in{HOSTILE}", floats, [1, 2])],
        [models.tensor(f"out{HOSTILE}", floats, [1, 2])],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    for datatype, element in models.ELEMENTS.items():
        models.write_identity(root / f"{datatype}.onnx", element)
    models.write_identity(root / "picture.onnx", models.ELEMENTS["FP32"], [1, 3, 8, 12])
    models.write_identity(root / "bytes.onnx", models.ELEMENTS["UINT8"], [1, 8, 12, 3])
    models.write_identity(root / "scores.onnx", models.ELEMENTS["FP32"], [1, 6])
    models.write_identity(root / "same.onnx", models.ELEMENTS["FP32"])
    write_hostile(root / f"{HOSTILE}.onnx")
    write_model(root / "tiny", "dynamic")
    write_model(root / "long", "dynamic", sizes=Sizes(context=6000, ballast=20))
    write_encoder(root / "mini")
    tiny_whisper.write_folder(root / "voice", "merged")
    return root


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, folder: Path) -> Iterator[Server]:
    kinds = {"--llm": ("tiny", "long"), "--embed": ("mini",), "--speech": ("voice",)}
    named = [word for kind, names in kinds.items() for name in names for word in (kind, f"{name}={folder / name}")]
    with serving(*PRIVATE, "--models", folder, *named) as running:
        yield running
        assert running.end() == 0, running.errors()


@pytest.fixture(scope="module")
def opened(server: Server) -> Iterator[browser.Page]:
    """One browser for all tests that only read and click."""
    with browser.page(f"http://{server.address}/") as page:
        yield page


@pytest.fixture
def page(opened: browser.Page) -> Iterator[browser.Page]:
    opened.errors.clear()
    opened.resize(browser.WIDTH, browser.HEIGHT)
    yield opened
    assert opened.errors == []


def text_of(page: browser.Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).innerText"))


def try_model(page: browser.Page, name: str) -> None:
    """Click on a model of the table and wait for its form."""
    page.click_on('document.querySelector("nav a")')
    link = f"[...document.querySelectorAll('#model-table a')].find((one) => one.textContent === {json.dumps(name)})"
    page.click_on(link)
    page.wait(
        f"document.querySelector('#try h2')?.textContent === {json.dumps(name)} && document.querySelector('#try button')"
    )


def ran(page: browser.Page, button: str = "Run") -> str:
    """Click on the button and return the results."""
    page.click_button(button, "#try")
    page.wait(
        "document.querySelector('#try .results').childElementCount || !document.querySelector('#try > div > .problem').hidden"
    )
    assert page.value("document.querySelector('#try > div > .problem').innerText") == ""
    return text_of(page, "#try .results")


def refused_with(page: browser.Page) -> str:
    page.click_button("Run", "#try")
    return str(page.wait("document.querySelector('#try > div > .problem').innerText"))


# Keep a copy of each body that the page passes to `fetch`.
RECORD = """
(() => { const real = window.fetch; window.sent = null;
window.fetch = (path, options) => { if (path.endsWith("/infer")) window.sent = options; return real(path, options); }; })()
"""


def sent(page: browser.Page) -> np.ndarray[Any, Any]:
    """Return the bytes of the last tensor that was sent to the server."""
    found = page.value(
        "window.sent.body.arrayBuffer().then((all) => [...new Uint8Array(all).slice(window.sent.headers['inference-header-content-length'])])"
    )
    return np.array(found, np.uint8)


# --- the table ---


def test_the_table_shows_each_model_with_its_state_and_placement(page: browser.Page, folder: Path) -> None:
    page.wait("document.querySelectorAll('#model-table tbody tr').length > 10")
    rows = page.value("[...document.querySelectorAll('#model-table tbody tr')].map((row) => row.innerText)")
    for name in (*models.ELEMENTS, "picture", HOSTILE, "tiny", "mini", "voice"):
        (row,) = (row for row in rows if row.startswith(f"{name}\n"))
        assert "ready" in row
    (voice,) = (row for row in rows if row.startswith("voice\n"))
    assert "encoder: the CPU" in voice
    assert "decoder: the CPU" in voice
    page.wait("document.querySelector('#health').innerText === 'ready'")
    assert __version__ in text_of(page, "#facts")


def test_names_of_models_and_tensors_are_text_and_never_markup(page: browser.Page) -> None:
    try_model(page, HOSTILE)
    assert f"in{HOSTILE}" in text_of(page, "#try legend")
    result = ran(page)
    assert f"out{HOSTILE}" in result
    assert page.value("document.title") == "qnnbridge serve"
    assert page.value("document.querySelectorAll('img, table script, #try script').length") == 0


def test_the_page_sends_no_request_to_another_server_and_its_policy_forbids_it(server: Server) -> None:
    with browser.page(f"http://{server.address}/") as page:
        page.wait("document.querySelectorAll('#model-table tbody tr').length")
        for tab in ("#host", "#metrics", "#api", "#models"):
            page.click_on(f"nav a[href='{tab}']")
        page.wait("document.querySelectorAll('details').length")
        assert page.errors == []
        assert {url.split("/")[2] for url in page.requests} == {server.address}
        assert page.value('fetch("https://example.org").then(() => "went out", () => "blocked")') == "blocked"
        # A script of the page that writes HTML, and a script that is written into the page.
        assert "TrustedHTML" in page.value(
            "(() => { try { document.body.innerHTML = '<b>'; } catch (error) { return error.message; } })()"
        )
        page.value(
            "document.head.append(Object.assign(document.createElement('style'), {textContent: 'body {color: red}'}))"
        )
        assert page.value("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"


# --- tensors ---


@pytest.mark.parametrize("datatype", [name for name in models.ELEMENTS if name != "BYTES"])
def test_generated_values_of_every_type_are_returned(page: browser.Page, datatype: str) -> None:
    try_model(page, datatype)
    for how, words in (
        ("random", " to "),
        ("zeros", "false, false" if datatype == "BOOL" else "0, 0"),
        ("ones", "true, true" if datatype == "BOOL" else "1, 1"),
    ):
        page.pick("#try select", how)
        page.write("[aria-label='Size 2 of x']", "5")
        result = ran(page)
        assert "1 × 5" in result
        assert words in result


def test_values_as_json_are_returned_exactly(page: browser.Page) -> None:
    for datatype, text, words in (
        ("INT64", "[[9223372036854775807, -9007199254740993]]", "9223372036854775807, -9007199254740993"),
        ("UINT64", "[[18446744073709551615]]", "18446744073709551615"),
        ("FP64", "[[0.1, -1e300], [NaN, -Infinity]]", "0.1, -1e+300, NaN, -Infinity"),
        ("FP16", "[[65504, 1e9], [NaN, 6e-8]]", "65504, Infinity, NaN, 5.96046e-8"),
        ("BF16", "[[1.00390625, 3]]", "1, 3"),
        ("BOOL", "[[true, false]]", "true, false"),
        ("BYTES", '[["a <b>", "ü, NaN"]]', '"a <b>", "ü, NaN"'),
    ):
        try_model(page, datatype)
        page.pick("#try select", "text")
        page.write("#try textarea", text)
        assert words in ran(page), datatype


def test_invalid_data_is_reported_at_its_input(page: browser.Page) -> None:
    try_model(page, "INT32")
    page.pick("#try select", "text")
    for text, words in (
        ("[1,", "x: The text is not valid JSON"),
        ("[[1.5]]", "data must contain only integers"),
        ('[["a"]]', "data must contain only integers"),
    ):
        page.write("#try textarea", text)
        assert words in refused_with(page)
    page.pick("#try select", "zeros")
    page.write("[aria-label='Size 1 of x']", "100000000")
    assert "too many for this page" in refused_with(page)
    page.write("[aria-label='Size 1 of x']", "2")
    assert "2 × 1" in ran(page)
    page.errors.clear()  # the browser logs each status of 400


def test_numpy_files_are_read_and_written(page: browser.Page, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for datatype, dtype in (("FP32", "<f4"), ("FP16", "<f2"), ("INT64", ">i8"), ("BOOL", "?"), ("UINT8", "u1")):
        given = random.integers(0, 100, (2, 3)).astype(dtype)
        np.save(tmp_path / "x.npy", given)
        try_model(page, datatype)
        page.value(RECORD)
        page.pick("#try select", "file")
        page.choose_file("#try input[type=file]", tmp_path / "x.npy")
        assert "2 × 3" in ran(page)
        assert sent(page).tobytes() == given.astype(given.dtype.newbyteorder("<")).tobytes()
    page.save_into(tmp_path)
    page.click_button("Save as .npy", "#try")
    give_up = time.monotonic() + browser.WAIT_S
    while not (tmp_path / "y.npy").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert np.array_equal(np.load(tmp_path / "y.npy"), given)


def test_a_file_that_does_not_fit_is_refused_with_the_reason(page: browser.Page, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("1")
    (tmp_path / "no.npy").write_bytes(b"no numpy")
    (tmp_path / "x.json").write_text("[[1, 2]]")
    np.save(tmp_path / "double.npy", np.ones((1, 2)))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.ones((2, 3), np.float32)))
    np.save(tmp_path / "records.npy", np.zeros(2, [("a", "f4")]))
    whole = io.BytesIO()
    np.save(whole, np.ones((2, 3), np.float32))
    (tmp_path / "short.npy").write_bytes(whole.getvalue()[:-1])
    try_model(page, "FP32")
    page.pick("#try select", "file")
    assert "Choose a file." in refused_with(page)
    for name, words in (
        ("text.txt", "neither a .npy nor a .json file"),
        ("no.npy", "not written by numpy.save"),
        ("double.npy", "contains <f8, but the model needs FP32"),
        ("columns.npy", "numpy.ascontiguousarray"),
        ("records.npy", "records or objects"),
        ("short.npy", "is truncated"),
    ):
        page.choose_file("#try input[type=file]", tmp_path / name)
        assert words in refused_with(page)
    page.choose_file("#try input[type=file]", tmp_path / "x.json")
    assert "1, 2" in ran(page)


def test_sixteen_bit_floats_are_rounded_as_in_numpy(page: browser.Page) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(5)
    edges = [
        0.0,
        -0.0,
        65504,
        65519.999,
        65520,
        2**-14,
        2**-24,
        2**-25,
        3 * 2**-26,
        1 + 2**-11,
        1 + 3 * 2**-11,
        1 + 2**-11 + 2**-40,
        3.4e38,
        1e39,
        1e-45,
        2.0**-133,
        5e-324,
        float("inf"),
        float("-inf"),
    ]
    spread = random.standard_normal(4000) * 10.0 ** random.integers(-48, 40, 4000)
    numbers = np.array(
        [
            *edges,
            *(-np.array(edges)),
            *spread,
            *random.standard_normal(4000),
            *(1 + random.integers(0, 2**12, 500) * 2.0**-12),
        ]
    )
    listed = json.dumps([float(one) for one in numbers]).replace("-Infinity", "-1e999").replace("Infinity", "1e999")
    for datatype, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        found = page.value(
            f"import('/page/tensors.js').then(({{ TYPES, toBits, fromBits }}) => {listed}.map((n) => [toBits(n, TYPES.{datatype}), "
            f"String(fromBits(toBits(n, TYPES.{datatype}), TYPES.{datatype}))]))"
        )
        with np.errstate(over="ignore"):
            if datatype == "FP16":
                truth = numbers.astype(dtype)
            else:  # ml_dtypes converts through float32, and rounds twice
                truth = np.array([nearest_bfloat(one) for one in numbers], np.uint16).view(dtype)
        assert [bits for bits, _ in found] == truth.view(np.uint16).tolist()
        back = np.array([float(text.replace("Infinity", "inf")) for _, text in found])
        assert np.array_equal(back, truth.astype(np.float64))


def nearest_bfloat(number: float) -> int:
    """Round with exact fractions, to the nearest of all bfloat16."""
    from fractions import Fraction

    import ml_dtypes

    sign = 0x8000 if np.signbit(number) else 0
    if np.isinf(number):
        return sign | 0x7F80
    value = Fraction(abs(float(number)))
    below, above = 0, 0x7F80  # for positive numbers the bits increase with the values
    limit = Fraction(2) ** 128

    def of(bits: int) -> Fraction:
        return limit if bits == 0x7F80 else Fraction(float(np.uint16(bits).view(ml_dtypes.bfloat16)))

    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if of(middle) <= value else (below, middle)
    first, second = value - of(below), of(above) - value
    if value >= limit:
        return sign | 0x7F80
    return sign | (below if first < second or (first == second and below % 2 == 0) else above)


def test_scores_show_the_largest_value_and_its_index(page: browser.Page) -> None:
    try_model(page, "scores")
    page.pick("#try select", "text")
    page.write("#try textarea", "[[0.5, -1, 7.25, 0.1, 3, 2]]")
    result = ran(page)
    assert "-1 to 7.25" in result
    rows = page.value("[...document.querySelectorAll('#try .output td')].map((cell) => cell.innerText)")
    assert rows == ["2", "7.25", "4", "3", "5", "2", "0", "0.5", "3", "0.1"]


# --- images ---


@pytest.mark.parametrize(
    ("scale", "change"),
    [
        ("unit", lambda v: v / 255),
        ("signed", lambda v: v / 127.5 - 1),
        ("imagenet", lambda v: (v / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]),
        ("bytes", lambda v: v),
    ],
)
def test_an_image_becomes_the_numbers_of_its_pixels(
    page: browser.Page, tmp_path: Path, scale: str, change: Any
) -> None:
    pixels = np.random.default_rng(7).integers(0, 256, (8, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    try_model(page, "picture")
    page.value(RECORD)
    page.choose_file("#try input[type=file]", tmp_path / "a.png")
    page.pick("[aria-label='Scale of x']", scale)
    assert "1 × 3 × 8 × 12" in ran(page)
    np.testing.assert_allclose(
        sent(page).view("<f4").reshape(3, 8, 12).transpose(1, 2, 0), change(pixels.astype(float)), atol=1e-5
    )
    assert page.value("document.querySelector('#try canvas').width") == 12


def test_an_image_is_resized_and_converted_for_a_byte_input_with_channels_last(
    page: browser.Page, tmp_path: Path
) -> None:
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 12:36] = (200, 100, 50)  # the part in the middle, which remains
    Image.fromarray(wide).save(tmp_path / "wide.png")
    try_model(page, "bytes")
    page.value(RECORD)
    page.choose_file("#try input[type=file]", tmp_path / "wide.png")
    ran(page)
    assert np.array_equal(sent(page).reshape(8, 12, 3), np.full((8, 12, 3), (200, 100, 50), np.uint8))
    page.pick("[aria-label='Fit of x']", "stretch")
    ran(page)
    found = sent(page).reshape(8, 12, 3)
    assert found[:, 0].max() == 0
    assert tuple(found[4, 6]) == (200, 100, 50)
    (tmp_path / "no.png").write_bytes(b"no picture")
    page.choose_file("#try input[type=file]", tmp_path / "no.png")
    assert "no.png is not a picture" in refused_with(page)


# --- models are unloaded and loaded ---


def test_a_model_is_unloaded_and_loaded_by_clicks(page: browser.Page, server: Server) -> None:
    try_model(page, "scores")
    row = "[...document.querySelectorAll('#model-table tbody tr')].find((row) => row.querySelector('a').textContent === 'scores')"
    button = "[...{}.querySelectorAll('button')].find((one) => one.textContent === '{}')"
    page.click_on(button.format(row, "Unload"))
    page.wait(f"{row}.innerText.includes('unavailable')")
    assert server.ask("GET", "/v2/models/scores/ready").status == 400
    page.wait("document.querySelector('#try').innerText.includes('when it is loaded')")
    page.click_on(button.format(row, "Load"))
    page.wait(f"{row}.innerText.includes('ready')")
    assert server.ask("GET", "/v2/models/scores/ready").status == 200
    page.wait("document.querySelector('#try button')")
    page.errors.clear()  # not ready: status 400


def test_calls_and_times_of_a_model_are_shown_in_its_row(page: browser.Page) -> None:
    try_model(page, "same")
    page.pick("#try select", "ones")
    for _ in range(3):
        ran(page)
    row = "[...document.querySelectorAll('#model-table tbody tr')].find((row) => row.querySelector('a').textContent === 'same').innerText"
    page.wait(f"/\\b3\\b.*99 % within/s.test({row})")


# --- chat ---


def test_the_table_shows_that_outputs_of_a_language_model_are_not_compared(page: browser.Page) -> None:
    try_model(page, "tiny")
    cells = (
        "[...document.querySelectorAll('#model-table tr.chosen td')].find((one) => one.dataset.title === 'Numbers')"
    )
    lines = str(page.wait(f"{cells}.innerText")).splitlines()
    assert lines == ["not compared", "results of stages are not available"]


def test_a_conversation_on_the_page_equals_that_of_the_model(page: browser.Page, server: Server) -> None:
    try_model(page, "tiny")
    page.write("[aria-label='Maximum tokens']", "12")
    said: list[dict[str, str]] = []
    for text in ("hello <b>you</b>", "and again"):
        said.append({"role": "user", "content": text})
        page.write("#try textarea", text)
        page.click_button("Send", "#try")
        page.wait(
            f"document.querySelectorAll('.message').length === {len(said) + 1} && document.querySelector('#try .main').disabled === false"
        )
        asked = {"model": "tiny", "messages": said, "max_completion_tokens": 12}
        truth = server.ask("POST", "/v1/chat/completions", asked).document["choices"][0]["message"]["content"]
        said.append({"role": "assistant", "content": truth})
        assert page.value("[...document.querySelectorAll('.message')].map((one) => one.textContent)") == [
            one["content"] for one in said
        ]
    assert "12 written" in text_of(page, "#try")
    page.click_button("New conversation", "#try")
    assert page.value("document.querySelectorAll('.message').length") == 0


def test_an_answer_is_stopped_by_a_click(page: browser.Page, server: Server) -> None:
    try_model(page, "long")
    page.write("#try textarea", "hello")
    page.press("Enter")
    answer = "document.querySelector('.message.assistant').textContent"
    page.wait(f"document.querySelector('.message.assistant') && {answer}.length > 20")
    page.click_button("Stop", "#try")
    page.wait("!document.querySelector('#try .main').disabled")
    found = page.value(answer)
    ended = 'qnnbridge_llm_requests_total{model="long",outcome="cancelled"} 1.0'
    page.wait(f"fetch('/metrics').then((one) => one.text()).then((text) => text.includes({ended!r}))")
    assert page.value(answer) == found, "it is kept as far as it came"
    assert page.value("document.querySelector('#try > div > .problem').hidden")


def test_a_question_without_an_answer_is_put_back_into_the_input_field(page: browser.Page) -> None:
    try_model(page, "tiny")
    page.write("[aria-label='Maximum tokens']", "0")
    page.write("#try textarea", "a question")
    page.click_button("Send", "#try")
    assert "max_completion_tokens" in page.wait("document.querySelector('#try > div > .problem').innerText")
    assert page.value("document.querySelector('#try textarea').value") == "a question"
    assert page.value("document.querySelectorAll('.message').length") == 0
    page.errors.clear()  # the browser logs each status of 400


# --- embeddings ---


def test_texts_are_compared_by_their_embeddings(page: browser.Page) -> None:
    texts = ["the cat sat", "a dog", "the house"]
    try_model(page, "mini")
    page.write("#try textarea", "\n".join(texts))
    result = ran(page, "Embed")
    assert "8 numbers for each text" in result
    vectors = np.array([embedding_of(ids_of(text)) for text in texts])
    found = page.value("[...document.querySelectorAll('#try td')].map((cell) => cell.innerText)")
    truth = vectors @ vectors.T
    for row in range(3):
        assert found[4 * row] == f"{row + 1}: {texts[row]}"
        np.testing.assert_allclose(
            [float(cell) for cell in found[4 * row + 1 : 4 * row + 4]], truth[row], atol=0.002
        )


# --- speech ---


def test_a_file_is_transcribed_on_the_page(page: browser.Page, server: Server, tmp_path: Path) -> None:
    audio = tiny_whisper.write_wav(tmp_path / "talk.wav", tiny_whisper.sound(5, 3.0))
    try_model(page, "voice")
    assert "Choose a file, or record something." in text_after(page, "Transcribe")
    page.choose_file("#try input[type=file]", audio)
    page.write("[aria-label='Language']", "en")
    result = ran(page, "Transcribe")
    boundary = "xyz"
    fields = {"model": "voice", "language": "en", "response_format": "json"}
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ).encode()
    body += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
        + audio.read_bytes()
        + f"\r\n--{boundary}--\r\n".encode()
    )
    truth = server.ask(
        "POST", "/v1/audio/transcriptions", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    ).document["text"]
    assert truth
    assert page.value("document.querySelector('#try .transcript').textContent") == truth
    assert "en; 3.0 s of audio" in result


def text_after(page: browser.Page, button: str) -> str:
    page.click_button(button, "#try")
    return str(page.wait("document.querySelector('#try > div > .problem').innerText"))


def test_the_microphone_is_recorded_and_transcribed(server: Server) -> None:
    # A separate browser, since recording starts another process of it.
    options = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
    with browser.page(f"http://{server.address}/", "", *options) as page:
        page.wait("document.querySelectorAll('#model-table tbody tr').length")
        try_model(page, "voice")
        page.click_button("Record", "#try")
        page.wait(
            "[...document.querySelectorAll('#try button')].some((one) => one.textContent === 'Stop recording')"
        )
        time.sleep(1.5)  # the duration of the recorded audio
        page.click_button("Stop recording", "#try")
        page.wait("!document.querySelector('#try audio').hidden")
        page.write("[aria-label='Language']", "en")
        result = ran(page, "Transcribe")
        assert 0.5 < float(result.split(" s of audio")[0].rpartition("; ")[2]) < 10
        assert page.errors == []


# --- host, metrics, API ---


def test_tabs_for_host_metrics_and_api_are_shown(page: browser.Page) -> None:
    page.click_on("nav a[href='#host']")
    assert "running, this server's own" in text_of(page, "#host")
    page.click_on("nav a[href='#metrics']")
    page.wait("document.querySelector('#metrics-text').innerText.includes('qnnbridge_http_requests_total')")
    page.click_button("Refresh", "#metrics")
    page.click_on("nav a[href='#api']")
    page.wait("document.querySelectorAll('details').length > 20")
    assert page.value("document.querySelector('#models').hidden")


def operation(page: browser.Page, method: str, path: str) -> str:
    """Open the description of a path; returns a selector of it."""
    page.click_on("nav a[href='#api']")
    page.wait("document.querySelectorAll('details').length > 20")
    number = page.value(
        f"[...document.querySelectorAll('summary')].findIndex((one) => one.children[0].textContent === {method!r} && one.children[1].textContent === {path!r})"
    )
    page.value(f"document.querySelectorAll('details')[{number}].id = 'chosen'")
    page.click_on("#chosen summary")
    page.wait("document.querySelector('#chosen .inside')")
    return "#chosen"


def test_a_request_is_sent_from_the_viewer(page: browser.Page) -> None:
    place = operation(page, "POST", "/v2/models/{name}/infer")
    assert "inputs" in text_of(page, f"{place} table")
    page.write(f"{place} input", "FP32")
    page.click_button("Send", place)
    page.wait("document.querySelector('#chosen .answer').innerText.includes('Status 200')")
    assert '"model_name": "FP32"' in text_of(page, f"{place} .answer")
    page.write(f"{place} textarea", "{}")
    page.click_button("Send", place)
    assert 'no array "inputs"' in page.wait("document.querySelector('#chosen .problem').innerText")
    page.errors.clear()
    page.value("document.querySelector('#chosen').removeAttribute('id')")


def test_every_path_of_the_api_document_can_be_opened(page: browser.Page) -> None:
    page.click_on("nav a[href='#api']")
    page.wait("document.querySelectorAll('details').length > 20")
    page.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait("[...document.querySelectorAll('details')].every((one) => one.querySelector('.inside'))")


# --- widths and colours ---


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_and_texts_are_readable(
    page: browser.Page, width: int, scheme: str
) -> None:
    page.resize(width, 800)
    page.prefer(scheme)
    for tab in ("host", "metrics", "api", "models"):
        page.click_on(f"nav a[href='#{tab}']")
        page.wait(f"!document.querySelector('#{tab}').hidden")
        assert page.value("document.documentElement.scrollWidth") <= width
    for name in ("picture", "tiny", "voice"):
        try_model(page, name)
        assert page.value("document.documentElement.scrollWidth") <= width
    contrasts = page.value(CONTRAST)
    assert min(contrasts) >= 4.5
    page.prefer("")


# Contrast (WCAG) between each visible text and its background.
CONTRAST = """
(() => {
  const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((n) => n / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (one) => { for (; one; one = one.parentElement) { const c = getComputedStyle(one).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; } return "rgb(255, 255, 255)"; };
  return [...document.querySelectorAll("h1, h2, a, small, .soft, .state, .line, button, th, td, label, legend")].filter((one) => one.getClientRects().length && one.textContent.trim() && !one.disabled)
    .map((one) => { const a = light(getComputedStyle(one).color), b = light(behind(one)); return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
})()
"""


# --- the token, the daemon ---


def test_the_token_is_requested_and_kept_for_the_tab_only(
    private_temporary_folder: Path, folder: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with (
        serving(*PRIVATE, "--model", f"same={folder / 'same.onnx'}", "--token-file", token) as server,
        browser.page(f"http://{server.address}/") as page,
    ):
        page.wait("!document.querySelector('#enter').hidden")
        assert page.value("document.querySelectorAll('#model-table tbody tr').length") == 0
        page.write("#token", "x" * 32)
        page.click_button("Continue")
        page.wait("document.querySelector('#problem').innerText === 'The token is wrong.'")
        assert page.value("sessionStorage.length") == 0
        page.write("#token", TOKEN)
        page.click_button("Continue")
        page.wait("document.querySelectorAll('#model-table tbody tr').length === 1")
        assert page.value("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [
            [TOKEN],
            0,
            "",
        ]
        assert TOKEN not in page.value("document.documentElement.outerHTML + location.href")
        try_model(page, "same")
        assert "FP32" in ran(page)
        page.reload()
        page.wait("document.querySelectorAll('#model-table tbody tr').length === 1")
        page.wait("document.querySelector('#health').innerText === 'ready'")
        page.click_button("Forget the token")
        page.wait("document.querySelector('#enter') && !document.querySelector('#enter').hidden")
        assert page.value("sessionStorage.length") == 0


@needs.posix
def test_the_figures_of_the_daemon_equal_those_of_top(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_of_its_own(tmp_path, monkeypatch):
        with serving(
            "--provider", "cpu", "--http", "127.0.0.1:0", "--model", f"same={folder / 'same.onnx'}"
        ) as server:
            with browser.page(f"http://{server.address}/") as page:
                page.wait("document.querySelector('#host-tab').innerText === 'Daemon'")
                page.click_on("nav a[href='#host']")
                page.wait("document.querySelectorAll('#host table').length === 2")
                found = text_of(page, "#host")
                for words in ("slots in use", "started once", "same", "calls/s", "p99"):
                    assert words in found
                # On a phone its tables are scrolled sideways; their values are not broken.
                page.resize(390, 800)
                heights = page.value(
                    "[...document.querySelectorAll('#host tbody td')].map((one) => one.getBoundingClientRect().height)"
                )
                assert max(heights) < 40, heights


def test_an_unreachable_server_is_reported_and_found_again(private_temporary_folder: Path, folder: Path) -> None:
    with serving(*PRIVATE, "--model", f"same={folder / 'same.onnx'}") as server:
        port = server.address.rpartition(":")[2]
        with browser.page(f"http://{server.address}/") as page:
            page.wait("document.querySelector('#health').innerText === 'ready'")
            server.end()
            page.wait("document.querySelector('#health').innerText === 'no answer'")
            assert "The server does not answer." in text_of(page, "#problem")
            again = ("--host", "private", "--provider", "cpu", "--http", f"127.0.0.1:{port}")
            with serving(*again, "--model", f"same={folder / 'same.onnx'}"):
                page.wait("document.querySelector('#health').innerText === 'ready'")
                assert page.value("document.querySelector('#problem').hidden")
