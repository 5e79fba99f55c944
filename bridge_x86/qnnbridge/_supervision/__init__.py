"""Keeping a host alive: when it is started again, which model is to blame, which one is kept away.

`restart_policy`, `blame` and `quarantine` are pure decisions: time comes from a `Clock`, nothing is started or
killed here. `host_process` starts and ends one process; `supervisor` and `deaths` carry the decisions out,
`deadlines` ends calls whose time is up. `_host` and the sessions call it. It imports the protocol, `_platform`,
`_launch`, `_transport`, `_fastpath` and `_diagnosis`.
"""
