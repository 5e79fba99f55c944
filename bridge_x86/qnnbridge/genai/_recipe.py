"""What a generator is made from, and what was done to keep it right."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qnnbridge.genai._media import ProcessedInputs
    from qnnbridge.genai._model import Adapters


@dataclasses.dataclass
class GenerationStats:
    """What was done to keep a generation right.

    replays: how often a new native generator took the history over (a further prompt on a fixed window, a full
    window, a rewind, a new host). forced: tokens that were fed again one by one for it. reseeded: whether sampling
    began a new sequence of random numbers. restarts: how often a new host went on with it. steps: requests for
    tokens. first_token_s: seconds of the requests for the last prompt and its first token.
    """

    replays: int = 0
    forced: int = 0
    reseeded: bool = False
    restarts: int = 0
    steps: int = 0
    first_token_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NamedInputs:
    """What `Generator.set_inputs` got.

    given: arrays of the application. made: inputs in the host, of which `names` are used.
    """

    given: dict[str, Any]
    made: ProcessedInputs | None
    names: tuple[str, ...]


@dataclasses.dataclass
class GenerationRecipe:
    """What a generator is made from. search: options by name. guidance: type, data, whether to use ff tokens."""

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
        """The arrays of `inputs`, then those of `named`."""
        return [*self.inputs.values(), *(() if self.named is None else self.named.given.values())]

    def objects(self) -> list[Any]:
        """The objects of the host that it is made from."""
        adapter = [] if self.adapter is None else [self.adapter[0]]
        made = None if self.named is None else self.named.made
        return adapter if made is None else [*adapter, made.remade]
