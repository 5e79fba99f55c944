"""Opens a compiled model, or the original on the CPU, in a host process that is used for nothing else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from qnnbridge._compiling.job import CompileJob
from qnnbridge._providers import CPU, QNN
from qnnbridge._remote_session import RemoteSession, SessionRecipe
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host

_ABOUT_COMPILING = ("ep.context_", "ep.share_", "ep.stop_share_", "session.disable_model_compile")


def open_compiled(job: CompileJob, path: str, timeout_s: float | None, host: Host | None = None) -> RemoteSession:
    """A session of the compiled model at `path`, as strict as the job says. The caller closes it and its host."""
    return _open(host or job.host.fresh(), ModelSource.open(path), compiled_spec(job.spec), timeout_s)


def open_on_cpu(job: CompileJob, timeout_s: float | None, host: Host) -> RemoteSession:
    """A session of the original model on the CPU alone: the reference."""
    spec = dataclasses.replace(
        job.spec,
        providers=(ProviderSpec(CPU),),
        config_entries={
            key: text
            for key, text in job.spec.config_entries.items()
            if not key.startswith((*_ABOUT_COMPILING, "ep.qnn")) and key != "session.disable_cpu_ep_fallback"
        },
    )
    return _open(host, job.source, spec, timeout_s, job)


def compiled_spec(spec: SessionSpec) -> SessionSpec:
    """A session of the compiled model: what went into it while it was compiled is not said again."""
    return SessionSpec(
        model_path=None,
        providers=spec.providers or (ProviderSpec(QNN),),
        fallback=spec.fallback,
        options=spec.options,
        config_entries={
            key: text for key, text in spec.config_entries.items() if not key.startswith(_ABOUT_COMPILING)
        },
        custom_op_libraries=spec.custom_op_libraries,
    )


def _open(
    host: Host, source: ModelSource, spec: SessionSpec, timeout_s: float | None, job: CompileJob | None = None
) -> RemoteSession:
    spec = dataclasses.replace(spec, model_path=source.path, model_files=source.files)
    manifest = SessionRecipe(source, spec, job.initializers if job is not None else ())
    remote = RemoteSession(host, manifest, retry=0, timeout_s=timeout_s)
    try:
        remote.open(timeout_s, "kill")
    except BaseException:
        if job is None:
            host.close()
        raise
    return remote
