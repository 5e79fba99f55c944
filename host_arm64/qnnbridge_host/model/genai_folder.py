"""Read a model's folder as onnxruntime-genai does: genai_config.json, stages and their files, prompt window.

A *pipeline* is a model of several files (stages) that the config lists: embeddings, the stage that reads a prompt
in windows of a fixed size, the stage that reads a single token, the head. For some prompts onnxruntime-genai fails
with these windows; see docs/genai.md. The module loads no native code, has no side effects and is thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from qnnbridge_host.model.releases import AFTER_THE_TABLE, STANDING_WORDS, Standing, standing
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import KnownFile
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import BridgeError, GenerationFolderInvalid
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.version_numbers import numbers_of

CONFIG: Final = "genai_config.json"
QNN_NAMES: Final = ("qnn", "qnnexecutionprovider")
# Sections of the config that contain the name of a model file, or a pipeline of several model files.
_SECTIONS: Final = ("encoder", "embedding", "vision", "speech", "decoder")
# Types of models whose prompts may contain images and audio, for which onnxruntime-genai 0.18 has a processor.
_PICTURES: Final = frozenset(
    (
        *("fara", "gemma3", "gemma4", "mistral3", "phi3v", "phi4mm", "qwen2_5_vl", "qwen3_vl", "qwen3_5"),
        *("qwen3_5_moe", "videochat_flash_qwen"),
    )
)
_SOUND: Final = frozenset(("gemma4", "phi4mm", "whisper"))

Layout = Literal["dynamic", "window", "sliding"]
# Calls of `qnnbridge.genai.Config` methods in their order: name of the method, then its arguments.
ConfigSteps = Sequence[Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class PromptWindow:
    """Fixed number of tokens that the stage for prompts reads at a time.

    slides: whether genai moves the KV cache after each window (the layout of AI Hub); otherwise the graph reads and
        writes the whole cache.
    """

    size: int
    slides: bool


@dataclasses.dataclass(frozen=True, slots=True)
class GenaiStage:
    """An ONNX model of a genai folder. runs_on: whether the model processes the prompt, single tokens, or both."""

    name: str
    path: str
    providers: tuple[tuple[str, dict[str, str]], ...]
    runs_on: Literal["prompt", "token", "both"] = "both"

    @property
    def qnn_options(self) -> dict[str, str] | None:
        """QNN's options, ``None`` if the stage does not use QNN."""
        for name, options in self.providers:
            if name.lower() in QNN_NAMES:
                return options
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class GenaiFolder:
    """Properties of a model for generation.

    search: the config's defaults of search options. bos: the token that begins a text. files: the stages' files
    with their hashes; empty without hashing. fingerprint: hash of the config and of the contents of `files`; empty
    without hashing. modalities: "image" and "audio", if prompts may contain them.
    """

    path: str
    type: str
    context_length: int
    vocab_size: int
    eos: frozenset[int]
    pad: int | None
    bos: int | None
    stages: tuple[GenaiStage, ...]
    window: PromptWindow | None
    search: Mapping[str, Any]
    files: tuple[KnownFile, ...] = ()
    fingerprint: str = ""
    modalities: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        if self.window is None:
            return "dynamic"
        return "sliding" if self.window.slides else "window"

    @property
    def label(self) -> str:
        return os.path.basename(os.path.normpath(self.path)) or self.path


