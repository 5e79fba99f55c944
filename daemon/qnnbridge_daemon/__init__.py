"""The daemon: one NPU host that several applications share.

Theory of operation. A broker between two sides that stay as they are: towards the NPU it is an ordinary user of
`qnnbridge.Host`, and towards applications it speaks the protocol that a host speaks. A client's request comes in
by the host's own server, is counted against the limits of this client, waits in the fair queue for one of the
slots, and goes to the NPU host; the answer goes back as it came. The client's number of a session and the NPU
host's differ: several clients share one session of the same model and options.

Invariants: no native QNN code is loaded here, so a death of the NPU host ends no client's connection; the calls
are repeated in the next host, and a model that kills it is quarantined for all. What a client holds (sessions,
objects, memory, places in the queue) is released when its connection ends, by the thread that notices it first. A
client that does not read or sends without end holds up its own threads alone: every count and every byte has a
limit, beyond which the answer is `Busy`. The lock of a table is never held during anything slow.

One daemon per user and folder: the process that holds the lock. Only processes of the same user that know the
token are served. The daemon ends when it is asked to, after `--idle-exit` without a client, or when clients can no
longer find it.

`main` starts and ends it and has its log, `listener` admits clients, `broker` has them all, `clients` and
`client_sessions` belong to one each, `handlers` has the operations, `fair_share` the queue,
`shared_sessions` the sessions. Nothing is imported here.
"""
