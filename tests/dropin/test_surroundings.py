"""The environment of a program with the drop-in: its child processes, folders and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from qnnbridge_tools.exec_command import interpreter_options
from tests import needs
from tests.dropin.running import MODELS, TIMEOUT_S, exec_program, program

pytestmark = pytest.mark.process

MUL = MODELS / "mul_1.onnx"


# --- processes that the program starts ----------------------------------------------------------------------------

CHILDREN = """
    import os
    import subprocess
    import sys

    CODE = "import onnxruntime; print(onnxruntime.__spec__.name)"

    def said(command=(sys.executable, "-c", CODE), **how):
        ran = subprocess.run(command, capture_output=True, text=True, **how)
        return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1]
"""


@needs.posix
def test_a_python_in_the_program_own_environment_has_the_bridge(tmp_path: Path) -> None:
    source = (
        CHILDREN
        + """
    import onnxruntime

    path = os.path.dirname(sys.executable)
    print(said(env={}))
    print(said(env={"PATH": path}))
    print(said(("python", "-c", CODE), env={"PATH": path}))
    print(said(env={**os.environ, "PYTHONPATH": "elsewhere"}))
    print(said(env={b"PATH": os.fsencode(path)}))
    os.environ["PYTHONPATH"] = "elsewhere"
    print(said())
    print(said((sys.executable, "-c", CODE), executable=sys.executable, env={}))
    mine = {"PATH": path}
    said(env=mine)
    print(sorted(mine))
    """
    )
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.split("\n") == [*["qnnbridge.ort"] * 7, "['PATH']", ""], ran.stderr


@needs.posix
def test_other_programs_get_the_environment_that_the_program_sets(tmp_path: Path) -> None:
    source = (
        CHILDREN
        + """
    import onnxruntime

    print(said(("/usr/bin/env",), env={"A": "1"}))
    print(said((sys.executable, "-I", "-c", "import os; print(*os.environ)"), env={"LC_ALL": "C.UTF-8"}))
    print(said("echo $A$PYTHONPATH", shell=True, env={"A": "2"}))
    try:
        subprocess.Popen()
    except TypeError as error:
        print(error)
    """
    )
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    lines = ran.stdout.splitlines()
    assert lines[:3] == ["A=1", "LC_ALL", "2"], ran.stderr
    assert "missing 1 required positional argument: 'args'" in lines[3]


@needs.linux
@pytest.mark.parametrize(
    "wait",
    [
        "os.wait()",
        "os.waitpid(-1, 0)",
        "os.waitpid(-1, os.WNOHANG)",
        "os.wait3(0)[:2]",
        "os.wait3(os.WNOHANG)[:2]",
        "os.wait4(-1, 0)[:2]",
        "waited(os.waitid(os.P_ALL, 0, os.WEXITED))",
        "os.waitpid(-1, os.WUNTRACED)",
    ],
)
def test_a_loop_that_waits_for_all_children_ends(wait: str, tmp_path: Path) -> None:
    source = f"""
        import os
        import subprocess
        import sys
        import time

        import numpy as np
        import onnxruntime as ort

        session = ort.InferenceSession({str(MUL)!r})
        children = [subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({{n}})"]) for n in (3, 4)]
        waited = lambda found: (found.si_pid, found.si_status << 8)
        codes = {{}}
        while True:
            try:
                pid, status = {wait}
            except ChildProcessError:
                break
            if pid:
                codes[pid] = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.01)
        print([codes[child.pid] for child in children], len(codes))
        print(session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
        """
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.splitlines() == ["[3, 4] 2", "21.0"], ran.stderr


@needs.linux
def test_the_exit_of_a_host_is_explained_while_the_program_waits_for_its_children(tmp_path: Path) -> None:
    source = f"""
        import os
        import signal
        import subprocess
        import sys

        import numpy as np
        import onnxruntime as ort

        session = ort.InferenceSession({str(MUL)!r})
        host = session.host.info.pid
        end = f"import os, signal, sys; os.kill({{host}}, signal.SIGSEGV); sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", end], stdin=subprocess.PIPE)
        # Until the host has ended and can be collected.
        os.waitid(os.P_PID, host, os.WEXITED | os.WNOWAIT)
        child.stdin.close()
        print(os.wait()[0] == child.pid)
        try:
            os.wait()
        except ChildProcessError:
            print("no child")
        print(session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
        print(session.host.stats.last_crash.splitlines()[0].rpartition("exit code ")[2])
        """
    ran = exec_program(program(tmp_path, source), cwd=tmp_path)
    assert ran.stdout.splitlines() == ["True", "no child", "21.0", "-11 (SIGSEGV)."], ran.stderr


# --- folders ------------------------------------------------------------------------------------------------------

PARENT_AND_CHILD = f"""
    import subprocess
    import sys

    import numpy as np
    import onnxruntime as ort

    session = ort.InferenceSession({str(MUL)!r}, providers=["CPUExecutionProvider"])
    print(session.run(None, {{"X": np.ones((3, 2), np.float32)}})[0].sum())
    if len(sys.argv) == 1:
        print(subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True).stdout.strip())
    """


def surroundings(tmp_path: Path, **variables: str) -> dict[str, str]:
    """Return variables for `exec_program` without a folder for qnnbridge, and with a file in place of the home
    folder.
    """
    home = tmp_path / "home"
    home.touch()
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    folders = dict.fromkeys(("QNNBRIDGE_CACHE_DIR", "QNNBRIDGE_STATE_DIR", "QNNBRIDGE_RUNTIME_DIR"), "")
    xdg = dict.fromkeys(("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"), "")
    return {**folders, **xdg, "HOME": str(home), "TMPDIR": str(temporary), **variables}


@needs.posix
def test_without_a_home_folder_children_get_the_bridge_through_a_temporary_folder(tmp_path: Path) -> None:
    ran = exec_program(program(tmp_path, PARENT_AND_CHILD), cwd=tmp_path, **surroundings(tmp_path))
    assert ran.stdout.split() == ["21.0", "21.0"], ran.stderr
    (folder,) = (tmp_path / "tmp").glob("qnnbridge-*/dropin/*")
    assert folder.parents[1].stat().st_mode & 0o077 == 0
    assert "No folder is writable" not in ran.stderr


@needs.posix
@pytest.mark.parametrize("start", ["exec", "import"])
def test_without_any_writable_folder_the_program_runs_with_one_warning(start: str, tmp_path: Path) -> None:
    home = surroundings(tmp_path)
    taken = Path(home["TMPDIR"], f"qnnbridge-{os.getuid()}")
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)  # as a folder that another user has created
    name = program(tmp_path, ("    import qnnbridge.dropin\n" if start == "import" else "") + PARENT_AND_CHILD)
    if start == "exec":
        ran = exec_program(name, cwd=tmp_path, **home)
    else:
        ran = subprocess.run(
            [sys.executable, name, "child"],
            cwd=tmp_path,
            env={**os.environ, **home},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ran.stdout.split()[0] == "21.0", ran.stderr
    told = [line for line in ran.stderr.splitlines() if "No folder is writable for the drop-in" in line]
    assert len(told) == 1, ran.stderr
    assert "Set QNNBRIDGE_CACHE_DIR to a writable folder" in told[0]
    assert list(taken.iterdir()) == []


@needs.posix
def test_a_user_without_a_home_folder_has_sessions_and_a_private_cache(tmp_path: Path) -> None:
    source = """
        import os
        from pathlib import Path

        from qnnbridge._launch import configuration_file, configured_host
        from qnnbridge_protocol.settings import cache_dir, state_dir

        del os.environ["HOME"]
        import pwd
        pwd.getpwuid = lambda uid: (_ for _ in ()).throw(KeyError(uid))
        print(cache_dir(), cache_dir().parent.stat().st_mode & 0o777 == 0o700)
        print(configured_host(configuration_file()))
        os.chmod(cache_dir().parent, 0o755)
        print(state_dir())
        """
    ran = subprocess.run(
        [sys.executable, program(tmp_path, source)],
        cwd=tmp_path,
        env={**os.environ, **surroundings(tmp_path), "QNNBRIDGE_CONFIG": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    folder = tmp_path / "tmp" / f"qnnbridge-{os.getuid()}" / "cache"
    assert ran.stdout.splitlines() == [f"{folder} True", "None", "/dev/null/qnnbridge/state"], ran.stderr


# --- options of Python --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python /bin/qnnbridge exec -m x", ""),
        ("python -m qnnbridge_tools exec -O x", ""),
        ("python -O -m qnnbridge_tools exec", "-O"),
        ("python -OOm qnnbridge_tools exec", "-OO"),
        ("python -X dev -Xutf8 -W error -Wd -u -m q", "-X dev -Xutf8 -W error -Wd -u"),
        ("python -bX dev -mqnnbridge_tools", "-bX dev"),
        ("python --check-hash-based-pycs never -I -m q", "--check-hash-based-pycs never -I"),
        ("python", ""),
        ("python -", ""),
    ],
)
def test_the_options_of_python_are_found_in_its_command_line(command: str, options: str) -> None:
    assert interpreter_options(command.split()) == options.split()


def test_the_program_has_the_options_that_python_was_started_with(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        """
        import sys
        import onnxruntime
        print(__debug__, sys._xoptions, sys.warnoptions, sys.argv[1:], onnxruntime.__spec__.name)
        """,
    )
    ran = subprocess.run(
        [sys.executable, "-O", "-X", "faulthandler", "-W", "ignore", "-m", "qnnbridge_tools", "exec", name, "-x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.stdout.strip() == "False {'faulthandler': True} ['ignore'] ['-x'] qnnbridge.ort", ran.stderr
