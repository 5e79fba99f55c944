"""Messages with pictures and sound: how they become a prompt, and `generate` with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import OptionError, PromptRefused
from qnnbridge.genai._parts import split_media
from tests.genai.tiny_multimodal import picture, sound, write_multimodal

PICTURE, OTHER, SOUND = picture(), picture(seed=2), sound()
QWEN = "<|vision_start|><|image_pad|><|vision_end|>"


def info(kind: str, *modalities: str) -> genai.GenerationModelInfo:
    return genai.GenerationModelInfo(
        kind, "CPU", "dynamic", None, 100, 100, (), None, {}, "", "tiny", "0.18.0", modalities=modalities
    )


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


IMAGE, AUDIO = {"type": "image", "image": PICTURE}, {"type": "audio", "audio": SOUND}


class TestSplitting:
    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ("phi3v", "a<|image_1|>\nb<|image_2|>\n"),
            ("phi4mm", "a<|image_1|>\nb<|image_2|>\n"),
            ("qwen2_5_vl", f"a{QWEN}b{QWEN}"),
            ("mistral3", "a[IMG]b[IMG]"),
            ("gemma3", [text("a"), {"type": "image"}, text("b"), {"type": "image"}]),
        ],
    )
    def test_each_kind_of_model_has_its_own_placeholders(self, kind: str, expected: Any) -> None:
        other = {"type": "image", "image": OTHER}
        kept, pictures, sounds = split_media(info(kind, "image"), user(text("a"), IMAGE, text("b"), other))
        assert kept == [{"role": "system", "content": "s"}, {"role": "user", "content": expected}]
        assert (pictures, sounds) == ([PICTURE, OTHER], [])

    def test_placeholders_are_numbered_across_all_messages(self) -> None:
        messages = [*user(IMAGE, AUDIO), {"role": "assistant", "content": "x"}, *user(AUDIO, IMAGE)[1:]]
        kept, pictures, sounds = split_media(info("phi4mm", "image", "audio"), messages)
        assert [one["content"] for one in kept] == [
            "s",
            "<|image_1|>\n<|audio_1|>\n",
            "x",
            "<|audio_2|>\n<|image_2|>\n",
        ]
        assert (len(pictures), len(sounds)) == (2, 2)

    def test_messages_without_images_are_not_changed(self) -> None:
        messages = user(text("a"), {"type": "of the template"})
        assert split_media(info("llama"), messages) == (messages, [], [])

    def test_the_file_of_a_part_is_read_from_a_path(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(SOUND)
        part = {"type": "audio", "path": str(tmp_path / "a.wav")}
        assert split_media(info("phi4mm", "audio"), user(part))[2] == [SOUND]

    @pytest.mark.parametrize(
        ("part", "words"),
        [
            ({"type": "image"}, "must have either"),
            ({"type": "image", "path": "a", "image": PICTURE}, "must have either"),
            ({"type": "image", "image": "a.png"}, "must be bytes"),
            ({"type": "video", "path": "a"}, "is not a valid text, image or audio part"),
            ({"type": "text", "text": 5}, "is not a valid text, image or audio part"),
            ("words", "is not a valid text, image or audio part"),
        ],
    )
    def test_unknown_message_parts_are_refused(self, part: Any, words: str) -> None:
        with pytest.raises(OptionError, match=words):
            split_media(info("gemma3", "image"), user(IMAGE, part))

    @pytest.mark.parametrize(
        ("kind", "modalities", "part"),
        [("llama", (), IMAGE), ("llama", (), AUDIO), ("gemma3", ("image",), AUDIO), ("whisper", ("audio",), IMAGE)],
    )
    def test_parts_that_the_model_does_not_support_are_refused(self, kind: str, modalities: Any, part: Any) -> None:
        with pytest.raises(PromptRefused, match="tiny does not accept"):
            split_media(info(kind, *modalities), user(part))

    def test_a_missing_media_file_is_refused(self) -> None:
        with pytest.raises(PromptRefused, match="cannot be read"):
            split_media(info("gemma3", "image"), user({"type": "image", "path": "absent.png"}))


@pytest.mark.process
class TestGenerating:
    @pytest.mark.parametrize(
        ("kind", "parts", "prompt"),
        [
            ("gemma3", (text("a"), IMAGE, text("b")), "<|user|>a<start_of_image>b<|end|><|assistant|>"),
            ("qwen2_5_vl", (IMAGE, text("b"), IMAGE), f"<|user|>{QWEN}b{QWEN}<|end|><|assistant|>"),
            ("phi4mm", (IMAGE, text("b"), AUDIO), "<|user|><|image_1|>\nb<|audio_1|>\n<|end|><|assistant|>"),
        ],
    )
    def test_the_answer_equals_that_to_the_prompt_with_placeholders(
        self, kind: str, parts: tuple[Any, ...], prompt: str, tmp_path: Path, host: qnnbridge.Host
    ) -> None:
        og = pytest.importorskip("onnxruntime_genai")
        folder = write_multimodal(tmp_path / kind, kind)
        pool = genai.GeneratorPool()
        messages = [{"role": "user", "content": list(parts)}]
        model = genai.Model(folder, host=host)
        with genai.generate(model, messages, max_tokens=10, pool=pool) as answer:
            assert "".join(answer) == answer.text != ""
        assert answer.finish_reason == "length"
        assert len(pool) == 0  # its KV cache contains images
        theirs = og.Model(str(folder))
        media: dict[str, Any] = {"images": og.Images.open_bytes(*[PICTURE] * parts.count(IMAGE))}
        if AUDIO in parts:
            media["audios"] = og.Audios.open_bytes(SOUND)
        inputs = theirs.create_multimodal_processor()(prompt, **media)
        assert answer.prompt_tokens == inputs["input_ids"].as_numpy().size
        generator = og.Generator(theirs, og.GeneratorParams(theirs))
        generator.set_inputs(inputs)
        expected = []
        for _ in range(10):
            generator.generate_next_token()
            expected.append(int(generator.get_next_tokens()[0]))
        assert answer.tokens == expected

    def test_a_conversation_keeps_its_images(self, tmp_path: Path, host: qnnbridge.Host) -> None:
        model = genai.Model(write_multimodal(tmp_path / "q", "qwen2_5_vl"), host=host)
        messages: list[dict[str, Any]] = [{"role": "user", "content": [IMAGE, text("a")]}]
        with genai.generate(model, messages, max_tokens=4) as first:
            messages += [
                {"role": "assistant", "content": "".join(first)},
                {"role": "user", "content": [{"type": "image", "image": OTHER}, text("b")]},
            ]
        with genai.generate(model, messages, max_tokens=4) as second:
            "".join(second)
        assert second.prompt_tokens > first.prompt_tokens + 4
        changed = [
            {"role": "user", "content": [{"type": "image", "image": picture(seed=90)}, text("a")]},
            *messages[1:],
        ]
        with genai.generate(model, changed, max_tokens=4) as third:
            "".join(third)
        assert third.tokens != second.tokens

    def test_the_deadline_of_an_answer_includes_its_images(self, tmp_path: Path, host: qnnbridge.Host) -> None:
        model = genai.Model(write_multimodal(tmp_path / "g", "gemma3"), host=host)
        with pytest.raises(TimeoutError):
            genai.generate(model, [{"role": "user", "content": [IMAGE]}], timeout=1e-9)

    def test_a_text_model_refuses_images_and_audio(self, tmp_path: Path, host: qnnbridge.Host) -> None:
        from tests.genai.tiny_decoders import write_model

        model = genai.Model(write_model(tmp_path / "text", "dynamic"), host=host)
        with pytest.raises(PromptRefused, match="does not accept pictures"):
            genai.generate(model, [{"role": "user", "content": [IMAGE]}])


def test_missing_facts_of_the_model_have_defaults() -> None:
    """A host of an earlier release does not report what the model supports."""
    wire = info("llama").to_wire()
    wire.pop("modalities")
    assert dataclasses.asdict(genai.GenerationModelInfo.from_wire(wire))["modalities"] == ()
