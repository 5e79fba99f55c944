"""The parts of onnx.proto that judging a model needs: kinds of messages and field numbers. Constants only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qnnbridge_host.model.protobuf import Kind

MODEL_IR_VERSION, MODEL_PRODUCER, MODEL_PRODUCER_VERSION, MODEL_DOMAIN, MODEL_VERSION = 1, 2, 3, 4, 5
MODEL = Kind("model", frozenset((1, 2, 3, 4, 5)))
GRAPH_NODE, GRAPH_NAME, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 11, 12
GRAPH_INITIALIZER, GRAPH_SPARSE_INITIALIZER = 5, 15
GRAPH = Kind("graph", frozenset((GRAPH_NAME,)))
FUNCTION_NAME, FUNCTION_DOMAIN = 1, 10
FUNCTION = Kind("function", frozenset((FUNCTION_NAME, FUNCTION_DOMAIN)))
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
NODE = Kind("node", frozenset((1, 2, 3, 4, 7)), frozenset((1, 2)))
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TEXT, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 1, 3, 4, 6, 11
ATTRIBUTE = Kind("attribute", frozenset((ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_TEXT)))
SPARSE_TENSOR = Kind("sparse tensor")
TENSOR_NAME, TENSOR_LOCATION = 8, 14
TENSOR = Kind("tensor", frozenset((TENSOR_NAME, TENSOR_LOCATION)))
ENTRY_KEY, ENTRY_VALUE = 1, 2
ENTRY = Kind("entry", frozenset((1, 2)))
OPSET_DOMAIN, OPSET_VERSION = 1, 2
OPSET = Kind("opset", frozenset((1, 2)))
VALUE_NAME = 1
VALUE = Kind("value", frozenset((VALUE_NAME,)))
TYPE = Kind("type")
TENSOR_TYPE_ELEMENT = 1
TENSOR_TYPE = Kind("tensor type", frozenset((1,)))
SPARSE_TYPE = Kind("sparse tensor type", frozenset((1,)))
SEQUENCE_TYPE = Kind("sequence type")
OPTIONAL_TYPE = Kind("optional type")
MAP_TYPE_KEY = 1
MAP_TYPE = Kind("map type", frozenset((1,)))
SHAPE = Kind("shape")
DIMENSION_VALUE, DIMENSION_NAME = 1, 2
DIMENSION = Kind("dimension", frozenset((1, 2)))

EXTERNAL: Final = 1
"""``TensorProto.DataLocation``."""

SCHEMA: Final[Mapping[Kind, Mapping[int, Kind]]] = {
    MODEL: {7: GRAPH, 8: OPSET, 14: ENTRY, 25: FUNCTION},
    GRAPH: {
        GRAPH_NODE: NODE,
        GRAPH_INITIALIZER: TENSOR,
        GRAPH_INPUT: VALUE,
        GRAPH_OUTPUT: VALUE,
        GRAPH_SPARSE_INITIALIZER: SPARSE_TENSOR,
    },
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    NODE: {NODE_ATTRIBUTE: ATTRIBUTE},
    ATTRIBUTE: {
        5: TENSOR,
        ATTRIBUTE_GRAPH: GRAPH,
        10: TENSOR,
        ATTRIBUTE_GRAPHS: GRAPH,
        22: SPARSE_TENSOR,
        23: SPARSE_TENSOR,
    },
    SPARSE_TENSOR: {1: TENSOR, 2: TENSOR},
    TENSOR: {13: ENTRY},
    ENTRY: {},
    OPSET: {},
    VALUE: {2: TYPE},
    TYPE: {1: TENSOR_TYPE, 4: SEQUENCE_TYPE, 5: MAP_TYPE, 8: SPARSE_TYPE, 9: OPTIONAL_TYPE},
    TENSOR_TYPE: {2: SHAPE},
    SPARSE_TYPE: {2: SHAPE},
    SEQUENCE_TYPE: {1: TYPE},
    OPTIONAL_TYPE: {1: TYPE},
    MAP_TYPE: {2: TYPE},
    SHAPE: {1: DIMENSION},
    DIMENSION: {},
}
"""Fields (by number) that hold messages worth a look. The training graphs of a model are not run, so not here."""
