"""What is to be compiled, and what came of it: frozen data that can be pickled and sent to another machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.specs import Placement, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host

START_TIMEOUT_S = 60.0

RELEVANT_VERSIONS = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk")
"""Those that a compiled model depends on."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostSettings:
    """How the disposable host is started; as for `qnnbridge.Host`.

    command: instead of an interpreter, for tests.
    """

    python: str | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cwd: str | None = None
    start_timeout_s: float = START_TIMEOUT_S
    limits: Limits | None = None
    command: tuple[str, ...] | None = None

    @classmethod
    def of(cls, host: Host | None) -> HostSettings:
        """The settings of `host`, so that a fresh one is started the same way. ``None``: the defaults."""
        if host is None:
            return cls()
        # The fresh host is a twin of this one; nobody else has a use for these.
        return cls(
            python=str(host._python) if host._python is not None else None,
            env=dict(host._env),
            cwd=host._cwd,
            start_timeout_s=host._start_timeout,
            limits=host._limits,
            command=tuple(host._command) if host._command is not None else None,
        )

    def fresh(self) -> Host:
        """A new host, not started yet."""
        from qnnbridge._compiling.hosts import joined
        from qnnbridge._host import Host

        return joined(
            Host(
                python=self.python,
                env=self.env,
                cwd=self.cwd,
                start_timeout=self.start_timeout_s,
                limits=self.limits,
                _command=list(self.command) if self.command is not None else None,
            )
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CompileJob:
    """One model for one target.

    source: the original model. spec: as for a session of it (providers and their options, free dimensions,
    ``fallback``: with "error" a node that stays on the CPU is a `PlacementRefused`).
    stem: of the files: ``<stem>_ctx.onnx`` and ``<stem>_ctx_qnn.bin``; default the model's own name. Parts that QNN
    could never load again (``..``) are replaced, see `CompiledFiles.model`.
    file_stem: exactly this one in place of ``<stem>_ctx``.
    embed: the context binary inside of the .onnx file. initializers: values of those that `spec` announces.
    """

    source: ModelSource
    spec: SessionSpec
    stem: str | None = None
    file_stem: str | None = None
    embed: bool = False
    host: HostSettings = dataclasses.field(default_factory=HostSettings)
    initializers: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledFiles:
    """A compiled model, whole, in the folder that the caller gave.

    model: file name of the .onnx. blob: of the context binary, ``None`` if embedded.
    placement: of the nodes of the original; ``None`` if the compiler died before it could tell, though its files
    proved to be whole. soc_model: what it was compiled for as QNN was told, ``None``: the chip of the host.
    provider_options: all that QNN was told. seconds: of the native compile (of all of it for a salvaged result).
    died_at_teardown: the process did not survive its own end; the result is whole all the same.
    info: of the original as a session shows it, which the compiled model has forgotten in part (producer, version);
    ``None`` like `placement`.
    """

    folder: str
    model: str
    blob: str | None
    placement: Placement | None
    soc_model: str | None
    provider_options: Mapping[str, str]
    versions: Mapping[str, str]
    seconds: float
    died_at_teardown: bool = False
    info: SessionInfo | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of all files, the .onnx first."""
        return (self.model,) if self.blob is None else (self.model, self.blob)


def job_key(job: CompileJob, versions: Mapping[str, str]) -> str:
    """The same for jobs that give the same result: contents, options, versions; wherever the model lies."""
    import hashlib
    import json

    from qnnbridge._remote_session import SessionRecipe

    relevant = {name: versions[name] for name in RELEVANT_VERSIONS if name in versions}
    options = SessionRecipe(job.source, job.spec, job.initializers).options_hash
    text = json.dumps([job.source.fingerprint, options, job.embed, relevant], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
