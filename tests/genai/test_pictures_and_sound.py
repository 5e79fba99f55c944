"""Prompts with images and audio: tokens equal those of onnxruntime-genai in this process, and never depend on a
crash.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import Cancelled, GenerationUnsupported, OptionError, PromptRefused
from tests.genai.conftest import prompt
from tests.genai.kills import Killer
from tests.genai.tiny_decoders import write_model
from tests.genai.tiny_multimodal import FULL, GEMMA, picture, sound, write_multimodal

pytestmark = pytest.mark.process

GEMMA_MARK, QWEN_MARK = "<start_of_image>", "<|vision_start|><|image_pad|><|vision_end|>"


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    prompt: str | list[str]
    pictures: tuple[bytes, ...] = ()
    sounds: tuple[bytes, ...] = ()


CASES = {
    "gemma3": Case("gemma3", f"<|user|>a{GEMMA_MARK}b<|end|>", (picture(),)),
    "gemma3-text": Case("gemma3", "<|user|>hello<|end|>"),
    "qwen": Case("qwen2_5_vl", f"<|user|>a{QWEN_MARK}b", (picture(),)),
    "qwen-two": Case("qwen2_5_vl", f"<|user|>a{QWEN_MARK}{QWEN_MARK}b", (picture(), picture(100, 60, 4))),
    "phi4mm": Case("phi4mm", "<|user|><|image_1|>a<|audio_1|>b", (picture(),), (sound(),)),
    "phi4mm-sound": Case("phi4mm", "<|user|><|audio_1|>b", (), (sound(seed=3),)),
    "phi4mm-text": Case("phi4mm", "<|user|>hello"),
    "whisper": Case("whisper", ["hello"], (), (sound(),)),
    "whisper-two": Case("whisper", ["hello", "you"], (), (sound(), sound(2.0, 2))),
}
Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def multimodal(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the folder of a model by its kind."""
    root = tmp_path_factory.mktemp("multimodal")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else write_multimodal(path, kind)

    return folder


@pytest.fixture
def own_host() -> Iterator[qnnbridge.Host]:
    pytest.importorskip("onnxruntime_genai")
    with qnnbridge.Host() as host:
        yield host


def inputs_of(module: Any, model: Any, case: Case) -> Any:
    media = {}
    if case.pictures:
        media["images"] = module.Images.open_bytes(*case.pictures)
    if case.sounds:
        media["audios"] = module.Audios.open_bytes(*case.sounds)
    return model.create_multimodal_processor()(case.prompt, **media)


def begun(module: Any, model: Any, case: Case, inputs: Any = None, **search: Any) -> Any:
    params = module.GeneratorParams(model)
    rows = len(case.prompt) if isinstance(case.prompt, list) else 1
    params.set_search_options(**({"batch_size": rows} if rows > 1 else {}), **search)
    generator = module.Generator(model, params)
    generator.set_inputs(inputs_of(module, model, case) if inputs is None else inputs)
    return generator


def step(generator: Any, count: int) -> list[list[int]]:
    made = []
    for _ in range(count):
        generator.generate_next_token()
        made.append([int(token) for token in generator.get_next_tokens()])
    return made


def after(module: Any, model: Any, case: Case, history: Sequence[int], count: int) -> list[list[int]]:
    """Return the tokens that a new generator generates from the whole history."""
    inputs = inputs_of(module, model, case)
    inputs["input_ids"] = np.array([history], np.int32)
    return step(begun(module, model, case, inputs), count)


# --- equality with one process ---


@pytest.mark.parametrize("name", CASES)
def test_inputs_and_tokens_equal_those_of_genai(name: str, multimodal: Made, host: qnnbridge.Host) -> None:
    og, case = pytest.importorskip("onnxruntime_genai"), CASES[name]
    models = (og.Model(str(multimodal(case.kind))), genai.Model(multimodal(case.kind), host=host))
    theirs, ours = (inputs_of(module, model, case) for module, model in zip((og, genai), models, strict=True))
    assert sorted(theirs.keys()) == sorted(ours.keys())
    for key in theirs.keys():  # noqa: SIM118 - it is no mapping
        assert theirs[key].shape() == ours[key].shape()
        np.testing.assert_array_equal(theirs[key].as_numpy(), ours[key].as_numpy())
    generators = (begun(og, models[0], case, theirs), begun(genai, models[1], case, ours))
    expected, made = (step(one, 16) for one in generators)
    assert made == expected
    assert generators[1].get_sequence(0).tolist() == generators[0].get_sequence(0).tolist()
    processors = [model.create_multimodal_processor() for model in models]
    tokens = np.array([row[0] for row in made], np.int32)
    assert processors[1].decode(tokens) == processors[0].decode(tokens)
    streams = [processor.create_stream() for processor in processors]
    assert [streams[1].decode(one) for one in tokens] == [streams[0].decode(int(one)) for one in tokens]


