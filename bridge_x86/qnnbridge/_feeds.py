"""Checks what an application feeds to a model before anything is sent: names, types, fixed dimensions.

`FeedChecker` is made once per session and immutable; any thread. The good case, numpy arrays of the right type,
takes a few dictionary look-ups and comparisons per input and is all that is written here; the rest is in
`feed_values`. Not checked, because ONNX Runtime does not either: whether symbolic dimensions of one name agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from qnnbridge._feed_rules import INVALID_ARGUMENT, Rule, make_rule, missing, shape_fits
from qnnbridge._feed_values import fit
from qnnbridge._suggestions import suggest
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ValueType

# Name, value and declared type, as `Encoder.add` wants them.
Feed = tuple[str, Any, ValueType]


class Node(Protocol):
    """`NodeInfo` and `NodeArg` are such."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Any: ...


class FeedChecker:
    """Knows the inputs of one model.

    overridable: initializers that may be fed and need not be.
    """

    __slots__ = ("_required", "_required_names", "_rules")

    def __init__(self, inputs: Iterable[Node], overridable: Iterable[Node] = ()) -> None:
        self._rules: dict[str, Rule] = {}
        for nodes, optional in ((inputs, False), (overridable, True)):
            for node in nodes:
                rule = make_rule(node.name, node.type, tuple(node.shape or ()), optional)
                self._rules.setdefault(node.name, rule)
        self._required_names = [rule.name for rule in self._rules.values() if rule.required]
        self._required = frozenset(self._required_names)

    def check(self, feeds: Mapping[str, Any]) -> list[Feed]:
        """The feeds in the order given, ready to be encoded. ``None`` means not fed, where that is allowed."""
        if not feeds.keys() >= self._required:
            raise self._missing(feeds)
        rules = self._rules
        out: list[Feed] = []
        for name, value in feeds.items():
            rule = rules.get(name)
            if rule is None:
                raise self._unknown(name)
            if value.__class__ is np.ndarray and value.dtype is rule.dtype:
                if value.shape == rule.exact or shape_fits(rule, value.shape):
                    out.append((name, value, rule.declared))
                    continue
            elif value is None:
                if rule.required:
                    raise missing(rule)
                continue
            out.append((name, fit(rule, value), rule.declared))
        return out

    def _missing(self, feeds: Mapping[str, Any]) -> errors.RemoteValueError:
        missing = [name for name in self._required_names if name not in feeds]
        extra = [str(name) for name in feeds if name not in self._rules]
        hints = [f"{name!r} is no input." + suggest(name, missing) for name in extra]
        return errors.RemoteValueError(
            f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).", fix=" ".join(hints) or None
        )

    def _unknown(self, name: object) -> errors.BridgeError:
        if not isinstance(name, str):
            return errors.RemoteTypeError(f"Input names must be str, not {name!r:.100} ({type(name).__name__}).")
        known = ", ".join(map(repr, self._rules))
        return errors.InvalidArgument(
            f"{INVALID_ARGUMENT}Invalid input name: {name}",
            fix=f"The model's inputs are {known or 'none'}.{suggest(name, self._rules)}",
        )


def check_feeds(inputs: Iterable[Node], feeds: Mapping[str, Any], overridable: Iterable[Node] = ()) -> list[Feed]:
    """`FeedChecker.check` for a single call; a session keeps the checker."""
    return FeedChecker(inputs, overridable).check(feeds)
