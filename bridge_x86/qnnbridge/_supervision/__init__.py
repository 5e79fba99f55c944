"""Keeping a host alive: when it is started again, which model is to blame, which one is kept away.

Theory of operation. A caller asks `Supervisor.process` for a generation that takes calls. If there is none, this
caller starts the next one and the others wait for the same start. When a call ends with `ChannelFailed`, its
caller asks `Supervisor.lost` why. The first of them investigates and the others get copies of the same error:

    exit code, stderr, declared phases --> `_diagnosis` names the cause --> a crash report is written
      --> `blame` divides a point among the requests that were inside native code
      --> `Quarantine` adds it to the model's account on disk
      --> `restart_policy` says how long the next start waits, or opens the breaker

Invariants: there is at most one usable generation, and a lost one never comes back. Each death is investigated and
booked once. Only a request that the host had declared to be inside native code can get a point. A death from
outside gives none; a call that was ended because it hung gives one. Every caller waits within its own
deadline; a start or an investigation that one caller leaves goes on, and serves the next caller.

What fails here is raised to the caller: `HostStartFailed`, `BreakerOpen`, `ModelQuarantined`, `HostCrashed`,
`HostHung`. Repeating the call is the business of `_session`. A file that cannot be written (report, quarantine)
fails no call.

`restart_policy` and `blame` are pure decisions: time comes from a `Clock`, nothing is started or killed there.
`host_process` starts and ends one process, and calls whose time is up; `supervisor` and `deaths` carry the
decisions out. `_host` and the sessions call it. It imports the protocol, `qnnbridge_os`, `_launch`, `_transport`,
`_fastpath` and `_diagnosis`.
"""
