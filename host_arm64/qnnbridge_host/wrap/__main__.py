"""Read a request as JSON from stdin, and write the answer as JSON to stdout (`python -m qnnbridge_host.wrap`)."""

from qnnbridge_host import stdio_guard

# Redirect descriptor 1, because native code may print on it.
IN_FD, OUT_FD = stdio_guard.claim()


def main() -> None:
    import base64
    import json
    import os

    from qnnbridge_host.wrap.build import WrapRequest, work
    from qnnbridge_protocol.errors import BridgeError, NoSuchFile

    with open(IN_FD, "rb") as incoming:
        request = WrapRequest.from_plain(json.load(incoming))
    try:
        described, models = work(request)
        answer = {
            "description": described.to_plain(),
            "models": [[list(one.graphs), base64.b64encode(one.data).decode("ascii")] for one in models],
        }
    except BridgeError as error:
        answer = {"error": error.to_wire()}
    except OSError as error:
        refused = NoSuchFile(f"{request.path} cannot be read.", cause=f"{error.strerror or error}.")
        answer = {"error": refused.to_wire()}
    # JSON escapes everything that is not ASCII, so the console's encoding does not matter.
    with open(OUT_FD, "w", encoding="ascii") as outgoing:
        json.dump(answer, outgoing)
    # Do not wait for the library to shut down: faults at that point no longer matter.
    os._exit(0)


if __name__ == "__main__":
    main()
