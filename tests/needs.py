"""What a test needs of the machine, said once: ``@needs.posix``."""

from __future__ import annotations

import os
import sys

import pytest

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals, rights, links and shells of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or names what only Linux has")
a_host_python = pytest.mark.skipif(sys.version_info < (3, 11), reason="the host needs Python 3.11")
