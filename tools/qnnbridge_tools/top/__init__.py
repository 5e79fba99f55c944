"""`qnnbridge top`: a live view of the daemon.

`live` asks the daemon in a loop and reads keys from the terminal, `view` draws a page and orders its rows. The
figures come from `qnnbridge_tools.host`.
"""
