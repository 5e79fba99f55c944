"""`GeneratorParams` and `Generator` with the interface of onnxruntime_genai. Not thread-safe."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qnnbridge.genai._model import Adapters, Model
from qnnbridge.genai._recipe import GenerationRecipe, GenerationStats
from qnnbridge.genai._remote import tokens_of
from qnnbridge.genai._remote_generation import RemoteBatch, RemoteGeneration
from qnnbridge_protocol.errors import GenerationUnsupported, OptionError
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import Shown, counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge.genai._tensors import NamedTensors
    from qnnbridge_protocol.shown import Fact


# genai rejects larger integers than this, so larger values of search options are sent as floats.
_LARGEST = 2**53
_SEVERAL = ("num_beams", "batch_size", "num_return_sequences")


def several_sequences(params: GeneratorParams) -> str:
    """Return the name of a search option that requests several sequences; "" if there is none."""
    options = params.get_search_options()
    return next((name for name in _SEVERAL if int(options.get(name) or 1) > 1), "")


class GeneratorParams(Shown):
    """Search options of a generator. The defaults come from the model's genai_config.json."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._search: dict[str, Any] = {}
        self._guidance: tuple[str, str, bool] | None = None

    def _shown_name(self) -> str:
        return self._model._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        for name, value in list(self._search.items()):
            yield f"{name}={value:g}", ""
        if self._guidance is not None:
            yield f"guidance {self._guidance[0]}", ""
        for name, value in self._model.info.search.items():
            if name not in self._search:
                yield f"{name}={value} of the model's config", "more"

    def set_search_options(self, **options: Any) -> None:
        """Set options of the search: max_length, do_sample, temperature, top_k, top_p, random_seed and others."""
        for name, value in options.items():
            if value is None:
                continue
            try:
                number = float(value)  # `float` accepts numpy's numbers, too
            except (TypeError, ValueError, OverflowError):
                raise OptionError(f"The search option {name}={value!r} is not a number.") from None
            if not math.isfinite(number):  # with NaN or infinity genai generates meaningless tokens
                raise OptionError(f"The search option {name}={number:g} is not a finite number.")
            # Keep the type of integers and booleans, from which the host recognizes boolean options.
            self._search[name] = value if isinstance(value, int) and abs(number) < _LARGEST else number

    def get_search_options(self) -> dict[str, Any]:
        """Return all search options: the defaults of genai_config.json, overridden by the options set here."""
        return {**self._model.info.search, **self._search}

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:  # noqa: A002 - genai's name
        """Restrict the answer to texts that a grammar allows.

        Args:
            type: "json_schema", "regex" or "lark_grammar".
            data: text of the schema, expression or grammar.
            enable_ff_tokens: append a token without running the model if the grammar allows no other token.
        """
        self._guidance = (str(type), str(data), bool(enable_ff_tokens))

    def set_speculative_options(self, **options: Any) -> None:
        raise GenerationUnsupported("Speculative decoding is not available through the bridge.")

    def get_speculative_options(self) -> dict[str, Any]:
        """Return {}: speculative decoding is not available."""
        return {}


