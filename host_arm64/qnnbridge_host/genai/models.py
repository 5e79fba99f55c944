"""Models that genai has loaded. All applications of this host share a model.

A model is freed with its last user: a model object of an application, a tokenizer or a generator. Thread-safe.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_char_p
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import read_json, work_folder, write_json
from qnnbridge_host.cache.memo import UNMAPPED, load_mapped_or_not, memo_of
from qnnbridge_host.engine.sessions import occupies
from qnnbridge_host.genai.native import (
    GenaiLibrary,
    Object,
    library,
    too_old,
    unsupported_layout,
)
from qnnbridge_host.genai.trial import Work, ensure_tried
from qnnbridge_host.machine import driver_version
from qnnbridge_host.model.genai_folder import (
    CONFIG,
    QNN_NAMES,
    GenaiFolder,
    GenaiStage,
    changed,
    filler,
    installed_version,
    is_too_old,
    is_untried,
    kv_cache,
    read_config,
    read_folder,
    refusal,
    stage_files,
)
from qnnbridge_host.model.native_options import refuse_native
from qnnbridge_host.model.source import KnownFile, take_stamp
from qnnbridge_protocol.errors import (
    BridgeError,
    GenerationError,
    GenerationFolderInvalid,
    ModelChanged,
    ModelQuarantined,
    PlacementRefused,
)
from qnnbridge_protocol.model_records import CacheSettings
from qnnbridge_protocol.specs import (
    CPU,
    QNN,
    GenerationModelInfo,
    Placement,
    ProviderSpec,
    SessionSpec,
    StagePlacement,
)

# C function for each method of `qnnbridge.genai.Config`.
CONFIG_STEPS: Final[Mapping[str, str]] = {
    "append_provider": "OgaConfigAppendProvider",
    "clear_providers": "OgaConfigClearProviders",
    "set_provider_option": "OgaConfigSetProviderOption",
    "overlay": "OgaConfigOverlay",
    "set_decoder_provider_options_hardware_device_type": "OgaConfigSetDecoderProviderOptionsHardwareDeviceType",
    "set_decoder_provider_options_hardware_device_id": "OgaConfigSetDecoderProviderOptionsHardwareDeviceId",
    "set_decoder_provider_options_hardware_vendor_id": "OgaConfigSetDecoderProviderOptionsHardwareVendorId",
    "clear_decoder_provider_options_hardware_device_type": "OgaConfigClearDecoderProviderOptionsHardwareDeviceType",
    "clear_decoder_provider_options_hardware_device_id": "OgaConfigClearDecoderProviderOptionsHardwareDeviceId",
    "clear_decoder_provider_options_hardware_vendor_id": "OgaConfigClearDecoderProviderOptionsHardwareVendorId",
}
_QNN = "QNNExecutionProvider"


class Turns:
    """Lock of a device, with which generations take turns, token by token.

    A context manager around one native step. A waiting prompt comes before waiting tokens, except that each token
    that waits when a prompt ends is generated before the next prompt. So an answer that is being generated never
    waits for two prompts in a row, and a prompt waits for at most one token of each answer and for earlier prompts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        # Threads that wait. Each has its own locked lock, because a `threading.Lock` wakes waiters in undefined
        # order.
        self._tokens: collections.deque[threading.Lock] = collections.deque()
        self._prompts: collections.deque[threading.Lock] = collections.deque()
        # Number of waiting tokens that are generated before the next prompt.
        self._tokens_first = 0
        self._open_prompts = 0

    @property
    def has_prompt(self) -> bool:
        """Whether a prompt is being processed or waits, which may delay the next generation step."""
        return self._open_prompts > 0

    @contextlib.contextmanager
    def prompt(self) -> Iterator[None]:
        """Take a turn for processing a prompt, which may take a long time."""
        with self._lock:
            self._open_prompts += 1
        try:
            self._take(self._prompts)
            try:
                yield
            finally:
                with self._lock:
                    self._tokens_first = len(self._tokens)
                self._hand_over()
        finally:
            with self._lock:
                self._open_prompts -= 1

    def __enter__(self) -> None:
        self._take(self._tokens)

    def __exit__(self, *_: object) -> None:
        self._hand_over()

    def _take(self, queue: collections.deque[threading.Lock]) -> None:
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            mine = threading.Lock()
            mine.acquire()
            queue.append(mine)
        mine.acquire()

    def _hand_over(self) -> None:
        with self._lock:
            # `_busy` stays set while threads wait, so that new threads queue up behind the waiting threads.
            if self._tokens and (self._tokens_first or not self._prompts):
                self._tokens_first = max(0, self._tokens_first - 1)
                self._tokens.popleft().release()
            elif self._prompts:
                self._prompts.popleft().release()
            else:
                self._busy = False


