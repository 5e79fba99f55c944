"""Check that a compiled model is complete, safe and able to run here, before native code reads the model.

For a model that is not compiled the check costs nothing, because the model was scanned when it was opened. Modules
that only compiled models need are imported late, so that they do not delay the first session of other models. All
functions are thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.paths import BY_CODE_PAGE, native_path
from qnnbridge_host.model.scan import RECOMPILE, RUN_ON_THE_ORIGINAL, Verdict, compiled_refused, no_model
from qnnbridge_host.model.source import MANIFEST_SUFFIX, ModelSource, hash_file
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import ContextUnusable, OptionError
from qnnbridge_protocol.specs import CPU, QNN, ProviderSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge_host.model.compatibility import HostTraits

CONTEXT_ENABLE: Final = "ep.context_enable"
CONTEXT_PATH: Final = "ep.context_file_path"

_HEAD_BYTES: Final = 512

# Environment variable: ``warn`` accepts a compiled model that presumably cannot run.
CHECK_VARIABLE: Final = "QNNBRIDGE_CONTEXT_CHECK"


def before_session(
    source: ModelSource,
    providers: Sequence[ProviderSpec],
    host: Hello | HostTraits,
    config_entries: Mapping[str, str] | None = None,
    folder: str = os.curdir,
    check: str | None = None,
) -> tuple[str, ...]:
    """Check a model before any native code is loaded.

    Args:
        source: the model.
        providers: the session's providers; empty means QNN.
        host: HELLO of the host, or its traits.
        config_entries: config entries of the session's options.
        folder: folder to which relative paths in a model given as bytes refer.
        check: the value of `CHECK_VARIABLE`; default: its value in this process.

    Returns:
        Warnings for the user, one sentence each.

    Raises:
        ContextUnusable: a compiled model that cannot run on the host.
        CompiledModelRefused: the model is compiled, but the session needs the original.
        InvalidProtobuf: a context binary was given instead of its model.
    """
    scan = source.scan
    if scan is None or not scan.is_compiled:
        _compare_with_manifest(source)
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
        # Refuse the session here: ONNX Runtime's error NOT_IMPLEMENTED would contain the node, but no fix.
        if set(names) == {CPU}:
            error = compiled_refused(scan, "a session on the CPU")
            error.fix = (
                f"Request {QNN} (the default without providers), or create the session {RUN_ON_THE_ORIGINAL}."
            )
            raise error
        return ()  # the host raises the error about a missing provider
    from qnnbridge_host.model.compatibility import HostTraits

    traits = HostTraits.of_hello(host, providers) if isinstance(host, Hello) else host
    if traits.onnxruntime_qnn is None:
        return ()  # the host raises the error about a missing QNN, with the fix
    return _judge(source, scan, traits, entries, folder, check)


def _compare_with_manifest(source: ModelSource) -> None:
    """Detect a compiled model by its manifest, even if damage makes it look like another type of file."""
    # Return early for a model without a manifest.
    stem = os.path.splitext(source.path)[0] if source.path is not None else ""
    if not stem or not os.path.exists(stem + MANIFEST_SUFFIX):
        return
    from qnnbridge_host.model.manifest import read_manifest

    path = str(source.path)
    manifest = read_manifest(path)
    record = manifest.record_of(os.path.basename(path)) if manifest is not None else None
    if manifest is None or record is None or manifest.model != record.name:
        return
    if source.known[0].sha256 != record.sha256:
        raise ContextUnusable(
            f"The compiled model {source.label} differs from its manifest.",
            cause="Its contents have changed so much that no compiled part can be found in them.",
            evidence=(f"sha256 {source.known[0].sha256}", f"in the manifest {record.sha256}"),
            fix="Copy it again, or compile the original again. If it is a different model, delete the manifest.",
            details={"path": path},
        )


def unchecked(source: ModelSource) -> str | None:
    """Return a warning if a compiled model's files cannot be verified because the manifest is missing, else
    ``None``."""
    if source.binary is not None:
        return (
            f"{source.label} is a context binary without a manifest: a damaged byte cannot be detected, and causes "
            "wrong results or crashes the host. `qnnbridge wrap` writes a model for this binary, with a manifest."
        )
    if source.path is None or source.scan is None or not source.scan.is_compiled:
        return None
    if os.path.exists(os.path.splitext(source.path)[0] + MANIFEST_SUFFIX):
        return None
    return (
        f"{source.label} is a compiled model without a manifest: a damaged byte cannot be detected, and causes "
        "wrong results or crashes the host. "
        f"`qnnbridge compile --adopt {source.path}` writes a manifest for this model."
    )


def with_context_folder(
    source: ModelSource, config_entries: Mapping[str, str], folder: str = os.curdir
) -> Mapping[str, str]:
    """Add to the config entries the folder in which QNN finds the context binary of a model given as bytes.

    By default QNN searches the host's current folder, which may differ from `folder`, the application's current
    folder.
    """
    scan = source.scan
    beside = scan is not None and any(node.cache_path for node in scan.ep_contexts)
    if source.path is not None or not beside or CONTEXT_PATH in config_entries:
        return config_entries
    # QNN uses only the folder of this path, but refuses a path whose file name has no suffix.
    return {**config_entries, CONTEXT_PATH: os.path.join(os.path.abspath(folder), "model.onnx")}


def _judge(
    source: ModelSource,
    scan: ModelScan,
    host: HostTraits,
    entries: Mapping[str, str],
    folder: str,
    check: str | None,
) -> tuple[str, ...]:
    from qnnbridge_host.model.compatibility import check_compiled

    # Reuse the hashes from opening the model, so that large files are not read twice. Normalise the paths, because
    # a manifest has forward slashes and Windows ignores case.
    known = {os.path.normcase(os.path.normpath(file.path)): file.sha256 for file in source.known}

    def hash_of(path: str) -> str:
        found = known.get(os.path.normcase(os.path.normpath(path)))
        return found or hash_file(path)

    verdict = check_compiled(
        source.data if source.path is None and source.data is not None else source.path or "",
        scan,
        host,
        folder=None if source.path is not None else os.path.dirname(entries.get(CONTEXT_PATH, "")) or folder,
        hash_of=hash_of,
    )
    return _outcome(verdict, scan, check)


def _outcome(verdict: Verdict, scan: ModelScan, check: str | None) -> tuple[str, ...]:
    for note in verdict.notes:
        log_of("qnnbridge.epcontext").debug("%s: %s", scan.label, note)
    if verdict.can_run:
        why = f" {verdict.cause}" if verdict.cause else ""
        return (f"{scan.label}: {verdict.message}.{why}",) if verdict.level == RECOMPILE else ()
    error = verdict.error(scan.label, scan.path)
    if _only_warns(check):
        return (str(error),)
    raise error


def _only_warns(check: str | None) -> bool:
    value = os.environ.get(CHECK_VARIABLE, "") if check is None else check
    if value not in ("", "error", "warn"):
        raise OptionError(f"{CHECK_VARIABLE}={value!r} is invalid.", fix="Set it to error (default) or warn.")
    return value == "warn"


def _refuse_blob(source: ModelSource) -> None:
    """Refuse a context binary or a DLC that was given instead of its model. For any other file that is not a model,
    ONNX Runtime raises an error later."""
    if source.path is None:
        return
    from qnnbridge_host.model.context_binary import looks_like_blob, looks_like_container

    try:
        with open(source.path, "rb") as file:
            head, size = file.read(_HEAD_BYTES), os.fstat(file.fileno()).st_size
    except OSError:
        return
    if looks_like_blob(head) or looks_like_container(head):
        raise no_model(head, size, source.path)


def path_for_qnn(source: ModelSource) -> str | None:
    """Return the model's path in a form with which QNN finds the context binary in the same folder; ``None`` for a
    model given as bytes.

    Raises:
        ContextUnusable: QNN cannot open the context binary with any path.
    """
    path, scan = source.path, source.scan
    named = [node.cache_path for node in scan.ep_contexts if node.cache_path] if scan is not None else []
    if path is None or not named:
        return path
    folder, name = os.path.split(path)
    try:
        # QNN cannot open paths outside of the ANSI code page. Only the folder can be replaced by its short name
        # (8.3), because the model contains the binary's file name.
        if BY_CODE_PAGE and not all(blob.isascii() for blob in named):
            raise OSError(f"On Windows QNN cannot open a file whose name has non-ASCII characters: {named[0]}")
        return os.path.join(native_path(folder), name)
    except OSError as error:
        raise ContextUnusable(
            f"The compiled model {source.label} cannot be loaded from its folder.",
            cause=f"{error}.",
            fix="Move the model and its context binary to a folder with a plain English name (A to Z), or compile "
            "it again there.",
            details={"path": path},
        ) from None
