"""The connection to one host process.

Theory of operation. The input is a header, buffers and a deadline; the result is a REPLY frame, or an exception
that shows how far the call got:

- `BridgeError`: the host answered with an error, and is alive.
- `CallTimedOut`: the caller's deadline has expired. Its `state` shows whether the host has begun the work. The work
    is cancelled if possible; another caller reads and drops the answer of an abandoned call.
- `ChannelFailed`: the process or its connection has ended. Every open call gets this, once. The caller passes it to
  the supervisor, which alone investigates (`Supervisor.lost`), and to `_session`, which decides whether to repeat.

A connection does not use a thread. Callers write their own requests, one at a time; of the waiting callers, one
reads for all. So the caller that reads must check its own deadline regularly. A frame that was begun is always
finished, if needed by the next sender, because after an incomplete frame the stream would be unusable for all
callers.

Invariant: a request is in `OpenRequests` from before its first byte is written until its answer has arrived or the
connection has failed. The table at the moment of failure determines which requests are blamed for the death.

A silent host is checked periodically (`on_silence`): a dead process causes no end of stream while another process
holds its output open, and a stopped process never answers. Descriptors are closed only when no thread uses them:
the next host's pipes get the same numbers.

`channel` sends requests and reads answers, also answers in several parts; `open_requests` stores the state of every
call. The supervisor and `_session` call the package; the fast path adds its own channels to the connection. It
imports the protocol and `qnnbridge_os`.
"""
