"""Where the host takes QNN from: the wheel, the catalogue of Windows or a folder; which fits. Survey and check."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from typing import Final

from qnnbridge_protocol.engine_settings import ENGINE_VARIABLE, EP_PATH_VARIABLE
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import CatalogueProvider, EngineFacts, Facts, HostFacts
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.fixes import is_newer, short_sdk
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.subjects.host import configuration_path

WINDOWSML: Final = "windowsml"
NOT_PRESENT: Final = "NotPresent"
_QNN_PROVIDER: Final = "QNNExecutionProvider"
_BACKENDS: Final = ("QnnHtp.dll", "libQnnHtp.so")
_DOWNLOAD: Final = "-m qnnbridge_host.windows_ml download"


def survey_engine(machine: Machine, hosted: HostFacts) -> EngineFacts:
    wanted, path = _setting(machine)
    catalogue = None
    # Only through the host's own `windowsml`: without the package the host could not use the catalogue either.
    if hosted.packages is not None and hosted.packages.version(WINDOWSML) and hosted.answer is not None:
        catalogue = machine.catalogue(hosted.path)
    if catalogue is not None:
        with_sdk = tuple(dataclasses.replace(one, sdk=_sdk(machine, one.library)) for one in catalogue.providers)
        catalogue = dataclasses.replace(catalogue, providers=with_sdk)
    return EngineFacts(wanted, path, catalogue)


def _setting(machine: Machine) -> tuple[str, str]:
    """As the host would have it: the environment, else the configuration file."""
    engine, path = machine.environ.get(ENGINE_VARIABLE, ""), machine.environ.get(EP_PATH_VARIABLE, "")
    if not engine and not path:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            host = toml.loads(text_of(machine, configuration_path(machine)) or "").get("host", {})
        except ValueError:  # `host.config-broken` says it
            # A broken file is one finding, not two.
            host = {}
        if isinstance(host, dict):
            engine, path = str(host.get("engine") or ""), str(host.get("ep_path") or "")
    # A path alone means the engine "folder", as in the host.
    return ("folder" if path else engine.strip().lower() or "auto"), path


def _sdk(machine: Machine, library: str) -> str | None:
    paths = paths_of(machine.system)
    # The library in the catalogue is the provider; the version of QNN is in its backend beside it.
    for name in _BACKENDS if library else ():
        found = machine.library(paths.join(paths.dirname(library), name), version=True)
        if found is not None and found.version:
            return found.version
    return None


def in_use(facts: Facts) -> str:
    """What the host would take: "wheel", "windowsml" or "folder"."""
    wanted = facts.engine.wanted
    if wanted in ("wheel", "windowsml", "folder"):
        return wanted
    packages = facts.host_packages
    has_wheel = packages is not None and packages.version(fixes.QNN) is not None
    has_catalogue = packages is not None and packages.version(WINDOWSML) is not None
    return "windowsml" if has_catalogue and not has_wheel else "wheel"


def qnn_provider(facts: Facts) -> CatalogueProvider | None:
    """The catalogue's for QNN: what is on this computer before what is not."""
    catalogue = facts.engine.catalogue
    found = [one for one in catalogue.providers if one.name == _QNN_PROVIDER] if catalogue is not None else []
    # False sorts before True: what is on this computer comes first.
    return min(found, key=lambda one: one.state == NOT_PRESENT, default=None)


def find(facts: Facts) -> Iterator[Finding]:
    if facts.host.answer is None or facts.host_packages is None:
        return
    used, provider = in_use(facts), qnn_provider(facts)
    if used == "windowsml":
        yield from _catalogue(facts, provider)
    elif used == "wheel" and provider is not None and _fits_better(facts, provider):
        system = fixes.system_sdk(facts)
        yield finding(
            "engine.catalogue-fits-better",
            "onnxruntime-qnn is too new for the NPU driver, and the catalogue of Windows has a QNN that fits",
            f"wheel: QNN {short_sdk(facts.host_packages.qnn_sdk)}",
            f"catalogue: {provider.version}, QNN {short_sdk(provider.sdk)}, {provider.state}",
            f"driver: QNN {short_sdk(system[0] if system else None)}",
            fix=_take(facts, WINDOWSML),
        )


def _catalogue(facts: Facts, provider: CatalogueProvider | None) -> Iterator[Finding]:
    catalogue = facts.engine.catalogue
    if catalogue is None or catalogue.problem:
        said = catalogue.problem if catalogue is not None else "the package windowsml is not installed"
        yield finding(
            "engine.catalogue-unreadable",
            "the host takes QNN from the catalogue of Windows, which cannot be read",
            said,
            fix=_take(facts, "wheel", catalogue.fix if catalogue is not None else "Install windowsml, or:"),
        )
    elif provider is None:
        others = ", ".join(one.name for one in catalogue.providers) or "nothing"
        yield finding(
            "engine.catalogue-no-qnn",
            "the catalogue of Windows has no provider for QNN",
            f"it has {others}",
            fix=_take(facts, "wheel", "Update Windows and the NPU driver, or take QNN from the wheel."),
        )
    elif provider.state == NOT_PRESENT:
        yield finding(
            "engine.not-downloaded",
            f"the provider for QNN {provider.version} is in the catalogue of Windows, and not on this computer",
            f"state: {provider.state}",
            fix=Remedy("Download it once.", fixes.python_lines(facts, facts.host.path, _DOWNLOAD)),
        )


def _take(facts: Facts, engine: str, words: str = "") -> Remedy:
    return Remedy(words or f"Set engine={engine}.", fixes.set_variable(facts, ENGINE_VARIABLE, engine))


def _fits_better(facts: Facts, provider: CatalogueProvider) -> bool:
    """Rule: a QNN that is not newer than the driver's fits."""
    if not facts.driver.runtime:  # else what an SDK says, which may not be the driver's
        return False
    wheel = facts.host_packages.qnn_sdk if facts.host_packages is not None else None
    system = fixes.system_sdk(facts)
    if wheel is None or system is None or provider.sdk is None or provider.state == NOT_PRESENT:
        return False
    return is_newer(wheel, system[0]) and not is_newer(provider.sdk, system[0])


def healthy(facts: Facts) -> str | None:
    """Which one is used, and what else there would be."""
    packages, provider = facts.host_packages, qnn_provider(facts)
    if packages is None or (in_use(facts) == "wheel" and provider is None):
        return None
    release = packages.version(fixes.QNN)
    wheel = f"the wheel of onnxruntime-qnn {release}, QNN {short_sdk(packages.qnn_sdk)}" if release else ""
    listed = f"the catalogue's {provider.version}, QNN {short_sdk(provider.sdk)}" if provider is not None else ""
    used = {"wheel": wheel, "windowsml": listed, "folder": f"the folder {facts.engine.path}"}[in_use(facts)]
    others = [text for text in (wheel, listed) if text and text != used]
    return f"QNN from {used}" + (f" (also there: {'; '.join(others)})" if others else "")


CHECK = SubjectCheck("source of QNN", find, healthy)
