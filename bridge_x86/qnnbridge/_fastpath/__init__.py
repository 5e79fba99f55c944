"""The fast path: repeated calls, with tensors in memory that both processes have mapped.

Theory of operation. A call goes by the connection (`_replay`) first, which checks it, and reports the types and
shapes of its outputs. `KnownCalls` keeps these, and a later call with the same names, types and shapes takes a
*channel*: two pipes of its own, on which a call is 32 bytes there and 32 bytes back. What those bytes mean was
agreed before, as a *plan*: the host has bound the session's inputs and outputs to fixed places in shared memory.

One dictionary decides whether a plan serves a call: `ChannelPlans`, one for each channel. Its key has

- the session, by its number in that host process (a channel belongs to one process, and numbers are not used
  twice);
- the outputs asked for: ``None`` for all, else their names in order;
- of each input its name, type, shape, and *place*: the application's block of shared memory that the host reads
  itself, or ``None`` for any other array, which is copied into the channel's memory with each call;
- of each output its place, in the same way.

Nothing else can matter. The host reads the named bytes of shared memory, and no others: arrays without a place are
copied there with every call, whatever object, layout or address they have, and a place is the number of a piece of
memory (never used twice) with the offset in it, together with type and shape. Of outputs the model's answer is what
counts: the host compares it with the plan, and an answer of another type or shape comes as values, and sends the
call to the connection for good (`CallSignature.slow`). Nothing is remembered as "last": each call looks its plan
up.

Everything irregular goes by the connection, which checks, explains and repeats: another class of array, empty and
string tensors, a suspected model, a restart, no shared memory. A failure here goes there together with its process
(`FastCallFailed`).

Signal handlers may raise at any place. So what is held follows from what lives, not from counters and lists: a
channel belongs to the holder of its `ChannelPlans`, memory counts as long as its `Room` lives, a piece of a block
is free when its array is gone. What an exception dropped between two lines is found by the maintenance thread.

`_fast_calls` makes the call, `call` has the key, `plans` the plans, `channel` the pipes, `channel_pool` opens and
closes channels, `memory` has the shared memory, `_bound_values` the values of bindings, `sharing` settings and
limits. Sessions and the daemon call it. The folder imports `_transport`, `qnnbridge_os` and `_feed_rules`.
"""