def read_folder(
    path: str,
    steps: ConfigSteps = (),
    given: Sequence[str] = (),
    look: Callable[[str], KnownFile] | None = None,
) -> GenaiFolder:
    """Read a model's folder.

    Args:
        path: the folder. steps: changes to the config. given: files whose contents are sent as bytes, by name; they
            may be missing in the folder. look: function that returns the hash of a file; hashing gigabytes takes
            seconds unless `look` caches the hash. ``None``: no hashing.

        Raises:
            GenerationFolderInvalid: the folder or its config does not exist, or a file is missing or cut off.
    """
    config = read_config(path)
    try:
        config = changed(config, steps)
        model = config.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("decoder", {}), dict):
            raise _invalid(path, f"{CONFIG} has no section 'model'.", "Export the model again.")
        stages = tuple(_stages(path, model))
        window = _window(model.get("decoder", {}), stages)
        folder = GenaiFolder(
            path=path,
            type=str(model.get("type", "")),
            context_length=int(model.get("context_length") or 0),
            vocab_size=int(model.get("vocab_size") or 0),
            eos=frozenset(_ints(model.get("eos_token_id"))),
            pad=next(iter(_ints(model.get("pad_token_id"))), None),
            bos=next(iter(_ints(model.get("bos_token_id"))), None),
            stages=stages,
            window=window,
            search=dict(config.get("search") or {}),
            modalities=tuple(_modalities(model)),
        )
    # Any field of a foreign config may have any type; Python's JSON parser accepts infinity as a number.
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise _invalid(path, f"{CONFIG} cannot be interpreted: {error}.", "Export the model again.") from None
    if not stages:
        raise _invalid(path, f"{CONFIG} contains no model file.", "Export the model again.")
    paths = _check_files(folder, set(given))
    if look is None:
        return folder
    files = tuple(_hashed(folder, stage, path, look) for stage, path in paths)
    return dataclasses.replace(folder, files=files, fingerprint=_fingerprint(path, config, files))


def stage_files(stage: GenaiStage) -> dict[str, int]:
    """Return the existing files of a stage with their sizes in bytes."""
    sizes = {}
    with contextlib.suppress(BridgeError, OSError):
        names = scan_model(stage.path, count_nodes=False).files
        for path in (stage.path, *(os.path.join(os.path.dirname(stage.path), name) for name in names)):
            sizes[path] = os.path.getsize(path)
    return sizes


def filler(folder: GenaiFolder) -> int | None:
    """Return a token with which genai can pad a window of a prompt, and which no prompt contains.

    Return ``None`` if the pad token in the model's configuration already has these properties.

    genai treats each pad token of a prompt as padding, at any position, and silently generates wrong answers.
    Many models use their end token as pad token, and every chat template writes the end token between messages.
    """
    # Every chat template writes these tokens into the prompt.
    ends = {*folder.eos, folder.bos}
    if folder.pad is not None and folder.pad not in ends and 0 <= folder.pad < folder.vocab_size:
        return None
    tokens, template = _tokenizer(folder.path)
    for token in tokens:
        number, text = token.get("id"), str(token.get("content"))
        # Prefer a special token: the tokenizer creates it only from the token's own string, so plain prompts do not
        # contain the token. Skip the special tokens of the chat template.
        if not token.get("special") or not isinstance(number, int) or not 0 <= number < folder.vocab_size:
            continue
        if number not in {*ends, folder.pad} and text not in template:
            return number
    # Without a free special token use any other token; a prompt that contains it is refused.
    return next((n for n in range(folder.vocab_size - 1, 0, -1) if n not in {*ends, folder.pad}), None)


def _tokenizer(path: str) -> tuple[list[Mapping[str, Any]], str]:
    """Return the added tokens and the chat template; each is empty if its file cannot be read."""
    # Newer exports have the template in a separate file, older exports in the tokenizer's config.
    configured, template = "", _text(path, "chat_template.jinja")
    added: Any = None
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        added = json.loads(_text(path, "tokenizer.json")).get("added_tokens")
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        configured = json.loads(_text(path, "tokenizer_config.json")).get("chat_template") or ""
    template += configured if isinstance(configured, str) else json.dumps(configured, ensure_ascii=False)
    tokens = added if isinstance(added, list) else []
    return [token for token in tokens if isinstance(token, Mapping)], template


