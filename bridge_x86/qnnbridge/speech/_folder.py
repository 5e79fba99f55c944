"""Read a folder with a Whisper model: find its ONNX files, read tokenizer and settings, and open the sessions."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, Literal

from qnnbridge._inference_session import InferenceSession
from qnnbridge._session import SessionRecipe
from qnnbridge._session.create import identify
from qnnbridge._session_options import SessionOptions
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._values.feed_rules import Node
from qnnbridge.speech import _decoders as decoders
from qnnbridge.speech._audio import HOP, RATE
from qnnbridge.speech._decoders import (
    CacheNames,
    FixedDecoder,
    GrowingDecoder,
    TimeLeft,
    Values,
    WindowDecoder,
)
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import (
    BridgeError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    NoSuchFile,
    OptionError,
)
from qnnbridge_protocol.installing import extra_fix
from qnnbridge_protocol.shell import fix_command, shell_word
from qnnbridge_protocol.specs import Fallback, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host


_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,4})\|>")
_ENCODERS: Final = ("encoder_model.onnx", "encoder.onnx", "model.onnx")
_DECODERS: Final = ("decoder_model.onnx", "decoder.onnx", "model.onnx")
_WITH_PAST: Final = "decoder_with_past_model.onnx"
_MERGED: Final = "decoder_model_merged.onnx"
# Maximum number of tokens (positions) of each Whisper model that OpenAI has published.
_POSITIONS: Final = 448


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperFiles:
    """The ONNX files of a model. `names` are the names of inputs and outputs in the configuration of
    onnxruntime-genai; ``None`` for other folders."""

    encoder: Path
    decoder: Path
    with_past: Path | None
    names: Mapping[str, str] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """The special tokens. `languages` and `tasks` map language codes and task names to tokens; empty for an
    English-only model."""

    start: int
    end: int
    no_timestamps: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperSettings:
    """Settings for the generation of text.

    Attributes:
        positions: maximum number of tokens in a window, including the prompt.
        config: contents of config.json; empty if there is no such file.
    """

    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    latest_first: int | None
    positions: int
    language: str | None
    config: Mapping[str, Any]
    window_s: float


def find_files(folder: Path) -> WhisperFiles:
    """Find the model's files.

    Raises:
        NoSuchFile, GenerationFolderInvalid, GenerationUnsupported: the folder contains no supported Whisper model.
    """
    if not folder.is_dir():
        fix = "Pass the folder with the model's ONNX files."
        raise NoSuchFile(f"There is no folder {folder}.", **why_missing(folder, fix))
    genai = _document(folder / "genai_config.json")
    if genai:
        return _of_genai(folder, genai)
    merged, with_past = _found(folder, (_MERGED,)), _found(folder, (_WITH_PAST,))
    encoder = _of_role(folder, "encoder", _ENCODERS)
    # optimum writes three decoders. The merged decoder is preferred, because it needs less memory than the two
    # separate decoders.
    decoder = merged or _of_role(folder, "decoder", _DECODERS)
    return WhisperFiles(encoder, decoder, None if decoder == merged else with_past, None)


def _found(folder: Path, names: Sequence[str]) -> Path | None:
    # In repositories for transformers.js on Hugging Face, the files are in the folder "onnx".
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
            fix=f"Put one {role}, one decoder and the tokenizer into a separate folder.",
        )
    raise GenerationFolderInvalid(
        f"{folder} has no {role} of Whisper.",
        cause="Looked for " + ", ".join(name for name in names if role in name) + f" and any *{role}*.onnx.",
        fix="Export a model: optimum-cli export onnx --model openai/whisper-tiny FOLDER, or see docs/speech.md.",
    )


def _of_genai(folder: Path, document: Mapping[str, Any]) -> WhisperFiles:
    model = _part(document, "model")
    if model.get("type") != "whisper":
        raise GenerationUnsupported(
            f"genai_config.json has the type {model.get('type')!r}, which is not Whisper.",
            fix="For text models use qnnbridge.genai.",
        )
    encoder, decoder = _part(model, "encoder"), _part(model, "decoder")
    names = {
        key: str(_part(part, side).get(key, default))
        for part, side, key, default in (
            (encoder, "inputs", "audio_features", "audio_features"),
            (decoder, "inputs", "input_ids", "input_ids"),
            (decoder, "inputs", "past_key_names", "past_key_self_%d"),
            (decoder, "inputs", "past_value_names", "past_value_self_%d"),
            (decoder, "inputs", "cross_past_key_names", "past_key_cross_%d"),
            (decoder, "inputs", "cross_past_value_names", "past_value_cross_%d"),
            (encoder, "outputs", "cross_present_key_names", "present_key_cross_%d"),
            (encoder, "outputs", "cross_present_value_names", "present_value_cross_%d"),
            (decoder, "outputs", "logits", "logits"),
            (decoder, "outputs", "present_key_names", "present_key_self_%d"),
            (decoder, "outputs", "present_value_names", "present_value_self_%d"),
        )
    }
    files = []
    for part, role in ((encoder, "encoder"), (decoder, "decoder")):
        name = str(part.get("filename", f"{role}.onnx"))
        path = folder / name
        # A downloaded configuration must not refer to files outside its folder. Links are allowed, because caches
        # of model hubs link to files in other folders.
        inside = all(
            ".." not in one.parts and not one.anchor for one in (PurePosixPath(name), PureWindowsPath(name))
        )
        if not inside or not path.is_file():
            raise GenerationFolderInvalid(
                f"genai_config.json specifies the {role} {part.get('filename')!r}, but {folder} has no such file."
            )
        files.append(path)
    return WhisperFiles(files[0], files[1], None, names)


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    return found if isinstance(found, dict) else {}


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON file. Return an empty dict if the file does not exist. Raise `GenerationFolderInvalid` if its
    contents are invalid."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise GenerationFolderInvalid(f"{path} cannot be read.", cause=f"{error}") from None
    if not isinstance(found, dict):
        raise GenerationFolderInvalid(f"{path} is not a JSON object.")
    return found


# --- tokenizer and settings --------------------------------------------------------------------------------


def load_tokenizer(folder: Path) -> Any:
    """Return a `tokenizers.Tokenizer`. Raise `GenerationFolderInvalid` for an invalid file, or `BridgeError` if
    the package is missing."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise BridgeError("Speech needs the package tokenizers.", fix=extra_fix("speech")) from None
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise NoSuchFile(
            f"There is no folder {folder}.", **why_missing(folder, "Give the folder that contains tokenizer.json.")
        )
    if not path.is_file():
        raise GenerationFolderInvalid(
            f"{folder} has no tokenizer.json.",
            cause="Exports of AI Hub contain no tokenizer, and without it the model returns tokens but no text.",
            fix="Copy tokenizer.json and generation_config.json of the model from Hugging Face "
            "(openai/whisper-...) into the folder, or give their folder: load(FOLDER, tokenizer=OTHER).",
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise GenerationFolderInvalid(f"{path} is not a tokenizer.", cause=f"{error}") from None


def read_vocabulary(tokenizer: Any, multilingual: bool | None) -> Vocabulary:
    """Return the special tokens. Raise `GenerationFolderInvalid` if the tokenizer is not a tokenizer of Whisper."""
    # Depending on the release of tokenizers, tokens are objects with a text, or strings.
    added = tokenizer.get_added_tokens_decoder().items()
    names = {str(getattr(token, "content", token)): number for number, token in added}
    needed = ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>")
    missing = [name for name in needed if name not in names]
    if missing:
        raise GenerationFolderInvalid(
            f"tokenizer.json lacks {', '.join(missing)}.", cause="The file is not the tokenizer of a Whisper model."
        )
    start = names["<|startoftranscript|>"]
    tasks = {task: names[f"<|{task}|>"] for task in ("transcribe", "translate") if f"<|{task}|>" in names}
    languages: dict[str, int] = {}
    # The language tokens are between the start token and the task tokens.
    if tasks and multilingual is not False:
        behind = min(tasks.values())
        found = ((_LANGUAGE.fullmatch(name), number) for name, number in names.items())
        languages = {match[1]: number for match, number in found if match and start < number < behind}
    end, no_timestamps = names["<|endoftext|>"], names["<|notimestamps|>"]
    return Vocabulary(start, end, no_timestamps, languages, tasks if languages else {})


def read_settings(folder: Path, tokenizer_folder: Path) -> WhisperSettings:
    """Read generation_config.json, config.json and preprocessor_config.json, if they exist."""
    generation = _first("generation_config.json", folder, tokenizer_folder)
    config = _first("config.json", folder, tokenizer_folder)
    front = _first("preprocessor_config.json", folder, tokenizer_folder)
    if (rate := front.get("sampling_rate", 16000)) != 16000 or front.get("hop_length", 160) != 160:
        raise GenerationUnsupported(
            f"preprocessor_config.json requires audio of {rate} Hz in steps of {front.get('hop_length')} samples.",
            cause="Whisper models require 16000 Hz and steps of 160 samples.",
        )
    # Older exports do not contain generation_config.json; their config.json has the same fields.
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


def _first(name: str, *folders: Path) -> dict[str, Any]:
    return next(filter(None, (_document(folder / name) for folder in folders)), {})


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _ids(value: object) -> tuple[int, ...]:
    return (
        tuple(token for token in value if isinstance(token, int) and token >= 0) if isinstance(value, list) else ()
    )


def _language_of(language: object, forced: object, languages: object) -> str | None:
    """Return the configured language. Older exports contain the id of the language's token instead."""
    if isinstance(language, str) and (
        match := _LANGUAGE.fullmatch(language) or re.fullmatch("([a-z]{2,4})", language)
    ):
        return match[1]
    if isinstance(forced, list) and isinstance(languages, dict):
        for pair in forced:
            # Each pair is a position and a token id; position 0 is the start token, position 1 the language token.
            if isinstance(pair, list) and len(pair) == 2 and pair[0] == 1:
                names = [name for name, number in languages.items() if number == pair[1]]
                return names[0].strip("<|>") if names else None
    return None


def chosen_language(vocabulary: Vocabulary, language: str | None) -> str | None:
    """Return the language code; ``None`` to detect the language. Raise `OptionError` for an unknown language."""
    if language is None:
        return None
    code = language.strip().lower().strip("<|>")
    if not vocabulary.languages:
        if code != "en":
            raise OptionError(f"This model supports only English, not {language!r:.40}.")
        return "en"
    if code not in vocabulary.languages:
        raise OptionError(
            f"The model does not support the language {language!r:.40}.",
            fix="Give one of " + ", ".join(sorted(vocabulary.languages)) + ", or none to detect the language.",
        )
    return code


# --- sessions of a folder: layout, fixed sizes, and provider of each part ---

Layout = Literal["separate", "merged", "genai", "fixed"]
CPU = "CPUExecutionProvider"
# How often a call is repeated in a new host: a transcription continues after two crashes of the host.
RETRIES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class SessionChoices:
    """Settings of the sessions; the fields are arguments of `qnnbridge.speech.load`."""

    host: Host
    provider: str
    provider_options: Mapping[str, str]
    fallback: Fallback
    timeout: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperSessions:
    """Sessions of the encoder and the decoders of a loaded model.

    Attributes:
        bins, frames: size of the features of one window.
        begin: function that returns a decoder for the outputs of the encoder.
    """

    layout: Layout
    encoder: InferenceSession
    decoders: tuple[InferenceSession, ...]
    bins: int
    frames: int
    wanted: tuple[str, ...]
    begin: Callable[[Values, TimeLeft], WindowDecoder]

    def close(self) -> None:
        for session in (self.encoder, *self.decoders):
            session.close()


def open_sessions(files: WhisperFiles, settings: WhisperSettings, choices: SessionChoices) -> WhisperSessions:
    """Open the sessions of the encoder and the decoders.

    Raises:
        GenerationUnsupported, GenerationFolderInvalid: the model is not a supported Whisper model.
        BridgeError: a session cannot be created.
    """
    ins, outs = _nodes(files.encoder, choices)
    decoder_ins, decoder_outs = _nodes(files.decoder, choices)
    features = (files.names or {}).get("audio_features", "input_features")
    decoders.check_known("encoder", ins, (features,))
    bins, frames, dimensions = _window_of(ins, settings, files.encoder)
    later_ins, later_outs = decoder_ins, decoder_outs
    if files.with_past is not None:
        later_ins, later_outs = _nodes(files.with_past, choices)

    layout: Layout
    names: CacheNames | None = None
    if decoders.is_fixed(decoder_ins):
        layout = "fixed"
        wanted = tuple(node.name for node in outs)
        known = [node.name for node in decoder_ins if node.name in wanted or "_self_" in node.name]
        decoders.check_known("decoder", decoder_ins, ["input_ids", "attention_mask", "position_ids", *known])
    else:
        if files.names is not None:
            layout, names = "genai", decoders.names_of_genai(decoder_ins, files.names)
            wanted = names.made
        elif decoders.is_merged(decoder_ins) or files.with_past is not None:
            layout = "merged" if files.with_past is None else "separate"
            names, wanted = decoders.names_of_optimum(later_ins), (outs[0].name,)
        else:
            raise GenerationUnsupported(
                f"{files.decoder.name} has no cache, and there is no decoder_with_past_model.onnx next to it.",
                cause="Without a cache, the decoder would compute all previous tokens again for each token.",
                fix="Export the model with its cache: --task automatic-speech-recognition-with-past",
            )
        _check_growing(names, [decoder_ins, later_ins], [decoder_outs, later_outs])

    opened: list[InferenceSession] = []

    def session(path: Path, provider: str, sizes: Mapping[str, int]) -> InferenceSession:
        # Record each session immediately: if creating a later session fails, the earlier sessions must not remain
        # in the host.
        opened.append(_open(path, provider, sizes, choices))
        return opened[-1]

    try:
        encoder = session(files.encoder, choices.provider, dimensions)
        # A decoder with growing caches runs on the CPU, because their size changes in each step and QNN accepts
        # only fixed sizes.
        first = session(files.decoder, choices.provider if layout == "fixed" else CPU, {})
        later = first if files.with_past is None else session(files.with_past, CPU, {})
    except BaseException:
        for one in opened:
            one.close()
        raise

    if names is None:

        def begin(encoded: Values, left: TimeLeft) -> WindowDecoder:
            return FixedDecoder(first, encoded, left)
    else:
        cache, sizes = names, _cache_sizes(later_ins, names, settings, files.with_past or files.decoder)

        def begin(encoded: Values, left: TimeLeft) -> WindowDecoder:
            given = encoded if layout == "genai" else {"encoder_hidden_states": encoded[wanted[0]]}
            return GrowingDecoder(first, later, cache, given, sizes, settings.positions, left)

    return WhisperSessions(layout, encoder, tuple(opened[1:]), bins, frames, wanted, begin)


def _nodes(path: Path, choices: SessionChoices) -> tuple[Sequence[Node], Sequence[Node]]:
    """Return inputs and outputs as declared in the ONNX file, which the host reads."""
    recipe = SessionRecipe(SessionSpec(model_path=str(path.resolve())))
    found = identify(choices.host, recipe, deadline_after(choices.timeout))
    if not found.readable or not found.inputs:
        raise GenerationFolderInvalid(f"{path} is not a readable ONNX model.")
    return found.inputs, found.outputs


def _window_of(nodes: Sequence[Node], settings: WhisperSettings, path: Path) -> tuple[int, int, dict[str, int]]:
    """Return bins, frames, and the sizes of the encoder's named dimensions."""
    shape = tuple(nodes[0].shape or ())
    if len(shape) != 3:
        raise GenerationUnsupported(f"The input of {path.name} has the shape {shape}, not (1, bins, frames).")
    usual = int(settings.config.get("num_mel_bins") or 80)
    bins = shape[1] if isinstance(shape[1], int) else usual
    frames = shape[2] if isinstance(shape[2], int) else round(settings.window_s * RATE / HOP)
    sizes: dict[str, int] = {}
    for size, declared in zip((1, bins, frames), shape, strict=True):
        if isinstance(declared, str):
            # ONNX Runtime sets the size of dimensions by name, so a dimension without a name would stay dynamic.
            sizes[declared] = size
        elif declared is None or declared != size:
            raise GenerationUnsupported(
                f"The input of {path.name} has the shape {shape}.",
                cause=f"The model declares the size {declared} for a dimension that must be {size}."
                if declared
                else "A dimension has no name.",
                fix="Export the model with the batch size 1: one window at a time."
                if declared
                else "Replace the model by a copy with fixed sizes: "
                + fix_command(path, f"--shape {shell_word(f'{nodes[0].name}=1,{bins},{frames}')}"),
            )
    return bins, frames, sizes


def _check_growing(names: CacheNames, inputs: Sequence[Sequence[Node]], outputs: Sequence[Sequence[Node]]) -> None:
    if not names.growing:
        raise GenerationUnsupported(
            "The decoder has no cache inputs with known names.",
            evidence=tuple(node.name for node in inputs[-1])[:8],
            fix="Export the model with optimum or onnxruntime-genai.",
        )
    own = [name for pair in names.growing for name in pair]
    for nodes in inputs:
        known = [names.ids, "encoder_hidden_states", "use_cache_branch", *own, *names.crossing]
        decoders.check_known("decoder", nodes, known)
    for nodes in outputs:
        missing = [name for name in (names.logits, *own[1::2]) if name not in {node.name for node in nodes}]
        if missing:
            raise GenerationUnsupported(f"The decoder lacks the outputs {', '.join(missing[:4])}.")


def _cache_sizes(
    nodes: Sequence[Node], names: CacheNames, settings: WhisperSettings, path: Path
) -> tuple[int, int]:
    shape = next(tuple(node.shape or ()) for node in nodes if node.name == names.growing[0][0])
    # The shape is (batch, heads, length, width). Only the length grows.
    found = [size if isinstance(size, int) else None for size in (shape[1:2] + shape[3:4])] or [None, None]
    heads, width = settings.config.get("decoder_attention_heads"), settings.config.get("d_model")
    heads = found[0] or heads
    head = found[-1] or (width // heads if heads and width else None)
    if not heads or not head:
        raise GenerationUnsupported(
            f"The sizes of the caches of {path.name} are unknown.",
            fix="Put the model's config.json into the same folder.",
        )
    return int(heads), int(head)


def _open(path: Path, provider: str, sizes: Mapping[str, int], choices: SessionChoices) -> InferenceSession:
    options = SessionOptions()
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    return InferenceSession(
        str(path),
        options,
        [provider],
        [dict(choices.provider_options)] if provider == choices.provider else None,
        host=choices.host,
        fallback=choices.fallback if provider != CPU else None,
        timeout=choices.timeout,
        retry=RETRIES,
    )
