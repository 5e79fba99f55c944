"""Several sequences at once (batches, beams) from one generator.

The host keeps no history for them: what was asked is kept here, and repeated from the start in a new host. That is
exact for greedy search and beams; sampling is `StateLost` then. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge.genai._generation import RemoteGeneration
from qnnbridge.genai._model import token_values
from qnnbridge_protocol.errors import Cancelled, DeadlineExceeded, GenerationUnsupported
from qnnbridge_protocol.field_types import field

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge._transport.channel import CallContext


class RemoteBatch(RemoteGeneration):
    """`tokens` has only what was appended; the sequences are in the host."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._longest = 1
        self._log: list[tuple[list[int], int]] = []

    def append(self, prompt: Sequence[int]) -> None:
        super().append(prompt)
        self._log.append((list(prompt), 0))

    def next_of_all(self) -> list[int]:
        """The next token of each sequence."""
        while not self.ahead and not self._done_after_ahead:
            self._fetch()
        found: Any = self.ahead.popleft()
        self.done = self._done_after_ahead
        prompt, count = self._log[-1]
        self._log[-1] = (prompt, count + 1)
        return list(found)

    def sequence(self, index: int) -> list[int]:
        """All tokens of one sequence."""
        return list(field(self.look("sequence", {"index": index}).header, "result", "tuple[int, ...]"))

    def rewind(self, length: int) -> None:
        if length:
            raise GenerationUnsupported(
                "A generation of several sequences can only be rewound to its start.", fix="Call rewind_to(0)."
            )
        self.tokens, self._log, self.done = [], [], False
        self.change()

    def _prepared(
        self, process: HostProcess, prompt: Sequence[int], count: int
    ) -> tuple[int, list[Any], dict[str, Any]]:
        number, _, _ = super()._prepared(process, prompt, count)
        arguments: dict[str, Any] = {"count": count, "length": 0}
        if self._is_blank and self._log:
            arguments["log"] = [[tokens, steps] for tokens, steps in self._log]
        return number, token_values(prompt) if prompt else [], arguments

    def _with_replay(self, attempt: Any, context: CallContext, deadline: float | None = None) -> Any:
        try:
            return super()._with_replay(attempt, context, deadline)
        except (Cancelled, DeadlineExceeded, KeyboardInterrupt):
            # The host may have done it all the same: what was answered is repeated in another generator.
            self.remade.forget()
            raise
