"""`GeneratorParams`, `Generator` and tensors, with the interface of onnxruntime_genai."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge.genai._generation import GenerationRecipe, GenerationStats, RemoteGeneration
from qnnbridge.genai._model import Adapters, Model, token_values, tokens_of
from qnnbridge_protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    GenerationError,
    GenerationUnsupported,
    OptionError,
)
from qnnbridge_protocol.field_types import field

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge._transport.channel import CallContext


# Of the integers that travel as such: floats hold integers exactly up to here, and genai rejects a larger one.
_LARGEST = 2**53
_SEVERAL = ("num_beams", "batch_size", "num_return_sequences")


class GeneratorParams:
    """Search options of a generator. Defaults are those of the model's config."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._search: dict[str, Any] = {}
        self._guidance: tuple[str, str, bool] | None = None

    def set_search_options(self, **options: Any) -> None:
        """Set options of the search: max_length, do_sample, temperature, top_k, top_p, random_seed and others."""
        for name, value in options.items():
            if value is None:
                continue
            try:
                number = float(value)  # also a number of numpy
            except (TypeError, ValueError, OverflowError):
                raise OptionError(f"The search option {name}={value!r} is no number.") from None
            if not math.isfinite(number):  # genai would compute with it: tokens without a meaning
                raise OptionError(f"The search option {name}={number:g} is no finite number.")
            # An int stays one (a bool as well): the host tells switches from numbers by the type.
            self._search[name] = value if isinstance(value, int) and abs(number) < _LARGEST else number

    def get_search_options(self) -> dict[str, Any]:
        """The options, with those of the config."""
        return {**self._model.info.search, **self._search}

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:  # noqa: A002 - genai's name
        """Restrict the answer: "json_schema", "regex" or "lark_grammar", and its text."""
        self._guidance = (str(type), str(data), bool(enable_ff_tokens))

    def set_speculative_options(self, **options: Any) -> None:
        raise GenerationUnsupported("Speculative decoding is not available through the bridge.")

    def get_speculative_options(self) -> dict[str, Any]:
        """None are set."""
        return {}


class Generator:
    """Generates tokens for a model.

    The host keeps the native generator, this object the history. A host that dies is replaced, and generation goes
    on; `stats` reports it. Where genai would compute wrong tokens or die, the native generator is made again (see
    docs/genai.md).
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        self._model = model
        self._params = params
        recipe = GenerationRecipe(dict(params._search), params._guidance)
        several = any(int(params.get_search_options().get(name) or 1) > 1 for name in _SEVERAL)
        # A pipeline takes one sequence. Its ordinary generation is made, so that the host refuses it.
        is_batch = several and model.info.layout == "dynamic"
        self._remote = (RemoteBatch if is_batch else RemoteGeneration)(model._remote, recipe)
        self._last: list[int] = []
        if several and not is_batch:
            self._remote.look("sequence", {"index": 0})  # the host says why it does not work

    # --- tokens ---

    def append_tokens(self, tokens: Any) -> None:
        """Add a prompt: token ids as an array, a list or a `Tensor`; for a batch two dimensions."""
        self._remote.append(tokens_of(tokens))

    def generate_next_token(self) -> None:
        """Generate the next token."""
        if isinstance(self._remote, RemoteBatch):
            self._last = self._remote.next_of_all()
        else:
            self._last = [self._remote.next()]

    def get_next_tokens(self) -> npt.NDArray[np.int32]:
        """The token that was generated last, of each sequence."""
        return _int32(self._last)

    def get_sequence(self, index: int = 0) -> npt.NDArray[np.int32]:
        """All tokens of a sequence, without pads."""
        if isinstance(self._remote, RemoteBatch):
            return _int32(self._remote.sequence(int(index)))
        if index != 0:
            raise IndexError(f"there is one sequence, not {index + 1}")
        return _int32(self._remote.tokens)

    def token_count(self) -> int:
        """Number of tokens, without pads."""
        if isinstance(self._remote, RemoteBatch):
            return len(self._remote.sequence(0))
        return len(self._remote.tokens)

    def is_done(self) -> bool:
        """Whether an end token was generated, or max_length is reached."""
        return self._remote.done

    def rewind_to(self, new_length: int) -> None:
        """Forget all tokens from this number on. Works on every layout."""
        self._remote.rewind(int(new_length))

    # --- tensors ---

    def get_logits(self) -> Any:
        """Of the next token. From here on the host makes one token at a time."""
        return self._tensor({"which": "logits"})

    def set_logits(self, new_logits: Any) -> None:
        """Replace the logits that the next token is chosen by."""
        import numpy as np

        self._remote.look("set_logits", {}, [np.asarray(new_logits, np.float32)])

    def get_output(self, name: str) -> Any:
        """An output of the model's last run."""
        return self._tensor({"which": "output", "name": name})

    def get_input(self, name: str) -> Any:
        """An input of the model's last run."""
        return self._tensor({"which": "input", "name": name})

    def set_model_input(self, name: str, value: Any) -> None:
        """Give a value for a further input of the model."""
        self._remote.recipe.inputs[name] = value.as_numpy() if hasattr(value, "as_numpy") else value
        self._remote.change()

    def set_inputs(self, inputs: NamedTensors) -> None:
        """Give values for inputs of the model."""
        for name in inputs.keys():  # noqa: SIM118 - it is no mapping
            self.set_model_input(name, inputs[name])

    def set_active_adapter(self, adapters: Adapters, adapter_name: str) -> None:
        """Use a LoRA adapter."""
        self._remote.recipe.adapter = (adapters, str(adapter_name))
        self._remote.change()

    def set_runtime_option(self, key: str, value: str) -> None:
        """Set an option of the running model. ``terminate_session``, from any thread: "1" ends the prompt or token
        that is under way with `Cancelled`, and all later ones, until it is "0"."""
        if key == "terminate_session":
            self._remote.stopping.assign(str(value) == "1")
            return
        self._remote.recipe.runtime[str(key)] = str(value)
        self._remote.change()

    # --- qnnbridge ---

    @property
    def stats(self) -> GenerationStats:
        """What was done to keep the generation correct."""
        return self._remote.stats

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take; ``None`` (default): no limit."""
        return self._remote.timeout_s

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._remote.timeout_s = seconds

    def close(self) -> None:
        """Free the host's generator now. Without `close` it is freed with this object."""
        self._remote.close()

    def _tensor(self, arguments: dict[str, Any]) -> Any:
        from qnnbridge_protocol.values import decode_all

        frame = self._remote.look("tensor", arguments)
        return decode_all(field(frame.header, "values", "tuple[Any]"), frame.buffers)[0]


