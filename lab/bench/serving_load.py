"""``python serving_load.py PLAN``: a process that simulates clients of an inference server.

A client has one connection and sends its request again as soon as the response arrives. One loop handles all HTTP
clients: the request is encoded once, and only the head of a response is parsed, so that the clients use little
processor time. gRPC clients use the gRPC library. The program runs in any interpreter with numpy; gRPC needs the
interpreter of mlserver.

The plan is JSON: ``{"url", "model", "form", "clients", "seconds", "tensor": FILE.npy}``. The program prints
``{"rate", "ms", "answer": [...]}``: requests per second, median milliseconds of a request, and the first tensor of
the first response.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import statistics
import sys
import time
from typing import Any

import numpy as np

SETTLE_S = 0.3


def main(plan: dict[str, Any]) -> dict[str, Any]:
    tensor = np.load(plan["tensor"])
    measure = grpc_clients if plan["form"] == "grpc" else http_clients
    return measure(plan, tensor)


def http_body(tensor: Any, binary: bool) -> tuple[bytes, int | None]:
    entry: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(tensor.shape)}
    if not binary:
        return json.dumps({"inputs": [{**entry, "data": tensor.reshape(-1).tolist()}]}).encode(), None
    tensor = tensor.astype(np.float32)
    entry["parameters"] = {"binary_data_size": tensor.nbytes}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + tensor.tobytes(), len(head)


def http_clients(plan: dict[str, Any], tensor: Any) -> dict[str, Any]:
    host, port = plan["url"].split(":")
    body, head_bytes = http_body(tensor, plan["form"] == "binary")
    path = f"/v2/models/{plan['model']}/infer"
    headers = {"Content-Type": "application/json" if head_bytes is None else "application/octet-stream"}
    if head_bytes is not None:
        headers["Inference-Header-Content-Length"] = str(head_bytes)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    answer = first_tensor(response.read(), response.getheader("Inference-Header-Content-Length"))
    connection.close()
    lines = [f"POST {path} HTTP/1.1", f"Host: {plan['url']}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    with selectors.DefaultSelector() as selector:
        for _ in range(plan["clients"]):
            client = socket.create_connection((host, int(port)), timeout=60)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_WRITE, _HttpClient(request))
        return {**_turns(selector, plan["seconds"]), "answer": answer}


def first_tensor(body: bytes, head_bytes: str | None) -> list[float]:
    head = json.loads(body if head_bytes is None else body[: int(head_bytes)])
    output = head["outputs"][0]
    found = output["data"] if head_bytes is None else np.frombuffer(body[int(head_bytes) :], np.float32).tolist()
    return [float(number) for number in np.asarray(found, np.float32).reshape(-1)]


class _HttpClient:
    def __init__(self, request: bytes) -> None:
        self.request = memoryview(request)
        self.sent = 0
        self.received = b""
        self.expected = -1
        self.begun = time.perf_counter()


def _turns(selector: selectors.BaseSelector, seconds: float) -> dict[str, float]:
    taken: list[float] = []
    begin = time.perf_counter() + SETTLE_S
    end = begin + seconds
    while (now := time.perf_counter()) < end:
        for key, _ in selector.select(0.1):
            state: _HttpClient = key.data
            client: Any = key.fileobj
            if key.events == selectors.EVENT_WRITE:
                state.sent += client.send(state.request[state.sent :])
                if state.sent == len(state.request):
                    selector.modify(client, selectors.EVENT_READ, state)
                continue
            part = client.recv(1 << 20)
            assert part, "the server closed a connection"
            state.received += part
            if state.expected < 0 and (stop := state.received.find(b"\r\n\r\n")) >= 0:
                head = state.received[:stop].lower()
                assert b" 200 " in head[:20], state.received[:500]
                size = head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0]
                state.expected = stop + 4 + int(size)
            if len(state.received) == state.expected:
                now = time.perf_counter()
                if now >= begin:
                    taken.append(now - state.begun)
                state.sent, state.received, state.expected, state.begun = 0, b"", -1, now
                try:
                    state.sent = client.send(state.request)
                except BlockingIOError:
                    state.sent = 0
                if state.sent < len(state.request):
                    selector.modify(client, selectors.EVENT_WRITE, state)
    return _figures(taken, seconds)


def _figures(taken: list[float], seconds: float) -> dict[str, float]:
    return {"rate": len(taken) / seconds, "ms": statistics.median(taken or [0.0]) * 1e3}


def grpc_clients(plan: dict[str, Any], tensor: Any) -> dict[str, Any]:
    """Run clients of mlserver's gRPC interface, since mlserver does not support binary tensors over HTTP."""
    import threading

    import grpc
    from mlserver.grpc import dataplane_pb2, dataplane_pb2_grpc

    request = dataplane_pb2.ModelInferRequest(model_name=plan["model"])
    entry = request.inputs.add(name="x", datatype="FP32", shape=list(tensor.shape))
    entry.parameters["content_type"].string_param = "np"
    request.raw_input_contents.append(tensor.astype(np.float32).tobytes())
    taken: list[float] = []
    with grpc.insecure_channel(plan["url"]) as channel:
        stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel)
        first = stub.ModelInfer(request)
        raw = first.raw_output_contents
        values = np.frombuffer(raw[0], np.float32) if raw else np.array(first.outputs[0].contents.fp32_contents)
        begin = time.perf_counter() + SETTLE_S
        end = begin + plan["seconds"]

        def work() -> None:
            while (started := time.perf_counter()) < end:
                stub.ModelInfer(request)
                now = time.perf_counter()
                if begin <= now <= end:
                    taken.append(now - started)

        threads = [threading.Thread(target=work) for _ in range(plan["clients"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {**_figures(taken, plan["seconds"]), "answer": [float(one) for one in values]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
