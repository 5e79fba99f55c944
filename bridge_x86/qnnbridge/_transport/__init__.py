"""The connection to one host process.

Overview. A call has a header, buffers and a deadline. Its result is a REPLY frame, or an exception that shows what
happened to the call:

- `BridgeError`: the host answered with an error, and still runs.
- `CallTimedOut`: the caller's deadline has expired. `state` shows whether the host has started the call, which is
  cancelled if possible. Another caller reads and drops the answer of an abandoned call.
- `ChannelFailed`: the process or its connection has ended. Every open call gets this exception, once. The caller
  passes it to the supervisor, which investigates (`Supervisor.lost`), and to `_session`, which decides whether to
  repeat the call.

No thread belongs to a connection. Callers write their own requests, one at a time. One of the waiting callers
reads the answers of all callers, so it must check its own deadline regularly. A partly written frame is always
completed, if needed by the next sender, because after an incomplete frame the stream would be unusable for all
callers.

Invariant: `OpenRequests` contains a request from before its first byte is written until its answer has arrived or
the connection has failed. The requests that it contains when the connection fails can be blamed for the death.

While no data arrives, the host is checked periodically (`on_silence`): after the death of a process the stream does
not end while another process keeps the output open, and a stopped process never answers. Descriptors are closed
only when no thread uses them, because the next host's pipes get the same numbers.

`channel` sends requests and reads answers, including answers in several parts; `open_requests` stores the state of
every call. The supervisor and `_session` use this package, which imports the protocol and `qnnbridge_os`. The fast
path adds its own channels to the connection.
"""
