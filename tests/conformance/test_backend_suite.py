"""Every node test of the onnx package returns the same through the bridge as with ONNX Runtime directly.

The long form runs every second test, the short form every eighth, because adjacent tests have the same operator. The rules
of `qnnbridge analyze` are compared with the same tests here, because onnx needs four seconds to create the tests.
"""

from __future__ import annotations

import pytest

import qnnbridge
from tests.needs import length

STRIDE = length(8, 2)
# Lower limit, so that a comparison of errors only is noticed. With onnx 1.23 and ONNX Runtime 1.31 there are 1720
# in all.
LEAST_EQUAL_VALUES = 1200 // STRIDE
# The rules are checked on every third test, and this share of the nodes must be right.
JUDGED = 3
LEAST_SHARE = 0.97


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # onnx's cases overflow and divide by zero deliberately
def test_every_node_test_gives_the_same_results_through_the_bridge(
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


def test_the_rules_of_analyze_are_right_for_nearly_all_nodes_of_the_node_tests() -> None:
    """Compare the rules with QNN's placement that `python -m lab.analyze_accuracy --record node` recorded, which
    checks all tests.
    """
    from lab.analyze_accuracy import cases, compare, recorded

    truths = recorded.read()
    tally = compare.Tally()
    for number, case in enumerate(cases.node_tests()):
        if case.name in truths and (number % JUDGED == 0 or truths[case.name].status == "crash"):
            compare.add(tally, case.name, cases.loadable(case.model), truths[case.name])
    assert tally.models > 1500 / JUDGED, "another onnx has other tests; most are the same"
    assert tally.share >= LEAST_SHARE, str(tally)
    assert tally.crashes
    assert tally.crashes_missed == []
