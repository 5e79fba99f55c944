"""The daemon: one NPU host that several applications share.

Theory of operation. A broker between two unchanged sides: towards the NPU it is an ordinary user of
`qnnbridge.Host`, and towards applications it uses the protocol of a host. A client's request is received by the
host's own server, is checked against the limits of this client, waits in the fair queue for a slot, and is sent to
the NPU host; the answer is returned unchanged. The client's number of a session and the NPU host's differ: several
clients share one session of the same model and options.

Invariants: no native QNN code is loaded here, so a death of the NPU host ends no client's connection; the calls are
repeated in the next host, and a model that crashes it is quarantined for all. Everything that a client holds
(sessions, objects, memory, positions in the queue) is released when its connection ends, by the thread that notices
the end first. A client that does not read, or sends without end, blocks only its own threads: every count and every
byte has a limit, beyond which the answer is `Busy`. The lock of a table is never held during anything slow.

There is one daemon per user and folder: the process that holds the lock. Only processes of the same user that know
the token are served. The daemon ends on request, after `--idle-exit` without a client, or when clients cannot find
it any more.

`main` starts and ends the daemon and opens its log, `listener` admits clients, `broker` keeps them all, `clients`
and `client_sessions` belong to one client each, `handlers` contains the operations, `fair_share` the queue,
`shared_sessions` the sessions. Nothing is imported here.
"""
