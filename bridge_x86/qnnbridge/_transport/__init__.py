"""The connection to one host process.

Theory of operation. The input is a header, buffers and a deadline; the result is a REPLY frame, or an exception
that shows how far the call got:

- `BridgeError`: the host answered with an error, and is alive.
- `CallTimedOut`: the caller's time is up. Its `state` shows whether the host has begun the work. The work is
  cancelled if possible; another caller reads and drops the answer of an abandoned call.
- `ChannelFailed`: the process or its connection has ended. Every open call gets this, once. The caller passes it to
  the supervisor, which alone investigates (`Supervisor.lost`), and to `_session`, which decides whether to repeat.

A connection does not use a thread. Callers write their own requests, one at a time; of the waiting callers, one
reads for all. So nobody may stay in the reader without checking its own deadline, and a frame that was begun is
always finished, by the next sender if needed: half a frame would be the end of the stream for all callers.

Invariant: a request is in `OpenRequests` from before its first byte is written until its answer has arrived or the
connection has failed. The table at the moment of failure determines what the death is blamed on.

A silent host is checked periodically (`on_silence`): a dead process causes no end of stream while another process
holds its output open, and a stopped process never answers. Descriptors are closed only when no thread uses them:
the next host's pipes get the same numbers.

`channel` makes calls over its pipes and receives answers in parts, `open_requests` stores the state of every call.
The supervisor and `_session` call the package; the fast path adds channels to the connection. It imports the
protocol and `qnnbridge_os`.
"""
