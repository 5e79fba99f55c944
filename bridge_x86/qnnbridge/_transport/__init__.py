"""The connection to one host process.

Theory of operation. A call comes in as header, buffers and a deadline; a REPLY frame goes out, or an exception that
says how far the call got:

- `BridgeError`: the host answered with an error, and lives.
- `Deadline`: the caller's time is up. Its `state` says whether the host has begun the work. The work is cancelled
  if it can be; the answer of a call that was left is read and dropped by another caller.
- `ChannelFailed`: the process or its connection has ended. Every open call gets this, once. The caller gives it to
  the supervisor, which alone finds out why (`Supervisor.lost`), and to `_session`, which decides whether to repeat.

No thread belongs to a connection. Callers write their own requests, one at a time; of those that wait, one reads
for all. So nobody may stay in the reader without looking at its own deadline, and a frame that was begun is always
finished, by the next sender if need be: half a frame would be the end of the stream for everybody.

Invariant: a request is in `OpenRequests` from before its first byte is written until its answer has come or the
connection has failed. What the table holds when the connection fails is what the death is blamed on.

A silent host is checked periodically (`on_silence`): a dead process gives no end of stream while another process
holds its output open, and a stopped one never answers. Descriptors are closed only when no thread uses them: the
next host's pipes get the same numbers.

`channel` makes calls over its pipes and takes answers that come in parts, `open_requests` keeps the state of every
call. The supervisor and `_session` call it; the fast path adds channels beside the connection. It
imports the protocol and `qnnbridge_os`.
"""
