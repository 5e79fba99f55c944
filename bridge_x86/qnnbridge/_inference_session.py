"""`InferenceSession`: the proxy with the interface of ``onnxruntime.InferenceSession``.

Names, argument order, defaults and error classes are ONNX Runtime's. Additions are keyword-only. A session with
``buckets=`` hands its calls to a `BucketedSession`; nothing else of `_buckets` is imported before that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._host import DAEMON, chosen_host
from qnnbridge._option_fields import wrong_type
from qnnbridge._providers import ProviderArgument, choose_fallback, normalize_providers
from qnnbridge._session import SessionRecipe, model_parts
from qnnbridge._session.create import choose_model
from qnnbridge._session.runs import NodeArg, RunArguments, check_call, coerce_session_options
from qnnbridge._session.session import CLOSE_TIMEOUT_S, BaseSession, with_providers
from qnnbridge._session_options import SessionOptions
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import Fallback, FixSpec, Placement, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._buckets import BucketArguments, Buckets, Cut, Overflow, Pad
    from qnnbridge._buckets.padding import PaddingReport
    from qnnbridge._buckets.session import BucketedSession
    from qnnbridge._buckets.variants import BucketStatus, Progress
    from qnnbridge._fastpath.call import Names
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import OnDeadline
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.shown import Fact


class InferenceSession(Shown, BaseSession):
    """A model, ready to run in the host process.

    Args:
        path_or_bytes: the model's file, or its bytes.
        sess_options: `SessionOptions`.
        providers: execution providers in order of preference, names or (name, options) pairs.
            Default: QNN alone.
        provider_options: options for each of `providers`, if those are names.
        host: the host process to use; default one that all sessions of this process share. "daemon" is the one
            that applications share (see `qnnbridge.connect`).
        fallback: "error" (default) refuses the session if a node would not run on QNN. "cpu" lets ONNX Runtime
            put such nodes on the CPU; listing ``CPUExecutionProvider`` behind QNN means the same. `placement`
            reports the result.
        timeout: seconds for the creation, and the default for calls. Default: none, since compiling can take
            minutes.
        retry: how often a call is repeated in a new host when the host dies under it.
        on_deadline: "kill" ends the host if the session is still being created at the deadline.
        cache: ``False`` compiles the model for this session alone; ``True`` keeps small models in the cache of
            compiled models, too. Default: larger models for QNN are kept there (see docs/cache.md). `cache` reports
            the result.
        verify: the first call, and a few later ones, are compared with the CPU, in the host. "warn" compares in the
            background and warns (`NumbersWarning`) if the numbers differ; "raise" compares before it returns the
            result, and raises `NumbersDiffer`; ``False`` does not. Default: what ``QNNBRIDGE_VERIFY`` says, else
            "warn". The result is cached for each combination of model, options, chip and version. `verified`
            reports it, with the number of calls that it rests on.
        fix: whether the session is made from a rewritten copy of the model, each rewrite proven on the CPU
            (`qnnbridge fix`). Default: the operators that QNN is known to compute wrong are rewritten; with
            `buckets` also what QNN refuses. ``True`` rewrites all that QNN may refuse or compute wrong; ``False``
            nothing. A map chooses: ``{"constants": {"sr": 16000}, "only": [...], "skip": [...]}``. `fixed` reports
            what was rewritten.
        buckets, pad, cut, split, overflow, chunk: sizes for free dimensions and what becomes of calls between them;
            see docs/buckets.md.
        enable_fallback, disabled_optimizers: as in ONNX Runtime; fallback behind the application's back stays
            off whatever `enable_fallback` says.

    Raises the errors of `qnnbridge.errors`; those that ONNX Runtime raised are also instances of its classes if
    the application has it imported.
    """

    _bucket_arguments: BucketArguments | None = None
    _bucketed: BucketedSession | None = None

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | Any = None,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        host: Host | Literal["daemon"] | None = None,
        fallback: Fallback | None = None,
        timeout: float | None = None,
        retry: int = 1,
        on_deadline: OnDeadline = "raise",
        cache: bool | None = None,
        verify: bool | Literal["off", "warn", "raise"] | None = None,
        fix: bool | Mapping[str, Any] | None = None,
        buckets: Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
        pad: Mapping[str, Any] | Any = None,
        cut: Mapping[str, Sequence[int | str | None]] | None = None,
        split: str | Sequence[str] | None = None,
        overflow: Fallback = "error",
        chunk: str | Mapping[str, int] | None = None,
        enable_fallback: int | bool = 0,
        disabled_optimizers: Sequence[str] | None = None,
    ) -> None:
        try:
            check_call(timeout, retry, on_deadline)
            self._bucket_arguments = bucket_arguments(buckets, pad, cut, split, overflow, chunk)
            if cache not in (None, True, False):
                raise OptionError(f"cache={cache!r} is not known.", fix="Give True, False or None.")
            mode = None
            if verify is not None:
                from qnnbridge._session.numbers_check import verify_mode

                mode = verify_mode(verify)
            host = chosen_host(host)
            options = coerce_session_options(sess_options, providers_given=providers is not None)
            parts = options.to_spec_parts()
            if providers is None and options.selection is not None:
                raise OptionError(
                    "These SessionOptions leave the choice of devices to a function.",
                    cause="The function is called by sessions of qnnbridge.ort, which has the devices.",
                    fix="Make the session with qnnbridge.ort.InferenceSession, or pass providers=.",
                )
            specs = normalize_providers(providers, provider_options) or parts.pop("providers", ())
            parts.pop("providers", None)
            path, data = model_parts(path_or_bytes, prepared=True)
            disabled = tuple(disabled_optimizers or ())
            if not all(isinstance(name, str) for name in disabled):
                raise wrong_type("disabled_optimizers", disabled, "the names of optimizers")
            spec = SessionSpec(
                model_path=path,
                providers=specs,
                fallback=choose_fallback(specs, fallback),
                fix=fix_spec(fix, buckets=buckets is not None),
                disabled_optimizers=disabled,
                **parts,
            )
        except BridgeError as error:
            raise as_onnxruntime(error) from None
        super().__init__(options, timeout)
        self._open(
            SessionRecipe(
                spec,
                data,
                tuple(options.initializer_values().values()),
                cache,
                verify=mode,
                functions=options.functions(),
                cancellation=options.load_cancellation,
            ),
            host,
            retry,
            on_deadline,
        )

    def _open(self, recipe: SessionRecipe, host: Host, retry: int, on_deadline: OnDeadline = "raise") -> None:
        recipe = choose_model(host, recipe, self._timeout)
        if self._bucket_arguments is None:
            super()._open(recipe, host, retry, on_deadline)
            return
        from qnnbridge._buckets.session import BucketedSession

        limits = (retry, self._timeout, on_deadline)
        made = BucketedSession(recipe, self._bucket_arguments, host, *limits, self._warn)
        self._bucketed, self._quick = made, False
        self._remote, self._overridable = made.first._remote, made.first._overridable
        self._inputs = [NodeArg(node) for node in made.inputs]
        self._outputs = [NodeArg(node) for node in made.outputs]
        self._output_names = made.output_names
        self._checker = made.checker

    # --- running ---

    def _run_slow_path(self, names: Names, input_feed: Mapping[str, Any], how: RunArguments) -> list[Any]:
        if self._bucketed is None:
            return super()._run_slow_path(names, input_feed, how)
        return self._bucketed.run(names, input_feed, how, wire=False)

    def _run_values(self, names: Names, input_feed: Mapping[str, Any], how: RunArguments) -> list[Any]:
        if self._bucketed is None:
            return super()._run_values(names, input_feed, how)
        return self._bucketed.run(names, input_feed, how, wire=True)

    # --- buckets ---

    @property
    def buckets(self) -> BucketStatus | None:
        """Variants and results of the calls; ``None`` for a session without buckets."""
        return None if self._bucketed is None else self._bucketed.status()

    def warm(
        self,
        sizes: Sequence[Mapping[str, int]] | None = None,
        *,
        workers: int = 1,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> BucketStatus:
        """Make variants ahead of time, so that no call waits for a compilation.

        Args:
            sizes: the variants to make; default all. ``[{"seq": 16}, {"seq": 32}]``.
            workers: number of variants made at a time. Each one for the cache is compiled in its own process.
            timeout: seconds for all of it; default that of the session.
            on_progress: called with the number done, the number of all, and the sizes of the next one.
        """
        if self._bucketed is None:
            raise _no_buckets("warm()")
        return self._bucketed.warm(sizes, workers, timeout, on_progress)

    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        tolerance: float | None = None,
        timeout: float | None = None,
    ) -> PaddingReport:
        """Check whether padding changes the results: the model runs on the CPU with the inputs as they are and
        padded, and the results are compared after cutting.

        Args:
            feeds: inputs as for `run`, or a list of such, smaller than their buckets.
            tolerance: allowed difference, relative to the largest result of the output; default 0.001.
        """
        if self._bucketed is None:
            raise _no_buckets("verify_padding()")
        return self._bucketed.verify_padding(feeds, tolerance, timeout)

    # --- facts ---

    @property
    def placement(self) -> Placement:
        """Number of nodes on QNN and on the CPU, and why. With buckets, of the variant with the most
        nodes on the CPU."""
        return self._remote.info.placement if self._bucketed is None else self._bucketed.placement()

    @property
    def generation(self) -> int:
        """Number of host processes that this session has used."""
        return self._remote.generation if self._bucketed is None else self._bucketed.generation()

    @property
    def verified(self) -> NumbersReport:
        """Whether the session's results agree with the CPU's, as far as known. With buckets, of the worst
        variant."""
        return super().verified if self._bucketed is None else self._bucketed.verified()

    def verify(self, input_feed: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> NumbersReport:
        """Run the model here and on the CPU, and compare the outputs. The report is kept for `verified`.

        The CPU runs in a process of its own in the host. Different numbers raise no error here. With buckets the
        result of `run`, padded, split or in windows, is compared with what the CPU computes for the inputs as they
        are; without inputs the smallest variant is compared.

        Args:
            input_feed: inputs as for `run`; default made-up values, which may be untypical for the model.
            timeout: seconds; default that of the session.
        """
        if self._bucketed is None:
            return super().verify(input_feed, timeout=timeout)
        return self._bucketed.verify(input_feed, timeout)

    def _shown_name(self) -> str:
        remote = getattr(self, "_remote", None)
        return "" if remote is None else remote.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        """Yield model, placement, cache and numbers, as far as they are known here."""
        remote = getattr(self, "_remote", None)
        if remote is None:  # it could not be made, or is being made
            yield "not open", ""
            return
        if remote.closed:
            yield "closed", ""
        yield from self.placement._shown_facts()
        if self._bucketed is not None:
            yield self._bucketed.variants_text(), ""
        yield from self.cache._shown_facts()
        verified = self.verified
        if verified.state != "off":
            yield from verified._shown_facts()
        yield from more(self.fixed)

    # --- settings and life ---

    def set_providers(
        self,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Create the session again with other providers."""
        old = self._bucketed
        if old is None:
            super().set_providers(providers, provider_options)
            return
        self._open(with_providers(old.recipe, providers, provider_options), self.host, self._remote.retry)
        old.close()

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change settings of the execution provider between runs (``ep.dynamic.workload_type``)."""
        if self._bucketed is None:
            super().set_ep_dynamic_options(options)
        else:
            self._bucketed.set_ep_dynamic_options(options)

    def end_profiling(self) -> str:
        """Stop profiling; the path of the result file, empty if the session has no profile.

        Raises `StateLost` if the profile began in a host that has been replaced since.
        """
        return super().end_profiling() if self._bucketed is None else self._bucketed.end_profiling()

    def close(self) -> None:
        """Release the session in the host. Idempotent."""
        if self._bucketed is None:
            super().close()
        else:
            self._background.wait(CLOSE_TIMEOUT_S)
            self._bucketed.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the session's arguments; unpickling makes the session again in that process' own host."""
        host = DAEMON if self._remote.host.is_daemon else None
        recipe = self._remote.recipe if self._bucketed is None else self._bucketed.recipe
        return _remake, (recipe.forget_model(), self._remote.retry, self._timeout, host, self._bucket_arguments)


