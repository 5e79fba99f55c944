"""Run encoder and decoder as sessions, and keep the state of one window. Keys and values of the attention stay in
memory that is shared with the host.

Each step binds the values of the previous step as inputs, without copying them. A decoder with growing caches gets
new values in each step. A decoder with fixed caches reads one of two sets of values and writes the other, so the
inputs of a step are unchanged if it is repeated in a new host.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from qnnbridge._values.feed_rules import Node
from qnnbridge._values.ort_value import OrtValue
from qnnbridge.speech._audio import Array
from qnnbridge_protocol.errors import BridgeError, GenerationUnsupported, RemoteRuntimeError

if TYPE_CHECKING:
    from qnnbridge._inference_session import InferenceSession


TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(bool)": np.dtype(np.bool_),
}
# Value that hides a position in the attention mask of AI Hub's decoders. Quantised masks can represent this value.
_CLOSED: Final = -100.0
_BRANCH: Final = "use_cache_branch"
_STATES: Final = "encoder_hidden_states"
_FIXED_SELF: Final = re.compile(r"[kv]_cache_self_\d+_in")

Values = dict[str, OrtValue]
# Function that returns how many seconds the next call may take. It raises an error if no further call is allowed.
TimeLeft = Callable[[], float | None]


def unlimited() -> float | None:
    return None


class WindowDecoder(Protocol):
    """The decoder for one window of audio. `positions` is the maximum number of tokens."""

    positions: int

    def step(self, tokens: Sequence[int]) -> Array:
        """Return the scores of the next token after `tokens`."""


@dataclasses.dataclass(frozen=True, slots=True)
class CacheNames:
    """Names of inputs and outputs of a decoder with growing caches. Each tuple has one entry for the keys or values
    of each layer.

    Attributes:
        made: outputs with the cross attention's keys and values; of the encoder or of the decoder's first step.
        growing: pairs of the decoder's input and output for each of the self attention's keys and values.
        crossing: the decoder's inputs for the cross attention's keys and values, in the order of `made`.
    """

    ids: str
    logits: str
    made: tuple[str, ...]
    growing: tuple[tuple[str, str], ...]
    crossing: tuple[str, ...]


def layers_of(nodes: Sequence[Node], pattern: str) -> int:
    """Return the number of inputs whose names match `pattern`, where %d stands for the layer."""
    rule = re.compile(re.escape(pattern).replace("%d", r"\d+"))
    return sum(rule.fullmatch(node.name) is not None for node in nodes)


def names_of_optimum(nodes: Sequence[Node]) -> CacheNames:
    """Return the names for a decoder of optimum. `nodes` are the inputs of a decoder with past."""
    layers = layers_of(nodes, "past_key_values.%d.decoder.key")
    both = [f"{layer}.{{}}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    own, cross = [name.format("decoder") for name in both], [name.format("encoder") for name in both]
    return CacheNames(
        "input_ids",
        "logits",
        tuple(f"present.{name}" for name in cross),
        tuple((f"past_key_values.{name}", f"present.{name}") for name in own),
        tuple(f"past_key_values.{name}" for name in cross),
    )


def names_of_genai(nodes: Sequence[Node], names: Mapping[str, str]) -> CacheNames:
    """Return the names for a decoder of onnxruntime-genai. `names` are the names in its configuration, in which
    %d stands for the layer."""
    layers = layers_of(nodes, names["past_key_names"])

    def every(*keys: str) -> tuple[str, ...]:
        return tuple(names[key].replace("%d", str(layer)) for layer in range(layers) for key in keys)

    return CacheNames(
        names["input_ids"],
        names["logits"],
        every("cross_present_key_names", "cross_present_value_names"),
        tuple(
            zip(
                every("past_key_names", "past_value_names"),
                every("present_key_names", "present_value_names"),
                strict=True,
            )
        ),
        every("cross_past_key_names", "cross_past_value_names"),
    )


def run_bound(
    session: InferenceSession,
    inputs: Mapping[str, OrtValue],
    outputs: Mapping[str, OrtValue | None],
    left: TimeLeft,
) -> Values:
    """Run the session with these inputs and outputs. Create a new value for each output that is ``None``. Raise
    the errors of the session and of `left()`."""
    timeout = left()
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, held in outputs.items():
        if held is None:
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, held)
    try:
        binding.run(timeout=timeout)
    except RemoteRuntimeError as error:
        # A binding converts every error to a RuntimeError, as in ONNX Runtime, but the callers of this function
        # need the original error.
        if isinstance(error.__cause__, BridgeError):
            raise error.__cause__ from None
        raise
    return dict(zip(outputs, binding.get_outputs(), strict=True))


def _value(array: Any, node: Node) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(np.asarray(array, TYPES[node.type]))


def _last(logits: OrtValue) -> Array:
    scores = np.asarray(logits.numpy())
    # Return the last row of the scores (1, tokens, vocabulary). A prompt has one row for each token.
    return scores.reshape(scores.shape[1], -1)[-1] if scores.ndim == 3 else scores.reshape(-1)


class GrowingDecoder:
    """Decoder of optimum (two files, or one merged file) or onnxruntime-genai.

    Args:
        first, later: session of the first step and session of all later steps; they may be the same.
        encoded: outputs of the encoder: hidden states, or the values of the cross attention.
        sizes: number and width of the heads of the caches.
    """

    def __init__(
        self,
        first: InferenceSession,
        later: InferenceSession,
        names: CacheNames,
        encoded: Values,
        sizes: tuple[int, int],
        positions: int,
        left: TimeLeft,
    ) -> None:
        self.positions = positions
        self._left = left
        self._first, self._later, self._names = first, later, names
        self._encoded, self._sizes = encoded, sizes
        self._own: Values = {}
        self._cross: Values = {}
        if _STATES not in encoded:
            self._cross = dict(zip(names.crossing, (encoded[name] for name in names.made), strict=True))

    def step(self, tokens: Sequence[int]) -> Array:
        # The first step of a window runs without a cache and creates the keys and values of the cross attention.
        if not self._own:
            return self._run(self._first, tokens, begins=True)
        scores = np.zeros(0, np.float32)
        for token in tokens:  # a decoder with past takes one token at a time
            scores = self._run(self._later, [token], begins=False)
        return scores

    def _run(self, session: InferenceSession, tokens: Sequence[int], *, begins: bool) -> Array:
        names = self._names
        nodes = {node.name: node for node in session.get_inputs()}
        inputs = {names.ids: _value([list(tokens)], nodes[names.ids])}
        if _STATES in nodes:
            inputs[_STATES] = self._encoded[_STATES]
        if _BRANCH in nodes:
            # A merged decoder contains a graph for the first step and one for later steps; this input selects the
            # graph.
            inputs[_BRANCH] = _value([not begins], nodes[_BRANCH])
        for name, _ in names.growing:
            if name in nodes:
                # A merged decoder also has the cache inputs in the first step, when nothing is cached.
                inputs[name] = self._own.get(name) or self._empty(nodes[name])
        for name in names.crossing:
            if name in nodes:
                inputs[name] = self._cross.get(name) or self._empty(nodes[name])
        wanted = [names.logits, *(output for _, output in names.growing)]
        makes_cross = begins and not self._cross
        if makes_cross:
            wanted += names.made
        found = run_bound(session, inputs, dict.fromkeys(wanted), self._left)
        self._own = {name: found[output] for name, output in names.growing}
        if makes_cross:
            self._cross = dict(zip(names.crossing, (found[name] for name in names.made), strict=True))
        return _last(found[names.logits])

    def _empty(self, node: Node) -> OrtValue:
        heads, head = self._sizes
        # The length is 0 because there is no token yet. Such a tensor has a shape but no bytes.
        return _value(np.zeros((1, heads, 0, head)), node)


class FixedDecoder:
    """Decoder of AI Hub: one token per step; caches of a fixed size and a mask, both filled from their end.

    AI Hub's own loop works in the same way: qai_hub_models/models/_shared/hf_whisper/app.py.

    Args:
        encoded: values of the cross attention. The encoder's outputs have the same names as the decoder's inputs.
    """

    def __init__(self, session: InferenceSession, encoded: Values, left: TimeLeft) -> None:
        self._session, self._left = session, left
        self._nodes: dict[str, Node] = {node.name: node for node in session.get_inputs()}
        mask = self._nodes["attention_mask"]
        self._mask = np.full(mask.shape, _CLOSED, TYPES[mask.type])
        # The last position of the mask belongs to the current token.
        self.positions = int(mask.shape[-1]) - 1
        self._encoded = encoded
        names = [name for name in self._nodes if _FIXED_SELF.fullmatch(name)]
        # There are two alternating sets of values: the host reads from one set and writes to the other, so that the
        # inputs are unchanged if a step is repeated.
        self._sets = [
            {
                name: OrtValue.ortvalue_from_shape_and_type(self._nodes[name].shape, TYPES[self._nodes[name].type])
                for name in names
            }
            for _ in range(2)
        ]
        self._done = 0

    def step(self, tokens: Sequence[int]) -> Array:
        scores = np.zeros(0, np.float32)
        for token in tokens:
            scores = self._run(token)
        return scores

    def _run(self, token: int) -> Array:
        nodes = self._nodes
        # Enable positions of the mask from the end backwards, as in AI Hub's own loop.
        self._mask[..., self.positions - self._done] = 0.0
        held, filled = self._sets[self._done % 2], self._sets[(self._done + 1) % 2]
        inputs = {
            "input_ids": _value([[token]], nodes["input_ids"]),
            "attention_mask": _value(self._mask, nodes["attention_mask"]),
            "position_ids": _value([self._done], nodes["position_ids"]),
            **held,
            **{name: value for name, value in self._encoded.items() if name in nodes},
        }
        outputs = {f"{name.removesuffix('_in')}_out": value for name, value in filled.items()}
        found = run_bound(self._session, inputs, {"logits": None, **outputs}, self._left)
        self._done += 1
        return np.asarray(found["logits"].numpy()).reshape(-1)


def is_fixed(nodes: Sequence[Node]) -> bool:
    """Return whether these are the inputs of a decoder of AI Hub."""
    return any(_FIXED_SELF.fullmatch(node.name) for node in nodes)


def is_merged(nodes: Sequence[Node]) -> bool:
    """Return whether these are the inputs of a merged decoder of optimum."""
    return any(node.name == _BRANCH for node in nodes)


def check_known(role: str, nodes: Sequence[Node], known: Sequence[str]) -> None:
    """Raise `GenerationUnsupported` if there are unknown inputs, or inputs of unknown types."""
    unknown = [node.name for node in nodes if node.name not in known]
    if unknown:
        raise GenerationUnsupported(
            f"The {role} has unknown inputs: {', '.join(unknown[:6])}.",
            cause="The model is not one of the supported exports, which docs/speech.md lists.",
            fix="Export the model without these inputs; for onnxruntime-genai, without past_present_share_buffer.",
        )
    odd = [f"{node.name}: {node.type}" for node in nodes if node.type not in TYPES]
    if odd:
        raise GenerationUnsupported(
            f"The {role} has quantised inputs.",
            cause="The ONNX file does not contain the scales of these inputs.",
            evidence=tuple(odd[:4]),
            fix="Use an export with float inputs and outputs.",
        )


# --- choice of the next token: the most likely token that Whisper's rules (as in transformers) allow ---


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRules:
    """Rules for the tokens of one window.

    Attributes:
        end: token that ends a text.
        suppressed: tokens that are never chosen.
        suppressed_first: tokens that are never chosen as the first token.
        first_timestamp: token for 0.00 s; ``None`` if times are disabled. The token id before it is
            <|notimestamps|>.
        latest_first: largest time allowed at the start of a window, in steps of 0.02 s.
    """

    end: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    first_timestamp: int | None
    latest_first: int | None

    def choose(self, logits: Array, chosen: Sequence[int]) -> int:
        """Return the next token. `chosen` are the tokens after the prompt."""
        # Copy the scores, because the rules change them and the logits may be in shared memory. float16 becomes
        # float32.
        scores = np.array(logits, np.float32)
        scores[[token for token in self.suppressed if token < scores.size]] = -np.inf
        if not chosen:
            scores[[token for token in self.suppressed_first if token < scores.size]] = -np.inf
        if self.first_timestamp is not None:
            self._order_times(scores, chosen, self.first_timestamp)
        return int(scores.argmax())

    def _order_times(self, scores: Array, chosen: Sequence[int], first: int) -> None:
        # The token <|notimestamps|> occurs only in prompts.
        scores[first - 1] = -np.inf
        was_time = bool(chosen) and chosen[-1] >= first
        before_was_time = len(chosen) < 2 or chosen[-2] >= first
        if was_time:
            if before_was_time:  # forbid a third time token in succession, and a second one at the start
                scores[first:] = -np.inf
            else:
                # Allow only a second time token or the end: text tokens have smaller ids than the end token.
                scores[: self.end] = -np.inf
        times = [token for token in chosen if token >= first]
        if times:  # times must not decrease, and a segment must not be empty
            scores[first : times[-1] + (0 if was_time and not before_was_time else 1)] = -np.inf
        if not chosen:
            scores[:first] = -np.inf
            if self.latest_first is not None:
                scores[first + self.latest_first + 1 :] = -np.inf
        # Choose a time if all times together are more likely than the most likely other token, because the
        # probability of a time is spread over many tokens. The normaliser of the softmax is equal on both sides
        # and is omitted. Suppress the warning `divide`, which the logarithm of 0 causes if no time is allowed.
        with np.errstate(divide="ignore"):
            top = scores.max()
            all_times = np.log(np.exp(scores[first:] - top).sum(dtype=np.float32))
        if all_times > scores[:first].max() - top:
            scores[:first] = -np.inf


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one segment. start, end: times in steps of 0.02 s from the start of the window; `end` is ``None``
    if the segment ends with the window."""

    start: int
    end: int | None
    tokens: tuple[int, ...]


