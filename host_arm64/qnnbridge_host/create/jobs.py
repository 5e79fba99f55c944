"""The input and result of a compilation, and the names of a compiled model's files. Frozen data.

QNN refuses to load a context binary whose name has ``..`` in it, though it writes one without an error; a file name
has at most 255 bytes; and both files of a model and its manifest are to be recognised as one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.specs import QNN, Placement, ProviderSpec, SessionInfo, SessionSpec

# Those that a compiled model depends on.
RELEVANT_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "ep_source", "ep_version")

CONTEXT: Final = "_ctx"
MODEL_SUFFIX: Final = ".onnx"
# QNN appends it to the stem of the .onnx file.
BLOB_SUFFIX: Final = "_qnn.bin"

# Of the 255 that file systems take: leaves room for suffixes, and for those of temporary names.
MAX_STEM_BYTES: Final = 215

WITHOUT_A_NAME: Final = "model"

_ABOUT_COMPILING: Final = ("ep.context_", "ep.share_", "ep.stop_share_", "session.disable_model_compile")


@dataclasses.dataclass(frozen=True, slots=True)
class CompilerInput:
    """One model for one target.

    source: the original model. spec: as for a session of it (providers and their options, free dimensions,
    ``fallback``: with "error" a node that stays on the CPU is a `PlacementRefused`).
    file_stem: of the files, ``<file_stem>.onnx`` and ``<file_stem>_qnn.bin``; default the model's own name with
    ``_ctx``. Parts that QNN could never load again (``..``) are replaced, see `CompiledFiles.model`.
    embed: the context binary inside of the .onnx file. initializers: values of those that `spec` announces.
    inputs: on which the result is compared with the CPU; made up by default.
    """

    source: ModelSource
    spec: SessionSpec
    file_stem: str | None = None
    embed: bool = False
    initializers: tuple[Any, ...] = ()
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Of the files that the compiler writes."""
        path = self.source.path
        return self.file_stem or context_stem(stem_of(path) if path is not None else None)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledFiles:
    """A complete compiled model in the caller's folder.

    model: file name of the .onnx. blob: of the context binary, ``None`` if embedded.
    placement: of the nodes of the original; ``None`` if the compiler died before its report, though its files
    proved to be complete. soc_model: the target given to QNN, ``None``: the chip of the host.
    provider_options: all options given to QNN. seconds: of the native compile (of all of it for a salvaged result).
    died_at_teardown: the process crashed during its own clean-up; the result is complete.
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


def job_key(job: CompilerInput, versions: Mapping[str, str]) -> str:
    """The same for jobs that give the same result: contents, options, versions; wherever the model lies."""
    relevant = {name: versions[name] for name in RELEVANT_VERSIONS if name in versions}
    text = json.dumps([job.source.fingerprint, job.spec.options_hash, job.embed, relevant], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def blobs_of(files: Sequence[CompiledFiles]) -> tuple[str, ...]:
    """Names of the context binaries, each once."""
    return tuple(dict.fromkeys(one.blob for one in files if one.blob is not None))


def chip_numbers(soc_model: str | None) -> tuple[int, ...]:
    """The numbers in a ``soc_model``; names are left out, and 0, which means none."""
    parts = (part.strip() for part in (soc_model or "").split(","))
    return tuple(int(part) for part in parts if part.isdecimal() and int(part))


def compiled_spec(spec: SessionSpec) -> SessionSpec:
    """The spec of the compiled model's session, without the options that were compiled in."""
    return SessionSpec(
        model_path=None,
        providers=spec.providers or (ProviderSpec(QNN),),
        fallback=spec.fallback,
        options=spec.options,
        config_entries=without_compiling(spec.config_entries),
        custom_op_libraries=spec.custom_op_libraries,
    )


def without_compiling(entries: Mapping[str, str]) -> dict[str, str]:
    """Configuration entries that are not about compiling."""
    return {key: text for key, text in entries.items() if not key.startswith(_ABOUT_COMPILING)}


# --- names -----------------------------------------------------------------------------------------------


def context_stem(stem: str | None) -> str:
    """The stem of the compiled model of a model with this stem: ``pnet`` -> ``pnet_ctx``, safe for QNN."""
    return safe_stem((stem or WITHOUT_A_NAME) + CONTEXT)


def safe_stem(stem: str) -> str:
    """A stem under which QNN finds its context binary again, short enough for every file that has it."""
    safe = re.sub(r"\.{2,}", "_", stem)
    if len(os.fsencode(safe)) > MAX_STEM_BYTES:
        # By its hash it stays another one than its neighbours that begin alike.
        tail = f"-{hashlib.sha256(os.fsencode(safe)).hexdigest()[:8]}"
        safe = _first_bytes(safe, MAX_STEM_BYTES - len(tail)) + tail
    return safe


def blob_of(stem: str) -> str:
    """The file name of the context binary beside ``<stem>.onnx``."""
    return stem + BLOB_SUFFIX


def stem_of(path: str) -> str:
    """``dir/a..b.onnx`` -> ``a..b``."""
    return os.path.splitext(os.path.basename(path))[0]


def _first_bytes(text: str, limit: int) -> str:
    while len(os.fsencode(text)) > limit:
        text = text[:-1]
    return text
