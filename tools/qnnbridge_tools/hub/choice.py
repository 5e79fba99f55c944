"""Choose among the models of a repository, before anything is downloaded.

The beginning of each model is read over the network: its operators, and the header of a compiled model's context
binary. These determine the kind of the model; its name is used only if they cannot be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import io
import json
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal

from qnnbridge_host.model.collector import EpContextNode, ModelScan
from qnnbridge_host.model.compatibility import HostTraits, judge_apart
from qnnbridge_host.model.context_binary import BlobFacts, read_blob
from qnnbridge_host.model.genai_folder import CONFIG, QNN_NAMES
from qnnbridge_host.model.manifest import SUFFIX as MANIFEST_SUFFIX
from qnnbridge_host.model.protobuf import Span
from qnnbridge_host.model.scan import OK, Verdict, scan_start
from qnnbridge_protocol.errors import BridgeError, InvalidProtobuf, OptionError
from qnnbridge_protocol.model_records import PREPARED_MANIFEST
from qnnbridge_protocol.shell import model_command, shell_word
from qnnbridge_protocol.shown import listed
from qnnbridge_tools.hub import archive
from qnnbridge_tools.hub.remote import Hub, HubRepository

Kind = Literal["compiled", "qdq", "float", "half", "other", "refused", "prepared", "generation", "file"]
# Kinds of models, the best first. "other" means quantised for other backends than QNN.
_ORDER: Final[tuple[Kind, ...]] = (
    "prepared",
    "compiled",
    "generation",
    "qdq",
    "float",
    "half",
    "other",
    "file",
    "refused",
)
_MOST_MODELS: Final = 64
# Limit of requests for one model. Each request reads 256 KiB; the nodes of the largest known models need fewer.
_MOST_REQUESTS: Final = 24
_MOST_JSON_BYTES: Final = 16 * 1024 * 1024
_SHOWN: Final = 8

_DYNAMIC: Final = re.compile(r"DynamicQuantize|MatMulInteger|ConvInteger|NBits|Bnb4|QMoE|FusedMatMulBlock")
_HALF_NAME: Final = re.compile(r"(?:^|[-_./])(?:fp16|float16|half|bf16)(?=[-_./]|$)", re.I)
_OTHER_NAME: Final = re.compile(
    r"(?:^|[-_./])(?:u?int[48]|q[48](?:f16)?|bnb4|quantized|quant|w\d+a\d+)(?=[-_./]|$)", re.I
)
# Suffixes that distinguish variants of one model.
_VARIANT: Final = re.compile(
    r"(?:^|[-_.])(?:quantized|quant|(?:q|qu|u)?int[48]|q[48](?:f16)?|bnb4|fp16|fp32|float(?:16|32)?|half|bf16|w\d+a\d+|qdq|qnn"
    r"|ctx|epcontext|compiled|precompiled|onnx|npu|htp|optimized|o[1-4]|static|(?:qualcomm[-_])?snapdragon.*"
    r"|qualcomm.*|sc\d{4}x\w*|sm\d{4}|qc[sm]\d{4}|v(?:68|69|73|75|79|81)|soc\d+|arm64|avx\w*|vnni|cpu|gpu)$",
    re.I,
)
# Small files that programs read together with a model.
_BESIDE: Final = re.compile(
    r"(?:tokeniz\w*|vocab|merges|added_tokens|special_tokens_map|spiece|sentencepiece\S*|config\w*|\w+_config"
    r"|chat_template|labels?|classes|id2label|metadata|tool-versions|normalizer|dict|LICEN[SC]E|NOTICE)"
    r"(?:\.(?:json|txt|model|jinja|yaml|yml|md))?",
    re.I,
)
_GIT: Final = re.compile(r"\.git.*")
_APART: Final = re.compile(
    r"(?:.*\.(?:safetensors|pt|pth|h5|msgpack|tflite|gguf|png|jpe?g|gif|md|pdf|ipynb)|pytorch_model.*|\.git.*)",
    re.I,
)


@dataclasses.dataclass(frozen=True, slots=True)
class PullCandidate:
    """One model that a pull may download.

    Args:
        name: file or folder in the repository.
        kind: see `Kind`.
        why: description of the kind, or why the model cannot be used.
        files: files that are known before the download.
        bytes: size of these files, and of an archive's unpacked files.
        order: smaller is better among candidates of one kind.
    """

    name: str
    kind: Kind
    why: str
    files: tuple[str, ...]
    bytes: int
    order: tuple[Any, ...] = ()

    @property
    def is_archive(self) -> bool:
        return self.name.lower().endswith(".zip")

    @property
    def rank(self) -> tuple[Any, ...]:
        return (_ORDER.index(self.kind), *self.order, len(self.name), self.name)


Judge = Callable[[ModelScan, Callable[[EpContextNode], "BlobFacts | None"]], "tuple[Kind, str, tuple[Any, ...]]"]


def judge_for(host: HostTraits | None) -> Judge:
    """Return a function that decides whether a compiled model runs on the host; without a host none does."""

    def judge(
        scan: ModelScan, header_of: Callable[[EpContextNode], BlobFacts | None]
    ) -> tuple[Kind, str, tuple[Any, ...]]:
        if host is None:
            return "refused", "it is compiled, and without a host it is unknown whether it can run", ()
        verdict = judge_apart(scan, host, header_of)
        if not verdict.can_run:
            return "refused", f"it is compiled and {verdict.message}", ()
        return "compiled", compiled_words(verdict, host), (verdict.level != OK,)

    return judge


def compiled_words(verdict: Verdict, host: HostTraits) -> str:
    """Describe a compiled model that can run."""
    return f"compiled, {'runs here' if verdict.level == OK else verdict.message} ({host.words})"


def kind_of(scan: ModelScan, name: str, *, whole: bool = True) -> tuple[Kind, str]:
    """Return the kind of a model that is not compiled.

    Args:
        scan: scan of the model.
        name: its file name.
        whole: False if only the beginning of the model was read.
    """
    ops = {operator.rpartition(".")[2] for operator in scan.ops}
    if {"QuantizeLinear", "DequantizeLinear"} <= ops:
        return "qdq", "quantised (QDQ), which QNN compiles"
    if any(_DYNAMIC.search(operator) for operator in ops):
        return "other", "quantised for CPUs, which QNN does not run"
    if not ops and not whole and _OTHER_NAME.search(posixpath.splitext(name)[0]):
        return "other", "quantised, according to its name"
    types = {one.type for one in scan.inputs}
    if "tensor(float16)" in types or _HALF_NAME.search(posixpath.splitext(name)[0]):
        return "half", "float16"
    if "DequantizeLinear" in ops:
        return "other", "only its weights are quantised"
    return "float", "float"


def find_candidates(
    hub: Hub, repository: HubRepository, wanted: Sequence[str], host: HostTraits | None
) -> list[PullCandidate]:
    """Return the models of a repository, the best first.

    Args:
        hub: connection to the hub.
        repository: the repository.
        wanted: names and patterns of files. If several are given, their files are downloaded as one model.
        host: traits of the host that compiled models are judged for.

    Raises:
        OptionError: the repository has no model or no such file, or has several different models.
        PullFailed: the hub or the network fails.
    """
    judge = judge_for(host)
    names = sorted(repository.files)
    if wanted:
        found = [[name for name in names if name == one or fnmatch.fnmatchcase(name, one)] for one in wanted]
        missing = next((one for one, matching in zip(wanted, found, strict=True) if not matching), None)
        if missing is not None:
            raise OptionError(
                f'{repository.label} does not contain a file "{missing}".',
                fix=f"Choose among {listed(names, _SHOWN)}.",
            )
        names = list(dict.fromkeys(name for matching in found for name in matching))
        if len(wanted) > 1 or (len(names) == 1 and not _is_model(names[0])):
            return [_parts(repository, names)]
        return _variants(hub, repository, [name for name in names if _is_model(name)] or names, judge)
    folders = [*_folders(hub, repository, judge)]
    if folders:
        return sorted(folders, key=lambda one: one.rank)
    models = [name for name in names if _is_model(name)]
    if not models:
        binaries = [name for name in names if name.endswith((".bin", ".dlc")) and "pytorch" not in name]
        raise OptionError(
            f"{repository.label} has no ONNX model.",
            cause=f"Its files: {listed(names, _SHOWN)}." if names else "The repository is empty.",
            fix=f"Pull its context binary with --file {shell_word(binaries[0])} and give it to `qnnbridge wrap`."
            if binaries
            else "Choose a repository with an .onnx file, or export the model to ONNX.",
        )
    return _variants(hub, repository, models, judge)


def base_of(name: str) -> str:
    """Return the model's name without folder, suffix and kind. The result is the same for all variants of a
    model.
    """
    stem = posixpath.basename(name)
    stem = stem[: stem.rindex(".")]
    while (shorter := _VARIANT.sub("", stem)) != stem:
        stem = shorter
    return stem.lower() or "model"


def beside(repository: HubRepository, model: str) -> list[str]:
    """Return tokenizers, configurations and licences in the model's folder and its parent folders."""
    folder = posixpath.dirname(model)
    above = {folder}
    while folder:
        folder = posixpath.dirname(folder)
        above.add(folder)
    own = posixpath.splitext(model)[0] + MANIFEST_SUFFIX
    return [
        name
        for name in repository.files
        if name == own or (posixpath.dirname(name) in above and _BESIDE.fullmatch(posixpath.basename(name)))
    ]