def _remake(
    recipe: SessionRecipe,
    retry: int,
    timeout: float | None,
    host: Literal["daemon"] | None,
    buckets: BucketArguments | None,
) -> InferenceSession:
    session = InferenceSession.__new__(InferenceSession)
    BaseSession.__init__(session, SessionOptions.from_spec(recipe.spec), timeout)
    session._bucket_arguments = buckets
    session._open(recipe, chosen_host(host), retry)
    return session


def bucket_arguments(
    buckets: Buckets | None,
    pad: Pad | Any,
    cut: Cut | None,
    split: str | Sequence[str] | None,
    overflow: Overflow,
    chunk: str | Mapping[str, int] | None = None,
) -> BucketArguments | None:
    """``None`` without buckets. Raises `OptionError`."""
    if buckets is None:
        given = {
            "pad": pad,
            "cut": cut,
            "split": split,
            "overflow": None if overflow == "error" else overflow,
            "chunk": chunk,
        }
        for name, value in given.items():
            if value is not None:
                raise OptionError(
                    f"{name}= is for a session with buckets.",
                    fix="Give the sizes, too: buckets={'seq': [16, 32, 64, 128]}.",
                )
        return None
    from qnnbridge._buckets import make_arguments

    return make_arguments(buckets, pad, cut, split, overflow, chunk)


