"""OpenMetrics 1.0 as text: families with their TYPE, UNIT and HELP lines, samples with escaped labels, ``# EOF``.

What a family is called and which suffix its samples have follows from its type, so that no caller can write a text
that a parser refuses. Knows nothing of the daemon. Pure.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Kind = Literal["gauge", "counter", "info", "histogram", "summary"]
Labels = Mapping[str, str]

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """suffix: what follows the family's name, with its underscore."""

    suffix: str
    labels: Labels
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """unit: empty, or what the name ends with."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or (self.unit and not self.name.endswith(f"_{self.unit}")):
            raise ValueError(f"{self.name} with unit {self.unit}")


def gauge(name: str, help_text: str, values: Iterable[tuple[Labels, float]], unit: str = "") -> Family:
    return Family(name, "gauge", help_text, tuple(Sample("", labels, value) for labels, value in values), unit)


def counter(name: str, help_text: str, values: Iterable[tuple[Labels, float]], unit: str = "") -> Family:
    samples = tuple(Sample("_total", labels, value) for labels, value in values)
    return Family(name, "counter", help_text, samples, unit)


def info(name: str, help_text: str, labels: Labels) -> Family:
    return Family(name, "info", help_text, (Sample("_info", labels, 1),))


def summary(
    name: str, help_text: str, values: Iterable[tuple[Labels, Mapping[float, float | None]]], unit: str = ""
) -> Family:
    """values: for each set of labels its quantiles; those that are not known are left out."""
    samples = tuple(
        Sample("", {**labels, "quantile": number_text(quantile)}, value)
        for labels, quantiles in values
        for quantile, value in quantiles.items()
        if value is not None
    )
    return Family(name, "summary", help_text, samples, unit)


def histogram(
    name: str, help_text: str, buckets: Sequence[tuple[float, int]], total: float, count: int, unit: str = ""
) -> Family:
    """buckets: upper bound and how many lie at or below it, rising. The infinite one is added, with all of them.

    The format wants all of a histogram to agree, so the count is never less than the last bucket.
    """
    finite = [(bound, number) for bound, number in buckets if math.isfinite(bound)]
    count = max([count, *(number for _, number in buckets)])
    samples = [Sample("_bucket", {"le": number_text(bound)}, number) for bound, number in finite]
    samples.append(Sample("_bucket", {"le": "+Inf"}, count))
    samples += [Sample("_sum", {}, total), Sample("_count", {}, count)]
    return Family(name, "histogram", help_text, tuple(samples), unit)


def text_of(families: Iterable[Family]) -> str:
    """The whole exposition. Families without a sample are left out. Lines end with a line feed, on every system."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# TYPE {family.name} {family.kind}")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {escaped(family.help)}")
        lines += [_line(family.name, sample) for sample in family.samples]
    return "\n".join((*lines, "# EOF", ""))


def escaped(text: str) -> str:
    """Of a label's value or a help text. What UTF-8 cannot hold (half a surrogate pair) becomes a question mark."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number_text(value: float) -> str:
    """As the format writes it: integers without a point, floats with one, also those of ``le`` and ``quantile``."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{key}="{escaped(value)}"' for key, value in sample.labels.items())
    return f"{name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {number_text(sample.value)}"