def _is_model(name: str) -> bool:
    return name.lower().endswith((".onnx", ".zip"))


def _size(repository: HubRepository, names: Iterable[str]) -> int:
    return sum(repository.files[name].size for name in names)


def _parts(repository: HubRepository, names: Sequence[str]) -> PullCandidate:
    models = [name for name in names if name.lower().endswith(".onnx")]
    files = dict.fromkeys([*names, *(name for model in models for name in beside(repository, model))])
    label = names[0] if len(names) == 1 else posixpath.commonpath([posixpath.dirname(name) for name in names])
    return PullCandidate(label, "file", "selected by --file", tuple(files), _size(repository, files))


def _variants(hub: Hub, repository: HubRepository, names: Sequence[str], judge: Judge) -> list[PullCandidate]:
    bases: dict[str, list[str]] = {}
    for name in names:
        bases.setdefault(base_of(name), []).append(name)
    if len(bases) > 1:
        shown = [found[0] for found in bases.values()]
        options = " ".join(f"--file {shell_word(name)}" for name in _suggested(bases))
        raise OptionError(
            f"{repository.label} has several models: {listed(shown, _SHOWN)}.",
            fix="Choose one model, or all files of one model, with --file: "
            + model_command("pull", repository.label, options),
        )
    if len(names) > _MOST_MODELS:
        raise OptionError(
            f"{repository.label} has {len(names)} variants of its model; at most {_MOST_MODELS} are compared.",
            fix='Choose some of them: --file "onnx/*qdq*"',
        )
    return sorted((_candidate(hub, repository, name, judge) for name in names), key=lambda one: one.rank)


