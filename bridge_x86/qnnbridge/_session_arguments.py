"""Convert the arguments of `InferenceSession` to records: the session's recipe, its rewrites and its buckets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._options.fields import wrong_type
from qnnbridge._options.providers import ProviderArgument, choose_fallback, normalize_providers
from qnnbridge._session import SessionRecipe, model_parts
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import Fallback, FixSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._buckets import BucketArguments, Buckets, Cut, Overflow, Pad
    from qnnbridge._session_options import SessionOptions


def read_recipe(
    path_or_bytes: str | os.PathLike[str] | bytes,
    options: SessionOptions,
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
    *,
    fallback: Fallback | None,
    cache: bool | None,
    verify: bool | Literal["off", "warn", "raise"] | None,
    fix: FixSpec | None,
    disabled_optimizers: Sequence[str] | None,
) -> SessionRecipe:
    """Return the recipe of the session. Raise `OptionError` for an invalid argument."""
    if cache not in (None, True, False):
        raise OptionError(f"cache={cache!r} is not known.", fix="Give True, False or None.")
    mode = None
    if verify is not None:
        from qnnbridge._session.numbers_check import verify_mode

        mode = verify_mode(verify)
    parts = options.to_spec_parts()
    if providers is None and options.selection is not None:
        raise OptionError(
            "These SessionOptions contain a function that chooses devices.",
            cause="Only sessions of qnnbridge.ort call the function, because only that module has devices.",
            fix="Create the session with qnnbridge.ort.InferenceSession, or pass providers=.",
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
        fix=fix,
        disabled_optimizers=disabled,
        **parts,
    )
    return SessionRecipe(
        spec,
        data,
        tuple(options.initializer_values().values()),
        cache,
        verify=mode,
        functions=options.functions(),
        cancellation=options.load_cancellation,
    )


def with_providers(
    recipe: SessionRecipe,
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> SessionRecipe:
    """Return the recipe with other providers. If the model's file has changed, the new session reads the changed
    file."""
    specs = normalize_providers(providers, provider_options)
    recipe = recipe.forget_model()
    spec = dataclasses.replace(recipe.spec, providers=specs, fallback=choose_fallback(specs, None))
    return dataclasses.replace(recipe, spec=spec)


def bucket_arguments(
    buckets: Buckets | None,
    pad: Pad | Any,
    cut: Cut | None,
    split: str | Sequence[str] | None,
    overflow: Overflow,
    chunk: str | Mapping[str, int] | None = None,
) -> BucketArguments | None:
    """Return the arguments of a session with buckets; ``None`` for other sessions. Raise `OptionError` for invalid
    arguments."""
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
                    f"{name}= requires buckets=.",
                    fix="Also pass the sizes: buckets={'seq': [16, 32, 64, 128]}.",
                )
        return None
    from qnnbridge._buckets import make_arguments

    return make_arguments(buckets, pad, cut, split, overflow, chunk)


def fix_spec(fix: object, *, buckets: bool = False) -> FixSpec | None:
    """Convert `fix=` to the record of requested rewrites. Raise `OptionError` for an invalid value."""
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
