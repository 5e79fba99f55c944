"""Arrays that applications give for inputs and outputs, or ask for: `empty_input`, `empty_output`, ``out=``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._fastpath.signatures import CallSignature
from qnnbridge._feed_rules import FeedRule, check_shape, make_rule
from qnnbridge._feeds import InputNode
from qnnbridge._option_fields import suggest
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from qnnbridge._host import Host

Array = np.ndarray[Any, np.dtype[Any]]
# For ``out=``: in the order of the outputs, or by name.
Out = Sequence["Array | None"] | Mapping[str, "Array | None"]


def empty(
    host: Host, name: str, shape: Sequence[int] | None, nodes: Iterable[InputNode], *, host_writes: bool
) -> Array:
    """An array in shared memory for this input or output; an ordinary one where there is none."""
    role = "output" if host_writes else "input"
    rules: dict[str, FeedRule] = {}
    for node in nodes:
        rules[node.name] = make_rule(node.name, node.type, tuple(node.shape or ()), role=role)
    rule = rules.get(name)
    if rule is None:
        raise InvalidArgument(
            f"{name!r} is no {role} of the model.", fix=f"There are {', '.join(rules)}.{suggest(str(name), rules)}"
        )
    if rule.dtype is None:
        raise errors.NotImplemented(
            f"An array for {name!r} cannot be made: it is {rule.declared}.",
            cause="Only dense tensors of types that numpy has can lie in shared memory.",
            fix="Feed it as you would otherwise.",
        )
    if shape is None:
        shape = rule.exact
    if shape is None:
        raise InvalidArgument(
            f"The model does not fix the shape of {name!r}.", fix=f"Give one: empty_{role}({name!r}, shape)."
        )
    if isinstance(shape, int):
        shape = (shape,)
    dims = tuple(int(dim) for dim in shape)
    check_shape(rule, dims)
    if host.sharing.why_no_memory is None and all(dims):
        try:
            return host.arrays.empty(dims, rule.dtype, host_writes=host_writes)
        except OSError as error:  # not now, or not so much
            host.sharing.last_error = str(error)
            host.sharing.arrays_refused += 1
    return np.empty(dims, rule.dtype)


def check_out(out: Out, names: Sequence[str], shape: CallSignature | None = None) -> list[Array | None]:
    """``out=`` as a list in the order of the outputs; held against what the outputs are, if that is known."""
    if shape is not None and out.__class__ is list and len(out) == len(shape.outputs) and _all_fit(out, shape):
        return out
    if out.__class__ is not list and isinstance(out, Mapping):
        unknown = [str(name) for name in out if name not in names]
        if unknown:
            raise InvalidArgument(
                f"out= names {', '.join(unknown)}, which is not asked for.",
                fix=f"The outputs are {', '.join(names)}.",
            )
        out = [out.get(name) for name in names]
    arrays = list(out)
    if len(arrays) != len(names):
        raise InvalidArgument(
            f"out= has {len(arrays)} arrays for {len(names)} outputs.", fix="Give one for each, or None."
        )
    for name, array in zip(names, arrays, strict=True):
        if array is not None and (not isinstance(array, np.ndarray) or not array.flags.writeable):
            raise InvalidArgument(f"What out= has for {name!r} is no array that can be written to.")
    if shape is not None:
        for tensor, array in zip(shape.outputs, arrays, strict=True):
            if array is None or (array.dtype is tensor.dtype and array.shape == tensor.shape):
                continue
            if array.dtype != tensor.dtype or array.shape != tensor.shape:
                raise InvalidArgument(
                    f"What out= has for {tensor.name!r} is {array.dtype} {array.shape}, the output is "
                    f"{tensor.dtype} {tensor.shape}.",
                    fix="Give an array of the output's type and shape, or None for this output.",
                )
    return arrays


def _all_fit(arrays: list[Any], shape: CallSignature) -> bool:
    """Whether nothing can be wrong with them: the usual case of every call with ``out=``."""
    for tensor, array in zip(shape.outputs, arrays):  # noqa: B905 - as many as there are
        if array.__class__ is not np.ndarray or array.dtype is not tensor.dtype or array.shape != tensor.shape:
            return False
        if not array.flags.writeable:
            return False
    return True
