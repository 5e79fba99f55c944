"""How `InferenceSession` gets to buckets: what it takes, and what a session without them answers.

Nothing else of this package is imported before a session asks for buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from qnnbridge_protocol.errors import OptionError

if TYPE_CHECKING:
    from qnnbridge._buckets.arguments import BucketArguments, Buckets, Cut, Overflow, Pad
    from qnnbridge._buckets.variants import BucketStatus, Progress
    from qnnbridge._buckets.verifying import PaddingReport

S = TypeVar("S", bound="Bucketable")

__all__ = ["Bucketable", "bucket_arguments"]


class Bucketable:
    """Base of `InferenceSession`. ``buckets=`` makes a `BucketedSession`."""

    def __new__(cls: type[S], *arguments: Any, **keywords: Any) -> S:
        if keywords.get("buckets") is None:
            return object.__new__(cls)
        from qnnbridge._buckets.session import with_buckets

        made: S = object.__new__(with_buckets(cls))
        return made

    @property
    def buckets(self) -> BucketStatus | None:
        """Variants and what became of the calls; ``None`` for a session without buckets."""
        return None

    def warm(
        self,
        sizes: Sequence[Mapping[str, int]] | None = None,
        *,
        workers: int = 1,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> BucketStatus:
        """Make variants ahead, so that no call has to wait for a compilation.

        Args:
            sizes: which; default all. ``[{"seq": 16}, {"seq": 32}]``.
            workers: how many at a time. Those for the cache are compiled in processes of their own.
            timeout: seconds for all of it; default that of the session.
            on_progress: called with how many are done, how many there are, and the sizes of the next one.
        """
        raise _no_buckets("warm()")

    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        tolerance: float | None = None,
        timeout: float | None = None,
    ) -> PaddingReport:
        """Whether padding changes what this model answers: it is run on the CPU with the inputs as they are and
        padded, and the results are compared after cutting.

        Args:
            feeds: inputs as for `run`, or a list of such, smaller than their buckets.
            tolerance: how far results may differ, relative to the largest one of the output; default 0.001.
        """
        raise _no_buckets("verify_padding()")


def bucket_arguments(
    buckets: Buckets | None,
    pad: Pad | Any,
    cut: Cut | None,
    split: str | Sequence[str] | None,
    overflow: Overflow,
) -> BucketArguments | None:
    """``None`` without buckets. Raises `OptionError`."""
    if buckets is None:
        given = {"pad": pad, "cut": cut, "split": split, "overflow": None if overflow == "error" else overflow}
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"{name}= is for a session with buckets.",
                    fix="Give the sizes, too: buckets={'seq': [16, 32, 64, 128]}.",
                )
        return None
    from qnnbridge._buckets.arguments import make_arguments

    return make_arguments(buckets, pad, cut, split, overflow)


def _no_buckets(what: str) -> OptionError:
    return OptionError(
        f"{what} is for a session with buckets.",
        fix="Create it with them: InferenceSession(model, buckets={'seq': [16, 32, 64, 128]}, pad=0).",
    )
