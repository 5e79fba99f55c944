"""The user's metric: a function in a Python file.

`def accuracy(outputs, samples)` gets two lists of dicts of arrays, one of each sample: what the model gave, by
names of outputs, and all that the sample's files hold. It gives a number, or a dict of numbers by name.
"""

from __future__ import annotations

import importlib.util
import numbers
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import OptionError

Arrays = Mapping[str, Any]
Metric = Callable[[Sequence[Arrays], Sequence[Arrays]], Mapping[str, float]]

_FORM = "--metric FILE.py:FUNCTION, with def FUNCTION(outputs, samples): return a number, or a dict of numbers."


def load_metric(text: str) -> Metric:
    """`metrics.py:accuracy`; without a name the function is `metric`. Raises `OptionError`."""
    file, colon, name = text.rpartition(":")
    # The colon of a drive separates no function: C:\metrics.py.
    if not colon or not file.endswith(".py"):
        file, name = text, "metric"
    path = Path(file)
    if not path.is_file():
        raise OptionError(f"There is no file {path} with a metric.", fix=_FORM)
    spec = importlib.util.spec_from_file_location(f"qnnbridge_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is no Python file.", fix=_FORM)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(f"{path} cannot be imported.", error, path) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path} has no function {name}.", fix=_FORM)

    def metric(outputs: Sequence[Arrays], samples: Sequence[Arrays]) -> Mapping[str, float]:
        try:
            value = function(outputs, samples)
        except Exception as error:
            raise _failed(f"The metric {name} failed.", error, path) from error
        return _numbers(value, name)

    return metric


def _numbers(value: Any, name: str) -> dict[str, float]:
    named = value if isinstance(value, Mapping) else {name: value}
    try:
        return {str(key): _number(one) for key, one in named.items()}
    except (TypeError, ValueError):
        raise OptionError(f"The metric {name} gave {value!r:.80}, which is no number.", fix=_FORM) from None


def _number(value: Any) -> float:
    # Numbers of Python, and arrays of numpy and others with one number.
    if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
        return float(value)
    raise TypeError


def _failed(message: str, error: Exception, path: Path) -> OptionError:
    """With the line of the user's file, which is what has to change."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {lines[-1]} of {path.name})" if lines else ""
    return OptionError(message, cause=f"{type(error).__name__}: {error}{place}", fix=_FORM)
