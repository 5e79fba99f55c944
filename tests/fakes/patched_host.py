"""The real host, which runs code of a test before it starts, as do its workers.

`python tests/fakes/patched_host.py --patch=FILE --parent PID`
"""

import sys

from qnnbridge_host import stdio_guard

IN_FD, OUT_FD = stdio_guard.claim()

if __name__ == "__main__":
    from qnnbridge_host.engine import load_engine
    from qnnbridge_host.start import main

    patch = next(word for word in sys.argv if word.startswith("--patch=")).removeprefix("--patch=")
    with open(patch, encoding="utf-8") as file:
        exec(compile(file.read(), patch, "exec"), {"__name__": "patch"})
    main(IN_FD, OUT_FD, [word for word in sys.argv[1:] if not word.startswith("--patch=")], load_engine)
