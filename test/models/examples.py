#!/usr/bin/env python3
"""Makes a repository with the models of Triton's docs/examples/model_repository.

    pip install -r test/models/requirements.txt
    python3 test/models/examples.py

Names, inputs, outputs and scheduling are those of Triton's examples, so that their clients
can call them. The nets are small ones with the same interface: the sum and the difference of
two inputs, and classifiers that know the mean color of a picture.
"""

from onnx import TensorProto, helper

from make import FLOAT, ROOT, port, weights, write

OUT = ROOT / "test/clients/examples"
INT32, STRING = TensorProto.INT32, TensorProto.STRING


def tensors(kind, *lines):
    return f"{kind} [\n" + ",\n".join(f"  {{ {line} }}" for line in lines) + "\n]\n"


def model(name, config, net=None, labels=0):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    platform = 'platform: "onnxruntime_onnx"\n' if net else 'backend: "python"\n'
    (folder / "config.pbtxt").write_text(f'name: "{name}"\n{platform}{config}')
    if labels:
        (folder / f"{name.split('_')[0]}_labels.txt").write_text("".join(f"CLASS {n}\n" for n in range(labels)))
    if net:
        net(folder / "1/model.onnx")


def add_sub_config(kind):
    both = [f'name: "%s{n}" data_type: {kind} dims: [ 16 ]' for n in (0, 1)]
    return "max_batch_size: 8\n" + tensors("input", *(t % "INPUT" for t in both)) + tensors("output", *(t % "OUTPUT" for t in both))


def add_sub(element):
    def make(path):
        ports = {name: port(name, element, ["N", 16]) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
        write(path, "The sum and the difference of two inputs.",
              [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
              [ports["INPUT0"], ports["INPUT1"]], [ports["OUTPUT0"], ports["OUTPUT1"]])
    return make


def add_sub_strings(path):
    """The same for numbers that are written as strings."""
    ports = {name: port(name, STRING, ["N", 16]) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
    write(path, "The sum and the difference of two inputs, which are numbers written as strings.",
          [helper.make_node("Cast", ["INPUT0"], ["a"], to=INT32), helper.make_node("Cast", ["INPUT1"], ["b"], to=INT32),
           helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"]),
           helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=STRING), helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=STRING)],
          [ports["INPUT0"], ports["INPUT1"]], [ports["OUTPUT0"], ports["OUTPUT1"]])


def densenet(path):
    write(path, "A thousand classes from the mean color of a picture, channels first.",
          [helper.make_node("GlobalAveragePool", ["data_0"], ["mean"]), helper.make_node("Conv", ["mean", "w"], ["fc6_1"])],
          [port("data_0", FLOAT, [1, 3, 224, 224])], [port("fc6_1", FLOAT, [1, 1000, 1, 1])], [weights("w", 1000, 3, 1, 1)])


def inception(path):
    output = "InceptionV3/Predictions/Softmax:0"
    write(path, "1001 classes from the mean color of a picture, channels last.",
          [helper.make_node("ReduceMean", ["input:0"], ["mean"], axes=[1, 2], keepdims=0), helper.make_node("MatMul", ["mean", "w"], ["logits"]),
           helper.make_node("Softmax", ["logits"], [output])],
          [port("input:0", FLOAT, [1, 299, 299, 3])], [port(output, FLOAT, [1, 1001])], [weights("w", 3, 1001)])


def sequence(path):
    """What a sequence batcher sends to a model: its input, whether a sequence starts, and whether the row has a request."""
    write(path, "The input, and one more at the start of a sequence.",
          [helper.make_node("Mul", ["START", "READY"], ["first"]), helper.make_node("Add", ["INPUT", "first"], ["OUTPUT"])],
          [port(name, INT32, ["N", 1]) for name in ("INPUT", "START", "READY")], [port("OUTPUT", INT32, ["N", 1])])


def dyna_sequence(path):
    """The same, with the number of the sequence added at its end."""
    write(path, "The input, one more at the start of a sequence, and the number of the sequence more at its end.",
          [helper.make_node("Mul", ["START", "READY"], ["first"]), helper.make_node("Cast", ["CORRID"], ["number"], to=INT32),
           helper.make_node("Mul", ["END", "number"], ["last"]), helper.make_node("Add", ["INPUT", "first"], ["sum"]),
           helper.make_node("Add", ["sum", "last"], ["OUTPUT"])],
          [port(name, INT32, ["N", 1]) for name in ("INPUT", "START", "END", "READY")] + [port("CORRID", TensorProto.UINT64, ["N", 1])],
          [port("OUTPUT", INT32, ["N", 1])])


def control(name, kind, values="int32_false_true: [ 0, 1 ]"):
    return f'    {{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}'


def sequence_config(rest, *controls):
    number = 'data_type: TYPE_INT32 dims: [ 1 ]'
    return (f"max_batch_size: 8\nsequence_batching {{\n{rest}  control_input [\n" + ",\n".join(controls) + "\n  ]\n}\n"
            + tensors("input", f'name: "INPUT" {number}') + tensors("output", f'name: "OUTPUT" {number}'))


if __name__ == "__main__":
    model("simple", add_sub_config("TYPE_INT32"), add_sub(INT32))
    model("simple_int8", add_sub_config("TYPE_INT8"), add_sub(TensorProto.INT8))
    model("simple_string", add_sub_config("TYPE_STRING"), add_sub_strings)
    text = 'data_type: TYPE_STRING dims: [ -1 ]'
    model("simple_identity", "max_batch_size: 8\n" + tensors("input", f'name: "INPUT0" {text}') + tensors("output", f'name: "OUTPUT0" {text}'))
    model("densenet_onnx", "max_batch_size: 0\n"
          + tensors("input", 'name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] }')
          + tensors("output", 'name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] reshape { shape: [ 1, 1000, 1, 1 ] } label_filename: "densenet_labels.txt"'),
          densenet, 1000)
    model("inception_onnx", "max_batch_size: 0\n"
          + tensors("input", 'name: "input:0" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] reshape { shape: [ 1, 299, 299, 3 ] }')
          + tensors("output", 'name: "InceptionV3/Predictions/Softmax:0" data_type: TYPE_FP32 dims: [ 1001 ] reshape { shape: [ 1, 1001 ] } label_filename: "inception_labels.txt"'),
          inception, 1001)
    model("simple_sequence", sequence_config("", control("START", "START"), control("READY", "READY")) + "instance_group [ { kind: KIND_CPU } ]\n", sequence)
    model("simple_dyna_sequence", sequence_config(
        "  max_sequence_idle_microseconds: 10000000\n  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }\n",
        control("START", "START"), control("END", "END"), control("READY", "READY"), control("CORRID", "CORRID", "data_type: TYPE_UINT64"))
        + 'parameters [ { key: "execute_delay_ms" value: { string_value: "3" } } ]\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n', dyna_sequence)
