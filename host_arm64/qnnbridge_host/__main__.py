"""The host process: `python -I -u -X utf8 -m qnnbridge_host --parent PID`.

The order of the first lines matters. The native QNN library prints on descriptor 1, so the descriptors of the
protocol are moved away before anything else is imported.
"""

import gc

from qnnbridge_host import stdio_guard

IN_FD, OUT_FD = stdio_guard.claim()

stdio_guard.spare_bytecode()

if __name__ == "__main__":
    # Disable the garbage collector: while modules are imported, it scans all objects again and again, which takes a
    # seventh of the start-up time. `main` enables it again.
    gc.disable()

    from qnnbridge_host.start import main

    main(IN_FD, OUT_FD)
