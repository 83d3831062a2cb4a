#!/usr/bin/env python3
"""Makes the small ONNX models of the tests and of examples/onnx.

    pip install -r test/models/requirements.txt
    python3 test/models/make.py

It writes them to where they are used, the same bytes each time, so that they can
be committed and nobody needs Python to run the tests.
"""

import os
import pathlib

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "internal/engine/onnx/testdata"
EXAMPLE = ROOT / "examples/onnx/add_sub/1/model.onnx"

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

# The types that a tensor can have, by their names in the KServe v2 protocol.
TYPES = {
    "BOOL": BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": INT64, "FP16": TensorProto.FLOAT16, "FP32": FLOAT, "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING, "BF16": TensorProto.BFLOAT16,
}


def port(name, element, shape):
    return helper.make_tensor_value_info(name, element, shape)


def weights(name, *shape):
    """Numbers that look arbitrary and are the same everywhere."""
    count = int(numpy.prod(shape))
    values = numpy.sin(numpy.arange(count, dtype=numpy.float64) * 12.9898) / 4
    return numpy_helper.from_array(values.astype(numpy.float32).reshape(shape), name)


def write(path, doc, nodes, inputs, outputs, initializers=(), check=True):
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, doc_string=doc)
    if check:
        onnx.checker.check_model(model)
    save(path, model.SerializeToString(deterministic=True))


def save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # so that what has the name is never half of it
    part.write_bytes(content)
    part.rename(path)
    print(f"{os.path.relpath(path)}: {len(content)} bytes")


def add_sub(path):
    ports = {name: port(name, FLOAT, ["N", 16]) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
    write(path, "The sum and the difference of two inputs.",
          [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
           helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
          [ports["INPUT0"], ports["INPUT1"]], [ports["OUTPUT0"], ports["OUTPUT1"]])


def mlp(path):
    write(path, "A perceptron of two layers.",
          [helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["h"]),
           helper.make_node("Gemm", ["h", "w2", "b2"], ["y"])],
          [port("x", FLOAT, ["N", 32])], [port("y", FLOAT, ["N", 4])],
          [weights("w1", 32, 64), weights("b1", 64), weights("w2", 64, 4), weights("b2", 4)])


def types(path, doc="Each type, handed through by an operator.", names=TYPES):
    write(path, doc, [helper.make_node("Identity", ["in_" + t], ["out_" + t]) for t in names],
          [port("in_" + t, TYPES[t], ["N", "D"]) for t in names], [port("out_" + t, TYPES[t], ["N", "D"]) for t in names])


def types_spelled(path):
    types(path, "The types that can be written as numbers and text, handed through.", [t for t in TYPES if t not in ("FP16", "BF16")])


def strings(path):
    write(path, "Strings, handed through by an operator.",
          [helper.make_node("Identity", ["in"], ["out"])],
          [port("in", TensorProto.STRING, ["N", 1])], [port("out", TensorProto.STRING, ["N", 1])])


def scalar(path):
    write(path, "Twice a number that has no dimensions.",
          [helper.make_node("Add", ["x", "x"], ["y"])], [port("x", FLOAT, [])], [port("y", FLOAT, [])])


def anyshape(path):
    write(path, "The numbers with their signs changed, whatever dimensions they have.",
          [helper.make_node("Neg", ["x"], ["y"])], [port("x", FLOAT, None)], [port("y", FLOAT, None)],
          check=False)  # the checker wants a shape; the engine, and models out there, do without


def rows(path):
    write(path, "Twice the one number of each row.",
          [helper.make_node("Add", ["x", "x"], ["y"])], [port("x", FLOAT, ["N"])], [port("y", FLOAT, ["N"])])


def centred(path):
    """Rows that see each other: whoever combines requests gives their clients wrong answers."""
    write(path, "Each row, less the mean of all rows.",
          [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["y"])],
          [port("x", FLOAT, ["N", 4])], [port("y", FLOAT, ["N", 4])])


