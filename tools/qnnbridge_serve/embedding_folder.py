"""The folder of a model for embeddings, as sentence-transformers writes it: files and settings. Loads no model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge_protocol.errors import NoSuchFile, OptionError

Pooling = Literal["mean", "cls"]

_PLACES: Final = ("model.onnx", "onnx/model.onnx")
_POOLINGS: Final[Mapping[str, Pooling]] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
# Where the folder does not say it.
_TOKENS: Final = 512
# In tokenizer_config.json it is often 10^30.
_ENDLESS: Final = 10**6
# Their positions are counted from behind the number of the pad token.
_SHIFTED: Final = ("roberta", "camembert", "mpnet")


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingFolder:
    """What the files say.

    Args:
        pooling: ``None`` if no file says it: the model's own, or the mean.
        normalize: Whether embeddings have the length 1.
        most_tokens: Of one text, special tokens included.
        lower: Whether texts are made small before the tokenizer has them.
        prompt: What is put before each text.
        pad: The text of the pad token.
    """

    model: Path
    tokenizer: Path
    pooling: Pooling | None
    normalize: bool
    most_tokens: int
    lower: bool
    prompt: str
    pad: str | None


def read_folder(folder: Path) -> EmbeddingFolder:
    """Raises `NoSuchFile`, and `OptionError` for what is not computed here."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise NoSuchFile(
            f"There is no tokenizer.json in {folder}.",
            fix="Save its fast tokenizer there: AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER).",
        )
    modules = _read(folder / "modules.json")
    pooling: Pooling | None = None
    normalize = True  # as OpenAI's embeddings are
    if isinstance(modules, list):
        normalize = False
        for one in modules:
            kind = str(one.get("type", "")).rpartition(".")[2] if isinstance(one, dict) else ""
            if kind == "Pooling":
                pooling = _pooling(folder / str(one.get("path", "1_Pooling")) / "config.json")
            elif kind == "Normalize":
                normalize = True
            elif kind != "Transformer":
                raise OptionError(
                    f"{folder} cannot be served: its modules.json has a module {kind or one!r}.",
                    cause="Transformer, Pooling and Normalize are computed here.",
                )
    elif (folder / "1_Pooling" / "config.json").is_file():
        pooling = _pooling(folder / "1_Pooling" / "config.json")
    words = _mapping(folder / "tokenizer_config.json")
    sentences = _mapping(folder / "sentence_bert_config.json")
    said = _mapping(folder / "config_sentence_transformers.json")
    prompts, default = said.get("prompts"), said.get("default_prompt_name")
    prompt = prompts.get(default) if isinstance(prompts, dict) and default else None
    pad = words.get("pad_token")
    return EmbeddingFolder(
        model=_model(folder),
        tokenizer=tokenizer,
        pooling=pooling,
        normalize=normalize,
        most_tokens=_most_tokens(sentences, words, _mapping(folder / "config.json")),
        lower=sentences.get("do_lower_case") is True,
        prompt=prompt if isinstance(prompt, str) else "",
        pad=pad.get("content") if isinstance(pad, dict) else pad,
    )


def _model(folder: Path) -> Path:
    for place in _PLACES:
        if (folder / place).is_file():
            return folder / place
    found = sorted(folder.glob("*.onnx"))
    if len(found) != 1:
        raise NoSuchFile(
            f"{folder} has neither model.onnx nor onnx/model.onnx, and {len(found) or 'no'} other models.",
            fix="Export the encoder: optimum-cli export onnx --task feature-extraction -m MODEL FOLDER.",
        )
    return found[0]


def _pooling(path: Path) -> Pooling:
    said = _mapping(path)
    modes = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(said.get("pooling_mode"), str):
        modes = [f"pooling_mode_{said['pooling_mode']}_token" + ("" if said["pooling_mode"] == "cls" else "s")]
    if len(modes) != 1 or modes[0] not in _POOLINGS or said.get("include_prompt") is False:
        raise OptionError(
            f"{path} asks for another pooling than the mean of all tokens or the first token.",
            cause=f"It has: {', '.join(modes) or 'none'}"
            + (", without the prompt." if said.get("include_prompt") is False else "."),
        )
    return _POOLINGS[modes[0]]


def _most_tokens(sentences: Mapping[str, Any], words: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    found = next(
        (
            value
            for value in (sentences.get("max_seq_length"), words.get("model_max_length"))
            if type(value) is int and 0 < value < _ENDLESS
        ),
        None,
    )
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or positions < 1:
        return found or _TOKENS
    if any(kind in str(config.get("model_type", "")) for kind in _SHIFTED):
        positions -= 2
    return min(found or positions, positions)


def _mapping(path: Path) -> Mapping[str, Any]:
    found = _read(path)
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> Any:
    """``None`` if there is no such file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read.", cause=str(error)) from None