_npu_turns = Turns()
_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[str, GenaiModel] = weakref.WeakValueDictionary()
_registered = False


class GenaiModel:
    """Loaded model.

    Attributes:
        device: name of the device, as genai reports it.
        kv_bytes: size of one generation's KV cache with a full context.
        filler: the token that genai treats as padding.

    Args:
        copy: exit stack that removes the temporary folder of `unmapped_copy`; closed when the model is freed.
    """

    def __init__(
        self,
        native: GenaiLibrary,
        folder: GenaiFolder,
        model: Object,
        placement: list[StagePlacement],
        filler: int | None,
        copy: contextlib.ExitStack,
    ) -> None:
        # Register this first, so that the folder is removed even if a line below raises.
        weakref.finalize(self, copy.close)
        self.filler = filler if filler is not None else folder.pad
        self.library = native
        self.folder = folder
        self.model = model
        self.placement = placement
        # Warnings for the application.
        self.notes: tuple[str, ...] = ()
        cache = kv_cache(folder)
        self.kv_bytes = 0 if cache is None else cache.size_bytes
        self.type = native.text("OgaModelGetType", model.handle)
        self.device = native.text("OgaModelGetDeviceType", model.handle)
        on_npu = any(one.wanted and one.placement.qnn_nodes for one in placement)
        # There is one NPU, so all models on the NPU share a queue. Models on the CPU do not wait for each other.
        self.turns = _npu_turns if on_npu else Turns()
        # Lock of the multimodal processor.
        self.processing = threading.Lock()
        self._processor: Object | None = None

    def processor(self) -> Object:
        """Return the native multimodal processor.

        Creating it also registers the names of the inputs in the model.
        """
        with self.processing:
            if self._processor is None:
                make = self.library.make
                self._processor = make(
                    "MultiModalProcessor", "OgaCreateMultiModalProcessor", self.model.handle, keeps=(self.model,)
                )
            return self._processor

    def count_memory(self, words: str) -> None:
        """Record how much memory of the NPU the model uses. words: how the model was loaded
        although the NPU could not map its weights; "" if the NPU mapped them."""
        sizes: dict[str, int] = {}
        for number, (stage, one) in enumerate(zip(self.folder.stages, self.placement, strict=True)):
            if one.wanted and (one.placement.qnn_nodes or words):
                files = stage_files(stage)
                sizes |= files
                placed = dataclasses.replace(one.placement, npu_bytes=sum(files.values()), npu_memory=words)
                self.placement[number] = dataclasses.replace(one, placement=placed)
        if sizes:
            occupies(self, self.folder.label, sum(sizes.values()))

    def describe(self) -> dict[str, Any]:
        folder = self.folder
        return GenerationModelInfo(
            type=self.type,
            device_type=self.device,
            layout=folder.layout,
            window=None if folder.window is None else folder.window.size,
            context_length=folder.context_length,
            vocab_size=folder.vocab_size,
            eos=tuple(sorted(folder.eos)),
            pad=folder.pad,
            search={k: v for k, v in folder.search.items() if isinstance(v, (bool, int, float, str))},
            fingerprint=folder.fingerprint,
            label=folder.label,
            genai=self.library.version,
            stages=tuple(self.placement),
            notes=self.notes,
            modalities=folder.modalities,
            kv_bytes=self.kv_bytes,
        ).to_wire()