def mean_pool(path):
    """A mask that the model does not use: padding changes its answers."""
    write(path, "The mean of each row, and the number of elements that its mask keeps.",
          [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
           helper.make_node("ReduceSum", ["mask", "axis"], ["kept"])],
          [port("x", FLOAT, ["N", "T"]), port("mask", INT64, ["N", "T"])],
          [port("mean", FLOAT, ["N", 1]), port("kept", INT64, ["N", 1])],
          [numpy_helper.from_array(numpy.array([1]), "axis")])


def masked_pool(path):
    """The same with the mask: padding changes nothing."""
    write(path, "The mean of the elements of each row that its mask keeps.",
          [helper.make_node("Cast", ["mask"], ["weight"], to=FLOAT), helper.make_node("Mul", ["x", "weight"], ["weighted"]),
           helper.make_node("ReduceSum", ["weighted", "axis"], ["sum"]), helper.make_node("ReduceSum", ["weight", "axis"], ["count"]),
           helper.make_node("Div", ["sum", "count"], ["mean"])],
          [port("x", FLOAT, ["N", "T"]), port("mask", INT64, ["N", "T"])], [port("mean", FLOAT, ["N", 1])],
          [numpy_helper.from_array(numpy.array([1]), "axis")])


def token_scale(path):
    """An answer for each element: it has the length of the request."""
    write(path, "Eight multiples of each element of a row.",
          [helper.make_node("Cast", ["mask"], ["weight"], to=FLOAT), helper.make_node("Mul", ["x", "weight"], ["kept"]),
           helper.make_node("Unsqueeze", ["kept", "last"], ["column"]), helper.make_node("Mul", ["column", "factors"], ["y"])],
          [port("x", FLOAT, ["N", "T"]), port("mask", INT64, ["N", "T"])], [port("y", FLOAT, ["N", "T", 8])],
          [numpy_helper.from_array(numpy.array([2]), "last"), numpy_helper.from_array(numpy.arange(1, 9, dtype=numpy.float32), "factors")])


def large(path):
    """As many rows out as there are large ones, whatever came in."""
    write(path, "The rows whose first number is above a half.",
          [helper.make_node("Gather", ["x", "zero"], ["first"], axis=1), helper.make_node("Greater", ["first", "half"], ["is"]),
           helper.make_node("Compress", ["x", "is"], ["y"], axis=0)],
          [port("x", FLOAT, ["N", 4])], [port("y", FLOAT, ["K", 4])],
          [numpy_helper.from_array(numpy.array(0), "zero"), numpy_helper.from_array(numpy.array(0.5, numpy.float32), "half")])


def nonzero(path):
    write(path, "Where the elements are that are not zero: as many as there are.",
          [helper.make_node("NonZero", ["x"], ["at"])],
          [port("x", FLOAT, ["N", "D"])], [port("at", INT64, [2, "K"])])


def passthrough(path):
    write(path, "An output that is the input itself, and one that is a constant, beside one that is computed.",
          [helper.make_node("Neg", ["x"], ["y"])],
          [port("x", FLOAT, ["N", 4])], [port("x", FLOAT, ["N", 4]), port("y", FLOAT, ["N", 4]), port("c", FLOAT, [8])],
          [weights("c", 8)])


def optional(path):
    """The offset is an input with a value of its own, which a request may replace."""
    write(path, "A number and an offset, which is 100 unless it is given.",
          [helper.make_node("Add", ["x", "offset"], ["y"])],
          [port("x", FLOAT, []), port("offset", FLOAT, [1])], [port("y", FLOAT, [1])],
          [numpy_helper.from_array(numpy.array([100], numpy.float32), "offset")])


