"""Write tiny models with random weights for images or audio, in layouts that onnxruntime-genai runs.

``gemma3``: images of a fixed size, so that the vision stage can run on QNN. ``qwen2_5_vl``: several images of any
size; positions have three dimensions. ``phi4mm``: images and audio. ``whisper``: audio, an encoder and a decoder
with cross attention. The decoders are those of `tiny_decoders`.
"""

from __future__ import annotations

import io
import json
import struct
import wave
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.genai.tiny_decoders import (
    END,
    FLOAT,
    HEAD,
    HEADS,
    INT32,
    INT64,
    KV_HEADS,
    LAYERS,
    PAD,
    QNN,
    TEMPLATE,
    VOCABULARY,
    WIDTH,
    Decoder,
    Graph,
    Sizes,
    tensor,
    write_tokenizer,
)

CONTEXT = 768
# Tokens after the vocabulary that represent images and audio, of gemma3 and qwen2_5_vl.
GEMMA: Final = {
    "<start_of_image>": VOCABULARY,
    "<image_soft_token>": VOCABULARY + 1,
    "<end_of_image>": VOCABULARY + 2,
}
QWEN: Final = {"<|vision_start|>": VOCABULARY, "<|image_pad|>": VOCABULARY + 1, "<|vision_end|>": VOCABULARY + 2}
# onnxruntime-genai contains these numbers in its code.
PHI: Final = {"<|endoftext10|>": 200010, "<|endoftext11|>": 200011}
FULL = VOCABULARY + 4
# Gemma's numbers: an image has this many tokens, each of which is a square with this many pixels per side.
GEMMA_TOKENS, GEMMA_PATCH = 256, 2
GEMMA_SIDE = 16 * GEMMA_PATCH
QWEN_PATCH, MERGE = 14, 2
MEL, FRAMES = 80, 3000
# Templates of models that get images as parts of a message.
PARTS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class MultiModalDecoder(Decoder):
    """Add a decoder after an embedding stage, which supplies the rows of tokens for images and audio."""

    def __init__(self, seed: int) -> None:
        super().__init__(Sizes(context=CONTEXT), seed)
        self.rng = np.random.default_rng(seed + 1000)
        self.embedding = np.concatenate([self.embedding, self.weights(FULL - VOCABULARY, WIDTH)])
        self.head = np.concatenate([self.head, np.zeros((WIDTH, FULL - VOCABULARY), np.float32)], 1)

    def weights(self, rows: int, columns: int, gain: float = 1.0) -> Any:
        return (self.rng.standard_normal((rows, columns)) * gain / np.sqrt(rows)).astype(np.float32)

    def write_decoder(self, folder: Path, *, positions: bool = False) -> dict[str, Any]:
        """Builder of a decoder. positions: the decoder takes three positions for each token, as Qwen's does."""
        g = Graph()
        x = "inputs_embeds"
        length = g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=1)
        sequence = g.op("Cast", g.op("Sub", length, g.ints(1)), to=INT32)
        total = g.op("Gather", g.op("Shape", "attention_mask"), g.const("one", np.array(1, np.int64)))
        total = g.op("Cast", total, to=INT32)
        if positions:
            # Each of the three dimensions has another effect.
            scaled = g.op("Mul", "position_ids", g.const("scales", np.array([1, 7, 31], np.int64).reshape(3, 1, 1)))
            place = g.op("Mod", g.op("ReduceSum", scaled, g.ints(0), keepdims=0), g.ints(97))
            x = g.op("Add", x, g.op("Gather", g.const("places", self.weights(97, WIDTH, 3.0)), place))
        x = self.grouped(g, x, sequence, total, "past.{1}.{0}", "present.{1}.{0}")
        self.logits(g, x)
        extra = [tensor("position_ids", INT64, 3, "b", "s")] if positions else []
        g.save(
            folder / "decoder.onnx",
            [
                tensor("inputs_embeds", FLOAT, "b", "s", WIDTH),
                tensor("attention_mask", INT64, "b", "t"),
                *extra,
                *self.caches("past.{1}.{0}", "b", KV_HEADS, "p", HEAD),
            ],
            [
                tensor("logits", FLOAT, "b", "s", FULL),
                *self.caches("present.{1}.{0}", "b", KV_HEADS, "t", HEAD),
            ],
        )
        inputs = {"inputs_embeds": "inputs_embeds", "attention_mask": "attention_mask"}
        if positions:
            inputs["position_ids"] = "position_ids"
        return self.section("decoder.onnx") | {
            "inputs": inputs | {"past_key_names": "past.%d.key", "past_value_names": "past.%d.value"},
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        }

    def section(self, filename: str) -> dict[str, Any]:
        return {
            "filename": filename,
            "session_options": {"provider_options": []},
            "head_size": HEAD,
            "hidden_size": WIDTH,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": LAYERS,
        }

    def write_embedding(self, folder: Path, features: dict[str, int]) -> dict[str, Any]:
        """Add an embedding stage.

        Args:
            features: names of inputs with features of images or audio, and the token that represents each row.
        """
        g = Graph()
        ids = g.op("Cast", "input_ids", to=INT64)
        rows = g.op("Mod", ids, g.const("rows", np.array(FULL, np.int64)))
        x = g.op("Gather", g.const("embedding", self.embedding), rows)
        for name, token in features.items():
            is_one = g.op("Equal", ids, g.const(f"token_{name}", np.array(token, np.int64)))
            places = g.op("Transpose", g.op("NonZero", is_one), perm=[1, 0])
            x = g.op("ScatterND", x, places, g.op("Reshape", name, g.ints(-1, WIDTH)))
        g.op("Identity", x, out="inputs_embeds")
        g.save(
            folder / "embedding.onnx",
            [tensor("input_ids", INT32, "b", "s"), *(tensor(name, FLOAT, f"n_{name}", WIDTH) for name in features)],
            [tensor("inputs_embeds", FLOAT, "b", "s", WIDTH)],
        )
        return {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", **{name: name for name in features}},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        }

    # --- gemma3 ---

    def write_gemma_vision(self, folder: Path, *, qnn: bool) -> dict[str, Any]:
        g, side = Graph(), GEMMA_SIDE // GEMMA_PATCH
        x = g.op("Reshape", "pixel_values", g.ints(3, side, GEMMA_PATCH, side, GEMMA_PATCH))
        x = g.op("Reshape", g.op("Transpose", x, perm=[1, 3, 0, 2, 4]), g.ints(GEMMA_TOKENS, 3 * GEMMA_PATCH**2))
        x = g.op("MatMul", x, g.const("patches", self.weights(3 * GEMMA_PATCH**2, WIDTH, 3.0)))
        g.op("Add", x, g.const("places", self.weights(GEMMA_TOKENS, WIDTH)), out="image_features")
        g.save(
            folder / "vision.onnx",
            [tensor("pixel_values", FLOAT, 1, 3, GEMMA_SIDE, GEMMA_SIDE)],
            [tensor("image_features", FLOAT, GEMMA_TOKENS, WIDTH)],
        )
        operations = [
            ("DecodeImage", {"color_space": "RGB"}),
            (
                "Resize",
                {"interpolation": "CUBIC", "width": GEMMA_SIDE, "height": GEMMA_SIDE, "keep_aspect_ratio": 0},
            ),
            ("Rescale", {}),
            ("Normalize", {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}),
            ("Permute3D", {"dims": [2, 0, 1]}),
        ]
        _write_image_processor(folder, operations)
        found: dict[str, Any] = {
            "filename": "vision.onnx",
            "inputs": {"pixel_values": "pixel_values"},
            "outputs": {"image_features": "image_features"},
        }
        return {**found, "session_options": {"provider_options": QNN}} if qnn else found

    # --- qwen2_5_vl ---

    def write_qwen_vision(self, folder: Path) -> dict[str, Any]:
        g, size = Graph(), 3 * 2 * QWEN_PATCH**2
        x = g.op("Reshape", "pixel_values", g.ints(-1, MERGE**2 * size))
        # The size of the image matters, too: every image has a different one.
        grid = g.op("ReduceSum", g.op("Cast", "image_grid_thw", to=FLOAT), g.ints(0, 1), keepdims=0)
        x = g.op("MatMul", x, g.const("patches", self.weights(MERGE**2 * size, WIDTH, 3.0)))
        g.op("Add", x, g.op("Mul", grid, g.const("little", np.float32(0.01))), out="image_features")
        g.save(
            folder / "vision.onnx",
            [tensor("pixel_values", FLOAT, "patches", size), tensor("image_grid_thw", INT64, 1, 3)],
            [tensor("image_features", FLOAT, "tokens", WIDTH)],
        )
        resize = {"width": 56, "height": 56, "smart_resize": 1, "min_pixels": 784, "max_pixels": 28224}
        operations = [
            ("DecodeImage", {"color_space": "RGB"}),
            ("ConvertRGB", {}),
            ("Resize", {**resize, "patch_size": QWEN_PATCH, "merge_size": MERGE}),
            ("Rescale", {"rescale_factor": 1 / 255}),
            ("Normalize", {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "qwen2_5_vl": 1}),
            ("PatchImage", {"patch_size": QWEN_PATCH, "temporal_patch_size": 2, "merge_size": MERGE}),
        ]
        _write_image_processor(folder, operations)
        return {
            "filename": "vision.onnx",
            "spatial_merge_size": MERGE,
            "patch_size": QWEN_PATCH,
            "inputs": {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"},
            "outputs": {"image_features": "image_features"},
        }

    # --- phi4mm ---

    def write_phi_vision(self, folder: Path) -> dict[str, Any]:
        """Add features made from the sums of the images' pixels; the processor determines their number."""
        g = Graph()
        sums = g.op("ReduceMean", "pixel_values", axes=[0, 3, 4], keepdims=0)
        row = g.op(
            "MatMul", g.op("ReduceMean", sums, axes=[0], keepdims=1), g.const("w", self.weights(3, WIDTH, 300.0))
        )
        count = g.op("ReduceSum", "num_image_tokens", keepdims=1)
        count = g.op("Reshape", count, g.ints(1))
        g.op("Expand", row, g.op("Concat", count, g.ints(WIDTH), axis=0), out="image_features")
        g.save(
            folder / "vision.onnx",
            [
                tensor("pixel_values", FLOAT, "n", "crops", 3, 448, 448),
                tensor("image_attention_mask", FLOAT, "n", "crops", 32, 32),
                tensor("image_sizes", INT64, "n", 2),
                tensor("num_image_tokens", INT64, "n", 1),
            ],
            [tensor("image_features", FLOAT, "tokens", WIDTH)],
        )
        operations = [
            ("DecodeImage", {"color_space": "RGB"}),
            ("Phi4VisionDynamicPreprocess", {"dynamic_hd": 1, "dyhd_base_resolution": 448}),
            ("Rescale", {}),
            ("Normalize", {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}),
            ("Phi4VisionProcessor", {"dyhd_base_resolution": 448, "interpolation": "CUBIC"}),
        ]
        processor = _image_processor(operations)
        processor["processor"]["output_aligner"] = "phi4-vision-aligner"
        steps = processor["processor"]["transforms"]
        steps[2]["operation"]["inputs"] = [":0"]
        steps[4]["operation"]["inputs"] = [":0", "phi4visiondynamicpreprocess:1"]
        (folder / "vision_processor.json").write_text(json.dumps(processor), "utf-8")
        return {
            "filename": "vision.onnx",
            "config_filename": "vision_processor.json",
            "inputs": {
                "pixel_values": "pixel_values",
                "attention_mask": "image_attention_mask",
                "image_sizes": "image_sizes",
            },
            "outputs": {"image_features": "image_features"},
        }

    def write_phi_speech(self, folder: Path) -> dict[str, Any]:
        g = Graph()
        row = g.op("ReduceMean", "audio_embeds", axes=[1], keepdims=1)
        row = g.op("MatMul", row, g.const("w", self.weights(MEL, WIDTH, 9.0)))
        count = g.op("Reshape", g.op("ReduceSum", "audio_sizes", keepdims=1), g.ints(1))
        mode = g.op("Reshape", g.op("Cast", "audio_projection_mode", to=FLOAT), g.ints(1))
        row = g.op("Add", row, mode)
        g.op("Expand", row, g.op("Concat", g.ints(1), count, g.ints(WIDTH), axis=0), out="audio_features")
        g.save(
            folder / "speech.onnx",
            [
                tensor("audio_embeds", FLOAT, 1, "frames", MEL),
                tensor("audio_sizes", INT64, 1),
                tensor("audio_projection_mode", INT64, 1),
            ],
            [tensor("audio_features", FLOAT, 1, "tokens", WIDTH)],
        )
        attributes: dict[str, Any] = {"audio_compression_rate": 8}
        for suffix, scale in (("", 2), ("_8k", 1)):
            attributes |= {
                f"stft_normal{suffix}/n_fft": 256 * scale,
                f"stft_normal{suffix}/frame_length": 200 * scale,
                f"stft_normal{suffix}/hop_length": 80 * scale,
                f"stft_normal{suffix}/win_fn": "hamming",
                f"logmel{suffix}/chunk_size": 30,
                f"logmel{suffix}/hop_length": 80 * scale,
                f"logmel{suffix}/n_fft": 512,
                f"logmel{suffix}/n_mel": MEL,
                f"logmel{suffix}/feature_first": 0,
                f"logmel{suffix}/no_padding": 1,
            }
        extraction = {
            "sequence": [
                _operation("AudioDecoderEx", {"target_sample_rates": [8000, 16000]}),
                _operation("Phi4AudioEmbed", attributes),
            ],
            "output_aligner": "phi4-audio-aligner",
        }
        (folder / "audio_processor.json").write_text(json.dumps({"feature_extraction": extraction}), "utf-8")
        return {
            "filename": "speech.onnx",
            "config_filename": "audio_processor.json",
            "inputs": {
                "audio_embeds": "audio_embeds",
                "audio_sizes": "audio_sizes",
                "audio_projection_mode": "audio_projection_mode",
            },
            "outputs": {"audio_features": "audio_features"},
        }

    # --- whisper ---

    def write_whisper(self, folder: Path) -> dict[str, Any]:
        names = [(which, layer) for layer in range(LAYERS) for which in ("key", "value")]
        cross = [
            tensor(f"present_{which}_cross_{layer}", FLOAT, "b", HEADS, FRAMES // 2, HEAD) for which, layer in names
        ]
        g = Graph()
        x = g.op("Reshape", g.op("Transpose", "audio_features", perm=[0, 2, 1]), g.ints(-1, FRAMES // 2, 2 * MEL))
        x = g.op("MatMul", x, g.const("frames", self.weights(2 * MEL, WIDTH, 2.0)))
        g.op("Add", x, g.const("places", self.weights(FRAMES // 2, WIDTH, 9.0)), out="encoder_hidden_states")
        for which, layer in names:
            one = g.op(
                "MatMul", "encoder_hidden_states", g.const(f"{which}{layer}", self.weights(WIDTH, WIDTH, 2.0))
            )
            one = g.op("Reshape", one, g.ints(-1, FRAMES // 2, HEADS, HEAD))
            g.op("Transpose", one, perm=[0, 2, 1, 3], out=f"present_{which}_cross_{layer}")
        g.save(
            folder / "encoder.onnx",
            [tensor("audio_features", FLOAT, "b", MEL, FRAMES)],
            [tensor("encoder_hidden_states", FLOAT, "b", FRAMES // 2, WIDTH), *cross],
        )
        g = Graph()
        ids = g.op("Cast", "input_ids", to=INT64)
        x = g.op("Gather", g.const("embedding", self.embedding), ids)
        past = g.op("Gather", g.op("Shape", "past_key_self_0"), g.const("two", np.array(2, np.int64)))
        size = g.op("Gather", g.op("Shape", "input_ids"), g.const("one", np.array(1, np.int64)))
        step = g.const("step", np.array(1, np.int64))
        places = g.op("Range", past, g.op("Add", past, size), step)
        x = g.op("Add", x, g.op("Gather", g.const("places", self.weights(CONTEXT, WIDTH, 6.0)), places))
        for layer in range(LAYERS):
            normed = self.norm(g, x)
            q, k, v = (g.op("MatMul", normed, g.const(f"s{c}{layer}", self.weights(WIDTH, WIDTH))) for c in "qkv")
            pasts = (f"past_key_self_{layer}", f"past_value_self_{layer}")
            x = g.op(
                "Add",
                x,
                g.op(
                    "MultiHeadAttention",
                    *(q, k, v, "", "", "", *pasts),
                    out=[f"attended{layer}", f"present_key_self_{layer}", f"present_value_self_{layer}"],
                    domain="com.microsoft",
                    num_heads=HEADS,
                    unidirectional=1,
                ),
            )
            q = g.op("MatMul", self.norm(g, x), g.const(f"cq{layer}", self.weights(WIDTH, WIDTH, 3.0)))
            q = g.op("Transpose", g.op("Reshape", q, g.ints(0, -1, HEADS, HEAD)), perm=[0, 2, 1, 3])
            keys = g.op("Transpose", f"past_key_cross_{layer}", perm=[0, 1, 3, 2])
            weights = g.op("Softmax", g.op("MatMul", q, keys), axis=-1)
            mixed = g.op("Transpose", g.op("MatMul", weights, f"past_value_cross_{layer}"), perm=[0, 2, 1, 3])
            x = self.feed_forward(g, g.op("Add", x, g.op("Reshape", mixed, g.ints(0, -1, WIDTH))), layer)
        self.logits(g, x)
        g.save(
            folder / "decoder.onnx",
            [
                tensor("input_ids", INT32, "b", "s"),
                *(tensor(f"past_{which}_self_{layer}", FLOAT, "b", HEADS, "p", HEAD) for which, layer in names),
                *(
                    tensor(f"past_{which}_cross_{layer}", FLOAT, "b", HEADS, FRAMES // 2, HEAD)
                    for which, layer in names
                ),
            ],
            [
                tensor("logits", FLOAT, "b", "s", FULL),
                *(tensor(f"present_{which}_self_{layer}", FLOAT, "b", HEADS, "t", HEAD) for which, layer in names),
            ],
        )
        operations = [
            _operation("AudioDecoder", {}),
            _operation("STFTNorm", {"n_fft": 400, "frame_length": 400, "hop_length": 160}),
            _operation("LogMelSpectrum", {"chunk_size": 30, "hop_length": 160, "n_fft": 400, "n_mel": MEL}),
        ]
        document = {"feature_extraction": {"sequence": operations}}
        (folder / "audio_processor_config.json").write_text(json.dumps(document), "utf-8")
        decoder = self.section("decoder.onnx") | {
            "num_key_value_heads": HEADS,
            "inputs": {
                "input_ids": "input_ids",
                "past_key_names": "past_key_self_%d",
                "past_value_names": "past_value_self_%d",
                "cross_past_key_names": "past_key_cross_%d",
                "cross_past_value_names": "past_value_cross_%d",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present_key_self_%d",
                "present_value_names": "present_value_self_%d",
            },
        }
        encoder = {
            **self.section("encoder.onnx"),
            "inputs": {"audio_features": "audio_features"},
            "outputs": {
                "encoder_hidden_states": "encoder_hidden_states",
                "cross_present_key_names": "present_key_cross_%d",
                "cross_present_value_names": "present_value_cross_%d",
            },
        }
        return {"encoder": encoder, "decoder": decoder}


def write_multimodal(folder: Path, kind: str, *, qnn: bool = False, seed: int = 5) -> Path:
    """Write a model's folder.

    Args:
        folder: target folder; created if missing.
        kind: "gemma3", "qwen2_5_vl", "phi4mm" or "whisper".
        qnn: the vision stage of gemma3 requests QNN.
        seed: seed of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    decoder = MultiModalDecoder(seed)
    further: dict[str, int] = {}
    template, facts = TEMPLATE, {}
    if kind == "gemma3":
        further, template = GEMMA, PARTS.replace("IMAGE", "<start_of_image>")
        sections = {
            "vision": decoder.write_gemma_vision(folder, qnn=qnn),
            "embedding": decoder.write_embedding(folder, {"image_features": GEMMA["<image_soft_token>"]}),
            "decoder": decoder.write_decoder(folder),
        }
    elif kind == "qwen2_5_vl":
        further, template = QWEN, PARTS.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
        facts = {
            "image_token_id": QWEN["<|image_pad|>"],
            "video_token_id": FULL + 1,
            "vision_start_token_id": QWEN["<|vision_start|>"],
        }
        sections = {
            "vision": decoder.write_qwen_vision(folder),
            "embedding": decoder.write_embedding(folder, {"image_features": QWEN["<|image_pad|>"]}),
            "decoder": decoder.write_decoder(folder, positions=True),
        }
    elif kind == "phi4mm":
        further = PHI
        features = {"image_features": PHI["<|endoftext10|>"], "audio_features": PHI["<|endoftext11|>"]}
        sections = {
            "vision": decoder.write_phi_vision(folder),
            "speech": decoder.write_phi_speech(folder),
            "embedding": decoder.write_embedding(folder, features),
            "decoder": decoder.write_decoder(folder),
        }
    else:
        sections = decoder.write_whisper(folder)
    config = {
        "model": {
            "type": kind,
            "bos_token_id": END,
            "eos_token_id": END,
            "pad_token_id": PAD,
            "vocab_size": FULL,
            "context_length": CONTEXT,
            **facts,
            **sections,
        },
        "search": {"max_length": CONTEXT, "do_sample": False, "past_present_share_buffer": kind != "whisper"},
    }
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1), "utf-8")
    write_tokenizer(folder, further, template)
    return folder


def _operation(kind: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"operation": {"name": kind.lower(), "type": kind, **({"attrs": attributes} if attributes else {})}}


def _image_processor(operations: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {"processor": {"name": "tiny", "transforms": [_operation(*one) for one in operations]}}


def _write_image_processor(folder: Path, operations: list[tuple[str, dict[str, Any]]]) -> None:
    (folder / "processor_config.json").write_text(json.dumps(_image_processor(operations)), "utf-8")


# --- images and audio --------------------------------------------------------------------------------------


def picture(width: int = 40, height: int = 30, seed: int = 1) -> bytes:
    """Return a PNG with random squares."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (-(-height // 4), -(-width // 4), 3), np.uint8)
    return png(np.kron(coarse, np.ones((4, 4, 1), np.uint8))[:height, :width])


def png(pixels: Any) -> bytes:
    """Return a PNG of these pixels (height, width, 3)."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def sound(seconds: float = 1.0, seed: int = 1, rate: int = 16000) -> bytes:
    """Return a WAV with tones."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate)) / rate
    tones = sum(np.sin(2 * np.pi * hertz * times) for hertz in rng.uniform(100, 3000, 5))
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((tones * 6000).astype("<i2").tobytes())
    return stream.getvalue()