class ModelRequest:
    """Request of an application to load a model. data: files of the model that were sent as bytes, by name."""

    def __init__(self, arguments: Mapping[str, Any], data: Mapping[str, bytes]) -> None:
        self.path = str(arguments["folder"])
        self.steps: list[Sequence[Any]] = [tuple(step) for step in arguments.get("steps") or ()]
        self.strict = arguments.get("fallback") != "cpu"
        self.cache = arguments.get("cache")
        self.quarantined = frozenset(arguments.get("quarantined") or ())
        self.expected = arguments.get("fingerprint")
        self.data = dict(data)
        self.allow_native = frozenset(map(str, arguments.get("allow_native") or ()))

    @property
    def cache_settings(self) -> CacheSettings | None:
        return None if self.cache is None else CacheSettings(str(self.cache))


def load(
    request: ModelRequest,
    probe: Probe,
    engine: Any,
    declare: Callable[[GenaiFolder], None],
    work: Work,
) -> GenaiModel:
    """Return the model; load it if it is not loaded yet.

    Args:
        request: what to load.
        probe: see `place`.
        engine: ONNX Runtime, for its versions and the library of QNN.
        declare: called before native code reads the model.
        work: sends a request to a worker, which tries a release of onnxruntime-genai that is newer than all tested
            releases.

    Raises:
        BridgeError: the model cannot be loaded, with the reason.
    """
    # The module of an untried release is not imported yet, because the import already runs native code.
    found_version = installed_version()
    untried = is_untried(found_version)
    version = str(found_version) if untried else library().version
    if is_too_old(version):
        raise too_old(version)
    refuse_special_files(request.path)
    own = engine.qnn_library()
    # Check the options that load native code even if the model is loaded: another application may have allowed
    # these options.
    refuse_native(request.path, request.allow_native, None if own is None else os.path.dirname(own))
    folder = _read_folder(request)
    reason = refusal(folder.layout, version)
    if reason is not None:
        raise unsupported_layout(folder, version, reason)
    if request.expected and request.expected != folder.fingerprint:
        raise ModelChanged(
            f"The model {folder.label} has changed since it was loaded.",
            cause="A file of its folder, or its genai_config.json, has changed.",
            fix="Create a new qnnbridge.genai.Model.",
        )
    if folder.fingerprint in request.quarantined:
        raise ModelQuarantined(
            f"{folder.label} is in quarantine.",
            details={"fingerprint": folder.fingerprint, "label": folder.label},
        )
    versions = {**engine.versions(), "driver": driver_version() or ""}
    records = None if request.cache is None else Path(str(request.cache)) / FOLDER
    notes: tuple[str, ...] = ()
    if untried:
        given = (request.steps, request.data)
        notes = (ensure_tried(version, folder, *given, versions, records, work),)
    native = library()
    # The steps of a request change the config, so the same folder with other steps is a different model. A model
    # that may run on the CPU must not be shared with an application that forbids the CPU.
    key = json.dumps([folder.fingerprint, os.path.abspath(folder.path), request.steps, request.strict])
    with _lock:
        # The lock is held while a model is loaded, so that a second application waits and shares the model.
        # Contents of files sent as bytes are not in the key, so such a model is never shared.
        found = None if request.data else _loaded.get(key)
        if found is not None:
            return found
        declare(folder)

        def placed(asked: GenaiFolder) -> list[StagePlacement]:
            return place(asked, probe, request.cache, versions, strict=request.strict)

        model, words = _load(native, request, folder, engine, placed, versions)
        if any(file.changed() for file in folder.files):
            raise ModelChanged(
                f"The model {folder.label} was written to while it was loaded.",
                fix="Load it when its files are complete.",
            )
        model.count_memory(words)
        model.notes = notes
        if not request.data:
            _loaded[key] = model
        return model


def load_plain(request: ModelRequest, engine: Any) -> GenaiModel:
    """Load a model without determining its placement. Other applications do not share the model."""
    folder = _read_folder(request)
    return _load(library(), request, folder, engine, lambda _asked: [], {})[0]


def _read_folder(request: ModelRequest) -> GenaiFolder:
    memo = memo_of(request.cache_settings)
    return read_folder(request.path, request.steps, tuple(request.data), lambda path: KnownFile.look(path, memo))


