"""From a folder to sessions: which layout it is, which sizes are fixed, and which provider each part gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qnnbridge._create import identify
from qnnbridge._inference_session import InferenceSession
from qnnbridge._node import Node
from qnnbridge._recipe import SessionRecipe
from qnnbridge._session_options import SessionOptions
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.speech import _decoders as decoders
from qnnbridge.speech._decoders import (
    CacheNames,
    FixedDecoder,
    GrowingDecoder,
    TimeLeft,
    Values,
    WindowDecoder,
)
from qnnbridge.speech._features import HOP, RATE
from qnnbridge.speech._folder import WhisperFiles, WhisperSettings
from qnnbridge_protocol.errors import GenerationFolderInvalid, GenerationUnsupported
from qnnbridge_protocol.specs import Fallback, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host

Layout = Literal["separate", "merged", "genai", "fixed"]
CPU = "CPUExecutionProvider"
# A call is repeated in a new host as often: speech goes on after a death, and after a second one.
RETRIES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class SessionChoices:
    """How sessions are made; the fields are those of `qnnbridge.speech.load`."""

    host: Host
    provider: str
    provider_options: Mapping[str, str]
    fallback: Fallback
    timeout: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class WhisperSessions:
    """What is loaded. bins, frames: of the features of one window. begin: a decoder for what the encoder gave."""

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
    """Raises `GenerationUnsupported`, `GenerationFolderInvalid`, and what making sessions raises."""
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
                f"{files.decoder.name} has no cache, and there is no decoder_with_past_model.onnx beside it.",
                cause="Without one each token would compute all those before it again.",
                fix="Export the model with its cache: --task automatic-speech-recognition-with-past",
            )
        _check_growing(names, [decoder_ins, later_ins], [decoder_outs, later_outs])

    opened: list[InferenceSession] = []

    def session(path: Path, provider: str, sizes: Mapping[str, int]) -> InferenceSession:
        opened.append(_open(path, provider, sizes, choices))
        return opened[-1]

    try:
        encoder = session(files.encoder, choices.provider, dimensions)
        # Caches that grow have another size each step, and QNN takes fixed ones only.
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
    """Inputs and outputs as the file has them; the host reads it."""
    recipe = SessionRecipe(SessionSpec(model_path=str(path.resolve())))
    found = identify(choices.host, recipe, deadline_after(choices.timeout))
    if not found.readable or not found.inputs:
        raise GenerationFolderInvalid(f"{path} is no ONNX model that can be read.")
    return found.inputs, found.outputs


def _window_of(nodes: Sequence[Node], settings: WhisperSettings, path: Path) -> tuple[int, int, dict[str, int]]:
    """Bins, frames, and the sizes of the encoder's named dimensions."""
    shape = tuple(nodes[0].shape or ())
    if len(shape) != 3:
        raise GenerationUnsupported(f"The input of {path.name} has the shape {shape}, not (1, bins, frames).")
    usual = int(settings.config.get("num_mel_bins") or 80)
    bins = shape[1] if isinstance(shape[1], int) else usual
    frames = shape[2] if isinstance(shape[2], int) else round(settings.window_s * RATE / HOP)
    sizes: dict[str, int] = {}
    for size, declared in zip((1, bins, frames), shape, strict=True):
        if isinstance(declared, str):
            sizes[declared] = size
        elif declared is None or declared != size:
            raise GenerationUnsupported(
                f"The input of {path.name} has the shape {shape}.",
                cause="The dimension has no name, or the model takes several windows at once.",
                fix=f"qnnbridge optimize {path} --shape {nodes[0].name}=1,{bins},{frames} -o ... fixes it.",
            )
    return bins, frames, sizes


def _check_growing(names: CacheNames, inputs: Sequence[Sequence[Node]], outputs: Sequence[Sequence[Node]]) -> None:
    if not names.growing:
        raise GenerationUnsupported(
            "The decoder has no caches under the usual names.",
            evidence=tuple(node.name for node in inputs[-1])[:8],
            fix="Export it with optimum or onnxruntime-genai.",
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
    found = [size if isinstance(size, int) else None for size in (shape[1:2] + shape[3:4])] or [None, None]
    heads, width = settings.config.get("decoder_attention_heads"), settings.config.get("d_model")
    heads = found[0] or heads
    head = found[-1] or (width // heads if heads and width else None)
    if not heads or not head:
        raise GenerationUnsupported(
            f"The sizes of the caches of {path.name} are not known.", fix="Put the model's config.json beside it."
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