def spans_of(tokens: Sequence[int], first_timestamp: int) -> tuple[list[TokenSpan], int | None]:
    """Return the segments of a window, and the step at which the next window begins (``None``: at its end)."""
    # Two consecutive times are the end of a segment and the start of the next segment, so split the tokens between
    # them. If text follows the last pair, its end is unknown, so the next window begins at the last known end and
    # processes that audio again. A single time as the last token means that no speech follows, so the next window
    # begins at the end of this window.
    times = [token >= first_timestamp for token in tokens]
    cuts = [number for number in range(1, len(tokens)) if times[number] and times[number - 1]]
    ends_with_one = times[-2:] == [False, True]
    if not cuts:
        last = [token - first_timestamp for token in tokens if token >= first_timestamp]
        return [TokenSpan(0, last[-1] if last and last[-1] else None, tuple(tokens))], None
    spans = []
    begin = 0
    for cut in [*cuts, *([len(tokens)] if ends_with_one else [])]:
        piece = tuple(tokens[begin:cut])
        if piece:
            opening = piece[0] - first_timestamp if piece[0] >= first_timestamp else 0
            spans.append(TokenSpan(max(0, opening), piece[-1] - first_timestamp, piece))
        begin = cut
    return spans, None if ends_with_one else tokens[cuts[-1] - 1] - first_timestamp
