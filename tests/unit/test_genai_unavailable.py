"""Names of onnxruntime_genai that the bridge lacks, and their members, raise an error with the reason."""

from __future__ import annotations

import pytest

from qnnbridge import genai
from qnnbridge.genai import UNAVAILABLE
from qnnbridge_host.genai.native import from_genai
from qnnbridge_protocol.errors import GenerationFolderInvalid, GenerationUnsupported


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_the_error_for_an_unavailable_member_has_the_reason(name: str) -> None:
    with pytest.raises(GenerationUnsupported, match=UNAVAILABLE[name]):
        getattr(genai, name).open  # noqa: B018
    assert not hasattr(getattr(genai, name), "open")


@pytest.mark.parametrize(
    "text", ["Error opening /m/genai_config.json", "Error encountered while parsing 'x' JSON Error: model"]
)
def test_the_error_for_a_damaged_folder_has_a_cause(text: str) -> None:
    error = from_genai(text, "0.18.0")
    assert isinstance(error, GenerationFolderInvalid)
    assert error.cause
    assert from_genai("std::exception", "0.18.0").cause