def own_operator(path):
    """An operator of operators.c, beside this file's models."""
    graph = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain="shoal.test")], path.stem,
                              [port("x", FLOAT, [4])], [port("y", FLOAT, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("shoal.test", 1)],
                              ir_version=8, doc_string="An operator that ONNX does not have.")
    save(path, model.SerializeToString(deterministic=True))


def fixed(path):
    write(path, "A batch dimension of one row, and no other.",
          [helper.make_node("Neg", ["x"], ["y"])], [port("x", FLOAT, [1, 4])], [port("y", FLOAT, [1, 4])])


def sequence(path):
    out = helper.make_tensor_sequence_value_info("parts", FLOAT, None)
    write(path, "An output that is no tensor.",
          [helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1)], [port("x", FLOAT, ["N", 4])], [out])


def fail_if(path):
    write(path, "An element of a table of eight; an index outside of it fails.",
          [helper.make_node("Gather", ["table", "index"], ["value"], axis=0)],
          [port("index", INT64, ["N", 1])], [port("value", FLOAT, ["N", 1])], [weights("table", 8)])


def spin(path):
    """Runs as long as it is told, in steps between which it can be stopped."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["state", "w"], ["product"]), helper.make_node("Tanh", ["product"], ["next"]),
         helper.make_node("Identity", ["go"], ["goes"])],
        "step", [port("i", INT64, []), port("go", BOOL, []), port("state", FLOAT, None)],
        [port("goes", BOOL, []), port("next", FLOAT, None)])
    write(path, "As many steps as the largest number of them asked for.",
          [helper.make_node("ReduceMax", ["steps"], ["most"], keepdims=0),
           helper.make_node("Loop", ["most", "true", "x"], ["y"], body=body)],
          [port("x", FLOAT, ["N", 64]), port("steps", INT64, ["N", 1])], [port("y", FLOAT, ["N", 64])],
          [weights("w", 64, 64), numpy_helper.from_array(numpy.array(True), "true")])


def endless(path):
    """Never ends by itself, in steps between which it can be stopped."""
    body = helper.make_graph(
        [helper.make_node("Tanh", ["state"], ["next"]), helper.make_node("Identity", ["go"], ["goes"])],
        "step", [port("i", INT64, []), port("go", BOOL, []), port("state", FLOAT, None)],
        [port("goes", BOOL, []), port("next", FLOAT, None)])
    write(path, "Steps without end.",
          [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)],
          [port("x", FLOAT, ["N", 64])], [port("y", FLOAT, ["N", 64])],
          [numpy_helper.from_array(numpy.array(True), "true")])


def ragged(path):
    """Requests of different sizes in one batch. Elements are added up one by one, so
    that a request gives the same bits alone and among others."""
    write(path, "The sum of each request's numbers, and what each number is less than its request's sum.",
          [helper.make_node("Shape", ["x"], ["size"]), helper.make_node("Squeeze", ["size"], ["elements"]),
           helper.make_node("Range", ["zero", "elements", "one"], ["at"]),
           helper.make_node("Unsqueeze", ["at", "axis1"], ["column"]),
           helper.make_node("Cast", ["ends"], ["ends64"], to=INT64),
           helper.make_node("GreaterOrEqual", ["column", "ends64"], ["behind"]),
           helper.make_node("Cast", ["behind"], ["behind64"], to=INT64),
           helper.make_node("ReduceSum", ["behind64", "axis1"], ["request"], keepdims=0),
           helper.make_node("Shape", ["ends"], ["requests"]),
           helper.make_node("ConstantOfShape", ["requests"], ["zeros"]),
           helper.make_node("ScatterElements", ["zeros", "request", "x"], ["sums"], reduction="add"),
           helper.make_node("Unsqueeze", ["sums", "axis1"], ["sum"]),
           helper.make_node("Gather", ["sums", "request"], ["own"]),
           helper.make_node("Sub", ["own", "x"], ["rest"])],
          [port("x", FLOAT, ["E"]), port("ends", TensorProto.INT32, ["R"])],
          [port("sum", FLOAT, ["R", 1]), port("rest", FLOAT, ["E"])],
          [numpy_helper.from_array(numpy.array(0), "zero"), numpy_helper.from_array(numpy.array(1), "one"),
           numpy_helper.from_array(numpy.array([1]), "axis1")])


def recurrent(path):
    """A net with a state, whose rows do not depend on each other."""
    write(path, "Half of the state and the input, which is the next state and the output.",
          [helper.make_node("Mul", ["state", "half"], ["kept"]), helper.make_node("Add", ["kept", "x"], ["next"]),
           helper.make_node("Identity", ["next"], ["y"])],
          [port("x", FLOAT, ["N", 2, 4]), port("state", FLOAT, ["N", 2, 4])], [port("y", FLOAT, ["N", 2, 4]), port("next", FLOAT, ["N", 2, 4])],
          [numpy_helper.from_array(numpy.array(0.5, dtype=numpy.float32), "half")])


def voices(path):
    """A net with the interface of the voice detector in examples/voice-detector: frames, their context and a state. Its sums
    are convolutions, which an engine computes row by row: a row gives the same bits alone and among others."""
    write(path, "A number that depends on all frames of a sequence so far.",
          [helper.make_node("Concat", ["context", "input"], ["frame"], axis=1),
           helper.make_node("Slice", ["frame", "last", "end", "axis1"], ["contextN"]),
           helper.make_node("Unsqueeze", ["frame", "axis1"], ["channel"]),
           helper.make_node("Conv", ["channel", "filter"], ["heard"], strides=[4]),
           helper.make_node("Mul", ["state", "half"], ["kept"]), helper.make_node("Add", ["kept", "heard"], ["sum"]),
           helper.make_node("Tanh", ["sum"], ["stateN"]),
           helper.make_node("Conv", ["stateN", "level"], ["score"]), helper.make_node("Sigmoid", ["score"], ["probability"]),
           helper.make_node("Squeeze", ["probability", "axis1"], ["output"])],
          [port("input", FLOAT, ["N", 512]), port("context", FLOAT, ["N", 64]), port("state", FLOAT, ["N", 2, 128])],
          [port("output", FLOAT, ["N", 1]), port("contextN", FLOAT, ["N", 64]), port("stateN", FLOAT, ["N", 2, 128])],
          [numpy_helper.from_array(numpy.array([512]), "last"), numpy_helper.from_array(numpy.array([576]), "end"),
           numpy_helper.from_array(numpy.array([1]), "axis1"), numpy_helper.from_array(numpy.array(0.5, dtype=numpy.float32), "half"),
           weights("filter", 2, 1, 68), weights("level", 1, 2, 128)])


def speech_encoder(path):
    """The interface of streaming transducers for speech, such as those of k2-fsa/sherpa: features of half precision, a number of
    frames for each row, and three states of different types and ranks."""
    half = TensorProto.FLOAT16
    write(path, "Features with what is left of those before, and the number of frames so far.",
          [helper.make_node("Cast", ["speech"], ["features"], to=FLOAT),
           helper.make_node("Slice", ["features", "zero", "eight", "axis2"], ["narrow"]),
           helper.make_node("ReduceMean", ["narrow"], ["mean"], axes=[1], keepdims=1),
           helper.make_node("Unsqueeze", ["mean", "axis2"], ["new"]),
           helper.make_node("Cast", ["attn_cache"], ["attn"], to=FLOAT), helper.make_node("Mul", ["attn", "half"], ["kept"]),
           helper.make_node("Add", ["kept", "new"], ["next_attn"]), helper.make_node("Cast", ["next_attn"], ["next_attn_cache"], to=half),
           helper.make_node("Cast", ["cnn_cache"], ["cnn"], to=FLOAT), helper.make_node("Add", ["cnn", "one"], ["next_cnn"]),
           helper.make_node("Cast", ["next_cnn"], ["next_cnn_cache"], to=half),
           helper.make_node("Unsqueeze", ["speech_lengths", "axis1"], ["frames"]),
           helper.make_node("Add", ["processed_lens", "frames"], ["next_processed_lens"]),
           helper.make_node("Squeeze", ["next_processed_lens", "axis1"], ["encoder_out_lens"]),
           helper.make_node("ReduceMean", ["next_attn"], ["before"], axes=[1, 2], keepdims=0),
           helper.make_node("Unsqueeze", ["before", "axis1"], ["context"]), helper.make_node("Add", ["narrow", "context"], ["out"]),
           helper.make_node("Cast", ["out"], ["encoder_out"], to=half)],
          [port("speech", half, ["N", "T", 80]), port("speech_lengths", INT64, ["N"]), port("attn_cache", half, ["N", 4, 2, 8]),
           port("cnn_cache", half, ["N", 3, 2, 8]), port("processed_lens", INT64, ["N", 1])],
          [port("encoder_out", half, ["N", "T", 8]), port("encoder_out_lens", INT64, ["N"]), port("next_attn_cache", half, ["N", 4, 2, 8]),
           port("next_cnn_cache", half, ["N", 3, 2, 8]), port("next_processed_lens", INT64, ["N", 1])],
          [numpy_helper.from_array(numpy.array([0]), "zero"), numpy_helper.from_array(numpy.array([8]), "eight"),
           numpy_helper.from_array(numpy.array([1]), "axis1"), numpy_helper.from_array(numpy.array([2]), "axis2"),
           numpy_helper.from_array(numpy.array(0.5, dtype=numpy.float32), "half"), numpy_helper.from_array(numpy.array(1, dtype=numpy.float32), "one")])


def batch_inputs(path):
    """Every kind of batch input, with a row for each request."""
    int32 = TensorProto.INT32
    write(path, "What a model is told of the requests in its batch.",
          [helper.make_node("Unsqueeze", ["COUNT", "axis1"], ["count"]),
           helper.make_node("Unsqueeze", ["ENDS", "axis1"], ["ends"]),
           helper.make_node("Slice", ["BOUNDS", "first", "last"], ["begins"]),
           helper.make_node("Unsqueeze", ["begins", "axis1"], ["begin"]),
           helper.make_node("Shape", ["MOST"], ["size"]), helper.make_node("Shape", ["count"], ["rows"]),
           helper.make_node("Expand", ["size", "rows"], ["most"]),
           helper.make_node("Identity", ["SHAPE"], ["shape"]),
           helper.make_node("Shape", ["SHAPE"], ["same"]), helper.make_node("Reshape", ["FLAT", "same"], ["flat"])],
          [port("x", FLOAT, ["E"]), port("COUNT", FLOAT, ["R"]), port("ENDS", int32, ["R"]), port("BOUNDS", int32, ["B"]),
           port("MOST", FLOAT, ["M"]), port("SHAPE", int32, ["N", "K"]), port("FLAT", int32, ["F"])],
          [port("count", FLOAT, ["R", 1]), port("ends", int32, ["R", 1]), port("begin", int32, ["R", 1]),
           port("most", INT64, ["R", 1]), port("shape", int32, ["N", "K"]), port("flat", int32, ["N", "K"])],
          [numpy_helper.from_array(numpy.array([1]), "axis1"), numpy_helper.from_array(numpy.array([0]), "first"),
           numpy_helper.from_array(numpy.array([-1]), "last")])


if __name__ == "__main__":
    for make in (add_sub, mlp, types, types_spelled, strings, scalar, anyshape, rows, centred, mean_pool, masked_pool, token_scale, large, nonzero, passthrough, optional, own_operator, fixed, sequence, fail_if, spin, endless,
                 ragged, recurrent, voices, speech_encoder, batch_inputs):
        make(TESTDATA / (make.__name__ + ".onnx"))
    add_sub(EXAMPLE)
