"""Sizes of free dimensions in a program written for onnxruntime: QNN accepts only nodes with fixed shapes.

The user gives sizes with `qnnbridge exec --dim` and ``--bucket``, which create buckets for sessions with these
dimensions. If the user chose QNN without sizes, a second session is created for the sizes of the first call and
runs all calls with these sizes. Calls with other sizes run in the first session, whose nodes with free dimensions
run on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._buckets import BucketArguments, make_arguments
from qnnbridge._buckets.plan import free_dimensions, name_axes
from qnnbridge._inference_session import from_recipe
from qnnbridge._session.create import identify, show_notices
from qnnbridge._supervision.host_process import deadline_after
from qnnbridge._supervision.retries import CallLimits
from qnnbridge._values.ort_value import OrtValue
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
    """Return buckets for the model's dimensions; ``None`` if the model has a free dimension for which no size was
    given.

    Calls are never split along a dimension with a single size; calls with other sizes run on the CPU.
    """
    model = identify(host, recipe, deadline_after(timeout))
    free = free_dimensions(model.inputs)
    known = {axis.symbol for axis in free} | {axis.place for axis in free}
    fitting = {name: size for name, size in sizes.items() if name in known}
    # The sizes of a compiled model are fixed in its context binary, even if its ONNX file has free dimensions.
    if model.model.compiled or not free:
        return None
    left = dict.fromkeys(axis.option for axis in free if not {axis.symbol, axis.place} & {*fitting})
    if left:
        text = f"{recipe.label}: sizes are given for {', '.join(sizes)}, but not for {', '.join(left)}."
        fix = "QNN needs a size for each free dimension: use qnnbridge exec --dim or --bucket."
        show_notices([Notice("once", f"{text} {fix}")])
        return None
    lists = {name: size for name, size in fitting.items() if not isinstance(size, int)}
    # `split` lists the dimensions along which a call may be split: only dimensions with a list of sizes.
    split = make_arguments(lists).split if lists else ()
    return make_arguments(fitting, split=split, overflow="cpu")


class SizesOfFirstCall:
    """Manage the second session for the sizes of the first call of a program's session. Thread-safe.

    The call that creates the second session holds the lock; other calls run in the first session meanwhile.
    """

    def __init__(self, inputs: Sequence[NodeInfo], make: Callable[[Seen], InferenceSession | None]) -> None:
        self._axes = free_dimensions(inputs)
        self._make = make
        self._making = renew_in_forks(Lock())
        self._seen: Seen | None = None
        self._session: InferenceSession | None = None
        self._warned = False

    def session_for(self, feed: Any, timeout: float | None) -> InferenceSession | None:
        """Return the second session if the feeds have its sizes. For the first complete feed, create the second
        session.

        A call with a timeout does not create the session, since compilation may take longer.
        """
        sizes = self._sizes(feed)
        if self._seen is None and sizes is not None and timeout is None and self._making.acquire(blocking=False):
            try:
                # Check again under the lock, because another call may have created the session before this call got
                # the lock.
                if self._seen is None:
                    # The result is None if fixed sizes do not help. Set `_seen` in any case, so that there is only
                    # one attempt.
                    made = self._make(sizes)
                    self._seen = sizes  # set before `_session`, because readers of `_session` compare `_seen`
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
        """Return the sizes in a feed; ``None`` for an incomplete or empty feed, for which the first session
        raises the error."""
        if not isinstance(feed, Mapping):  # the first session raises ONNX Runtime's error for such a feed
            return None
        found: Seen = {}
        for axis in self._axes:
            shape = _shape(feed.get(axis.input))
            # Fixing an axis to size 0 would create a model that computes nothing.
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
            f"{self._session._remote.recipe.label}: calls with {came} run the nodes with free dimensions on the "
            f"CPU, since the first call had other sizes. qnnbridge exec {options} compiles these sizes, too."
        )


def make_for_sizes(
    session: InferenceSession, recipe: SessionRecipe, timeout: float | None, sizes: Seen
) -> InferenceSession | None:
    """Return a session of the recipe with these sizes fixed. If fixed sizes do not help, log the reason and return
    ``None``.

    Args:
        session: the program's session, with free sizes.
    """
    remote, label = session._remote, recipe.label
    named = _named(remote.info.inputs, sizes)
    shown = ", ".join(f"{name}={size}" for name, size in named.items())
    recipe, _ = name_axes(recipe, remote.info.inputs, named)
    # The sizes of the first call take precedence over the program's overrides for the same names.
    spec = dataclasses.replace(
        recipe.spec, free_dimensions_by_name={**recipe.spec.free_dimensions_by_name, **named}
    )
    _log.info("%s: compiling the model for the sizes of the first call, %s", label, shown)
    try:
        creation = CallLimits(timeout, remote.retry)
        recipe = dataclasses.replace(recipe, spec=spec)
        fixed = from_recipe(recipe, remote.host, creation, timeout, warn=session._warn)
    except BridgeError as error:
        text = "%s keeps its free dimensions, because no session can be created for the sizes %s: %s"
        _log.warning(text, label, shown, error.message)
        return None
    before, after = session.placement, fixed.placement
    # Keep the session with fixed sizes only if QNN runs any nodes, and QNN runs more nodes or the CPU runs fewer
    # nodes than before.
    if not after.qnn_nodes or (after.qnn_nodes <= before.qnn_nodes and after.cpu_nodes >= before.cpu_nodes):
        fixed.close()
        # Use the warning level, because the earlier announcement that the first call fixes the sizes is also a
        # warning.
        text = "%s keeps its free dimensions, because fixing them to %s does not help: %s."
        _log.warning(text, label, shown, _share(fixed))
        return None
    show_notices([Notice("once", f"{label}: fixed to the sizes of its first call ({shown}), {_share(fixed)}.")])
    return fixed


def warn_of_share(session: InferenceSession, *, first_call_decides: bool) -> bool:
    """Return whether free dimensions keep nodes from running on QNN. If so, warn once per model."""
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
                f"{label}: {_share(session)}: QNN takes only fixed sizes, but these dimensions are free: "
                f"{', '.join(names)}. {todo}"
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
    """Return sizes by dimension name. Use input and axis if the name is missing or stands for several sizes."""
    # Inputs may use one name for different dimensions (Paddle uses '?' for all of them). Fixing that name would
    # fix all of them to one size, so such axes are identified by input and axis.
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
    """Return the shape of a value in a feed; empty if the value has no shape."""
    if isinstance(value, OrtValue):
        return tuple(value.shape()) if value.is_tensor() else ()
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return shape
    return np.shape(value) if isinstance(value, (list, tuple)) else ()