@pytest.mark.parametrize("kind", ["gemma3", "qwen", "phi4mm", "phi4mm-sound", "whisper"])
def test_another_image_or_audio_gives_other_tokens(kind: str, multimodal: Made, host: qnnbridge.Host) -> None:
    """Otherwise the models would not show whether an image arrives."""
    case = CASES[kind]
    other = dataclasses.replace(
        case,
        pictures=tuple(picture(seed=90) for _ in case.pictures),
        sounds=tuple(sound(seed=90) for _ in case.sounds),
    )
    model = genai.Model(multimodal(case.kind), host=host)
    assert step(begun(genai, model, case), 16) != step(begun(genai, model, other), 16)


def test_files_are_read_by_the_application(multimodal: Made, host: qnnbridge.Host, tmp_path: Path) -> None:
    case = CASES["phi4mm"]
    (tmp_path / "a.png").write_bytes(case.pictures[0])
    (tmp_path / "a.wav").write_bytes(case.sounds[0])
    images, audios = genai.Images.open(str(tmp_path / "a.png")), genai.Audios.open(tmp_path / "a.wav")
    (tmp_path / "a.png").unlink()
    model = genai.Model(multimodal("phi4mm"), host=host)
    inputs = model.create_multimodal_processor()(case.prompt, images=images, audios=audios)
    assert step(begun(genai, model, case, inputs), 8) == step(begun(genai, model, case), 8)


def test_inputs_can_be_used_by_several_generators(multimodal: Made, host: qnnbridge.Host) -> None:
    """onnxruntime-genai itself has no inputs left for the second generator."""
    case = CASES["whisper"]
    model = genai.Model(multimodal("whisper"), host=host)
    inputs = inputs_of(genai, model, case)
    assert step(begun(genai, model, case, inputs), 8) == step(begun(genai, model, case, inputs), 8)


# --- further turns, in which onnxruntime-genai is wrong ---


@pytest.mark.parametrize("name", ["gemma3", "qwen-two", "phi4mm", "whisper"])
def test_a_second_turn_gives_the_tokens_of_the_complete_history(
    name: str, multimodal: Made, host: qnnbridge.Host
) -> None:
    og, case = pytest.importorskip("onnxruntime_genai"), CASES[name]
    model = genai.Model(multimodal(case.kind), host=host)
    one = begun(genai, model, case)
    step(one, 5)
    one.append_tokens(prompt(6))
    history = one.get_sequence(0).tolist()
    assert step(one, 8) == after(og, og.Model(str(multimodal(case.kind))), case, history, 8)
    assert one.stats.replays == 1


@pytest.mark.parametrize("name", ["gemma3", "qwen", "phi4mm", "whisper"])
def test_rewinding_gives_the_same_tokens_again(name: str, multimodal: Made, host: qnnbridge.Host) -> None:
    case = CASES[name]
    one = begun(genai, genai.Model(multimodal(case.kind), host=host), case)
    begin = one.token_count()
    made = step(one, 10)
    one.rewind_to(begin + 4)
    assert step(one, 6) == made[4:]
    one.rewind_to(begin)
    assert step(one, 10) == made


def test_images_are_accepted_only_in_the_first_prompt(multimodal: Made, host: qnnbridge.Host) -> None:
    case = CASES["gemma3"]
    model = genai.Model(multimodal("gemma3"), host=host)
    one = begun(genai, model, case)
    with pytest.raises(GenerationUnsupported, match="first prompt"):
        one.set_inputs(inputs_of(genai, model, case))
    assert len(step(one, 2)) == 2


