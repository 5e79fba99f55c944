"""Jobs on an existing Dask cluster, by its `concurrent.futures` executor. The extra ``qnnbridge[cluster]``."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from qnnbridge_protocol.errors import BridgeError, CompileFailed, OptionError

CONNECT_TIMEOUT_S = 10.0


@contextlib.contextmanager
def executor_of(address: str) -> Iterator[Executor]:
    """The executor of the scheduler at `address` (``tcp://HOST:8786``). Its workers need qnnbridge and a host.

    Raises `OptionError` where the extra is missing, `CompileFailed` if there is no scheduler or it has no worker.
    """
    try:
        distributed: Any = importlib.import_module("distributed")  # untyped
    except ImportError:
        raise OptionError(
            "Compiling on a cluster needs the package distributed, which is not installed.",
            fix="python -m pip install 'qnnbridge[cluster]'",
        ) from None
    try:
        client = distributed.Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise CompileFailed(
            f"There is no Dask scheduler at {address}.",
            cause=f"{error}",
            fix="Start one (dask scheduler) and workers (dask worker ADDRESS), or check the address.",
        ) from None
    with _quiet(), client:
        if not client.scheduler_info()["workers"]:
            raise CompileFailed(
                f"The scheduler at {address} has no workers.", fix=f"Start some: dask worker {address}"
            )
        executor: Executor = client.get_executor(pure=False, retries=0)
        try:
            yield executor
        finally:
            with contextlib.suppress(BridgeError, OSError):
                executor.shutdown(wait=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs the stack traces of a lost connection, which the results tell in words."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
