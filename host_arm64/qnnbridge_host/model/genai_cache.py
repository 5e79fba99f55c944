"""The KV cache of a model for generation: type of its numbers, and memory that one generation takes. Pure."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_host.model.genai_folder import GenaiFolder
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.specs import NodeInfo

# past_key_values.0.key, past_keys_0, past_value_0_in, key_cache_0
_NAME: Final = re.compile(r"past.*(?:key|value)|(?:key|value)s?_cache", re.IGNORECASE)
_BYTES: Final = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "uint8": 1, "int8": 1}


@dataclasses.dataclass(frozen=True, slots=True)
class KvCache:
    """types: of its tensors, as ONNX Runtime names them. tensors: how many. size_bytes: of one generation with a
    full context."""

    types: tuple[str, ...]
    tensors: int
    size_bytes: int


def kv_cache(folder: GenaiFolder) -> KvCache | None:
    """The cache of the stages for single tokens; ``None`` if there is none. Raises what `scan_model` raises."""
    found = list(_inputs(folder))
    if not found:
        return None
    sizes = [_size(one, folder.context_length) for one in found]
    return KvCache(tuple(sorted({_element(one) for one in found})), len(found), sum(sizes))


def _inputs(folder: GenaiFolder) -> Iterator[NodeInfo]:
    for stage in folder.stages:
        if stage.runs_on != "prompt" and os.path.isfile(stage.path):  # else it came as bytes
            for one in scan_model(stage.path, count_nodes=False).inputs:
                if _NAME.search(one.name) and one.shape is not None and len(one.shape) > 2:
                    yield one


def _element(one: NodeInfo) -> str:
    return one.type.removeprefix("tensor(").removesuffix(")")


def _size(one: NodeInfo, context: int) -> int:
    """A free first dimension is the batch, any other one the context."""
    size = _BYTES.get(_element(one), 1)
    for axis, dim in enumerate(one.shape or ()):
        size *= dim if isinstance(dim, int) and dim > 0 else context if axis else 1
    return size
