"""Write `docs/genai-api.md`: every public name of onnxruntime_genai and its state in `qnnbridge.genai`.

``python -m tests.dropin.genai_table`` writes the page; a test compares it with the installed onnxruntime-genai.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qnnbridge import genai
from qnnbridge.genai import UNAVAILABLE

PAGE = Path(__file__).parents[2] / "docs" / "genai-api.md"

# Names that raise an error with the reason.
NOT_POSSIBLE = {
    "Config.from_package_ep": "give the folder of the variant to Config",
    "GeneratorParams.set_speculative_options": "no speculative decoding",
    "Model.create_streaming_processor": "no streaming speech recognition; qnnbridge.speech takes whole recordings",
    "Tensor.data": "a pointer into another process; use as_numpy()",
}
# Absent: an AttributeError, as in releases of genai that lack the name.
ABSENT = {
    "Generator.get_speculative_stats": "no speculative decoding",
    "Generator.set_hidden_states": "only for drafts of speculative decoding",
    "Generator.snapshot_state": "rewind_to works without it",
    "Tokenizer.bor_token_id": "marks of reasoning; use to_token_id instead",
    "Tokenizer.bot_token_id": "marks of tools; use to_token_id instead",
    "Tokenizer.eor_token_id": "marks of reasoning; use to_token_id instead",
    "Tokenizer.eot_token_id": "marks of tools; use to_token_id instead",
}
# Names that work, but not in every respect as in one process.
DIFFERS = {
    "Audios.open": "the application reads the files",
    "Audios.open_bytes": "accepts any buffer",
    "Generator.append_tokens": "works any number of times with every layout",
    "Generator.generate_next_token": "the host may have generated the token already",
    "Generator.get_input": "returns a copy",
    "Generator.get_logits": "returns a copy; from then on, a step generates one token",
    "Generator.get_output": "returns a copy",
    "Generator.get_sequence": "excludes pads",
    "Generator.rewind_to": "also works on pipelines",
    "Generator.set_inputs": "works once, for the first prompt of a generator",
    "Generator.set_runtime_option": "terminate_session raises Cancelled in the call that it ends",
    "Generator.token_count": "excludes pads",
    "Images.open": "the application reads the files; PNG and JPEG on every system",
    "Images.open_bytes": "accepts any buffer; PNG and JPEG on every system",
    "Model": "also accepts host=, fallback= and timeout=",
    "Model.device_type": "see Model.placement for the stages",
    "MultiModalProcessor": "also accepts timeout=",
    "NamedTensors": "tensors of a processor stay in the host; reading a tensor returns a copy",
    "Tensor": "contains an array in this process",
    "Tensor.type": "returns a number",
    "disable_telemetry_events": "does nothing: the host sends no telemetry events",
    "enable_telemetry_events": "does nothing: the host sends no telemetry events",
    "get_current_gpu_device_id": "returns 0",
    "is_cuda_available": "returns False",
    "is_dml_available": "returns False",
    "is_openvino_available": "returns False",
    "is_qnn_available": "returns True; loading a model raises an error if QNN cannot be used",
    "is_webgpu_available": "returns False",
    "register_execution_provider_library": "does nothing for QNN; refuses other libraries",
    "set_current_gpu_device_id": "does nothing",
    "set_log_callback": "does nothing; the host's logger receives the lines",
    "set_log_options": "does nothing",
    "unregister_execution_provider_library": "does nothing",
}


def public_names(module: Any) -> Iterator[str]:
    """Return the names of the module, and ``Class.member`` for its classes, sorted."""
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        yield name
        if isinstance(value, type):
            # The values of an enumeration are instances of it.
            members = (m for m in dir(value) if not m.startswith("_") and not isinstance(getattr(value, m), value))
            yield from (f"{name}.{member}" for member in sorted(members))


def state(name: str) -> tuple[str, str]:
    """Return the state and the remark. Raises `LookupError` for a name without a decision."""
    first, _, member = name.partition(".")
    if first in UNAVAILABLE:
        return "not possible", f"qnnbridge.genai {UNAVAILABLE[first]}"
    if name in NOT_POSSIBLE:
        return "not possible", NOT_POSSIBLE[name]
    if name in ABSENT:
        return "absent", ABSENT[name]
    owner: Any = getattr(genai, first)
    if member and not hasattr(owner, member):
        raise LookupError(f"qnnbridge.genai has no {name}: add it, or a row to this table")
    return ("differs", DIFFERS[name]) if name in DIFFERS else ("same", "")


def page(og: Any) -> str:
    rows = [(name, *state(name)) for name in public_names(og)]
    count = {word: sum(row[1] == word for row in rows) for word in ("same", "differs", "not possible", "absent")}
    lines = [
        "# The interface of `onnxruntime_genai` in `qnnbridge.genai`",
        "",
        f"This page lists every public name of the module `onnxruntime_genai` {og.__version__} and of its classes.",
        "`python -m tests.dropin.genai_table` writes it; a test fails if onnxruntime-genai has a name that is missing here.",
        "",
        f"{count['same']} names are the same, {count['differs']} differ as described, {count['not possible']} are refused "
        "with an error that contains the reason,",
        f"and {count['absent']} are absent.",
        "",
        "| name | state | remark |",
        "|---|---|---|",
        *(f"| `{name}` | {word} | {remark} |" for name, word, remark in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import onnxruntime_genai

    PAGE.write_text(page(onnxruntime_genai), "utf-8")
