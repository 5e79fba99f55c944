"""A model's folder with another config: its QNN stages do not map their weights (`cache/npu_memory.py`).

genai's calls reach the providers of the decoder, not those of the stages of a pipeline, and an overlay adds stages
to the old ones. So genai reads a changed copy of the config, in a folder of its own with a link to the model's. Any
thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from qnnbridge_host.cache.npu_memory import UNMAPPED
from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.model.genai_folder import CONFIG, QNN_NAMES, GenaiFolder, changed, read_config
from qnnbridge_protocol.errors import GenerationError

_LINK: Final = "model"
# Tokenizers and templates are smaller; what is larger has weights, and is reached by the link.
_MOST_BYTES: Final = 64 * 2**20


def may_change(folder: GenaiFolder) -> bool:
    """Whether a stage asks for QNN, and its config has not decided it."""
    return any(stage.qnn_options is not None and UNMAPPED not in stage.qnn_options for stage in folder.stages)


def without_mapping(folder: GenaiFolder) -> GenaiFolder:
    """The facts of the model as the copy of its config has them."""
    stages = (
        dataclasses.replace(
            stage, providers=tuple((name, _options(name, given)) for name, given in stage.providers)
        )
        for stage in folder.stages
    )
    return dataclasses.replace(folder, stages=tuple(stages))


@contextlib.contextmanager
def unmapped_copy(path: str, steps: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Sequence[Any]]]]:
    """The folder for genai, while the model is in use, and the steps that fit it. Raises `GenerationError`."""
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
                    if _options(name, options) != (options or {}):
                        fitting.append(("set_provider_option", name, UNMAPPED, "1"))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise GenerationError(f"A changed copy of {CONFIG} cannot be used: {error}.") from None
        yield copy, fitting


def _options(name: str, given: dict[str, str] | None) -> dict[str, str]:
    return {**({UNMAPPED: "1"} if name.lower() in QNN_NAMES else {}), **(given or {})}


def _adapt(node: Any) -> None:
    """Files are reached by the link, and QNN does not map."""
    for one in node if isinstance(node, list) else ():
        _adapt(one)
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "filename" and isinstance(value, str):
            node[key] = f"{_LINK}/{value}"
        elif key == "provider_options":
            node[key] = [{name: _options(name, given) for name, given in one.items()} for one in value or []]
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
        import _winapi  # a link there needs a right that a junction does not

        _winapi.CreateJunction(target, link)
    else:
        os.symlink(target, link)
