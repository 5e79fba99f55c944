"""Recipe to create a generator again, and counters of replays and restarts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge.genai._media import ProcessedInputs
    from qnnbridge.genai._model import Adapters


@dataclasses.dataclass
class GenerationStats:
    """Counters of a generation.

    Attributes:
        replays: how often a new native generator processed the history again (for a further prompt on a fixed
            window, a full window, a rewind or a new host).
        forced: tokens of the history that replays fed to the model one by one.
        reseeded: whether sampling began a new sequence of random numbers.
        restarts: how often the generation continued in a new host.
        steps: requests for tokens.
        first_token_s: seconds that the requests for the last prompt and its first token took.
    """

    replays: int = 0
    forced: int = 0
    reseeded: bool = False
    restarts: int = 0
    steps: int = 0
    first_token_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NamedInputs:
    """Inputs that were passed to `Generator.set_inputs`.

    Attributes:
        given: arrays of the application.
        made: inputs that the host created from a prompt.
        names: the tensors of `made` that are used.
    """

    given: dict[str, Any]
    made: ProcessedInputs | None
    names: tuple[str, ...]


@dataclasses.dataclass
class GenerationRecipe:
    """Everything needed to create a generator. search: options by name. guidance: arguments of `set_guidance`."""

    search: dict[str, Any] = dataclasses.field(default_factory=dict)
    guidance: tuple[str, str, bool] | None = None
    adapter: tuple[Adapters, str] | None = None
    runtime: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    named: NamedInputs | None = None

    def arguments(self) -> dict[str, Any]:
        named = self.named
        return {
            "search": self.search,
            "guidance": None if self.guidance is None else list(self.guidance),
            "adapter": None if self.adapter is None else self.adapter[1],
            "runtime": [list(pair) for pair in self.runtime.items()],
            "inputs": list(self.inputs),
            "named": None if named is None else list(named.given),
            "made": None if named is None or named.made is None else list(named.names),
        }

    def values(self) -> list[Any]:
        """Return the arrays of `inputs`, followed by the arrays of `named`."""
        return [*self.inputs.values(), *(() if self.named is None else self.named.given.values())]

    def objects(self) -> list[Any]:
        """Return the objects in the host that the generator needs."""
        adapter = [] if self.adapter is None else [self.adapter[0]]
        made = None if self.named is None else self.named.made
        return adapter if made is None else [*adapter, made.remade]
