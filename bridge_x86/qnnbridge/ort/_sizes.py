"""Sizes of free dimensions, in a program written for onnxruntime: QNN takes only nodes whose sizes are all fixed.

`qnnbridge exec --dim` and ``--bucket`` give sizes; a session that has such dimensions gets buckets of them. Where
the user chose QNN and gave none, the first call decides: a second session is made for its sizes, and calls of these
sizes go there. Calls of other sizes run in the first session, whose free nodes are on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._buckets import BucketArguments, make_arguments
from qnnbridge._buckets.plan import free_dimensions, name_axes
from qnnbridge._inference_session import from_recipe
from qnnbridge._ort_value import OrtValue
from qnnbridge._session.create import identify, show_notices
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._supervision.retries import CallLimits
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.model_records import Notice
from qnnbridge_protocol.specs import AFTER_OPTIMISATION, NO_OPERATOR
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._inference_session import InferenceSession
    from qnnbridge._session import SessionRecipe
    from qnnbridge_protocol.specs import NodeInfo

_log = log_of("qnnbridge.ort")

# Sizes of every free axis in the feeds of a call, by (input, axis).
Seen = dict[tuple[str, int], int]


def arguments_for(
    sizes: Mapping[str, int | list[int]], recipe: SessionRecipe, host: Host, timeout: float | None
) -> BucketArguments | None:
    """Buckets of the dimensions of the model; ``None`` if it has others that are free, too.

    A dimension with one size is never done in parts: another size runs on the CPU.
    """
    model = identify(host, recipe, deadline_after(timeout))
    free = free_dimensions(model.inputs)
    known = {axis.symbol for axis in free} | {axis.place for axis in free}
    fitting = {name: size for name, size in sizes.items() if name in known}
    # A compiled model has its sizes in the context binary, whatever the ONNX file says of them.
    if model.model.compiled or not free:
        return None
    left = dict.fromkeys(axis.option for axis in free if not {axis.symbol, axis.place} & {*fitting})
    if left:
        text = (
            f"{recipe.label}: sizes are given for {', '.join(sizes)}, and not for {', '.join(left)}, free as well."
        )
        show_notices([Notice("once", f"{text} QNN needs all of them: qnnbridge exec --dim, --bucket.")])
        return None
    lists = {name: size for name, size in fitting.items() if not isinstance(size, int)}
    # Only dimensions with a list of sizes are asked: `split` names those along which a call may be cut.
    split = make_arguments(lists).split if lists else ()
    return make_arguments(fitting, split=split, overflow="cpu")


class SizesOfFirstCall:
    """The second session of a program's session. Any thread.

    The lock is held by the one call that makes it; others run in the first session meanwhile.
    """

    def __init__(self, inputs: Sequence[NodeInfo], make: Callable[[Seen], InferenceSession | None]) -> None:
        self._axes = free_dimensions(inputs)
        self._make = make
        self._making = renew_in_forks(Lock())
        self._seen: Seen | None = None
        self._session: InferenceSession | None = None
        self._warned = False

    def session_for(self, feed: Any, timeout: float | None) -> InferenceSession | None:
        """The second session, if the feeds have its sizes; the first complete call makes it.

        A call with a deadline of its own does not wait for a compilation.
        """
        sizes = self._sizes(feed)
        if self._seen is None and sizes is not None and timeout is None and self._making.acquire(blocking=False):
            try:
                # Asked again with the lock: another call may have finished between the test and the lock.
                if self._seen is None:
                    # None if it did not help. `_seen` is set all the same, so the compilation is tried once.
                    made = self._make(sizes)
                    self._seen = sizes  # before the session, which a reader compares it for
                    self._session = made
            finally:
                self._making.release()
        if self._session is None or sizes == self._seen:
            return self._session
        if sizes is not None and not self._warned:
            self._warned = True
            _log.warning("%s", self._other(sizes))
        return None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _sizes(self, feed: Any) -> Seen | None:
        """``None`` for feeds that are not complete, or empty. The first session says what is wrong with them."""
        if not isinstance(feed, Mapping):  # the first session raises ONNX Runtime's error for it
            return None
        found: Seen = {}
        for axis in self._axes:
            shape = _shape(feed.get(axis.input))
            # An axis of size 0 in the first call would fix a model that computes nothing.
            if len(shape) <= axis.axis or not shape[axis.axis]:
                return None
            found[axis.input, axis.axis] = shape[axis.axis]
        return found

    def _other(self, sizes: Seen) -> str:
        assert self._session is not None
        assert self._seen is not None
        names = {(axis.input, axis.axis): axis.option for axis in self._axes}
        both: dict[str, set[int]] = {}
        for place, size in sizes.items():
            both.setdefault(names[place], set()).update((self._seen[place], size))
        options = " ".join(
            f"--{'bucket' if len(two) > 1 else 'dim'} {name}={','.join(map(str, sorted(two)))}"
            for name, two in both.items()
        )
        other = {names[place]: size for place, size in sizes.items() if size != self._seen[place]}
        came = ", ".join(f"{name}={size}" for name, size in other.items())
        return (
            f"{self._session._remote.recipe.label}: calls with {came} run with their free nodes on the CPU, since "
            f"the first call had other sizes. qnnbridge exec {options} compiles these sizes, too."
        )


def make_for_sizes(
    session: InferenceSession, recipe: SessionRecipe, timeout: float | None, sizes: Seen
) -> InferenceSession | None:
    """Return a session of the recipe with these sizes fixed; ``None``, and a line in the log, if it does not help.

    session: the one of the program, with free sizes.
    """
    remote, label = session._remote, recipe.label
    named = _named(remote.info.inputs, sizes)
    shown = ", ".join(f"{name}={size}" for name, size in named.items())
    recipe, _ = name_axes(recipe, remote.info.inputs, named)
    # The sizes of the first call win over those that the program has set for the same names.
    spec = dataclasses.replace(
        recipe.spec, free_dimensions_by_name={**recipe.spec.free_dimensions_by_name, **named}
    )
    _log.info("%s: compiling it for the sizes of the first call, %s", label, shown)
    try:
        creation = CallLimits(timeout, remote.retry)
        recipe = dataclasses.replace(recipe, spec=spec)
        fixed = from_recipe(recipe, remote.host, creation, timeout, warn=session._warn)
    except BridgeError as error:
        _log.warning("%s runs as it is: with %s fixed it fails: %s", label, shown, error.message)
        return None
    before, after = session.placement, fixed.placement
    # Fixed sizes let ONNX Runtime fold nodes, so fewer on the CPU is no gain by itself.
    if not after.qnn_nodes or (after.qnn_nodes <= before.qnn_nodes and after.cpu_nodes >= before.cpu_nodes):
        fixed.close()
        # A warning, like the announcement that the first call fixes the sizes.
        _log.warning("%s runs as it is: with %s fixed, %s too.", label, shown, _share(fixed))
        return None
    show_notices([Notice("once", f"{label}: fixed to the sizes of its first call ({shown}), {_share(fixed)}.")])
    return fixed


def warn_of_share(session: InferenceSession, *, first_call_decides: bool) -> bool:
    """Tell, once a model, how much of it is on QNN where free dimensions keep the rest from it. Whether they do."""
    placement, inputs = session.placement, session._remote.info.inputs
    names = list(dict.fromkeys(axis.option for axis in free_dimensions(inputs)))
    helps = not (placement.cause or "").startswith(NO_OPERATOR)
    if not names or not helps or not placement.cpu_nodes or not placement.known:
        return False
    options = " ".join(f"--dim {name}=SIZE" for name in names)
    todo = "The first call fixes them. " if first_call_decides else ""
    label = session._remote.recipe.label
    show_notices(
        [
            Notice(
                "once",
                f"{label}: {_share(session)}: QNN takes fixed sizes only, and free are {', '.join(names)}. {todo}"
                f"To fix them from the start: qnnbridge exec {options}, or --bucket NAME=SIZES.",
            )
        ]
    )
    return True


def _share(session: InferenceSession) -> str:
    placement = session.placement
    total = placement.qnn_nodes + placement.cpu_nodes
    return f"{placement.qnn_nodes} of {total} nodes {AFTER_OPTIMISATION} run on QNN"


def _named(inputs: Sequence[NodeInfo], sizes: Seen) -> dict[str, int]:
    """By the names of the dimensions; by input and axis where there is none, or it had several sizes."""
    # Inputs may use one name for dimensions that differ (Paddle calls all of them '?'). Fixing that name would
    # fix all of them to one size, so such axes go by their place.
    of_name: dict[str, set[int]] = {}
    for axis in free_dimensions(inputs):
        if axis.symbol is not None:
            of_name.setdefault(axis.symbol, set()).add(sizes[axis.input, axis.axis])
    return {
        axis.symbol if axis.symbol is not None and len(of_name[axis.symbol]) == 1 else axis.place: sizes[
            axis.input, axis.axis
        ]
        for axis in free_dimensions(inputs)
    }


def _shape(value: Any) -> tuple[int, ...]:
    """Of a value in a feed; empty for what has none."""
    if isinstance(value, OrtValue):
        return tuple(value.shape()) if value.is_tensor() else ()
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return shape
    return np.shape(value) if isinstance(value, (list, tuple)) else ()