def _load(
    native: GenaiLibrary,
    request: ModelRequest,
    folder: GenaiFolder,
    engine: Any,
    placed: Callable[[GenaiFolder], list[StagePlacement]],
    versions: Mapping[str, str],
) -> tuple[GenaiModel, str]:
    """Return the model, and what was done to load it if the NPU could not map its weights; otherwise ""."""
    _register(native, engine, folder)
    other = filler(folder)

    def make(without: bool) -> GenaiModel:
        placement = placed(without_mapping(folder) if without else folder)
        with contextlib.ExitStack() as copy:
            path, steps = request.path, request.steps
            if without:
                path, steps = copy.enter_context(unmapped_copy(path, steps))
            made = _make(native, path, steps, request.data, other)
            return GenaiModel(native, folder, made, placement, other, copy.pop_all())

    settings = request.cache_settings
    if may_change(folder) and not request.data:
        return load_mapped_or_not(make, settings, folder, lambda: versions)
    return make(False), ""


def refuse_special_files(path: str) -> None:
    """Refuse a folder that contains a pipe, a socket or a device: reading it may never end."""
    with contextlib.suppress(OSError):  # a folder that cannot be read is refused later
        for entry in os.scandir(path):
            # `exists` follows links. A dangling link causes an error later, where its file is needed.
            if os.path.exists(entry.path) and not (entry.is_file() or entry.is_dir()):
                raise GenerationFolderInvalid(
                    f"{entry.name} in {os.path.basename(path)} is neither a file nor a folder.",
                    cause="It is a pipe, a socket or a device: reading it may never end.",
                    fix="Copy the whole folder of the model again.",
                )


def _make(
    native: GenaiLibrary, path: str, steps: Sequence[Sequence[Any]], data: Mapping[str, bytes], pad: int | None
) -> Object:
    # genai expects UTF-8 on Windows, and elsewhere the bytes of the path: `os.fsencode` returns both.
    config = native.make("Config", "OgaCreateConfig", os.fsencode(path))
    for name, *arguments in steps:
        values = [one if isinstance(one, int) else str(one).encode() for one in arguments]
        native.call(CONFIG_STEPS[name], config.handle, *values)
    if pad is not None:
        overlay = json.dumps({"model": {"pad_token_id": pad}})
        native.call("OgaConfigOverlay", config.handle, overlay.encode())
    # genai refers to the bytes of `AddModelData`, so they must live as long as the model.
    kept: list[Any] = [config]
    for name, content in data.items():
        memory = c_char_p(content)
        kept += [content, memory]
        native.call("OgaConfigAddModelData", config.handle, name.encode(), memory, len(content))
    return native.make("Model", "OgaCreateModelFromConfig", config.handle, keeps=tuple(kept))


def _register(native: GenaiLibrary, engine: Any, folder: GenaiFolder) -> None:
    """Register QNN, once, in genai's own environment of ONNX Runtime."""
    global _registered
    if _registered or not any(stage.qnn_options is not None for stage in folder.stages):
        return
    path = engine.qnn_library()
    if path is not None:
        try:
            native.module.register_execution_provider_library(_QNN, path)
        except AttributeError:
            pass  # a release without the function has QNN built in
        except Exception as error:
            raise BridgeError(
                "onnxruntime-genai cannot load the QNN execution provider.",
                cause=str(error),
                details={"path": path},
            ) from error
    _registered = True


# --- a changed copy of a config, with which QNN does not map the weights of stages ------------------------
#
# The functions below apply the decision of `load_mapped_or_not`. genai's functions for provider options affect the
# decoder, but not the stages of a pipeline, and an overlay adds stages instead of replacing them. So genai reads a
# changed copy of the config, in a temporary folder with a link to the model's folder.

_LINK: Final = "model"
# Tokenizers and templates are smaller and are copied. Larger files contain weights and are reached by the link.
_MOST_BYTES: Final = 64 * 2**20


def may_change(folder: GenaiFolder) -> bool:
    """Return whether a stage requests QNN and its config does not set whether QNN maps weights."""
    return any(stage.qnn_options is not None and UNMAPPED not in stage.qnn_options for stage in folder.stages)


