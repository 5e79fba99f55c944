"""Gates that are parted from the linear operator in front of them, where the numbers would be poor otherwise.

QNN merges a Sigmoid or Tanh with the Conv, MatMul or Gemm in front of it and loses accuracy; the rewrite `gates`
parts them and costs cycles. It is applied only after a comparison has shown that the model's numbers differ: to the
next session that is made. The copy has a verdict of its own, by the same comparison. If that is no better, a note
says so, and sessions are made from the model again. Any thread, any process.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge_host.cache.memo import NegativeEntries, Verdicts
from qnnbridge_host.create.order import NeedsParting
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol import __version__

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_protocol.model_records import NumbersReport

# As `rewrite.fixer` names it, which needs numpy: each session comes here.
GATES: Final = "gates"


def needed(root: Path, key: str, report: NumbersReport, source: ModelSource) -> NeedsParting | None:
    """Return why gates are to be parted; ``None`` if the cause of the verdict or a note is against it.

    Args:
        root: of this version's cache.
        key: of the verdict of the model as it is.
        report: that verdict, which says that the numbers differ.
    """
    # A known cause is another one: an operator without a cure, or an optimizer of ONNX Runtime.
    if report.cause:
        return None
    note = note_key(key)
    # Tried before, without a better result.
    if NegativeEntries(root).read(note) is not None:
        return None
    has_gates = {"Sigmoid", "Tanh"} & scan_model(source.given).ops.keys()
    return NeedsParting(GATES, report, note) if has_gates else None


def note_key(key: str) -> str:
    """Return the key of the note that parting does not help.

    The key of the verdict holds the model, options, sizes, chip, versions and measured rows. The copy follows from
    these and from the version of the rewrites, which is qnnbridge's. Inputs do not count: verdicts keep the worst.
    """
    return f"gates-{hashlib.sha256(f'{key} {__version__}'.encode()).hexdigest()[:32]}"


def is_no_better(root: Path, key: str | None, plain: NumbersReport) -> str:
    """Return why the copy is no better than the model, by its own kept verdict; "" if it is, or is not known.

    Args:
        key: of the verdict of the copy.
        plain: verdict of the model as it is.
    """
    # The first session of the copy has none: it is compared as any other, and the next one knows.
    found = Verdicts(root).read(key) if key is not None else None
    if found is None or found.state != "differs":
        return ""
    before, after = plain.snr_db, found.snr_db
    if before is not None and after is not None and after > before:
        return ""
    return f"the numbers differ with parted gates, too ({found.worst or found.reason})"
