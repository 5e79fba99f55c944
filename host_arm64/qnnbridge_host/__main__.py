"""The host process: `python -I -u -X utf8 -m qnnbridge_host --parent PID`.

The order of the first lines matters. The native QNN library prints on descriptor 1, so the descriptors that
carry the protocol are taken away before anything else is imported.
"""

import gc

from qnnbridge_host import stdio_guard

IN_FD, OUT_FD = stdio_guard.claim()

stdio_guard.spare_bytecode()

if __name__ == "__main__":
    # A seventh of a start is the collector looking again and again through what imports have just made. `main`
    # switches it on again.
    gc.disable()

    from qnnbridge_host.start import main

    main(IN_FD, OUT_FD)