def _text(folder: str, name: str) -> str:
    try:
        # "utf-8-sig" accepts files with and without a byte order mark.
        with open(os.path.join(folder, name), encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def read_config(path: str) -> dict[str, Any]:
    if not os.path.isdir(path):
        fix = f"Give the folder that has {CONFIG}."
        if os.path.exists(path):
            raise _invalid(path, "It is a file, not a folder.", fix)
        why = why_missing(path, fix)
        raise GenerationFolderInvalid(f"The folder {path} does not exist.", **why, details={"path": path})
    try:
        with open(os.path.join(path, CONFIG), encoding="utf-8-sig") as file:
            config = json.load(file)
    except FileNotFoundError:
        found = sorted(name for name in os.listdir(path) if name.endswith(".onnx"))[:5]
        raise _invalid(
            path,
            f"It has no {CONFIG}.",
            "Give the folder that an exporter for onnxruntime-genai has written. A plain ONNX model runs in "
            "qnnbridge.InferenceSession.",
            *(f"found: {name}" for name in found),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, f"{CONFIG} cannot be read: {error}.", "Check its permissions and encoding.") from None
    # RecursionError: thousands of nested brackets.
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"{CONFIG} is not valid JSON: {error}.", "Copy or download it again.") from None
    if not isinstance(config, dict):
        raise _invalid(path, f"{CONFIG} is not a JSON object.", "Copy or download it again.")
    return config


def changed(config: dict[str, Any], steps: ConfigSteps) -> dict[str, Any]:
    """Apply the steps to the config. Ignore steps that affect neither the stages nor the limits of a model."""
    for name, *arguments in steps:
        if name == "overlay":
            try:
                config = _merged(config, json.loads(arguments[0]))
            except (ValueError, RecursionError) as error:
                raise GenerationFolderInvalid(
                    "The overlay of the config is not valid JSON.", cause=f"{error}.", fix="Give a JSON object."
                ) from None
            continue
        decoder = config.setdefault("model", {}).setdefault("decoder", {})
        providers = decoder.setdefault("session_options", {}).setdefault("provider_options", [])
        if name == "clear_providers":
            providers.clear()
        elif name in ("append_provider", "set_provider_option"):
            entry = next(
                (p for p in providers if str(next(iter(p), "")).lower() == str(arguments[0]).lower()), None
            )
            if entry is None:
                entry = {str(arguments[0]): {}}
                providers.append(entry)
            if name == "set_provider_option":
                next(iter(entry.values()))[str(arguments[1])] = str(arguments[2])
    return config


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in over.items()}}


def _stages(folder: str, model: Mapping[str, Any]) -> list[GenaiStage]:
    stages = []
    for section in _SECTIONS:
        part = model.get(section)
        if not isinstance(part, dict):
            continue
        default = _providers(part.get("session_options"))
        if section in ("decoder", "vision") and part.get("pipeline"):
            for entry in _pipeline(part["pipeline"]):
                stages += [_stage(folder, name, body, default) for name, body in entry.items()]
        elif part.get("filename"):
            stages.append(GenaiStage(section, os.path.join(folder, str(part["filename"])), default))
    return stages


def _pipeline(listed: Any) -> list[dict[str, Any]]:
    """Return a pipeline as a list of mappings from stage name to stage. The config may contain a single mapping."""
    return [listed] if isinstance(listed, dict) else list(listed)


def _stage(folder: str, name: str, body: Mapping[str, Any], default: tuple[Any, ...]) -> GenaiStage:
    options = body.get("session_options")
    runs: Literal["prompt", "token", "both"] = "both"
    if body.get("run_on_token_gen") is False:
        runs = "prompt"
    elif body.get("run_on_prompt") is False:
        runs = "token"
    path = os.path.join(folder, str(body["filename"]))
    return GenaiStage(name, path, default if options is None else _providers(options), runs)


def _providers(options: Any) -> tuple[tuple[str, dict[str, str]], ...]:
    listed = (options or {}).get("provider_options") or []
    return tuple(
        (name, {k: str(v) for k, v in (given or {}).items()}) for one in listed for name, given in one.items()
    )


def _modalities(model: Mapping[str, Any]) -> Iterator[str]:
    kind = str(model.get("type", ""))
    if kind in _PICTURES:
        yield "image"
    speech = model.get("speech")
    # Phi-4 and Gemma 4 accept audio only if the export contains the stage for audio.
    if kind in _SOUND and (kind == "whisper" or (isinstance(speech, dict) and speech.get("filename"))):
        yield "audio"


