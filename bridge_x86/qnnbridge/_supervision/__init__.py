"""Keeping a host alive: when to start it again, which model is to blame, which one to keep away.

`restart_policy`, `blame` and `quarantine` are pure decisions (time comes from a `Clock`, nothing is started or
killed here); `supervisor` and `investigation` carry them out.
"""
