"""How setting up a host fails."""

from __future__ import annotations

from collections.abc import Sequence

from qnnbridge_protocol.errors import BridgeError, OptionError


class SetupFailed(BridgeError):
    """A step failed; what it had made is removed again. ``details["step"]`` says which."""

    code = "setup.Failed"


class NothingFits(BridgeError):
    """No release of onnxruntime-qnn works on this machine, or not the one that was asked for."""

    code = "setup.NothingFits"


class AlreadyThere(OptionError):
    """An environment or a setting that would have to be replaced, and nobody asked for that."""

    code = "setup.AlreadyThere"


def failed(step: str, message: str, *, cause: str | None, fix: str | None, evidence: Sequence[str]) -> SetupFailed:
    return SetupFailed(message, cause=cause, fix=fix, evidence=evidence, details={"step": step})