def fix_spec(fix: object, *, buckets: bool = False) -> FixSpec | None:
    """What `fix=` says. Raises `OptionError`."""
    cause = None
    if fix is None:
        return FixSpec(when="refused") if buckets else None
    if isinstance(fix, bool):
        return FixSpec() if fix else FixSpec(when="never")
    if isinstance(fix, Mapping):
        unknown = [name for name in fix if name not in ("constants", "only", "skip")]
        constants, only, skip = fix.get("constants") or {}, fix.get("only") or (), fix.get("skip") or ()
        good = not unknown and not isinstance(only, str) and not isinstance(skip, str)
        if good and isinstance(constants, Mapping):
            try:
                return FixSpec(constants, tuple(only), tuple(skip))
            except (TypeError, ValueError) as error:
                cause = f"{error}."
    raise OptionError(
        f"fix={fix!r:.100} is not known.",
        cause=cause,
        fix="Give True, False, or a map: fix={'constants': {'sr': 16000, 'size': [480, 640]}, 'skip': ['masks']}.",
    )


def _no_buckets(what: str) -> OptionError:
    return OptionError(
        f"{what} is for a session with buckets.",
        fix="Create it with them: InferenceSession(model, buckets={'seq': [16, 32, 64, 128]}, pad=0).",
    )
