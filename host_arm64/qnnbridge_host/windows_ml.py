"""Read Windows' catalogue of execution providers (Windows ML), through the package ``windowsml``.

Windows downloads a provider that fits the driver, and replaces it without notice. A provider is `READY`,
`NOT_READY` (installed; preparing it takes seconds and no network) or `NOT_PRESENT` (it must be downloaded first,
which only `main` does, on request). Not thread-safe.

``python -m qnnbridge_host.windows_ml list`` and ``download`` are for the tools: they print one JSON object per
line, the last one with ``providers`` or ``error``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from qnnbridge_host.machine import CATALOGUE_DISTRIBUTION, installed_here
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded, ProviderUnavailable
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shell import command_line
from qnnbridge_protocol.version_numbers import numbers_of

QNN: Final = "QNNExecutionProvider"

READY: Final = "Ready"
NOT_READY: Final = "NotReady"
NOT_PRESENT: Final = "NotPresent"
_STATES: Final = (READY, NOT_READY, NOT_PRESENT)

# Timeouts in seconds: for registering an installed provider's package, and for a download without progress.
PREPARE_S: Final = 45.0
STALLED_S: Final = 300.0
CANCEL_S: Final = 5.0

_SHOWN: Final = 8
_WINDOWS_11_24H2: Final = "Windows 11 24H2 (build 26100) or newer"

OnProgress = Callable[[float], None]


class CatalogueEntry(NamedTuple):
    """A provider of the catalogue.

    package: the provider's package family. library: the file to register; "" until the provider is ready. state:
        see the module's docstring.
    """

    name: str
    version: str
    package: str
    library: str
    state: str
    certification: str = "Unknown"

    @property
    def words(self) -> str:
        return f"{self.name} {self.version or '(no version)'} ({self.state})"


def listed() -> list[CatalogueEntry]:
    """Return all providers of the catalogue. Raise `ProviderUnavailable` if there is no catalogue."""
    with _catalogue() as found:
        return [entry for _, entry in _entries(found)]


def ready_qnn(*, download: bool = False, on_progress: OnProgress = lambda _done: None) -> CatalogueEntry:
    """Return the provider for QNN, with a library that can be loaded.

    Args:
        download: whether to download a provider that is not on this computer.
        on_progress: called by another thread with the completed fraction, 0 to 1.

    Raises:
        ProviderUnavailable: there is no catalogue or no provider for QNN, or the provider is not downloaded.
        DeadlineExceeded: the download makes no progress, or preparing takes too long.
    """
    with _catalogue() as found:
        provider, entry = _best(found)
        if entry.state == NOT_PRESENT and not download:
            raise ProviderUnavailable(
                f"Windows has a provider for QNN in its catalogue ({entry.words}), but it is not on this computer.",
                cause="Windows downloads a provider only on request, which takes minutes.",
                fix="Download the provider once: "
                f"`{command_line((sys.executable, '-m', 'qnnbridge_host.windows_ml', 'download'))}`."
                " Or use engine='wheel' (onnxruntime-qnn).",
                details={"engine": "windowsml", "state": entry.state},
            )
        if entry.state != READY:
            timeout_s = STALLED_S if entry.state == NOT_PRESENT else PREPARE_S
            _make_ready(provider, entry, timeout_s, on_progress)
            ((_, entry),) = _entries([provider])
        if not entry.library or not os.path.isfile(entry.library):
            raise ProviderUnavailable(
                f"Windows reports {entry.words} as ready, but its library is missing.",
                cause=f"According to the catalogue it is {entry.library!r}."
                if entry.library
                else "The catalogue does not contain the path of the library.",
                fix="Restart Windows, or repair the package in Settings > Apps; meanwhile use engine='wheel' "
                "(onnxruntime-qnn).",
                details={"engine": "windowsml", "library": entry.library},
            )
        return entry


@contextmanager
def _catalogue() -> Iterator[list[Any]]:
    """Yield the providers. Their handles are valid while the catalogue is open."""
    try:
        import windowsml
    except Exception as error:  # ImportError, or an OSError if the package cannot load its DLL
        raise _no_package(error) from error
    try:
        catalogue = windowsml.EpCatalog()
    except OSError as error:
        raise _no_catalogue(error) from error
    try:
        try:
            found = list(catalogue.find_all_providers())
        except OSError as error:
            raise _no_catalogue(error) from error
        yield found
    finally:
        catalogue.close()


def _best(found: list[Any]) -> tuple[Any, CatalogueEntry]:
    """Return the best provider for QNN: an installed provider before one that is not present, then the newest."""
    entries = _entries(found)
    fitting = [one for one in entries if one[1].name == QNN]
    if not fitting:
        others = ", ".join(entry.words for _, entry in entries[:_SHOWN])
        raise ProviderUnavailable(
            "The catalogue of Windows has no provider for QNN.",
            cause=f"It has {others}."
            if others
            else "The catalogue is empty: Windows offers only providers for the chip and the driver of this "
            "computer.",
            fix="Update Windows and the NPU driver (Windows Update), or use engine='wheel' (onnxruntime-qnn).",
            details={"engine": "windowsml", "found": [entry.name for _, entry in entries[:_SHOWN]]},
        )
    return min(fitting, key=lambda one: (_STATES.index(one[1].state), [-n for n in numbers_of(one[1].version)]))


def _entries(found: list[Any]) -> list[tuple[Any, CatalogueEntry]]:
    """Return the description of each provider, except those that Windows cannot describe or that have unknown
    states.

    Raises:
        ProviderUnavailable: no provider remains.
    """
    entries: list[tuple[Any, CatalogueEntry]] = []
    failed: OSError | ValueError | None = None
    for provider in found:
        try:
            entries.append((provider, _entry(provider)))
        except (OSError, ValueError) as error:
            failed = error
    if failed is not None and not entries:
        raise _no_entry(failed) from failed
    return entries


def _entry(provider: Any) -> CatalogueEntry:
    return CatalogueEntry(
        str(provider.name),
        str(provider.version),
        str(provider.package_family_name),
        str(provider.library_path),
        str(provider.ready_state.name),
        str(provider.certification.name),
    )


def _make_ready(provider: Any, entry: CatalogueEntry, timeout_s: float, on_progress: OnProgress) -> None:
    """Prepare or download a provider. Give up after `timeout_s` seconds without progress."""
    done, moved = threading.Event(), [time.monotonic()]

    def progress(part: float) -> None:
        moved[0] = time.monotonic()
        # Some providers report a fraction of 1, others a percentage.
        on_progress(min(1.0, max(0.0, part / 100 if part > 1 else part)))

    try:
        work = provider.ensure_ready_async(on_complete=done.set, on_progress=progress)
    except OSError as error:
        raise _not_made_ready(entry, error) from error
    try:
        while not done.wait(0.1):
            if time.monotonic() - moved[0] > timeout_s:
                raise DeadlineExceeded(
                    f"Windows reports no progress for {timeout_s:g} s while it prepares {entry.words}.",
                    cause="The download has stopped." if entry.state == NOT_PRESENT else None,
                    fix="Check Settings > Windows Update, and try again.",
                )
        try:
            work.wait()
        except OSError as error:
            raise _not_made_ready(entry, error) from error
    except BaseException:
        if not done.is_set():
            work.cancel()
            # `close` waits for the operation, and waits forever if Windows does not react to the cancellation.
            if not done.wait(CANCEL_S):
                raise
        work.close()
        raise
    work.close()


def _not_made_ready(entry: CatalogueEntry, error: OSError) -> ProviderUnavailable:
    missing = entry.state == NOT_PRESENT
    return ProviderUnavailable(
        f"Windows could not {'download' if missing else 'prepare'} {entry.words}.",
        cause=_message(error),
        fix="Connect this computer to the internet and try again; where Windows Update is managed, its policy has "
        "to allow the download. Without a network use engine='wheel' (onnxruntime-qnn) or ep_path=."
        if missing
        else "Restart Windows, or repair the package in Settings > Apps.",
        details={"engine": "windowsml", "hresult": _hresult(error)},
    )


def _no_package(error: Exception) -> ProviderUnavailable:
    if isinstance(error, ModuleNotFoundError) and error.name == CATALOGUE_DISTRIBUTION:
        cause = f"The package windowsml is not installed in {sys.executable}."
        fix = f"Install windowsml in the host's Python: `python -m pip install windowsml` ({_WINDOWS_11_24H2})."
    elif sys.platform != "win32":
        cause = f"{type(error).__name__}: {error}"
        fix = "Only Windows has a catalogue of execution providers. Use engine='wheel' (onnxruntime-qnn)."
    else:
        cause = f"{type(error).__name__}: {error}"
        fix = f"windowsml needs {_WINDOWS_11_24H2}. Reinstall windowsml for the architecture of the host's Python, "
        fix += "or use engine='wheel' (onnxruntime-qnn)."
    return ProviderUnavailable(
        "The catalogue of Windows ML cannot be read.", cause=cause, fix=fix, details={"engine": "windowsml"}
    )


def _no_catalogue(error: OSError) -> ProviderUnavailable:
    return ProviderUnavailable(
        "Windows cannot open its catalogue of execution providers.",
        cause=_message(error),
        fix=f"Windows ML needs {_WINDOWS_11_24H2}, with its updates. Or use engine='wheel' (onnxruntime-qnn).",
        details={"engine": "windowsml", "hresult": _hresult(error)},
    )


def _no_entry(error: OSError | ValueError) -> ProviderUnavailable:
    return ProviderUnavailable(
        "Windows cannot describe the providers of its catalogue.",
        cause=_message(error) if isinstance(error, OSError) else f"windowsml does not support: {error}.",
        fix="Upgrade windowsml in the host's Python, and restart Windows. Or use engine='wheel' (onnxruntime-qnn).",
        details={"engine": "windowsml"},
    )


def _message(error: OSError) -> str:
    number = _hresult(error)
    return f"{error.strerror or error}" + (f" (HRESULT {number})" if number else "")


def _hresult(error: OSError) -> str | None:
    number = getattr(error, "winerror", None) or error.errno
    return None if number is None else f"0x{number & 0xFFFFFFFF:08X}"


def _print_json(**fields: Any) -> None:
    import json

    print(json.dumps(fields), flush=True)


def main(words: list[str]) -> int:
    """Run a command for the tools; return 0 on success."""
    if words not in (["list"], ["download"]):
        print("usage: python -m qnnbridge_host.windows_ml list|download", file=sys.stderr)
        return 2
    package = installed_here().distributions.get(CATALOGUE_DISTRIBUTION)
    try:
        if words == ["download"]:
            last = [-1]

            def progress(part: float) -> None:
                if int(part * 100) != last[0]:
                    last[0] = int(part * 100)
                    _print_json(progress=part)

            found = [ready_qnn(download=True, on_progress=progress)]
        else:
            found = listed()
    except BridgeError as error:
        _print_json(error=error.to_wire(), package=package)
        return 1
    _print_json(
        providers=[{name: getattr(one, name) for name in CatalogueEntry._fields} for one in found], package=package
    )
    return 0


def end(code: int) -> NoReturn:
    """End the process. A normal end of the interpreter would wait for a download that Windows does not abandon."""
    with suppress(OSError):  # the reader of stdout is gone
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