def _int32(tokens: list[int]) -> npt.NDArray[np.int32]:
    import numpy as np

    return np.asarray(tokens, np.int32)


# --- several sequences at once (batches, beams) from one generator ---


class RemoteBatch(RemoteGeneration):
    """`tokens` has only what was appended; the sequences are in the host."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Nothing is made ahead: the host forgets tokens of a single sequence (`align`), and not of several.
        self._longest = 1
        # Each prompt, and the steps behind it: the way on which a new host makes the same sequences again.
        self._log: list[tuple[list[int], int]] = []

    def append(self, prompt: Sequence[int]) -> None:
        # First: the request that brings the prompt must not find it in the log as well.
        super().append(prompt)
        self._log.append((list(prompt), 0))

    def next_of_all(self) -> list[int]:
        """The next token of each sequence."""
        if self.done:
            raise GenerationError("The generation is done.", fix="Look at is_done() before, or append more tokens.")
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        found: Any = self.ahead.popleft()
        self.done = self._done_after_ahead
        prompt, count = self._log[-1]
        # Counted only now that the application has the tokens.
        self._log[-1] = (prompt, count + 1)
        return list(found)

    def sequence(self, index: int) -> list[int]:
        """All tokens of one sequence."""
        return list(field(self.look("sequence", {"index": index}).header, "result", "tuple[int, ...]"))

    def rewind(self, length: int) -> None:
        if length:
            raise GenerationUnsupported(
                "A generation of several sequences can only be rewound to its start.", fix="Call rewind_to(0)."
            )
        # The host's generator has its tokens still; `change` makes another one.
        self.tokens, self._log, self.done = [], [], False
        self.change()

    def _prepared(
        self, process: HostProcess, prompt: Sequence[int], count: int
    ) -> tuple[int, list[Any], dict[str, Any]]:
        number, _, _ = super()._prepared(process, prompt, count)
        arguments: dict[str, Any] = {"count": count, "length": 0}
        if self._is_blank and self._log:
            arguments["log"] = [[tokens, steps] for tokens, steps in self._log]
        return number, token_values(prompt) if prompt else [], arguments

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        try:
            return super()._with_replay(attempt, context, deadline)
        except (Cancelled, DeadlineExceeded, KeyboardInterrupt):
            # The host may have done it all the same: what was answered is repeated in another generator.
            self.remade.forget()
            raise


# --- arrays of the application under genai's names ---


class Tensor:
    """An array. genai's own tensor is in the host, and is made of this when it is needed."""

    def __init__(self, array: Any) -> None:
        import numpy as np

        # A copy: later changes of the caller's array do not show.
        self._array = np.array(array, order="C")

    def as_numpy(self) -> Any:
        """The array itself."""
        return self._array

    def shape(self) -> list[int]:
        """The dimensions."""
        return list(self._array.shape)

    def type(self) -> int:
        """Number of the element type, as ONNX has it."""
        from qnnbridge_protocol.elements import LAYOUTS

        return next(int(e) for e, layout in LAYOUTS.items() if layout.named and layout.storage == self._array.dtype)

    def data(self) -> Any:
        raise GenerationUnsupported(
            "Tensor.data is not available: the memory is in another process.", fix="Use as_numpy()."
        )


class NamedTensors:
    """Tensors by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._tensors[name] = value if isinstance(value, Tensor) else Tensor(value)

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def __len__(self) -> int:
        return len(self._tensors)

    def keys(self) -> list[str]:
        """The names."""
        return list(self._tensors)
