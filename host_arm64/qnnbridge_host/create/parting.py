"""Decide whether a session uses a copy of the model in which the gates (Sigmoid, Tanh) are separated from linear
operators.

QNN merges a Sigmoid or Tanh with the Conv, MatMul or Gemm in front of it and loses accuracy; the rewrite `gates`
separates the two operators, and the copy takes more cycles. The rewrite is applied to the next session after a
comparison has shown that the model's outputs differ. The outputs of the copy are compared in the same way. If they
are not more accurate, a note in the cache prevents further attempts, and sessions use the unchanged model. Safe for
several threads and processes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge_host.cache.memo import NegativeEntries, Verdicts
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol import __version__
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.model_records import NumbersReport

# Name of the rewrite in `rewrite.fixer`, which needs numpy and is not imported for every session.
GATES: Final = "gates"


class Parting(NamedTuple):
    """Reason to separate gates (Sigmoid, Tanh) from other operators: the outputs of an earlier session differ from
    the CPU's.

    report: verdict on the unchanged model. note: key of the note that records that the rewrite does not help.
    """

    report: NumbersReport
    note: str
    rewrite: str = GATES


def needed(root: Path, key: str, report: NumbersReport, source: ModelSource) -> Parting | None:
    """Return why the gates (Sigmoid, Tanh) must be separated from other operators; ``None`` if the gates did not
    cause the difference, or if the rewrite did not help before.

    Args:
        root: folder of this version's cache.
        key: key of the verdict on the unchanged model.
        report: the verdict with this key; its state is "differs".
        source: the model.
    """
    # A recorded cause, such as an operator without a fix or ONNX Runtime's optimizers, never concerns the gates.
    if report.cause:
        return None
    note = note_key(key)
    # The note records that an earlier copy with separated gates was not better.
    if NegativeEntries(root).read(note) is not None:
        return None
    has_gates = {"Sigmoid", "Tanh"} & scan_model(source.given).ops.keys()
    return Parting(report, note) if has_gates else None


def note_key(key: str) -> str:
    """Return the key of the note that records that separating the gates does not help.

    The key of the verdict covers the model, options, sizes, chip, versions and measured rows. The copy also depends
    on the rewrites, and so on qnnbridge's version. Neither key depends on inputs, because a verdict contains the
    worst result of all inputs.
    """
    return f"gates-{hashlib.sha256(f'{key} {__version__}'.encode()).hexdigest()[:32]}"


def is_no_better(root: Path, key: str | None, plain: NumbersReport) -> str:
    """Return why the copy is not better than the model; "" if it is better or was not compared yet.

    Args:
        root: folder of this version's cache.
        key: key of the verdict on the copy; ``None`` if the copy has no verdict.
        plain: verdict on the unchanged model.
    """
    # The first session of the copy does not have a verdict yet: its outputs are compared as in any session.
    found = Verdicts(root).read(key) if key is not None else None
    if found is None or found.state != "differs":
        return ""
    before, after = plain.snr_db, found.snr_db
    if before is not None and after is not None and after > before:
        return ""
    return f"the results also differ with separated gates ({found.worst or found.reason})"
