"""Every node test of the onnx package gives through the bridge what ONNX Runtime gives directly.

The long form has all of them, the short form every fourth: neighbours have one operator.
"""

from __future__ import annotations

import pytest

import qnnbridge
from tests.needs import length

STRIDE = length(4, 1)
# So that a comparison of nothing but errors is noticed. With onnx 1.23 and ONNX Runtime 1.31 there are 1720 of all tests.
LEAST_EQUAL_VALUES = 1200 // STRIDE


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # onnx's cases overflow and divide by zero on purpose
def test_every_node_test_gives_the_same_through_the_bridge(
    host: qnnbridge.Host, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnx.backend.test")
    from tests.conformance.backend_suite import compare

    tally = compare(host, stride=STRIDE)
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.different == []
    assert tally.values > LEAST_EQUAL_VALUES
    assert host.stats.generation == 1