def _window(decoder: Mapping[str, Any], stages: Sequence[GenaiStage]) -> PromptWindow | None:
    sliding = decoder.get("sliding_window")
    # genai uses one name for two settings: how far attention looks back, and the window of a pipeline.
    if not isinstance(sliding, dict) or len(stages) < 2 or not decoder.get("pipeline"):
        return None  # in a model with a single decoder stage the setting only limits attention
    size = int(sliding.get("window_size") or 0)
    return PromptWindow(size, bool(sliding.get("slide_key_value_cache", True))) if size > 0 else None


def _ints(given: Any) -> list[int]:
    return [int(one) for one in (given if isinstance(given, list) else [] if given is None else [given])]


def _check_files(folder: GenaiFolder, given: set[str]) -> list[tuple[GenaiStage, str]]:
    """Return every file of every stage, except files given as bytes. Raise an error for an unusable file."""
    found = []
    for stage in folder.stages:
        if os.path.basename(stage.path) in given:
            continue
        found.append(_checked(folder, stage, stage.path))
        try:
            scan = scan_model(stage.path, count_nodes=False)
        except BridgeError as error:
            raise _invalid(
                folder.path,
                f"The file of the stage {stage.name!r} cannot be used: {error.message}",
                error.fix or "Copy or download it again.",
                *error.evidence,
                stage=stage.name,
            ) from None
        found += [_checked(folder, stage, os.path.join(os.path.dirname(stage.path), name)) for name in scan.files]
    return found


def _checked(folder: GenaiFolder, stage: GenaiStage, path: str) -> tuple[GenaiStage, str]:
    try:
        if not os.stat(path).st_size:
            raise OSError(0, "it is empty")
    except (OSError, ValueError) as error:  # ValueError: a name that contains NUL
        raise _unreadable(folder, stage, path, error) from None
    return stage, path


def _hashed(folder: GenaiFolder, stage: GenaiStage, path: str, look: Callable[[str], KnownFile]) -> KnownFile:
    try:
        return look(os.path.abspath(path))
    except OSError as error:
        raise _unreadable(folder, stage, path, error) from None


def _unreadable(folder: GenaiFolder, stage: GenaiStage, path: str, error: Exception) -> GenerationFolderInvalid:
    return _invalid(
        folder.path,
        f"The file {os.path.basename(path)!r} of the stage {stage.name!r} cannot be read: "
        f"{getattr(error, 'strerror', None) or error}.",
        "Copy or download the folder again with all of its files.",
        stage=stage.name,
    )


def _fingerprint(folder: str, config: Mapping[str, Any], files: Sequence[KnownFile]) -> str:
    """Return the hash of the config and of the name and contents of each file.

    The contents are hashed instead of dates and sizes: archives often give all files one date, and the weights of
    two trainings have equal sizes.
    """
    contents = [(os.path.relpath(file.path, os.path.abspath(folder)), file.sha256) for file in files]
    plain = json.dumps([config, contents], sort_keys=True, default=str)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def _invalid(path: str, cause: str, fix: str, *evidence: str, stage: str | None = None) -> GenerationFolderInvalid:
    details: dict[str, Any] = {"path": path}
    if stage is not None:
        details["stage"] = stage
    return GenerationFolderInvalid(
        f"The folder {path} is not a model for onnxruntime-genai.",
        cause=cause,
        fix=fix,
        evidence=evidence,
        details=details,
    )


# --- releases of onnxruntime-genai -----------------------------------------------------------------------
# A table of the model layouts that each release runs. Each row was tried with the release itself;
# `tests/labs/test_genai_releases.py` repeats some of the trials. If the table does not contain a reason to refuse a
# release, the release is used, and reports its own errors.

# Distributions that contain the module; the first one is the distribution for the CPU.
DISTRIBUTIONS: Final = ("onnxruntime-genai", "onnxruntime-genai-directml", "onnxruntime-genai-winml")
# Older releases lack functions that the host calls.
OLDEST: Final = (0, 13, 0)
TRIED: Final = ("0.13.2", "0.15.0", "0.15.2", "0.16.0", "0.17.0", "0.17.1", "0.18.0")
# The newest release that runs every layout.
EVERY_LAYOUT: Final = "0.15.2"


