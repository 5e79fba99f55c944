"""The start of a host: its interpreter, its command line and environment, and the collection of its stderr.

Theory of operation. What comes in is a setting (the argument, the environment variable, the configuration file) or
none; what goes out is a command line and an environment for `HostProcess`. A setting is used or refused with the
reason. It is never passed over: a host of another interpreter than the one that was named would have other
packages, and so other results. Only without a setting installed interpreters are searched, by files and specs: a
Python of another machine type cannot be imported, and starting each candidate would take seconds.

The host inherits the application's environment without what would change its Python (PYTHON*, a virtual
environment, the libraries of a frozen application). It starts isolated (``-I``), so neither the current folder nor
user packages can replace its modules.

From its first byte the host's stderr is read by one thread, because a full pipe would stop the host. The collector
keeps a bounded part: the beginning, the end, and the text of open requests between their marker lines.
`_diagnosis` reads it after a failure. Invariant: reading never blocks a call, and no amount of output costs more
than its bounds.

`HostNotFound` is the one error of the search. `_host`, `_supervision` and the tools call it. It imports the
protocol and `qnnbridge_os`.
"""