def test_a_refused_prompt_leaves_the_generator_unchanged(multimodal: Made, host: qnnbridge.Host) -> None:
    case = CASES["gemma3"]
    model = genai.Model(multimodal("gemma3"), host=host)
    one = genai.Generator(model, genai.GeneratorParams(model))
    inputs = inputs_of(genai, model, case)
    inputs["input_ids"] = np.array([[5] * 800], np.int32)
    with pytest.raises(PromptRefused, match="max_length"):
        one.set_inputs(inputs)
    assert one.token_count() == 0
    one.set_inputs(inputs_of(genai, model, case))
    assert step(one, 4) == step(begun(genai, model, case), 4)


def test_a_prompt_with_an_image_is_cancelled(multimodal: Made, host: qnnbridge.Host) -> None:
    case = CASES["gemma3"]
    model = genai.Model(multimodal("gemma3"), host=host)
    one = genai.Generator(model, genai.GeneratorParams(model))
    one.set_runtime_option("terminate_session", "1")
    with pytest.raises(Cancelled):
        one.set_inputs(inputs_of(genai, model, case))
    one.set_runtime_option("terminate_session", "0")
    one.set_inputs(inputs_of(genai, model, case))
    assert step(one, 4) == step(begun(genai, model, case), 4)


# --- crashes of the host ---


@pytest.mark.parametrize("name", CASES)
def test_a_crash_changes_no_token(name: str, multimodal: Made, own_host: qnnbridge.Host) -> None:
    case, killer = CASES[name], Killer(own_host)
    model = genai.Model(multimodal(case.kind), host=own_host)
    expected = step(begun(genai, model, case), 14)
    inputs = inputs_of(genai, model, case)
    killer.kill()  # the inputs are lost before a generator gets them
    one = begun(genai, model, case, inputs)
    made = step(one, 5)
    killer.kill()
    made += step(one, 5)
    killer.kill()
    made += step(one, 4)
    assert made == expected
    assert one.stats.restarts >= 1  # tokens that were generated ahead need no host
    assert killer.kills == 3


def test_inputs_can_be_read_after_a_crash(multimodal: Made, own_host: qnnbridge.Host) -> None:
    case = CASES["qwen"]
    inputs = inputs_of(genai, genai.Model(multimodal(case.kind), host=own_host), case)
    before = inputs["pixel_values"].as_numpy()
    Killer(own_host).kill()
    np.testing.assert_array_equal(inputs["pixel_values"].as_numpy(), before)


def test_a_stream_of_the_processor_survives_a_crash(multimodal: Made, own_host: qnnbridge.Host) -> None:
    model = genai.Model(multimodal("gemma3"), host=own_host)
    stream, tokens = model.create_multimodal_processor().create_stream(), genai.Tokenizer(model).encode("so grün")
    made = [stream.decode(token) for token in tokens[:5]]
    Killer(own_host).kill()  # between the two bytes of a character
    made += [stream.decode(token) for token in tokens[5:]]
    assert "".join(made) == "so grün"


# --- tensors ---


def test_named_tensors_equal_those_of_the_processor(multimodal: Made, host: qnnbridge.Host) -> None:
    model = genai.Model(multimodal("gemma3"), host=host)
    inputs = inputs_of(genai, model, CASES["gemma3"])
    assert "pixel_values" in inputs
    assert "absent" not in inputs
    assert len(inputs) == 4
    assert GEMMA["<image_soft_token>"] in inputs["input_ids"].as_numpy()
    assert "pixel_values in the host" in repr(inputs)
    with pytest.raises(KeyError):
        inputs["absent"]
    # Replaced by the application: another image. Deleted: no image.
    shape = inputs["pixel_values"].shape()
    inputs["pixel_values"] = np.zeros(shape, np.float32)
    assert inputs["pixel_values"].as_numpy().sum() == 0
    assert len(inputs) == 4
    replaced = step(begun(genai, model, CASES["gemma3"], inputs), 8)
    og = pytest.importorskip("onnxruntime_genai")
    theirs = og.Model(str(multimodal("gemma3")))
    expected = inputs_of(og, theirs, CASES["gemma3"])
    expected["pixel_values"] = np.zeros(shape, np.float32)
    assert replaced == step(begun(og, theirs, CASES["gemma3"], expected), 8)
    inputs["num_image_tokens"] = np.array([256], np.int32)
    with pytest.raises(PromptRefused, match="int64"):
        begun(genai, model, CASES["gemma3"], inputs)
    del inputs["pixel_values"], inputs["token_type_ids"]
    assert sorted(inputs.keys()) == ["input_ids", "num_image_tokens"]


