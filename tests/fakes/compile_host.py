"""The real host, which crashes or fails once at a given step of a compilation in a worker.

`python tests/fakes/compile_host.py --step=STEP [--once=FILE] [--file-bytes=N] --parent PID`

STEP is one of: before (nothing is written), native (in native code), blob (the context binary is written, the .onnx
is not), half (half of the .onnx is written), both (both are written, no reply is sent), teardown (the reply was
sent), stop (the process is stopped in native code), segv (a segmentation fault in native code), none. With ``once``
the fault occurs only if FILE does not exist, and FILE is created first.
"""

import sys

from qnnbridge_host import stdio_guard

IN_FD, OUT_FD = stdio_guard.claim()

if __name__ == "__main__":
    import faulthandler
    import os
    import resource
    import signal
    import threading

    from qnnbridge_host.engine import compile as compiling
    from qnnbridge_host.engine import load_engine, sessions
    from qnnbridge_host.start import main

    ours = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
    rest = [a for a in sys.argv[1:] if not (a.startswith("--") and "=" in a)]
    step, once = ours["step"], ours.get("once")
    if "file-bytes" in ours:
        sys.dont_write_bytecode = True  # truncated bytecode would outlive the test
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(ours["file-bytes"]), int(ours["file-bytes"])))

    def due():
        if once is not None:
            if os.path.exists(once):
                return False
            open(once, "w").close()
        return True

    def end(number=signal.SIGKILL):
        os.kill(os.getpid(), number)
        threading.Event().wait()

    really = compiling.compile_model

    def compile_model(engine, spec, model, initializers, on_phase):
        if step in ("none", "teardown") or not due():
            return really(engine, spec, model, initializers, on_phase)
        if step == "before":
            end()

        def phase(name):
            on_phase(name)
            if name != "compiling":
                return
            if step == "segv":
                faulthandler._sigsegv()
            if step == "stop":
                # This thread stops before the call returns, and all others with it.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            if step == "native":
                # This thread continues into native code, where it releases the GIL.
                threading.Thread(target=end, daemon=True).start()

        session = really(engine, spec, model, initializers, phase)
        if step == "blob":
            os.unlink(spec.output)
        elif step in ("half", "native"):  # files written before the other thread ran must not be complete, either
            os.truncate(spec.output, os.path.getsize(spec.output) // 2)
        end()
        return session

    compiling.compile_model = compile_model
    if step == "teardown":
        close = sessions.Sessions.close_all

        def close_and_die(self):
            if self._compiled and due():
                faulthandler._sigsegv()
            close(self)

        sessions.Sessions.close_all = close_and_die
    main(IN_FD, OUT_FD, rest, load_engine)
