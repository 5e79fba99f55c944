"""Makes a `CompileJob` from what an application or a command says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._compiling.job import CompileJob, HostSettings
from qnnbridge._providers import QNN, choose_fallback, option_text
from qnnbridge._run_options import coerce_session_options
from qnnbridge._session import EXTERNAL_DATA_FOLDER
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import Fallback, ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._host import Host

COMMAND = "qnnbridge compile"
"""How messages call what is done here."""

Soc = str | int


def make_job(
    model: str | os.PathLike[str] | bytes,
    *,
    embed: bool = False,
    soc_model: Soc | None = None,
    htp_arch: Soc | None = None,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
    fallback: Fallback | None = "cpu",
    host: Host | None = None,
) -> CompileJob:
    """Raises `CompiledModelRefused`, `OptionError`, and what a model that cannot be read raises."""
    from qnnbridge_host.model.guard import refuse_compiled

    if isinstance(model, (str, os.PathLike, bytes)):  # anything else is refused below, as for a session
        refuse_compiled(model, COMMAND)  # first: to hash a model of gigabytes takes seconds
    options = coerce_session_options(sess_options, providers_given=False)
    parts = options.to_spec_parts()
    source = ModelSource.open(model, folder=parts["config_entries"].get(EXTERNAL_DATA_FOLDER))
    providers = parts.pop("providers", None) or (ProviderSpec(QNN),)
    given = _options(provider_options, soc_model, htp_arch)
    spec = SessionSpec(
        model_path=source.path,
        model_files=source.files,
        providers=_with_options(providers, given),
        fallback=choose_fallback(providers, fallback),
        **parts,
    )
    return CompileJob(
        source,
        spec,
        embed=embed,
        host=HostSettings.of(host),
        initializers=tuple(options.initializer_values().values()),
    )


def _options(given: Mapping[str, Any] | None, soc_model: Soc | None, htp_arch: Soc | None) -> dict[str, str]:
    options = {str(key): option_text(key, value) for key, value in (given or {}).items()}
    for name, value in (("soc_model", soc_model), ("htp_arch", htp_arch)):
        if value is None:
            continue
        text = option_text(name, value)
        if options.setdefault(name, text) != text:
            raise OptionError(
                f"{name} is given twice: {text!r}, and {options[name]!r} as provider option.", fix="Give it once."
            )
    return options


def _with_options(providers: Sequence[ProviderSpec], given: Mapping[str, str]) -> tuple[ProviderSpec, ...]:
    if QNN not in [provider.name for provider in providers]:
        raise OptionError(
            f"A model is compiled for {QNN}, and the session options name other providers only.",
            fix=f"Add {QNN}, or no provider at all.",
        )
    return tuple(
        ProviderSpec(QNN, {**provider.options, **given}) if provider.name == QNN else provider
        for provider in providers
    )
