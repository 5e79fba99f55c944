"""The orders in which `qnnbridge top` lists clients and models. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from qnnbridge_tools.host.figures import ClientFigures, Figures, ModelFigures


class Order(enum.Enum):
    """What stands first: the greatest, but for names."""

    RATE = "rate"
    CALLS = "calls"
    LATENCY = "latency"
    ERRORS = "errors"
    MEMORY = "memory"
    NAME = "name"

    @property
    def next(self) -> Order:
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


def in_order(figures: Figures, order: Order, reverse: bool = False) -> Figures:
    return dataclasses.replace(
        figures,
        clients=_sorted_clients(figures.clients, order, reverse),
        models=_sorted_models(figures.models, order, reverse),
    )


def _sorted_clients(clients: Sequence[ClientFigures], order: Order, reverse: bool) -> tuple[ClientFigures, ...]:
    by_name = sorted(clients, key=lambda client: (client.name.lower(), client.pid), reverse=reverse)
    if order is Order.NAME:
        return tuple(by_name)
    return tuple(sorted(by_name, key=lambda client: _client_figure(client, order), reverse=not reverse))


def _sorted_models(models: Sequence[ModelFigures], order: Order, reverse: bool) -> tuple[ModelFigures, ...]:
    by_name = sorted(models, key=lambda model: (model.label.lower(), model.key), reverse=reverse)
    if order is Order.NAME:
        return tuple(by_name)
    return tuple(sorted(by_name, key=lambda model: _model_figure(model, order), reverse=not reverse))


def _client_figure(client: ClientFigures, order: Order) -> float:
    if order is Order.RATE:
        return client.calls_per_s
    if order is Order.CALLS:
        return client.calls
    if order is Order.LATENCY:
        return client.latency_ms.p99 or 0.0
    if order is Order.ERRORS:
        return client.errors + client.busy
    return client.shared_bytes


def _model_figure(model: ModelFigures, order: Order) -> float:
    """Memory is not known of models: most sessions first."""
    if order is Order.RATE:
        return model.calls_per_s
    if order is Order.CALLS:
        return model.calls
    if order is Order.LATENCY:
        return model.latency_ms.p99 or 0.0
    if order is Order.ERRORS:
        return model.errors
    return model.sessions
