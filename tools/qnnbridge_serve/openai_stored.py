"""Stored conversations, which later requests of /v1/responses continue by `previous_response_id`."""

from __future__ import annotations

import collections
import json
import threading
from collections.abc import Sequence
from typing import Any, Final

from qnnbridge_serve.errors import Refused

# Maximum size of all conversations together, as JSON. A prompt of 10,000 tokens has about 40 kB.
MOST_BYTES: Final = 64 * 1024**2


class StoredResponses:
    """Conversations by the id of their last response. Safe to use from any thread.

    Each conversation is stored completely, so dropping one does not affect others. Only the client that began a
    conversation can use it; for other clients, its id is unknown.

    Args:
        most: maximum number of responses. The least recently used response is dropped first.
        most_bytes: maximum size of all responses in bytes.
    """

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # Ordered by last use, the oldest first.
        self._stored: collections.OrderedDict[str, tuple[str, bytes]] = collections.OrderedDict()
        self._bytes = 0

    @property
    def stores(self) -> bool:
        """True if the server stores responses."""
        return self._most > 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, number: str, owner: str, messages: Sequence[Any]) -> None:
        """Store the conversation of a response, unless it is too large."""
        data = json.dumps(messages).encode()
        if len(data) > self._most_bytes:
            return
        with self._lock:
            self._stored[number] = (owner, data)
            self._bytes += len(data)
            while len(self._stored) > self._most or self._bytes > self._most_bytes:
                _, (_, dropped) = self._stored.popitem(last=False)
                self._bytes -= len(dropped)

    def find(self, number: str, owner: str) -> list[Any]:
        """Return the conversation of a response. Raise `Refused` if the client has no response with this id."""
        with self._lock:
            found = self._stored.get(number)
            if found is None or found[0] != owner:
                # Use OpenAI's text and code: clients then send the whole conversation again.
                raise Refused(
                    404,
                    f"Previous response with id {number[:80]!r} not found.",
                    field="previous_response_id",
                    reason="previous_response_not_found",
                )
            self._stored.move_to_end(number)
        return list(json.loads(found[1]))