class LayoutSupport(NamedTuple):
    """Releases of onnxruntime-genai that run a layout.

    refused: first and last of the tried releases that do not run the layout; ``None`` if all of them run it.
    reason: the fault of the refused releases.
    """

    layout: Layout
    what: str
    refused: tuple[str, str] | None
    reason: str = ""


LAYOUTS: Final[tuple[LayoutSupport, ...]] = (
    LayoutSupport("dynamic", "one model with dynamic shapes, for the CPU", None),
    LayoutSupport(
        "window",
        "a pipeline with GroupQueryAttention and the whole KV cache (Olive, Foundry)",
        ("0.16.0", "0.16.0"),
        "this release makes the KV cache as long as the prompt, but the stages need a fixed length",
    ),
    LayoutSupport(
        "sliding",
        "a pipeline with a uint8 KV cache that genai slides (AI Hub)",
        ("0.17.0", "0.18.0"),
        "this release passes a KV cache of wrong dimensions to the first stage",
    ),
)


def installed_version() -> str | None:
    """Return the version of onnxruntime-genai in this Python, without importing it."""
    from importlib import metadata

    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def standing_of(version: str) -> Standing:
    """Return how a release relates to the tried releases: tried, newer, older, or between two of them."""
    return standing(version, TRIED)


def beside_table(version: str) -> str:
    """Describe how a release relates to the tried releases: "newer than this table (0.18.0)"."""
    return f"{STANDING_WORDS[standing_of(version)]} ({TRIED[-1]})"


def is_untried(version: str | None) -> bool:
    """Return whether the release must be tried in a worker before the host calls it."""
    return version is not None and standing_of(version) in AFTER_THE_TABLE


def is_too_old(version: str | None) -> bool:
    numbers = numbers_of(version)
    return bool(numbers) and numbers < OLDEST


def refusal(layout: Layout, version: str | None) -> str | None:
    """Return why this release of genai does not run the layout; ``None`` if the release runs the layout, or was not
    tried."""
    row = next(one for one in LAYOUTS if one.layout == layout)
    numbers = numbers_of(version)
    if row.refused is None or not numbers:
        return None
    first, last = map(numbers_of, row.refused)
    return row.reason if first <= numbers <= last else None


def releases_of(layout: Layout) -> str:
    """Return a description of the tried releases that run the layout."""
    return ", ".join(version for version in TRIED if refusal(layout, version) is None)


# --- the KV cache: element types, memory of one generation -----------------------------------------------

# Names of the KV cache's tensors, for example past_key_values.0.key, past_keys_0, past_value_0_in, key_cache_0.
_NAME: Final = re.compile(r"past.*(?:key|value)|(?:key|value)s?_cache", re.IGNORECASE)
_BYTES: Final = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "uint8": 1, "int8": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class KvCache:
    """KV cache of a model.

    types: element types in ONNX Runtime's notation. tensors: number of tensors. size_bytes: size for one
    generation with a full context.
    """

    types: tuple[str, ...]
    tensors: int
    size_bytes: int


def kv_cache(folder: GenaiFolder) -> KvCache | None:
    """Return the KV cache of the stages for single tokens; ``None`` without such tensors. Raise as `scan_model`."""
    found = list(_inputs(folder))
    if not found:
        return None
    sizes = [_size(one, folder.context_length) for one in found]
    return KvCache(tuple(sorted({_element(one) for one in found})), len(found), sum(sizes))


def _inputs(folder: GenaiFolder) -> Iterator[NodeInfo]:
    for stage in folder.stages:
        if stage.runs_on != "prompt" and os.path.isfile(stage.path):  # skip files that were given as bytes
            for one in scan_model(stage.path, count_nodes=False).inputs:
                if _NAME.search(one.name) and one.shape is not None and len(one.shape) > 2:
                    yield one


def _element(one: NodeInfo) -> str:
    return one.type.removeprefix("tensor(").removesuffix(")")


def _size(one: NodeInfo, context: int) -> int:
    """Return the size of a tensor in bytes. A free first dimension is the batch and counts as 1; other free
    dimensions have the size of the context."""
    size = _BYTES.get(_element(one), 1)
    for axis, dim in enumerate(one.shape or ()):
        size *= dim if isinstance(dim, int) and dim > 0 else context if axis else 1
    return size
