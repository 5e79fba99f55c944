"""Compare the rules' predictions with QNN's results: placement of nodes, failed sessions, and crashes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx

from lab.analyze_accuracy.simulator import Truth
from qnnbridge_models.analyze.predict import predict_model

ARCH = 73
_SHOWN = 25


@dataclasses.dataclass
class Tally:
    """Numbers of right and wrong predictions for a set of models.

    Args:
        right: placed nodes and failed sessions that the rules predicted correctly.
        wrong: placed nodes and failed sessions that the rules predicted wrongly.
        gone: nodes that ONNX Runtime folds or merges before QNN gets the graph.
        left_out: models that ONNX Runtime does not load with any provider, or for which QNN exceeds the timeout.
    """

    right: int = 0
    wrong: int = 0
    gone: int = 0
    left_out: int = 0
    models: int = 0
    crashes: list[str] = dataclasses.field(default_factory=list)
    crashes_missed: list[str] = dataclasses.field(default_factory=list)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.right / max(1, self.right + self.wrong)

    def __str__(self) -> str:
        lines = [
            f"{self.models} models, {self.left_out} not loadable or too slow: the rules predicted {self.right} of "
            f"{self.right + self.wrong} placements and failures correctly ({self.share:.2%}); ONNX Runtime folded "
            f"or merged {self.gone} nodes before QNN",
            f"crashes: {len(self.crashes)}, not predicted: {', '.join(self.crashes_missed) or 'none'}",
            *(f"  {count:4} {kind}" for kind, count in self.kinds.most_common(_SHOWN)),
        ]
        return "\n".join(lines)


def tally_of(models: Mapping[str, Path], truths: Mapping[str, Truth], arch: int = ARCH) -> Tally:
    tally = Tally()
    for name, truth in truths.items():
        add(tally, name, onnx.load(str(models[name])), truth, arch)
    return tally


def add(tally: Tally, name: str, model: onnx.ModelProto, truth: Truth, arch: int = ARCH) -> None:
    tally.models += 1
    if truth.status in ("unloadable", "timeout"):
        tally.left_out += 1
        return
    prediction = predict_model(model, arch)
    places = [verdict.place for verdict in prediction.verdicts]
    if truth.status == "crash":
        tally.crashes.append(name)
        if "crash" not in places and not prediction.empty:
            tally.crashes_missed.append(name)
        _count(tally, name not in tally.crashes_missed, f"crash not predicted: {name}")
        return
    if truth.status == "error":
        _count(
            tally, "fails" in places or "crash" in places, f"failure not predicted: {name}: {truth.error[60:130]}"
        )
        return
    for node, verdict in zip(prediction.view.nodes, prediction.verdicts, strict=True):
        true = truth.places.get(node.index)
        if true is None:
            tally.gone += 1
        else:
            predicted = f"rule {verdict.rule or '-'} predicts {verdict.place}"
            _count(tally, verdict.place == true, f"{node.op}: {predicted}, QNN has {true}")


def _count(tally: Tally, is_right: bool, kind: str) -> None:
    tally.right += is_right
    tally.wrong += not is_right
    if not is_right:
        tally.kinds[kind] += 1
