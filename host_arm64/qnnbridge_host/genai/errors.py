"""Turns error texts of onnxruntime-genai into the project's errors, with cause and fix where they are known."""

from __future__ import annotations

import re
import sys
from typing import Final

from qnnbridge_host.engine.ort_errors import MEMORY_CAUSE, MEMORY_FIX, details_of
from qnnbridge_host.model.genai_folder import EVERY_LAYOUT, OLDEST, GenaiFolder
from qnnbridge_protocol.errors import (
    BridgeError,
    GenerationError,
    GenerationFolderInvalid,
    GenerationUnsupported,
    PromptRefused,
    ProviderUnavailable,
)
from qnnbridge_protocol.records import NamedTuple


class _Rule(NamedTuple):
    pattern: str
    kind: type[BridgeError]
    cause: str
    fix: str


_RULES: Final = (
    _Rule(
        r"[Ii]nvalid dimensions for input: past_|Unexpected input data type.*past_",
        GenerationUnsupported,
        "This release of onnxruntime-genai cannot run the model's KV cache.",
        f"Install onnxruntime-genai=={EVERY_LAYOUT} in the host's Python; `qnnbridge versions` has the table.",
    ),
    _Rule(
        r"QNN execution provider is not supported|not compiled with QNN|Failed to load.*[Qq]nn",
        ProviderUnavailable,
        "onnxruntime-genai does not have the QNN execution provider.",
        "Install onnxruntime-qnn in the host's Python: `python -m pip install 'qnnbridge[host,genai]'`.",
    ),
    _Rule(
        r"Error opening |No such file|[Ff]ile doesn't exist|does not exist",
        GenerationFolderInvalid,
        "A file that the model needs is not there or cannot be read.",
        "Copy the whole folder of the model again; genai_config.json names the files.",
    ),
    _Rule(
        r"JSON Error|parse_error|Error encountered while parsing|context_length is 0",
        GenerationFolderInvalid,
        "genai_config.json is damaged, lacks a field, or has one that this onnxruntime-genai does not know.",
        "Compare it with the one that came with the model; `qnnbridge versions` has the releases for each layout.",
    ),
    _Rule(
        r"bad_alloc|bad allocation|[Oo]ut of memory|Failed to allocate",
        GenerationError,
        "There is not enough memory for the model and its KV cache.",
        "Close other programs, or lower max_length: the cache is made for it.",
    ),
    _Rule(
        r"INVALID_PROTOBUF|Protobuf parsing failed|ModelProto does not have a graph",
        GenerationFolderInvalid,
        "A model file of the folder is damaged, or is a pointer of Git LFS instead of the file.",
        "Copy the whole folder of the model again.",
    ),
    _Rule(
        r"[Tt]okenizer|tokenizer\.json|vocab",
        GenerationFolderInvalid,
        "The files of the tokenizer are missing or damaged.",
        "Copy tokenizer.json and tokenizer_config.json of the model again.",
    ),
    _Rule(
        r"max_length|sequence length",
        PromptRefused,
        "The prompt and what is generated must fit into max_length.",
        "Shorten the prompt or raise max_length; the model's context_length is the limit.",
    ),
)


def from_genai(text: str, version: str) -> BridgeError:
    """The error for what a native call reported."""
    details = details_of(GenerationError, text)
    if details.get("npu_memory"):
        return GenerationError(text, cause=MEMORY_CAUSE, fix=MEMORY_FIX, details={"genai": version, **details})
    for rule in _RULES:
        if re.search(rule.pattern, text):
            return rule.kind(text, cause=rule.cause, fix=rule.fix, details={"genai": version})
    return GenerationError(
        text,
        cause=f"onnxruntime-genai {version} reported this; the bridge knows no more of it.",
        fix="Try the same model with onnxruntime_genai in the host's Python; if it works there, report a bug.",
        details={"genai": version},
    )


def not_installed(version: str | None, error: Exception) -> ProviderUnavailable:
    oldest = ".".join(map(str, OLDEST))
    if version is None:
        message, verb = f"onnxruntime-genai is not installed in {sys.executable}.", "Install"
    else:
        message, verb = f"onnxruntime-genai {version} cannot be loaded in {sys.executable}.", "Reinstall"
    return ProviderUnavailable(
        message,
        cause=f"{type(error).__name__}: {error}",
        fix=f"{verb} it in the host's Python: `python -m pip install 'qnnbridge[host,genai]'` ({oldest} or newer).",
        details={"genai": version},
    )


def too_old(version: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"onnxruntime-genai {version} is too old: the host needs {'.'.join(map(str, OLDEST))} or newer.",
        fix="Upgrade it in the host's Python: `python -m pip install -U 'qnnbridge[genai]'`.",
        details={"genai": version},
    )


def unsupported_layout(folder: GenaiFolder, version: str, reason: str) -> GenerationUnsupported:
    return GenerationUnsupported(
        f"onnxruntime-genai {version} cannot run {folder.label}.",
        cause=f"The model has the layout {folder.layout!r}, and {reason}.",
        fix=f"Install onnxruntime-genai=={EVERY_LAYOUT} in the host's Python, which runs every layout; "
        "`qnnbridge versions` has the table.",
        details={"genai": version, "layout": folder.layout},
    )
