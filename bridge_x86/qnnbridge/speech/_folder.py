"""What lies in a folder with Whisper: its ONNX files, its tokenizer, and the rules of its generation."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_protocol.errors import (
    BridgeError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    NoSuchFile,
    OptionError,
)

_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,4})\|>")
_ENCODERS: Final = ("encoder_model.onnx", "encoder.onnx", "model.onnx")
_DECODERS: Final = ("decoder_model.onnx", "decoder.onnx", "model.onnx")
_WITH_PAST: Final = "decoder_with_past_model.onnx"
_MERGED: Final = "decoder_model_merged.onnx"
# Positions of every Whisper that OpenAI has published.
_POSITIONS: Final = 448


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperFiles:
    """names: of inputs and outputs where a configuration gives them (genai)."""

    encoder: Path
    decoder: Path
    with_past: Path | None
    names: Mapping[str, str] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """The special tokens. languages: by code, empty for a model of English alone. tasks: likewise."""

    start: int
    end: int
    no_timestamps: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperSettings:
    """positions: tokens of a window with its prompt, at most. config: config.json, empty without one."""

    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    latest_first: int | None
    positions: int
    language: str | None
    config: Mapping[str, Any]
    window_s: float


def find_files(folder: Path) -> WhisperFiles:
    """Raises `NoSuchFile`, `GenerationFolderInvalid`, `GenerationUnsupported`."""
    if not folder.is_dir():
        raise NoSuchFile(f"There is no folder {folder}.", fix="Give the folder with the model's ONNX files.")
    genai = _document(folder / "genai_config.json")
    if genai:
        return _of_genai(folder, genai)
    merged, with_past = _found(folder, (_MERGED,)), _found(folder, (_WITH_PAST,))
    encoder = _of_role(folder, "encoder", _ENCODERS)
    # optimum writes all three: the merged one needs less memory than two.
    decoder = merged or _of_role(folder, "decoder", _DECODERS)
    return WhisperFiles(encoder, decoder, None if decoder == merged else with_past, None)


def _found(folder: Path, names: Sequence[str]) -> Path | None:
    places = [folder / name for name in names] + [folder / "onnx" / name for name in names]
    return next((place for place in places if place.is_file()), None)


def _of_role(folder: Path, role: str, names: Sequence[str]) -> Path:
    usual = _found(folder, [name for name in names if role in name])
    if usual is not None:
        return usual
    every = [*folder.glob("*.onnx"), *folder.glob("*/*.onnx")]
    fitting = sorted(
        path for path in every if role in f"{path.parent.name if path.parent != folder else ''}/{path.name}".lower()
    )
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise GenerationFolderInvalid(
            f"{folder} has several files that may be the {role}.",
            evidence=tuple(str(path.relative_to(folder)) for path in fitting),
            fix=f"Put one {role}, one decoder and the tokenizer into a folder of their own.",
        )
    raise GenerationFolderInvalid(
        f"{folder} has no {role} of Whisper.",
        cause="Looked for " + ", ".join(name for name in names if role in name) + f" and any *{role}*.onnx.",
        fix="Export it: optimum-cli export onnx --model openai/whisper-tiny FOLDER, or see docs/speech.md.",
    )


def _of_genai(folder: Path, document: Mapping[str, Any]) -> WhisperFiles:
    model = _part(document, "model")
    if model.get("type") != "whisper":
        raise GenerationUnsupported(
            f"genai_config.json says type {model.get('type')!r}, which is not Whisper.",
            fix="Text models are for qnnbridge.genai.",
        )
    encoder, decoder = _part(model, "encoder"), _part(model, "decoder")
    names: dict[str, str] = {}
    for part, key, default in (
        (encoder, "audio_features", "audio_features"),
        (decoder, "input_ids", "input_ids"),
        (decoder, "past_key_names", "past_key_self_%d"),
        (decoder, "past_value_names", "past_value_self_%d"),
        (decoder, "cross_past_key_names", "past_key_cross_%d"),
        (decoder, "cross_past_value_names", "past_value_cross_%d"),
    ):
        names[key] = str(_part(part, "inputs").get(key, default))
    for part, key, default in (
        (encoder, "cross_present_key_names", "present_key_cross_%d"),
        (encoder, "cross_present_value_names", "present_value_cross_%d"),
        (decoder, "logits", "logits"),
        (decoder, "present_key_names", "present_key_self_%d"),
        (decoder, "present_value_names", "present_value_self_%d"),
    ):
        names[key] = str(_part(part, "outputs").get(key, default))
    files = []
    for part, role in ((encoder, "encoder"), (decoder, "decoder")):
        path = folder / str(part.get("filename", f"{role}.onnx"))
        if not path.is_file() or folder.resolve() not in path.resolve().parents:
            raise GenerationFolderInvalid(
                f"genai_config.json names {part.get('filename')!r} as {role}, which is not in {folder}."
            )
        files.append(path)
    return WhisperFiles(files[0], files[1], None, names)


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    return found if isinstance(found, dict) else {}


def _document(path: Path) -> dict[str, Any]:
    """Empty without the file. Raises `GenerationFolderInvalid`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise GenerationFolderInvalid(f"{path} cannot be read.", cause=f"{error}") from None
    if not isinstance(found, dict):
        raise GenerationFolderInvalid(f"{path} is no JSON object.")
    return found


