"""`qnnbridge top`: a live view of the daemon.

`command` reads the options, `live` asks the daemon in a loop, `view` draws a page, `sorting` orders its rows,
`keys` reads the terminal. The figures come from `qnnbridge_tools.host`.
"""
