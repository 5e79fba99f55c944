"""Keep a host alive: decide when to restart it, which model caused a crash, and which models are quarantined.

Overview. A generation is one process of the host. `Supervisor.process` returns a generation that accepts calls. If
no such generation exists, the first caller starts the next generation, and other callers wait for this start. When
a call fails with `ChannelFailed`, its caller calls `Supervisor.lost` for the reason. The first caller investigates,
and all other callers get copies of the same error:

    exit code, stderr, declared phases --> `_diagnosis` finds the cause --> a crash report is written
      --> `blame` divides one point among the requests that were inside native code
      --> `Quarantine` adds the points to the model's record on disk
      --> `restart_policy` decides how long the next start waits, or opens the breaker

Invariants: there is at most one usable generation, and a lost generation is never reused. Each death is
investigated and recorded once. Only a request that the host had declared to be inside native code can be blamed
(get points). A death caused from outside gives no points; ending the host because a call hung gives points to this
call's model. No caller waits longer than its own deadline. A start or an investigation continues after the caller's
deadline, and the next caller uses the result.

Failures are raised to the caller: `HostStartFailed`, `BreakerOpen`, `ModelQuarantined`, `HostCrashed`, `HostHung`.
`_session` decides whether to repeat a call. A file (report, quarantine) that cannot be written never fails a call.

`restart_policy` and `blame` only decide: they take the time from a `Clock` and neither start nor kill a process.
`host_process` starts and ends one process, and handles calls that miss their deadline; `supervisor` and `deaths`
carry out the decisions. `_host` and the sessions use this package, which imports the protocol, `qnnbridge_os`,
`_launch`, `_transport`, `_fastpath` and `_diagnosis`.
"""