def _suggested(bases: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the encoder and decoder of a speech or translation model; without them the first model."""
    encoder = next((found[0] for base, found in bases.items() if "encoder" in base), None)
    decoders = [found[0] for base, found in bases.items() if "decoder" in base]
    if encoder is None or not decoders:
        return [next(iter(bases.values()))[0]]
    return [encoder, next((one for one in decoders if "merged" in one), decoders[0])]


def _candidate(hub: Hub, repository: HubRepository, name: str, judge: Judge) -> PullCandidate:
    if name.lower().endswith(".zip"):
        return _of_archive(hub, repository, name, judge)
    kind, why, order = _peek(
        lambda: hub.open(repository, name, _MOST_REQUESTS),
        repository.files[name].size,
        name,
        judge,
        lambda path: _beside_of(hub, repository, name, path),
    )
    files = (name, *beside(repository, name))
    return PullCandidate(name, kind, why, files, _size(repository, files), order)


def _beside_of(hub: Hub, repository: HubRepository, model: str, path: str) -> BinaryIO | None:
    name = posixpath.normpath(posixpath.join(posixpath.dirname(model), path))
    return hub.open(repository, name, _MOST_REQUESTS) if name in repository.files else None


def _peek(
    opened: Callable[[], BinaryIO],
    size: int,
    name: str,
    judge: Judge,
    open_beside: Callable[[str], BinaryIO | None],
) -> tuple[Kind, str, tuple[Any, ...]]:
    """Read the beginning of a model that is not downloaded, and judge it."""

    def header_of(node: EpContextNode) -> BlobFacts | None:
        if node.embeds:
            return (
                read_blob(file, node.embedded.start, node.embedded.length)
                if isinstance(node.embedded, Span)
                else None
            )
        other = open_beside(node.cache_path or "")
        if other is None:
            return None
        with other:
            return read_blob(other)

    with opened() as file:
        try:
            scan = scan_start(file, size)
            if scan.format == "ort":
                return "other", "in ONNX Runtime's own format", ()
            if scan.is_compiled:
                return judge(scan, header_of)
        except InvalidProtobuf as error:
            return "refused", error.message, ()
        except EOFError:  # raised if the header of a context binary cannot be read
            return "refused", "the header of its context binary cannot be read", ()
    return *kind_of(scan, name, whole=bool(scan.ir_version)), ()


def _of_archive(hub: Hub, repository: HubRepository, name: str, judge: Judge) -> PullCandidate:
    """Judge a ZIP archive by its directory and the beginning of its models."""
    packed = repository.files[name].size
    try:
        with hub.open(repository, name, _MOST_REQUESTS * 16) as file, zipfile.ZipFile(file) as opened:
            found = archive.members(opened, f"{name} of {repository.label}")
            sizes = {one.filename: one.file_size for one in found}
            models = [inner for inner in sizes if inner.lower().endswith(".onnx")]
            if not models:
                return PullCandidate(name, "refused", "it does not contain an ONNX model", (name,), packed)
            judged = [_in_archive(opened, inner, sizes, judge) for inner in models]
    except archive.DAMAGE as error:
        return PullCandidate(name, "refused", f"it cannot be read: {error}", (name,), packed)
    except OptionError as error:
        return PullCandidate(name, "refused", error.message, (name,), packed)
    # The kind of the worst stage determines the pipeline's kind, because a pipeline needs all of its stages.
    kind, why, order = max(judged, key=lambda one: _ORDER.index(one[0]))
    return PullCandidate(name, kind, why, (name,), packed + sum(sizes.values()), order)


def _in_archive(
    opened: zipfile.ZipFile, name: str, sizes: Mapping[str, int], judge: Judge
) -> tuple[Kind, str, tuple[Any, ...]]:
    def header(path: str) -> BinaryIO | None:
        other = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if other not in sizes:
            return None
        # Read only what `read_blob` needs: seeking to the end of a compressed member would unpack all of it.
        with opened.open(other) as member:
            return _Head(member.read(1024 * 1024), sizes[other])

    return _peek(lambda: opened.open(name), sizes[name], name, judge, header)  # type: ignore[arg-type, return-value]


class _Head(io.BytesIO):
    """First bytes of a file. Seeking from the end uses the size of the whole file."""

    def __init__(self, head: bytes, size: int) -> None:
        super().__init__(head)
        self._size = size

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == io.SEEK_END:
            return self._size + offset
        return super().seek(offset, whence)


# --- folders of `qnnbridge prepare` and folders for text generation ----------------------------------------


def _folders(hub: Hub, repository: HubRepository, judge: Judge) -> Iterator[PullCandidate]:
    marked: dict[str, tuple[Kind, Mapping[str, Any]]] = {}
    for name in sorted(repository.files):
        folder, leaf = posixpath.split(name)
        if leaf in (PREPARED_MANIFEST, CONFIG) and (document := _json(hub, repository, name)) is not None:
            if leaf == CONFIG:
                marked[folder] = ("generation", document)
            elif is_prepared(document):
                marked.setdefault(folder, ("prepared", document))
    for folder, (kind, document) in marked.items():
        inner = tuple(
            name
            for name in repository.files
            if _is_below(name, folder)
            and not any(other != folder and _is_below(other, folder) and _is_below(name, other) for other in marked)
            and not (_GIT if kind == "prepared" else _APART).fullmatch(posixpath.basename(name))
        )
        size = _size(repository, inner)
        if kind == "prepared":
            yield PullCandidate(folder, kind, "a folder of `qnnbridge prepare`", inner, size)
        else:
            yield _generation(hub, repository, folder, document, inner, judge)


def _generation(
    hub: Hub,
    repository: HubRepository,
    folder: str,
    config: Mapping[str, Any],
    files: tuple[str, ...],
    judge: Judge,
) -> PullCandidate:
    """Judge a folder for text generation by its compiled stages and by the provider in its genai_config.json."""
    size = _size(repository, files)
    providers = _providers(config)
    on_qnn = any(name in QNN_NAMES for name in providers)
    others = [name for name in providers if name not in (*QNN_NAMES, "cpu", "cpuexecutionprovider")]
    if others and not on_qnn:
        return PullCandidate(folder, "refused", f"its genai_config.json asks for {', '.join(others)}", files, size)
    compiled = 0
    for name in files:
        if name.lower().endswith(".onnx"):
            stage = _candidate(hub, repository, name, judge)
            if stage.kind == "refused":
                return PullCandidate(folder, "refused", f"{posixpath.basename(name)}: {stage.why}", files, size)
            compiled += stage.kind == "compiled"
    where = "on QNN" if on_qnn else "on the CPU"
    fitting = f", {compiled} compiled stages fit this host" if compiled else ""
    why = f"a folder for text generation {where}{fitting}"
    return PullCandidate(folder, "generation", why, files, size, (not on_qnn, -compiled))


def _providers(config: Any) -> list[str]:
    """Return the execution providers that any part of a genai_config.json requests, in lower case."""
    found: list[str] = []
    for key, value in config.items() if isinstance(config, dict) else ():
        if key == "provider_options" and isinstance(value, list):
            found += [str(name).lower() for one in value if isinstance(one, dict) for name in one]
        else:
            for inner in value if isinstance(value, list) else [value]:
                found += _providers(inner)
    return list(dict.fromkeys(found))


def _is_below(name: str, folder: str) -> bool:
    return not folder or name.startswith(folder + "/")


def is_prepared(document: Mapping[str, Any]) -> bool:
    """Return whether a manifest belongs to a folder of `qnnbridge prepare`."""
    inner = document
    if "components" in document:
        inner = (document.get("additional_metadata") or {}).get("qnnbridge") or {}
    return isinstance(inner, dict) and "source_sha256" in inner


def _json(hub: Hub, repository: HubRepository, name: str) -> Mapping[str, Any] | None:
    size = repository.files[name].size
    if not 0 < size <= _MOST_JSON_BYTES:
        return None
    data = hub.read(repository, name, 0, size)
    with contextlib.suppress(ValueError, RecursionError, BridgeError):
        document = json.loads(data.decode("utf-8-sig"))
        if isinstance(document, dict):
            return document
    return None
