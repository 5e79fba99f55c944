"""A custom runtime for mlserver, as its documentation shows. Runs in mlserver's interpreter only."""

from __future__ import annotations

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feed = {given.name: NumpyCodec.decode_input(given) for given in payload.inputs}
        names = [output.name for output in self._session.get_outputs()]
        results = self._session.run(names, feed)
        return InferenceResponse(
            model_name=self.name,
            outputs=[NumpyCodec.encode_output(name, value) for name, value in zip(names, results, strict=True)],
        )
