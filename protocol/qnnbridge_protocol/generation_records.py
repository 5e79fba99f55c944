"""What the host reports of a model for generation: `GenerationModelInfo`, and where each of its stages runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qnnbridge_protocol.specs import Placement, Record, record


@record(frozen=True, repr=False, eq=False)
class StagePlacement(Record):
    """Where one stage of a model runs.

    stage: its name in genai_config.json. wanted: whether the config asks for QNN. by_design: nothing computes on
    the CPU that belongs on the NPU. placement: of its nodes, as a session of the stage alone has them.
    """

    stage: str
    wanted: bool
    by_design: bool
    placement: Placement

    def __post_init__(self) -> None:
        if not isinstance(self.placement, Placement):
            object.__setattr__(self, "placement", Placement.from_wire(self.placement))


@record(frozen=True, repr=False, eq=False)
class GenerationModelInfo(Record):
    """A model that is loaded.

    type: of the model, in genai's words. device_type: likewise. layout: "dynamic"; "window": fixed windows, the
    graph has the KV cache; "sliding": fixed windows, genai slides the KV cache. window: tokens in one, or ``None``.
    eos, pad: special tokens. search: the config's defaults of search options. fingerprint: of config and files.
    label: name in messages. genai: version of onnxruntime-genai. stages: one for each file of the model.
    """

    type: str
    device_type: str
    layout: str
    window: int | None
    context_length: int
    vocab_size: int
    eos: tuple[int, ...]
    pad: int | None
    search: Mapping[str, Any]
    fingerprint: str
    label: str
    genai: str
    stages: tuple[StagePlacement, ...] = dataclasses.field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "eos", tuple(self.eos))
        stages = tuple(s if isinstance(s, StagePlacement) else StagePlacement.from_wire(s) for s in self.stages)
        object.__setattr__(self, "stages", stages)
