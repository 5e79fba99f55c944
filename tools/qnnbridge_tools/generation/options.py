"""The options of `chat`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import Read


@dataclasses.dataclass(frozen=True, slots=True)
class SearchOptions:
    """How the next token is chosen; ``None`` for what the model's own configuration says."""

    temperature: Annotated[
        float | None,
        typer.Option(min=0, metavar="T", help="0 takes the most likely token. Default: the model's config."),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="P", help="Sample from the most likely tokens, up to a total probability of P."
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of the random numbers.")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        arguments.check_number("--temperature", self.temperature)
        arguments.check_number("--top-p", self.top_p)
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class ChatOptions:
    """system: text before the conversation. search: of `qnnbridge.genai.generate`."""

    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Instructions before the conversation.")] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum number of tokens per answer. Default: as many as fit."),
    ] = None
    search: Annotated[Mapping[str, Any], Read(SearchOptions.given, SearchOptions)] = dataclasses.field(
        default_factory=dict
    )
