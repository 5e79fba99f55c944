"""Chat messages whose content is a list of parts: extract pictures and sound, and put placeholders into the text.

Each type of model has its own placeholders, which onnxruntime-genai replaces by the tokens of the picture. The chat
templates of some models insert the placeholders for parts of the type "image" or "audio"; for the other models this
module inserts them, as the examples of onnxruntime-genai do. Pure functions; safe to call from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge.genai._media import Audios, Images
from qnnbridge_protocol.errors import OptionError, PromptRefused

if TYPE_CHECKING:
    from qnnbridge_protocol.specs import GenerationModelInfo

_QWEN: Final = {"image": "<|vision_start|><|image_pad|><|vision_end|>"}
# Placeholders by type of model. {} is the number of the picture or recording.
_MARKS: Final[Mapping[str, Mapping[str, str]]] = {
    "fara": _QWEN,
    "mistral3": {"image": "[IMG]"},
    "phi3v": {"image": "<|image_{}|>\n"},
    "phi4mm": {"image": "<|image_{}|>\n", "audio": "<|audio_{}|>\n"},
    "qwen2_5_vl": _QWEN,
    "qwen3_5": _QWEN,
    "qwen3_5_moe": _QWEN,
    "qwen3_vl": _QWEN,
}


def split_media(
    info: GenerationModelInfo, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[Any], list[bytes], list[bytes]]:
    """Return the messages for the chat template, and the contents of the pictures and recordings in their order.

    Raises:
        PromptRefused: the model does not accept pictures or sound, or a file cannot be read.
        OptionError: the type of a part is not "text", "image" or "audio".
    """
    found: dict[str, list[bytes]] = {"image": [], "audio": []}
    if not any(_kind(part) in found for message in messages for part in _parts(message)):
        return list(messages), [], []
    kept = []
    for message in messages:
        parts = [_part(info, part, found) for part in _parts(message)]
        if not parts:
            kept.append(message)
        elif info.type in _MARKS:
            kept.append({**message, "content": "".join(part["text"] for part in parts)})
        else:
            kept.append({**message, "content": parts})
    return kept, found["image"], found["audio"]


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, (list, tuple)) else ()


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _part(info: GenerationModelInfo, part: Any, found: Mapping[str, list[bytes]]) -> dict[str, Any]:
    """Return the part as it is passed to the chat template, and append its picture or recording to `found`."""
    kind = _kind(part)
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in found:
        raise OptionError(
            f"The part {part!r:.80} of a message is not a valid text, image or audio part.",
            fix='Pass {"type": "text", "text": ...}, {"type": "image", "path": ...} or {"type": "audio", '
            '"path": ...}. Instead of "path", a part can have the bytes of the file as "image" or "audio".',
        )
    if kind not in info.modalities:
        raise PromptRefused(
            f"{info.label} does not accept {'pictures' if kind == 'image' else 'sound'}.",
            cause=f"The type of the model is {info.type}.",
            fix="Leave the part out, or use a model that accepts it.",
            details={"modality": kind},
        )
    found[kind].append(_content(kind, part))
    marks = _MARKS.get(info.type)
    if marks is None:
        return {"type": kind}
    return {"type": "text", "text": marks[kind].format(len(found[kind]))}


def _content(kind: str, part: Mapping[str, Any]) -> bytes:
    media = Images if kind == "image" else Audios
    path, content = part.get("path"), part.get(kind)
    if (path is None) == (content is None):
        raise OptionError(
            f'A part of the type "{kind}" must have either "path" or "{kind}".',
            fix=f'Pass {{"type": "{kind}", "path": ...}}, or the bytes of the file as "{kind}".',
        )
    opened = media.open_bytes(content) if path is None else media.open(path)
    return opened.contents[0]
