"""How a repeated call failed that went the quick way. Any thread; imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qnnbridge._transport.host_process import HostProcess


class FastCallFailed(Exception):
    """The call failed in this process; the long way knows what to do about it, in the time that is left.

    It is kept while the call is repeated (`alone`). Tracebacks would keep the call's frames meanwhile, in a circle,
    so that the application's arrays would not be freed before the garbage collector comes by.
    """

    def __init__(self, process: HostProcess, error: Exception, deadline: float | None) -> None:
        super().__init__(str(error))
        self.process = process
        self.deadline = deadline
        self._error: Exception | None = without_traceback(error)

    def alone(self) -> FastCallFailed:
        """Without traceback and context."""
        self.__traceback__ = self.__context__ = None
        return self

    def take(self) -> Exception:
        """What it is, once, to be raised again."""
        error, self._error = self._error, None
        assert error is not None
        return error


def without_traceback(error: Exception) -> Exception:
    """The error without frames: not its own, nor those of what it came from."""
    part: BaseException | None = error
    while part is not None:
        part.__traceback__ = None
        part = part.__context__
    return error