class Generator(Shown):
    """Generator of tokens for a model.

    The native generator is in the host process; this object keeps all tokens. If the host dies, generation
    continues in a new host; `stats` counts such restarts. Where genai would compute wrong tokens or crash, a new
    native generator is created (see docs/genai.md).
    """

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        self._model = model
        self._params = params
        recipe = GenerationRecipe(dict(params._search), params._guidance)
        several = several_sequences(params)
        # Only models with free sizes generate several sequences. For other models create a `RemoteGeneration`, for
        # which `call_on_state` raises the host's error.
        is_batch = bool(several) and model.info.layout == "dynamic"
        self._remote = (RemoteBatch if is_batch else RemoteGeneration)(model._remote, recipe)
        self._last: list[int] = []
        if several and not is_batch:
            self._remote.call_on_state("sequence", {"index": 0})  # raises the host's error about several sequences

    def _shown_name(self) -> str:
        return self._model._shown_name()

    def _shown_facts(self) -> Iterator[Fact]:
        remote = self._remote
        if isinstance(remote, RemoteBatch):  # the tokens of a batch are only in the host, so do not count them
            yield f"{counted(remote.rows, 'sequence')}, {counted(remote.steps_taken, 'step')}", ""
        else:
            yield counted(len(remote.tokens), "token"), ""
        if remote.done:
            yield "done", ""
        if remote.stats.restarts:
            yield f"continued in a new host {counted(remote.stats.restarts, 'time')}", ""

    # --- tokens ---

    def append_tokens(self, tokens: Any) -> None:
        """Append a prompt.

        Args:
            tokens: token ids as an array, a list or a `Tensor`. A batch has two dimensions.
        """
        self._remote.append(tokens_of(tokens))

    def generate_next_token(self) -> None:
        """Generate the next token."""
        if isinstance(self._remote, RemoteBatch):
            self._last = self._remote.next_of_all()
        else:
            self._last = [self._remote.next()]

    def get_next_tokens(self) -> npt.NDArray[np.int32]:
        """Return the last generated token of each sequence."""
        return _int32(self._last)

    def get_sequence(self, index: int = 0) -> npt.NDArray[np.int32]:
        """Return all tokens of a sequence, without padding."""
        # genai does not check the index and would read memory outside the sequences.
        count = self._remote.rows if isinstance(self._remote, RemoteBatch) else 1
        if not 0 <= operator.index(index) < count:
            raise IndexError(f"There is no sequence {index}: the generator has {count}, counted from 0.")
        if isinstance(self._remote, RemoteBatch):
            return _int32(self._remote.sequence(operator.index(index)))
        return _int32(self._remote.tokens)

    def token_count(self) -> int:
        """Return the number of tokens, without padding."""
        if isinstance(self._remote, RemoteBatch):
            return len(self._remote.sequence(0))
        return len(self._remote.tokens)

    def is_done(self) -> bool:
        """Return whether an end token was generated or max_length was reached."""
        return self._remote.done

    def rewind_to(self, new_length: int) -> None:
        """Drop all tokens after the first `new_length`. Works with every kind of model."""
        self._remote.rewind(int(new_length))

    # --- tensors ---

    def get_logits(self) -> Any:
        """Return the logits of the next token. After this call the host no longer generates tokens ahead."""
        return self._tensor({"which": "logits"})

    def set_logits(self, new_logits: Any) -> None:
        """Replace the logits from which the next token is chosen."""
        import numpy as np

        self._remote.call_on_state("set_logits", {}, [np.asarray(new_logits, np.float32)])

    def get_output(self, name: str) -> Any:
        """Return an output of the model's last run."""
        return self._tensor({"which": "output", "name": name})

    def get_input(self, name: str) -> Any:
        """Return an input of the model's last run."""
        return self._tensor({"which": "input", "name": name})

    def set_model_input(self, name: str, value: Any) -> None:
        """Set the value of an additional input of the model."""
        self._remote.recipe.inputs[name] = value.as_numpy() if hasattr(value, "as_numpy") else value
        self._remote.change()

    def set_inputs(self, inputs: NamedTensors) -> None:
        """Set a prompt with pictures and sound, as returned by a `MultiModalProcessor`."""
        self._remote.begin(inputs)

    def set_active_adapter(self, adapters: Adapters, adapter_name: str) -> None:
        """Use a LoRA adapter."""
        self._remote.recipe.adapter = (adapters, str(adapter_name))
        self._remote.change()

    def set_runtime_option(self, key: str, value: str) -> None:
        """Set an option of the running model.

        ``terminate_session`` may be set by any thread: while it is "1", the running call and all later calls for
        prompts or tokens raise `Cancelled`.
        """
        if key == "terminate_session":
            self._remote.stopping.assign(str(value) == "1")
            return
        self._remote.recipe.runtime[str(key)] = str(value)
        self._remote.change()

    # --- qnnbridge ---

    @property
    def stats(self) -> GenerationStats:
        """Counters of the generation, such as its restarts in new hosts."""
        return self._remote.stats

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take; ``None`` (default): no limit."""
        return self._remote.timeout_s

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._remote.timeout_s = seconds

    def close(self) -> None:
        """Free the host's generator now. Without `close`, the generator is freed together with this object."""
        self._remote.close()

    def _tensor(self, arguments: dict[str, Any]) -> Any:
        from qnnbridge_protocol.values import decode_all

        frame = self._remote.call_on_state("tensor", arguments)
        return decode_all(field(frame.header, "values", "tuple[Any]"), frame.buffers)[0]


def _int32(tokens: list[int]) -> npt.NDArray[np.int32]:
    import numpy as np

    return np.asarray(tokens, np.int32)
