"""The daemon: one NPU host that several applications share.

A broker between two sides that stay as they are: towards the NPU it is an ordinary user of `qnnbridge.Host`, and
towards applications it speaks the protocol that a host speaks. No native QNN code is loaded here, so a death of the
NPU host ends no client's connection. Nothing is imported here.
"""
