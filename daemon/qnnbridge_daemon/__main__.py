"""`python -m qnnbridge_daemon`: see `main.py`."""

from qnnbridge_daemon.main import main

if __name__ == "__main__":
    main()