# --- tokenizer and settings --------------------------------------------------------------------------------


def load_tokenizer(folder: Path) -> Any:
    """A `tokenizers.Tokenizer`. Raises `GenerationFolderInvalid`, and `BridgeError` without the package."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BridgeError("Speech needs the package tokenizers.", fix='pip install "qnnbridge[speech]"') from None
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GenerationFolderInvalid(
            f"{folder} has no tokenizer.json.",
            cause="Exports of AI Hub come without one; the model gives numbers and no text.",
            fix="Copy tokenizer.json and generation_config.json of the model from Hugging Face (openai/whisper-...)"
            " "
            "into the folder, or name their folder: load(FOLDER, tokenizer=OTHER).",
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise GenerationFolderInvalid(f"{path} is no tokenizer.", cause=f"{error}") from None


def read_vocabulary(tokenizer: Any, multilingual: bool | None) -> Vocabulary:
    """Raises `GenerationFolderInvalid` for a tokenizer of another kind of model."""
    names = {str(token): number for number, token in tokenizer.get_added_tokens_decoder().items()}
    names = {getattr(token, "content", text): number for text, number, token in _added(tokenizer)} or names
    needed = ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>")
    missing = [name for name in needed if name not in names]
    if missing:
        raise GenerationFolderInvalid(
            f"tokenizer.json lacks {', '.join(missing)}.", cause="It is not that of a Whisper model."
        )
    start = names["<|startoftranscript|>"]
    tasks = {task: names[f"<|{task}|>"] for task in ("transcribe", "translate") if f"<|{task}|>" in names}
    languages: dict[str, int] = {}
    if tasks and multilingual is not False:
        behind = min(tasks.values())
        found = ((_LANGUAGE.fullmatch(name), number) for name, number in names.items())
        languages = {match[1]: number for match, number in found if match and start < number < behind}
    return Vocabulary(
        start,
        names["<|endoftext|>"],
        names["<|notimestamps|>"],
        languages,
        tasks if languages else {},
    )


def _added(tokenizer: Any) -> list[tuple[str, int, Any]]:
    return [(str(token), number, token) for number, token in tokenizer.get_added_tokens_decoder().items()]


def read_settings(folder: Path, tokenizer_folder: Path) -> WhisperSettings:
    """From generation_config.json, config.json and preprocessor_config.json, as far as they are there."""
    generation = _first(("generation_config.json",), folder, tokenizer_folder)
    config = _first(("config.json",), folder, tokenizer_folder)
    front = _first(("preprocessor_config.json",), folder, tokenizer_folder)
    if (rate := front.get("sampling_rate", 16000)) != 16000 or front.get("hop_length", 160) != 160:
        raise GenerationUnsupported(
            f"preprocessor_config.json wants audio of {rate} Hz in steps of {front.get('hop_length')} samples.",
            cause="Whisper has 16000 Hz and steps of 160.",
        )
    source = generation or config
    positions = _number(config.get("max_target_positions"), _POSITIONS)
    forced = source.get("forced_decoder_ids") or ()
    latest = source.get("max_initial_timestamp_index")
    return WhisperSettings(
        suppressed=_ids(source.get("suppress_tokens")),
        suppressed_first=_ids(source.get("begin_suppress_tokens")),
        latest_first=latest if isinstance(latest, int) else None,
        positions=min(positions, _number(source.get("max_length"), positions)),
        language=_language_of(source.get("language"), forced, source.get("lang_to_id")),
        config={**config, "is_multilingual": source.get("is_multilingual")},
        window_s=float(_number(front.get("chunk_length"), 30)),
    )


def _first(names: Sequence[str], *folders: Path) -> dict[str, Any]:
    for folder in folders:
        for name in names:
            if found := _document(folder / name):
                return found
    return {}


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _ids(value: object) -> tuple[int, ...]:
    return (
        tuple(token for token in value if isinstance(token, int) and token >= 0) if isinstance(value, list) else ()
    )


def _language_of(language: object, forced: object, languages: object) -> str | None:
    """What the model is set to: older exports force the language by the number of its token."""
    if isinstance(language, str) and (
        match := _LANGUAGE.fullmatch(language) or re.fullmatch("([a-z]{2,4})", language)
    ):
        return match[1]
    if isinstance(forced, list) and isinstance(languages, dict):
        for pair in forced:
            if isinstance(pair, list) and len(pair) == 2 and pair[0] == 1:
                names = [name for name, number in languages.items() if number == pair[1]]
                return names[0].strip("<|>") if names else None
    return None


def chosen_language(vocabulary: Vocabulary, language: str | None) -> str | None:
    """The code; ``None``: detect it. Raises `OptionError`."""
    if language is None:
        return None
    code = language.strip().lower().strip("<|>")
    if not vocabulary.languages:
        if code != "en":
            raise OptionError(f"This model knows English alone, not {language!r:.40}.")
        return "en"
    if code not in vocabulary.languages:
        raise OptionError(
            f"The model has no language {language!r:.40}.",
            fix="Give one of " + ", ".join(sorted(vocabulary.languages)) + ", or none to have it found out.",
        )
    return code
