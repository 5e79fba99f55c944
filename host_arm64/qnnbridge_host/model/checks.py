"""What a session asks before the host sees a model: that a compiled one is whole, safe and can run there.

For a model that is not compiled it costs nothing: the model was scanned when it was opened. Any thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge._providers import CPU, QNN
from qnnbridge_host.model.guard import RUN_ON_THE_ORIGINAL, compiled_refused
from qnnbridge_host.model.scan import ModelScan, no_model
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.model.verdict import RECOMPILE, Verdict
from qnnbridge_protocol.errors import CompiledModelRefused, OptionError
from qnnbridge_protocol.specs import ProviderSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge_host.model.host_traits import HostTraits
    from qnnbridge_protocol.hello import Hello

_log = logging.getLogger("qnnbridge.epcontext")

CONTEXT_ENABLE: Final = "ep.context_enable"
CONTEXT_PATH: Final = "ep.context_file_path"

_HEAD_BYTES: Final = 512

CHECK_VARIABLE: Final = "QNNBRIDGE_CONTEXT_CHECK"
"""Environment variable: ``warn`` lets a compiled model through that cannot run by all that is known of it."""


def before_session(
    source: ModelSource,
    providers: Sequence[ProviderSpec],
    host: Host | Hello | HostTraits,
    config_entries: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Raises `ContextUnusable`, `CompiledModelRefused` or `InvalidProtobuf`; else what is worth a warning.

    host: the running one, what it said in HELLO, or its traits. config_entries: of the session's options.
    """
    scan = source.scan
    if scan is None:
        _refuse_blob(source)
        return ()
    if not scan.is_compiled:
        return ()
    entries = config_entries or {}
    if entries.get(CONTEXT_ENABLE) == "1":
        raise compiled_refused(scan, f"a session that compiles ({CONTEXT_ENABLE}=1)")
    names = [provider.name for provider in providers]
    if names and QNN not in names:
        if set(names) == {CPU}:
            raise _refused_on_cpu(scan)
        return ()  # the host says whether it has this provider
    traits = _traits(host, providers)
    if traits.onnxruntime_qnn is None:
        return ()  # the host says why there is no QNN, and what to do
    return _judge(source, scan, traits, entries)


def with_context_folder(source: ModelSource, config_entries: Mapping[str, str]) -> Mapping[str, str]:
    """The session's entries, with the folder in which QNN shall look for the context binary of a model given as
    bytes.

    It would look in the current folder of the host, which is not always that of the application.
    """
    scan = source.scan
    beside = scan is not None and any(node.cache_path for node in scan.ep_contexts)
    if source.path is not None or not beside or CONTEXT_PATH in config_entries:
        return config_entries
    return {**config_entries, CONTEXT_PATH: os.path.join(os.getcwd(), "model.onnx")}


def _judge(source: ModelSource, scan: ModelScan, host: HostTraits, entries: Mapping[str, str]) -> tuple[str, ...]:
    from qnnbridge_host.model.compatibility_check import check_compiled

    known = {os.path.normcase(os.path.normpath(file.path)): file.sha256 for file in source.known}

    def hash_of(path: str) -> str:
        from qnnbridge_host.model.manifest import FileRecord

        found = known.get(os.path.normcase(os.path.normpath(path)))
        return found or FileRecord.of(*os.path.split(path)).sha256

    verdict = check_compiled(
        source.data if source.path is None and source.data is not None else source.path or "",
        scan,
        host,
        folder=_folder(source, entries),
        hash_of=hash_of,
    )
    return _outcome(verdict, scan)


def _outcome(verdict: Verdict, scan: ModelScan) -> tuple[str, ...]:
    for note in verdict.notes:
        _log.debug("%s: %s", scan.label, note)
    if verdict.can_run:
        why = f" {verdict.cause}" if verdict.cause else ""
        return (f"{scan.label}: {verdict.message}.{why}",) if verdict.level == RECOMPILE else ()
    error = verdict.error(scan.label, scan.path)
    if _only_warns():
        return (str(error),)
    raise error


def _only_warns() -> bool:
    value = os.environ.get(CHECK_VARIABLE, "")
    if value not in ("", "error", "warn"):
        raise OptionError(f"{CHECK_VARIABLE}={value!r} is not known.", fix="Set it to error (default) or warn.")
    return value == "warn"


def _traits(host: Host | Hello | HostTraits, providers: Sequence[ProviderSpec]) -> HostTraits:
    from qnnbridge_host.model.host_traits import HostTraits
    from qnnbridge_protocol.hello import Hello

    if isinstance(host, HostTraits):
        return host
    if isinstance(host, Hello):
        return HostTraits.of_hello(host, providers)
    return HostTraits.of_host(host.info, providers)


def _folder(source: ModelSource, entries: Mapping[str, str]) -> str | None:
    """What QNN takes a path in the model to be relative to."""
    if source.path is not None:
        return None
    return os.path.dirname(entries.get(CONTEXT_PATH, "")) or os.curdir


def _refused_on_cpu(scan: ModelScan) -> CompiledModelRefused:
    error = compiled_refused(scan, "a session on the CPU")
    error.fix = (
        f"Ask for {QNN} (it is the default when providers is left out), "
        f"or create the session {RUN_ON_THE_ORIGINAL}."
    )
    return error


def _refuse_blob(source: ModelSource) -> None:
    """The wrong one of a compiled model's two files; what else is no model, the host explains."""
    from qnnbridge_host.model.blob import looks_like_blob

    if source.path is None:
        return
    try:
        with open(source.path, "rb") as file:
            head, size = file.read(_HEAD_BYTES), os.fstat(file.fileno()).st_size
    except OSError:
        return
    if looks_like_blob(head):
        raise no_model(head, size, source.path)