# --- refusals ---


def bad_pictures() -> dict[str, tuple[bytes, str]]:
    from PIL import Image

    def saved(kind: str, mode: str = "RGB") -> bytes:
        stream = io.BytesIO()
        Image.open(io.BytesIO(picture(80, 60))).convert(mode).save(stream, kind)
        return stream.getvalue()

    jpeg = saved("JPEG")
    table = jpeg.index(b"\xff\xc4") + 5
    return {
        "no picture": (b"hello world", "neither PNG nor JPEG"),
        "a few bytes": (b"abc", "neither PNG nor JPEG"),
        "a GIF": (saved("GIF"), "neither PNG nor JPEG"),
        "a JPEG that is cut off": (jpeg[: len(jpeg) // 2], "cannot be decoded"),
        "a JPEG without an end": (jpeg[:-2], "cannot be decoded"),
        "a head of a JPEG": (jpeg[:100], "cannot be decoded"),
        "a JPEG with a bad table": (jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :], "cannot be decoded"),
        "a JPEG for printers": (saved("JPEG", "CMYK"), "cannot be processed"),
        "a PNG that is cut off": (picture()[:60], "cannot be processed"),
        "a huge PNG": (picture()[:16] + b"\0\0\xff\xff\0\0\xff\xff" + picture()[24:], "65535 x 65535 pixels"),
    }


def test_no_image_crashes_the_host_or_keeps_it_busy(multimodal: Made, host: qnnbridge.Host) -> None:
    model = genai.Model(multimodal("gemma3"), host=host)
    processor, before = model.create_multimodal_processor(), host.supervisor.running
    for what, (content, words) in bad_pictures().items():
        with pytest.raises(PromptRefused, match=words):
            processor(f"a{GEMMA_MARK}", images=genai.Images.open_bytes(content), timeout=60)
            pytest.fail(what)
    assert host.supervisor.running is before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 1000, "neither WAV nor FLAC nor MP3"),
        (sound()[:30], "cannot be processed"),
        (b"fLaC" + bytes(60), "no number of samples"),
        (b"fLaC" + bytes(14) + b"\x0a\xc4\x40\xff\xff\xff\xff\xff" + bytes(40), "samples"),
    ],
)
def test_bad_audio_is_refused(content: bytes, words: str, multimodal: Made, host: qnnbridge.Host) -> None:
    model = genai.Model(multimodal("phi4mm"), host=host)
    with pytest.raises(PromptRefused) as caught:
        model.create_multimodal_processor()("<|audio_1|>", audios=genai.Audios.open_bytes(content))
    assert words in f"{caught.value.message} {caught.value.cause}"


@pytest.mark.parametrize(
    ("kind", "text", "pictures", "sounds"),
    [
        ("gemma3", "no mark", 1, 0),
        ("gemma3", GEMMA_MARK, 0, 0),
        ("gemma3", GEMMA_MARK * 2, 1, 0),
        ("phi4mm", "<|image_1|>", 1, 1),
        ("phi4mm", "<|audio_1|><|audio_2|>", 0, 1),
        ("whisper", "hello", 0, 0),
        ("whisper", None, 0, 1),
    ],
)
def test_placeholders_that_do_not_match_the_media_are_refused(
    kind: str, text: str | None, pictures: int, sounds: int, multimodal: Made, host: qnnbridge.Host
) -> None:
    media: dict[str, Any] = {}
    if pictures:
        media["images"] = genai.Images.open_bytes(*[picture()] * pictures)
    if sounds:
        media["audios"] = genai.Audios.open_bytes(*[sound()] * sounds)
    with pytest.raises(PromptRefused, match="cannot be processed"):
        genai.Model(multimodal(kind), host=host).create_multimodal_processor()(text, **media)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gemma3", "", "is empty"),
        ("gemma3", None, "is empty"),
        ("gemma3", ["a", "b"], "one prompt at a time"),
        ("phi4mm", "<|image_" + "1" * 100_000, "ten digits"),
    ],
)
def test_prompts_that_would_crash_the_process_of_genai_are_refused(
    kind: str, text: Any, words: str, multimodal: Made, host: qnnbridge.Host
) -> None:
    before = host.supervisor.running
    with pytest.raises(PromptRefused, match=words):
        genai.Model(multimodal(kind), host=host).create_multimodal_processor()(text)
    assert host.supervisor.running is before