def without_mapping(folder: GenaiFolder) -> GenaiFolder:
    """Return `folder` with the provider options of `unmapped_copy`, which keep QNN from mapping weights."""
    stages = (
        dataclasses.replace(
            stage, providers=tuple((name, _unmapped_options(name, given)) for name, given in stage.providers)
        )
        for stage in folder.stages
    )
    return dataclasses.replace(folder, stages=tuple(stages))


@contextlib.contextmanager
def unmapped_copy(path: str, steps: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """Yield a temporary folder with the changed config, and the steps with mapping switched off.

    Raises:
        GenerationError: the config cannot be copied.
    """
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(work_folder("genai"))
            config = read_config(path)
            _adapt(config)
            with open(os.path.join(copy, CONFIG), "w", encoding="utf-8") as file:
                json.dump(config, file)
            _link(os.path.abspath(path), os.path.join(copy, _LINK))
            for entry in list(os.scandir(path)):
                small = entry.is_file() and entry.stat().st_size <= _MOST_BYTES
                if small and entry.name != CONFIG and not entry.name.endswith((".onnx", ".bin", ".data")):
                    shutil.copyfile(entry.path, os.path.join(copy, entry.name))
            fitting = [_adapted_step(step) for step in steps]
            decoder = changed(config, fitting).get("model", {}).get("decoder", {})
            for one in (decoder.get("session_options") or {}).get("provider_options") or []:
                for name, options in one.items():
                    if _unmapped_options(name, options) != (options or {}):
                        fitting.append(("set_provider_option", name, UNMAPPED, "1"))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise GenerationError(f"A changed copy of {CONFIG} cannot be used: {error}.") from None
        yield copy, fitting


def _unmapped_options(name: str, given: dict[str, str] | None) -> dict[str, str]:
    return {**({UNMAPPED: "1"} if name.lower() in QNN_NAMES else {}), **(given or {})}


def _adapt(node: Any) -> None:
    """Change file names to paths through the link, and switch off mapping in the options of QNN."""
    for one in node if isinstance(node, list) else ():
        _adapt(one)
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in ("filename", "adapter_filename") and isinstance(value, str):
            node[key] = f"{_LINK}/{value}"
        elif key == "provider_options":
            node[key] = [
                {name: _unmapped_options(name, given) for name, given in one.items()} for one in value or []
            ]
        else:
            _adapt(value)


def _adapted_step(step: Sequence[Any]) -> Sequence[Any]:
    if step[0] != "overlay":
        return step
    over = json.loads(step[1])
    _adapt(over)
    return ("overlay", json.dumps(over))


def _link(target: str, link: str) -> None:
    if sys.platform == "win32":
        import _winapi  # a symbolic link needs a privilege, a junction does not

        _winapi.CreateJunction(target, link)
    else:
        os.symlink(target, link)


# --- where the stages of a model run -----------------------------------------------------------------------
#
# The placement is determined for each stage before genai loads the model. genai does not report it, and silently
# computes on the CPU if QNN cannot use the provider options. So each stage that requests QNN is loaded once as a
# separate session with the same options, whose placement is checked. By design some work stays on the CPU: stages
# that do not request QNN, attention of the GroupQueryAttention layouts, and operators that only move data. If other
# operators run on the CPU, the model is refused unless the application allows it. The result is stored in a file
# next to the cache of compiled models, so a stage is tried once for each version and each change of the file.

# Name of the folder in the cache that stores the placements of stages.
FOLDER: Final = "genai"
SCHEMA: Final = 1
# Attention operators of the supported layouts. QNN does not support them, so they run on the CPU by design.
ATTENTION: Final = frozenset(("GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "PagedAttention"))
# Operators that only move, reshape or convert data.
BOOKKEEPING: Final = frozenset(
    (
        *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity", "QuantizeLinear"),
        *("Range", "ReduceSum", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
    )
)

Probe = Callable[[SessionSpec], Placement]


def place(
    folder: GenaiFolder, probe: Probe, cache: str | None, versions: Mapping[str, str], *, strict: bool
) -> list[StagePlacement]:
    """Return the placement of every stage.

    Args:
        folder: the model.
        probe: creates a session for a stage, closes the session, and returns its placement.
        cache: folder of the cache; ``None``: results are not stored.
        versions: versions of ONNX Runtime, QNN and the driver.
        strict: whether a model that would run on the CPU is refused.

    Raises:
        PlacementRefused: a stage that requests QNN would run on the CPU.
    """
    # All stages are tried before the model is refused, because the error lists all placements.
    found = [_place(stage, probe, cache, versions, strict) for stage in folder.stages]
    refused = [one for one in found if one.wanted and not one.by_design]
    if refused and strict:
        raise _refusal(folder, refused[0], found)
    return found


def _place(
    stage: GenaiStage, probe: Probe, cache: str | None, versions: Mapping[str, str], strict: bool
) -> StagePlacement:
    options = stage.qnn_options
    if options is None:
        return StagePlacement(stage.name, False, True, Placement(cause="The config does not ask for QNN."))
    file = _memory(stage, cache, versions)
    placed = _recall(file)
    if placed is None:
        spec = SessionSpec(stage.path, (ProviderSpec(QNN, options), ProviderSpec(CPU)), fallback="cpu")
        try:
            placed = probe(spec)
        except BridgeError as error:
            if strict:
                raise
            # Do not store the result: the error may be temporary, such as a full NPU.
            placed = Placement(known=False, cause=error.message)
        else:
            _remember(file, placed)
    return StagePlacement(stage.name, True, _by_design(placed), placed)


def _by_design(placed: Placement) -> bool:
    if not placed.known:
        return placed.cause is None  # accept: without a cause, this ONNX Runtime cannot report placements
    if not placed.qnn_nodes:
        return False
    return all(kind in ATTENTION or kind in BOOKKEEPING for _, kind in placed.cpu_list)


def _refusal(folder: GenaiFolder, worst: StagePlacement, found: list[StagePlacement]) -> PlacementRefused:
    placed = worst.placement
    total = placed.qnn_nodes + placed.cpu_nodes + placed.other_nodes
    if placed.qnn_nodes:
        # The message lists only operators that are not on the CPU by design.
        kinds = sorted({kind for _, kind in placed.cpu_list} - ATTENTION - BOOKKEEPING)
        message = f"The stage {worst.stage!r} of {folder.label} would compute {', '.join(kinds)} on the CPU."
    else:
        message = f"No node of the stage {worst.stage!r} of {folder.label} runs on the NPU."
    return PlacementRefused(
        message,
        cause=placed.cause
        or "QNN refused the nodes. Possible reasons: a wrong backend_path or soc_model, or shapes that are not "
        "fixed.",
        fix="Correct the provider options of the stage in genai_config.json, or allow the CPU: "
        "qnnbridge.genai.Model(..., fallback='cpu').",
        evidence=[f"{placed.qnn_nodes} of {total} nodes are on QNN"],
        details={"stage": worst.stage, "stages": [one.to_wire() for one in found]},
    )


# --- stored results ---


def _memory(stage: GenaiStage, cache: str | None, versions: Mapping[str, str]) -> Path | None:
    if cache is None:
        return None
    try:
        stamp = take_stamp(stage.path)
    except OSError:
        return None
    if stamp is None:
        return None
    # The key contains the file's stamp (without the time when it was taken), because size and date alone do not
    # identify a file, and the versions, because another driver or QNN may support other nodes.
    key = [os.path.abspath(stage.path), *stamp.to_plain()[:-1], stage.qnn_options, dict(versions)]
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    return Path(cache) / FOLDER / f"{name[:32]}.json"


def _recall(file: Path | None) -> Placement | None:
    if file is None:
        return None
    try:
        document = read_json(file) or {}
        return Placement.from_wire(document["placement"]) if document.get("schema") == SCHEMA else None
    except Exception:  # noqa: BLE001 - a damaged file: the stage is tried again
        return None


def _remember(file: Path | None, placed: Placement) -> None:
    if file is not None:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"schema": SCHEMA, "placement": placed.to_wire()})
