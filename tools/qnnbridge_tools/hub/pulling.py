"""Pull one model: choose it, download it into an unfinished folder, check it, and rename the folder."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import posixpath
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.graph.shapes import options_text
from qnnbridge_host.model import genai_folder
from qnnbridge_host.model.compatibility import HostTraits, examine
from qnnbridge_host.model.genai_folder import CONFIG
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import hash_file
from qnnbridge_os.files import MARK_FILE, make_own, sync_file, sync_folder
from qnnbridge_protocol.errors import BridgeError, OptionError, PullFailed
from qnnbridge_protocol.model_records import PREPARED_MANIFEST
from qnnbridge_protocol.shell import model_command, shell_word
from qnnbridge_tools import arguments, inspection, output, prepared_folders
from qnnbridge_tools.hub import archive, choice, library
from qnnbridge_tools.hub.choice import PullCandidate
from qnnbridge_tools.hub.library import PulledFolder, PullRecord
from qnnbridge_tools.hub.remote import (
    PART,
    Hub,
    HubRepository,
    hub_endpoint,
    is_offline,
    local_errors,
    no_space,
    offline_refused,
    parse_name,
    without_login,
)

_log = logging.getLogger("qnnbridge.hub")
Say = Callable[[str], None]
# Options of the suggested `run` command. The first and last nodes of many compiled and quantised models run on the
# CPU, and the command's result shows this.
_RUN: Final = "--random --fallback cpu"
_FREE_BYTES: Final = 16 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class PullRequest:
    """Options of a pull.

    Args:
        soc_model: chip that compiled models are judged for; default: the host's chip.
    """

    name: str
    revision: str | None = None
    files: tuple[str, ...] = ()
    output: Path | None = None
    offline: bool = False
    soc_model: str | None = None
    host_python: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class PullResult:
    """Result of a pull.

    Args:
        path: file or folder of the model.
        folder: folder of the pull.
        record: record of the pull.
        is_new: False if an earlier pull downloaded the model.
        not_taken: other models of the repository, with the reason.
        notes: notes for the user.
        next_command: suggested next command.
    """

    path: Path
    folder: Path
    record: PullRecord
    is_new: bool
    not_taken: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    next_command: str = ""


class _Unfit(Exception):
    """Raised if the downloaded files show that the model cannot be used."""


def pull_model(request: PullRequest, say: Say = _log.info) -> PullResult:
    """Pull a model.

    Raises:
        OptionError: the repository, revision or file does not exist, no model in it can be used, or it has several
            models; the output folder contains other files.
        PullFailed: an error of the hub, the network or the file system.
    """
    endpoint = without_login(hub_endpoint())
    name, revision = parse_name(request.name, request.revision, endpoint)
    if request.output is not None:
        folder = Path(os.path.abspath(request.output))
        _refuse_foreign(folder)
        request = dataclasses.replace(request, output=folder)
    if request.offline or is_offline():
        known = _known(request, name, revision, endpoint)
        if known is None:
            raise offline_refused(name, "--offline is given" if request.offline else "HF_HUB_OFFLINE is set")
        return _result(known.folder, known.record, is_new=False, notes=("Found without the network (offline).",))
    hub, host = Hub(request.token), _host(request)
    try:
        repository = library.without_own_files(hub.repository(name, revision))
        candidates = choice.find_candidates(
            hub, repository, request.files, host if isinstance(host, HostTraits) else None
        )
        return _pull_best(hub, repository, candidates, request, host, say)
    except PullFailed as error:
        known = _known(request, name, revision, endpoint) if error.details.get("reason") == "network" else None
        if known is None:
            raise
        note = f"{error.message} The copy pulled on {known.record.pulled[:10]} is used."
        return _result(known.folder, known.record, is_new=False, notes=(note,))


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    folder: Path
    record: PullRecord


def _known(request: PullRequest, name: str, revision: str | None, endpoint: str) -> _Known | None:
    """Find the model that an earlier pull downloaded for the same request."""
    found: PulledFolder | None
    if request.output is not None:
        found = PulledFolder(request.output, library.read_record(request.output))
        record = found.record
        if record is None or record.repository != name or record.wanted != request.files:
            return None
    else:
        found = library.newest(name, revision, request.files, endpoint)
    return None if found is None or found.record is None else _Known(found.folder, found.record)


def _host(request: PullRequest) -> HostTraits | BridgeError:
    options = {}
    if request.soc_model is not None:
        options["soc_model"] = str(arguments.read_chip(request.soc_model))
    found = inspection.find_installation(request.host_python)
    return found if isinstance(found, BridgeError) else found.traits(options)


def _refuse_foreign(folder: Path) -> None:
    if library.read_record(folder) is not None:
        return
    with local_errors(folder), contextlib.suppress(FileNotFoundError):
        if any(folder.iterdir()):
            raise OptionError(
                f"{folder} contains files that qnnbridge did not pull.",
                fix="Give a folder that does not exist yet: --output DIR.",
            )


def _pull_best(
    hub: Hub,
    repository: HubRepository,
    candidates: Sequence[PullCandidate],
    request: PullRequest,
    host: HostTraits | BridgeError,
    say: Say,
) -> PullResult:
    not_taken = [(one.name or repository.name, one.why) for one in candidates if one.kind == "refused"]
    fitting = [one for one in candidates if one.kind != "refused"]
    for number, candidate in enumerate(fitting):
        say(f"{repository.label}: {candidate.name or 'all files'}, {candidate.why}")
        try:
            done = _fetch(hub, repository, candidate, request, host, say)
        except _Unfit as unfit:
            not_taken.append((candidate.name, str(unfit)))
            continue
        left = [(one.name, one.why) for one in fitting[number + 1 :]]
        return dataclasses.replace(done, not_taken=(*not_taken, *left))
    no_host = isinstance(host, BridgeError)
    raise OptionError(
        f"No model of {repository.label} can be used here.",
        fix="Set up a host, so that compiled models can be used: qnnbridge setup"
        if no_host
        else "Choose a repository with a model that is not compiled, and compile it with `qnnbridge prepare`.",
        evidence=[f"{name}: {why}" for name, why in not_taken[:8]],
    )


def _fetch(
    hub: Hub,
    repository: HubRepository,
    candidate: PullCandidate,
    request: PullRequest,
    host: HostTraits | BridgeError,
    say: Say,
) -> PullResult:
    usual = library.folder_of(repository.name, repository.commit, candidate.name, request.files)
    folder = request.output or usual
    with library.locked(folder, on_wait=say):
        record = library.read_record(folder)
        if record is not None:
            # Compare commit and model too: on Windows, models whose names differ only in case have the same folder.
            if (record.commit, record.candidate) == (repository.commit, candidate.name):
                return _result(folder, record, is_new=False)
            raise OptionError(
                f"{folder} contains {record.candidate or 'all files'} of {record.repository}@{record.commit[:12]}.",
                fix="Give a folder that does not exist yet: --output DIR.",
            )
        # Include the requested folder and the model in the staging folder's name, so that only equal pulls continue
        # each other's download.
        stage = folder.with_name(f"{usual.name if folder == usual else f'{folder.name}-{usual.name}'}{PART}")
        with local_errors(stage):
            make_own(stage, lambda _: False)
            try:
                names = _download(hub, repository, candidate, stage, say)
                if candidate.is_archive:
                    names = _unpacked(repository, candidate, stage)
                entry, kind, why = _checked(stage, names, candidate, request, host)
            except (_Unfit, OptionError):
                # Remove the staging folder: its model was refused, so no later pull continues the download.
                shutil.rmtree(stage)
                raise
            except (PullFailed, OSError):
                # Remove the staging folder if no file was downloaded into it.
                if not any(path.is_file() and path.name != MARK_FILE for path in stage.rglob("*")):
                    shutil.rmtree(stage)
                raise
            for name in names:
                sync_file(stage.joinpath(*name.split("/")))
            size = sum(stage.joinpath(*name.split("/")).stat().st_size for name in names)
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            record = PullRecord(
                library.SCHEMA,
                hub.endpoint,
                repository.name,
                repository.revision or "",
                repository.commit,
                request.files,
                candidate.name,
                entry,
                kind,
                why,
                size,
                now,
            )
            library.write_record(stage, record)
            # Remove an empty folder that the user created for -o, which `os.replace` could not replace on Windows.
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            os.replace(stage, folder)
            sync_folder(folder.parent)
    return _result(folder, record, is_new=True)


def _download(hub: Hub, repository: HubRepository, candidate: PullCandidate, stage: Path, say: Say) -> list[str]:
    """Download the files of a candidate and the files that its models refer to. Return their names."""
    names = list(candidate.files)
    archive.check_names(names, repository.label)
    _check_space(repository, names, stage, max(0, candidate.bytes - sum(repository.files[n].size for n in names)))
    scanned = 0
    while scanned < len(names):
        name = names[scanned]
        scanned += 1
        file = repository.files[name]
        say(f"downloading {name} ({output.size_text(file.size)})")
        hub.download(repository, file, stage)
        if not name.lower().endswith(".onnx"):
            continue
        further = []
        for path in scan_model(stage.joinpath(*name.split("/")), count_nodes=False).files:
            problem = archive.name_problem(path)
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            if problem is None and other not in repository.files:
                problem = "the repository has no such file"
            if problem is not None:
                raise _Unfit(f"it needs the file {path!r}: {problem}")
            if other not in names:
                further.append(other)
        if further:
            names += dict.fromkeys(further)
            archive.check_names(names, repository.label)
            _check_space(repository, names, stage, 0)
    return names


def _check_space(repository: HubRepository, names: Sequence[str], stage: Path, more: int) -> None:
    """Raise `PullFailed` if the missing bytes do not fit on the disk.

    Args:
        more: bytes of an unpacked archive.
    """
    needed = more
    for name in names:
        path = stage.joinpath(*name.split("/"))
        part = path.with_name(path.name + PART)
        here = next((one.stat().st_size for one in (path, part) if one.exists()), 0)
        needed += max(0, repository.files[name].size - here)
    free = shutil.disk_usage(stage).free
    if needed and needed + _FREE_BYTES > free:
        raise no_space(
            stage.parent, f"{output.size_text(needed)} are needed, and {output.size_text(free)} are free"
        )


def _unpacked(repository: HubRepository, candidate: PullCandidate, stage: Path) -> list[str]:
    packed = stage.joinpath(*candidate.name.split("/"))
    folder = packed.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted attempt may have left this folder
    folder.mkdir()
    try:
        inner = archive.unpack(packed, folder, f"{candidate.name} of {repository.label}")
    except BridgeError as error:
        raise _Unfit(error.message.rstrip(".")) from None
    packed.unlink()
    below = folder.relative_to(stage).as_posix()
    return [f"{below}/{name}" for name in inner]


def _checked(
    stage: Path,
    names: Sequence[str],
    candidate: PullCandidate,
    request: PullRequest,
    host: HostTraits | BridgeError,
) -> tuple[str, str, str]:
    """Return path, kind and description of the model. Raise `_Unfit` if it cannot be used."""
    folders = {candidate.name: candidate.kind}
    if candidate.is_archive:
        folders = {posixpath.dirname(name): kind for name in names if (kind := _folder_kind(stage, name))}
    for name, kind in folders.items():
        if kind == "prepared":
            return name or ".", "prepared", _prepared(stage / name, request)
        if kind == "generation":
            try:
                genai_folder.read_folder(os.fspath(stage / name))
            except BridgeError as error:
                raise _Unfit(error.cause or error.message) from None
            return name or ".", "generation", candidate.why
    wanted = names if candidate.kind == "file" else [name for name in names if name.lower().endswith(".onnx")]
    models = [name for name in wanted if name.lower().endswith(".onnx")]
    if not models and candidate.kind != "file":
        raise _Unfit("it does not contain an ONNX model")
    kind, why = candidate.kind, candidate.why
    for name in models:
        scan = scan_model(stage.joinpath(*name.split("/")))
        if scan.is_compiled:
            traits = HostTraits() if isinstance(host, BridgeError) else host
            examined = examine(os.fspath(stage.joinpath(*name.split("/"))), scan, traits)
            verdict = examined.broken or examined.verdict
            if not verdict.can_run and candidate.kind != "file":
                raise _Unfit(f"it is compiled and {verdict.message}")
            kind, why = "compiled", choice.compiled_words(verdict, traits)
        elif len(models) == 1:
            kind, why = choice.kind_of(scan, name)
    single = models if candidate.kind != "file" or len(models) == 1 else candidate.files
    if len(single) == 1:
        return single[0], kind, why
    return posixpath.commonpath([posixpath.dirname(name) for name in single]) or ".", kind, why


def _folder_kind(stage: Path, name: str) -> choice.Kind | None:
    """Return the kind of folder that contains the file `name` (text generation, prepared); else ``None``."""
    leaf = posixpath.basename(name)
    if leaf == CONFIG:
        return "generation"
    if leaf == PREPARED_MANIFEST:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            document = json.loads((stage / name).read_text("utf-8-sig"))
            if isinstance(document, dict) and choice.is_prepared(document):
                return "prepared"
    return None


def _prepared(folder: Path, request: PullRequest) -> str:
    """Describe which model of a prepared folder a session runs. Raise `_Unfit` if it cannot run any."""
    try:
        facts = prepared_folders.gather(folder, soc_model=request.soc_model, host_python=request.host_python)
        damaged = [
            record.name
            for record in facts.manifest.files.values()
            if not (folder / record.name).is_file() or hash_file(folder / record.name) != record.sha256
        ]
    except BridgeError as error:
        raise _Unfit(error.message) from None
    if damaged:
        raise _Unfit(f"these files are missing or damaged: {', '.join(damaged)}")
    chosen = facts.chosen
    if isinstance(chosen, BridgeError):
        # Without a host accept the folder: no model can be chosen, and it may be for another computer.
        if facts.host is not None:
            raise _Unfit(chosen.message)
        return "a folder of `qnnbridge prepare`"
    return f"a folder of `qnnbridge prepare`; its model for this host: {chosen.reason}"


def _result(folder: Path, record: PullRecord, *, is_new: bool, notes: tuple[str, ...] = ()) -> PullResult:
    path = folder.joinpath(*record.entry.split("/"))
    return PullResult(path, folder, record, is_new, notes=notes, next_command=_next_command(path, record.kind))


def _next_command(path: Path, kind: str) -> str:
    if path.is_dir():
        config: Any = {}
        with contextlib.suppress(OSError, ValueError):
            config = json.loads((path / CONFIG).read_text("utf-8-sig"))
        if kind == "generation" and "whisper" not in str(config.get("model", {}).get("type")):
            return model_command("chat", path)
        return model_command("run", path, _RUN) if kind == "prepared" else model_command("inspect", path)
    if path.suffix.lower() == ".bin":
        return model_command("wrap", path, f"-o {shell_word(path.stem + '.onnx')}")
    if path.suffix.lower() != ".onnx":
        return ""
    sizes = _sizes_to_give(path)
    if kind in ("compiled", "qdq"):
        return model_command("run", path, _RUN, sizes)
    return model_command("prepare", path, f"-o {shell_word(path.stem + '-prepared')}", sizes)


def _sizes_to_give(path: Path) -> str:
    with contextlib.suppress(BridgeError):
        if free := arguments.free_axes(scan_model(path, count_nodes=False).inputs):
            return options_text(free)
    return ""
