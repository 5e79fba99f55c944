"""The daemon: one NPU host that several applications share.

Theory of operation. The daemon is a broker: it starts an NPU host through `qnnbridge.Host` like any application,
and serves applications with the same protocol as a host. A client's request is received by the host package's own
server, is checked against the limits of this client, waits in the fair queue for a slot, and is sent to the NPU
host; the answer is returned unchanged. The numbers of a session differ between client and NPU host, because several
clients share one session of the same model and options.

Invariants: no native QNN code is loaded here, so a crash of the NPU host ends no client's connection; the calls are
repeated in the next host, and a model that crashes hosts is quarantined for all clients. Everything that a client
holds (sessions, objects, memory, positions in the queue) is released when its connection ends, by the thread that
notices the end first. A client that does not read its answers, or never stops sending requests, blocks only its own
threads: every count and every byte has a limit, beyond which the answer is `Busy`. The lock of a table is never
held during anything slow.

There is one daemon per user and folder: the process that holds the folder's lock. Only processes of the same user
that know the token are served. The daemon ends on request, after `--idle-exit` without a client, or when clients
cannot find it any more.

`main` starts and ends the daemon and opens its log, `listener` accepts clients, `broker` manages all clients,
`clients` and `client_sessions` serve one client each, `handlers` contains the operations, `fair_share` the queue,
`shared_sessions` the sessions. Nothing is imported here.
"""
