"""`Runner`: the interface of the objects that run the calls of an `InferenceSession`.

`_session.remote_runner.RemoteRunner` uses one session in the host, `_buckets.session.BucketedRunner` uses one
session for each bucket. `InferenceSession` does not distinguish the two classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qnnbridge._buckets.padding import PaddingReport
    from qnnbridge._buckets.variants import BucketStatus, Progress
    from qnnbridge._fastpath.call import Names, OutputPlacement
    from qnnbridge._session import SessionRecipe
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._session.runs import RunOptions
    from qnnbridge._supervision.retries import CallLimits
    from qnnbridge._values.feeds import FeedChecker
    from qnnbridge._values.ort_value import OrtValue
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.specs import NodeInfo, Placement


class Runner(Protocol):
    """Run the calls of an `InferenceSession`. Errors have qnnbridge's classes, not onnxruntime's.

    inputs, outputs, overridable: inputs, outputs and overridable initializers of the model. checker: checker for
    the inputs of calls. remote: the session in the host; with buckets, the first variant's session.
    """

    remote: RemoteSession
    output_names: list[str]
    checker: FeedChecker

    @property
    def inputs(self) -> Sequence[NodeInfo]: ...
    @property
    def outputs(self) -> Sequence[NodeInfo]: ...
    @property
    def overridable(self) -> Sequence[NodeInfo]: ...
    @property
    def recipe(self) -> SessionRecipe: ...
    @property
    def generation(self) -> int: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def verified(self) -> NumbersReport: ...

    def announce(self, session: object) -> None:
        """Pass a new session to the functions in `remote_runner.watchers`, which `qnnbridge.testing` uses."""

    def run(
        self,
        names: Names,
        feed: Mapping[str, Any],
        run_options: RunOptions | Any,
        limits: CallLimits,
        memory: OutputPlacement | None = None,
    ) -> list[Any]:
        """Run the model. Return the outputs as numpy arrays or other Python objects for the application."""
        ...

    def run_values(
        self, names: Names, feed: Mapping[str, Any], run_options: RunOptions | Any, limits: CallLimits
    ) -> list[Any]:
        """Run the model. Return the outputs as the host sends them (`Typed` objects for types unknown to numpy)."""
        ...

    def run_bound(
        self,
        names: tuple[str, ...],
        inputs: Mapping[str, OrtValue],
        outputs: Sequence[OrtValue | None],
        run_options: RunOptions | Any,
        limits: CallLimits,
    ) -> list[Any]:
        """Run the model with bound values; see `InferenceSession.run_bound`."""
        ...

    def verify(self, input_feed: Mapping[str, Any] | None, timeout: float | None) -> NumbersReport: ...
    def status(self) -> BucketStatus | None: ...
    def warm(
        self,
        sizes: Sequence[Mapping[str, int]] | None,
        workers: int,
        timeout: float | None,
        on_progress: Progress | None,
    ) -> BucketStatus: ...
    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        tolerance: float | None,
        timeout: float | None,
    ) -> PaddingReport: ...
    def variants_text(self) -> str: ...
    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None: ...
    def end_profiling(self) -> str: ...
    def close(self) -> None: ...