def test_a_list_with_one_prompt_is_that_prompt(multimodal: Made, host: qnnbridge.Host) -> None:
    """onnxruntime-genai ignores the text of the prompt."""
    case = CASES["gemma3"]
    model = genai.Model(multimodal("gemma3"), host=host)
    listed = dataclasses.replace(case, prompt=[str(case.prompt)])
    assert step(begun(genai, model, listed), 6) == step(begun(genai, model, case), 6)


def test_a_file_that_is_not_an_image_is_refused_before_the_host_reads_it(tmp_path: Path) -> None:
    for wrong in (5, "text", None, [1]):
        with pytest.raises(OptionError, match="must be bytes"):
            genai.Images.open_bytes(wrong)
    with pytest.raises(PromptRefused, match="is empty"):
        genai.Audios.open_bytes(b"")
    with pytest.raises(OptionError, match="No picture was given"):
        genai.Images.open()
    with pytest.raises(OptionError, match="not the path"):
        genai.Images.open(5)  # type: ignore[arg-type]
    with pytest.raises(PromptRefused, match="cannot be read"):
        genai.Images.open(tmp_path / "absent.png")
    with pytest.raises(PromptRefused, match="cannot be read"):
        genai.Images.open("a\0b")
    with pytest.raises(PromptRefused, match="not a file"):
        genai.Images.open(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PromptRefused, match="not a file"):
        genai.Audios.open(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(257 * 2**20)
    with pytest.raises(PromptRefused, match="bytes"):
        genai.Images.open(tmp_path / "large")
    with pytest.raises(PromptRefused, match="in total"):
        genai.Images.open_bytes(bytes(200 * 2**20), bytes(100 * 2**20))


def test_invalid_arguments_of_the_processor_are_refused(multimodal: Made, host: qnnbridge.Host) -> None:
    processor = genai.Model(multimodal("gemma3"), host=host).create_multimodal_processor()
    with pytest.raises(OptionError, match="Images"):
        processor("a", images=picture())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Audios"):
        processor("a", audios=genai.Images.open_bytes(picture()))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be a string"):
        processor([5])  # type: ignore[list-item]
    with pytest.raises(PromptRefused, match="null character"):
        processor("a\0b")
    with pytest.raises(PromptRefused, match="vocabulary"):
        processor.decode([FULL + 5])


def test_a_text_model_has_no_processor(tmp_path: Path, host: qnnbridge.Host) -> None:
    model = genai.Model(write_model(tmp_path / "text", "dynamic"), host=host)
    assert model.info.modalities == ()
    with pytest.raises(GenerationUnsupported, match="accepts only text"):
        model.create_multimodal_processor()
    with pytest.raises(GenerationUnsupported, match="Streaming speech"):
        model.create_streaming_processor()


def test_the_model_reports_which_media_it_supports(multimodal: Made, host: qnnbridge.Host, tmp_path: Path) -> None:
    kinds = {"gemma3": ("image",), "qwen2_5_vl": ("image",), "phi4mm": ("image", "audio"), "whisper": ("audio",)}
    for kind, expected in kinds.items():
        model = genai.Model(multimodal(kind), host=host)
        assert model.info.modalities == expected
        assert model.info.layout == "dynamic"
    assert "takes audio" in repr(genai.Model(multimodal("whisper"), host=host))
    # A model without its audio stage, which onnxruntime-genai allows, and with an attention of limited range.
    folder = write_multimodal(tmp_path / "phi", "phi4mm")
    config = json.loads((folder / "genai_config.json").read_text("utf-8"))
    config["model"]["speech"] |= {"filename": "", "config_filename": ""}
    config["model"]["decoder"]["sliding_window"] = {"window_size": 512}
    (folder / "genai_config.json").write_text(json.dumps(config), "utf-8")
    # Only the reader in the host is tested: onnxruntime-genai would require an embedding stage without audio.
    from qnnbridge_host.model.genai_folder import read_folder

    assert read_folder(str(folder)).modalities == ("image",)
    assert read_folder(str(folder)).window is None
