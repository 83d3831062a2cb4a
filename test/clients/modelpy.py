"""What the models of modelpy/ are asked, and what they answer: the same questions to Shoal and to Triton.

A case is a function that asks one server, and returns all that it was told as plain JSON, which
is compared exactly. What no client relies on is left out: times, and where the repository is.
"""

import concurrent.futures
import json
import pathlib
import queue
import re
import time
import urllib.error
import urllib.request

import numpy
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE / "modelpy"
ANSWERS = HERE / "modelpy.json"  # Triton's; python-beside-triton --record writes it
DIFFERENT = HERE / "modelpy-different.json"  # where ours are others: what they are, and why

PATIENCE = 20  # seconds, for what comes at once or never
LOADING = 6 * PATIENCE  # for what has to load a model first, on a busy machine

cases = {}  # by name, in the order of this file


def case(ask):
    cases[ask.__name__.replace("_", " ")] = ask
    return ask


def each(values):
    """A case for each of the values, named for it."""

    def register(ask):
        for value in values:
            cases[f"{ask.__name__.replace('_', ' ')}: {value}"] = lambda side, value=value: ask(side, value)
        return ask

    return register


class Side:
    """One server: its addresses, its repository's folder, and a function that returns its log."""

    def __init__(self, http, grpc, metrics, folder, log):
        self.address, self._grpc, self._metrics, self._folder, self.log = http, grpc, metrics, str(folder), log
        self.http = tritonclient.http.InferenceServerClient(http, concurrency=8, network_timeout=LOADING)
        self.grpc = tritonclient.grpc.InferenceServerClient(grpc)

    def close(self):
        self.http.close()
        self.grpc.close()

    def plain(self, text):
        """A message without the place of the repository."""
        return text.replace(self._folder + "/", "").replace(self._folder, "")

    def refused(self, error):
        return {"status": error.status(), "error": self.plain(error.message())}

    def ask(self, model, protocol="grpc", outputs=None, client=None, **inputs):
        """Names beginning with an underscore are options of the request, and others its inputs."""
        options = {name[1:]: value for name, value in inputs.items() if name.startswith("_")}
        arrays = {name: value for name, value in inputs.items() if not name.startswith("_")}
        lib = tritonclient.http if protocol == "http" else tritonclient.grpc
        client = client or (self.http if protocol == "http" else self.grpc)
        if outputs is not None:
            options["outputs"] = [lib.InferRequestedOutput(name) for name in outputs]
        if protocol == "grpc":
            options.setdefault("client_timeout", PATIENCE)
        try:
            result = client.infer(model, tensors(lib, arrays), **options)
        except InferenceServerException as e:
            if e.message() != "Deadline Exceeded":
                return self.refused(e)
        except TimeoutError:
            pass
        else:
            return self.seen(result, protocol)
        self.http.load_model(model)  # it may have hung up for good
        return "no answer"

    def both(self, model, **inputs):
        return {protocol: self.ask(model, protocol, **inputs) for protocol in ("http", "grpc")}

    def together(self, model, busy_for, others):
        """The answers to others, which come one after the other while the model is busy with one request, that of busy_for. If it
        had finished before they all waited, nothing is known: they are sent again, and it is busy for longer."""
        for milliseconds in (400, 800, 1600, 3200):
            with concurrent.futures.ThreadPoolExecutor(len(others) + 1) as pool:
                busy = pool.submit(self._ask_apart, model, busy_for(milliseconds))
                time.sleep(0.2)
                answers = []
                for inputs in others:
                    answers.append(pool.submit(self._ask_apart, model, inputs))
                    while self._pending(model) < len(answers) and not busy.done():
                        time.sleep(0.005)
                waited = not busy.done()
                answers = [one.result() for one in answers]
            if waited:
                return answers
        raise AssertionError(f"{model} never was busy until {len(others)} requests waited")

    def _ask_apart(self, model, inputs):
        """Over a connection of its own: here, a client whose requests keep failing runs alone."""
        with tritonclient.grpc.InferenceServerClient(self._grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
            return self.ask(model, client=client, **inputs)

    def _pending(self, model):
        """How many requests wait for the model, by the metric that both servers have."""
        line = re.search(rf'^nv_inference_pending_request_count{{[^}}]*model="{model}"[^}}]*}} (\d+)', self.get("/metrics", "metrics"), re.MULTILINE)
        return int(line.group(1)) if line else 0

    def stream(self, model, *requests, cancel_after=None):
        """All that comes back over one stream, until each request has had its last answer."""
        told = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(self._grpc) as client:
            client.start_stream(lambda result, error: told.put((result, error)))
            for number, inputs in enumerate(requests):
                client.async_stream_infer(model, tensors(tritonclient.grpc, inputs), request_id=str(number), enable_empty_final_response=True)
            if cancel_after is not None:
                time.sleep(cancel_after)
                client.stop_stream(cancel_requests=True)
                return None
            answers, left, late = {str(n): [] for n in range(len(requests))}, len(requests), time.monotonic() + PATIENCE
            while left:
                try:
                    result, error = told.get(timeout=max(0, late - time.monotonic()))
                except queue.Empty:
                    answers["never"] = "a last answer"
                    break
                if error is not None:
                    answers.setdefault("errors", []).append(self.refused(error))
                    left -= final_after_error(error)
                    continue
                answer = self.seen(result, "grpc")
                answers[answer.pop("id")].append(answer)
                left -= bool(answer.get("parameters", {}).get("triton_final_response"))
            return answers

    def seen(self, result, protocol):
        """An answer: its outputs with their types, shapes and data, its id and its parameters."""
        answer = result.get_response()
        if protocol == "grpc":
            answer = json_format.MessageToDict(answer, preserving_proto_field_name=True)
            answer.pop("raw_output_contents", None)
        outputs = {}
        for output in answer.get("outputs", []):
            array = result.as_numpy(output["name"])
            flat = [self.plain(v.decode(errors="backslashreplace")) if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]
            outputs[output["name"]] = [output["datatype"], [int(n) for n in output["shape"]], flat]
        told = {"outputs": outputs}
        if answer.get("id"):
            told["id"] = answer["id"]
        parameters = {k: next(iter(v.values())) if isinstance(v, dict) else v for k, v in answer.get("parameters", {}).items()}
        if parameters:
            told["parameters"] = parameters
        return told

    def get(self, path, port="http"):
        try:
            with urllib.request.urlopen(f"http://{self._metrics if port == 'metrics' else self.address}{path}", timeout=PATIENCE) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as e:
            return f"{e.code} {self.plain(e.read().decode())}"


def final_after_error(error):
    """Whether a request has no answers left after an error of a stream: so do those of the scripts here, unless they say that they go on."""
    return "goes on" not in error.message()


def tensors(lib, arrays):
    made = []
    for name, array in arrays.items():
        tensor = lib.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def text(*elements, shape=None):
    return numpy.array([e.encode() if isinstance(e, str) else e for e in elements], dtype=numpy.object_).reshape(shape or [len(elements)])


def script(*steps):
    return {"SCRIPT": text(json.dumps(list(steps)))}


def floats(*rows):
    return numpy.array(rows, dtype=numpy.float32)


@each(sorted(path.name for path in MODELS.iterdir()))
def load(side, model):
    try:
        side.http.load_model(model)
    except InferenceServerException as e:
        return side.refused(e)
    return "loaded"


# Batching.

def sleeps(milliseconds):
    return {"IN": floats([-milliseconds, 0])}


@case
def a_request_alone(side):
    return side.both("doubles", IN=floats([1, 2], [3, 4]), _request_id="mine")


@case
def one_output_of_two(side):
    return side.both("doubles", IN=floats([1, 2]), outputs=["OUT"])


@case
def requests_that_wait_share_a_batch(side):
    return side.together("doubles", sleeps, [{"IN": floats([n, n + 0.5])} for n in range(4)])


@case
def requests_of_several_rows_share_a_batch(side):
    return side.together("doubles", sleeps, [{"IN": floats(*[[n, 0]] * n)} for n in (1, 2, 3)])


@case
def a_batch_is_not_larger_than_allowed(side):
    return side.together("doubles", sleeps, [{"IN": floats(*[[n, 0]] * 3)} for n in range(4)])


@case
def too_many_rows(side):
    return side.both("doubles", IN=floats(*[[0, 0]] * 9))


# Errors of one request, and exceptions of all.


def how(*ways):
    return [{"HOW": text(way, shape=[1, 1])} for way in ways]


def sleeping(milliseconds):
    return how(f"sleep:{milliseconds}")[0]


@each(["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"])
def error_with_code(side, code):
    return side.both("fails", HOW=text(f"error:{code}:told so", shape=[1, 1]))


@each([
    "error", "error and tensors", "raise", "raise peculiar", "raise empty", "raise deep", "raise triton", "divide", "too few", "too many",
    "a number", "strings inside", "not an array", "other type", "other name", "no output", "other shape",
])
def one_request_fails(side, way):
    return side.both("fails", HOW=text(way, shape=[1, 1]))


@each(["nothing", "none inside"])
def one_request_gets_nothing(side, way):
    return side.ask("fails", HOW=text(way, shape=[1, 1]))


@case
def one_error_of_eight(side):
    return side.together("fails", sleeping, how("", "", "", "error", "", "", "", ""))


@case
def an_exception_fails_the_batch(side):
    return side.together("fails", sleeping, how("", "", "raise", ""))


@case
def another_number_of_responses_fails_the_batch(side):
    return side.together("fails", sleeping, how("", "too many", ""))


# What a model.py finds.

A = floats([1, 2], [3, 4])

EXPRESSIONS = [
    "r.request_id()", "r.correlation_id()", "r.flags()", "r.timeout()", "r.parameters()", "r.requested_output_names()", "r.is_cancelled()",
    "[t.name() for t in r.inputs()]", "[t.shape() for t in r.inputs()]", "[t.is_cpu() for t in r.inputs()]",
    "r.inputs()[1].as_numpy()", "pb.get_input_tensor_by_name(r, 'A').as_numpy().sum()", "pb.get_input_tensor_by_name(r, 'B')",
    "pb.get_input_tensor_by_name(r, 'EXPRESSION').as_numpy().dtype", "type(r).__name__", "type(r.inputs()[0]).__name__",
    "sorted(args)", "[args[k] for k in ('model_name', 'model_version', 'model_instance_kind', 'model_instance_name', 'model_instance_device_id')]",
    "args['model_repository'].split('/')[-1]", "sorted(config)", "config['input']", "config['output']", "config['parameters']", "config['instance_group']",
    "config['max_batch_size']", "config['backend']",
    "pb.get_input_config_by_name(config, 'A')", "pb.get_output_config_by_name(config, 'VALUE')", "pb.get_input_config_by_name(config, 'none')",
    "pb.using_decoupled_model_transaction_policy(config)",
    "[pb.triton_string_to_numpy('TYPE_' + n) for n in 'BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING'.split()]",
    "pb.triton_string_to_numpy('TYPE_NONE')", "[pb.triton_to_numpy_type(n) for n in range(1, 14)]", "pb.triton_to_numpy_type(99)",
    "[pb.numpy_to_triton_type(t) for t in (np.bool_, np.uint8, np.int64, np.float16, np.float32, np.object_)]", "pb.numpy_to_triton_type(np.complex64)",
    "pb.serialize_byte_tensor(np.array([b'ab', b''], dtype=object))", "pb.serialize_byte_tensor(np.array(['\u00fc'], dtype=object))",
    "pb.serialize_byte_tensor(np.array([], dtype=object))", "pb.serialize_byte_tensor(np.array([1, 2]))",
    "pb.deserialize_bytes_tensor(b'\\x02\\0\\0\\0ab\\0\\0\\0\\0')", "pb.deserialize_bytes_tensor(b'')", "pb.deserialize_bytes_tensor(b'\\x09\\0\\0\\0ab')",
    "pb.Tensor('T', np.arange(6, dtype=np.int16).reshape(2, 3)).shape()", 
    "pb.Tensor('T', np.arange(6).reshape(2, 3).T).as_numpy()", "pb.Tensor('T', np.arange(8)[::2]).as_numpy()", "pb.Tensor('T', [1, 2])",
    "pb.Tensor('T', np.array(['a', 'bc'])).as_numpy()", "pb.Tensor('T', np.array([b'a', b'bc'])).as_numpy()", "pb.Tensor('T', np.zeros(2, complex))",
    "pb.Tensor('T', np.array(5.0)).shape()", "pb.Tensor('T', np.zeros(2, '>i4')).shape()",
    "pb.TritonError('x').message()", "int(pb.TritonError('x').code())", "int(pb.TritonError.CANCELLED)",
    "pb.InferenceResponse([]).has_error()", "pb.InferenceResponse([]).error()", "pb.InferenceResponse([], pb.TritonError('x')).error().message()",
    "[t.name() for t in pb.InferenceResponse([pb.Tensor('T', np.zeros(1))]).output_tensors()]", "pb.InferenceResponse().output_tensors()",
    "pb.InferenceResponse([], parameters={'a': 1}).parameters()", "pb.InferenceResponse([]).parameters()",
    "pb.InferenceRequest(model_name='m', inputs=[], requested_output_names=['O']).requested_output_names()",
    "pb.InferenceRequest(model_name='m', inputs=[], requested_output_names=[], request_id='7', correlation_id=3, timeout=9).timeout()",
    "pb.InferenceRequest(model_name='m', inputs=[], requested_output_names=[], parameters={'k': 'v'}).parameters()",
    "issubclass(pb.TritonModelException, Exception)",
    "[pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL]",
    "[pb.TRITONSERVER_REQUEST_RELEASE_ALL, pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE]",
    "np.from_dlpack(pb.Tensor('T', np.arange(3, dtype=np.int32)))", 
    "pb.Tensor('T', np.zeros(1)).__dlpack_device__()", "type(pb.Tensor('T', np.zeros(1)).to_dlpack()).__name__",
    "r.get_response_sender() is None", "hasattr(pb, 'MetricFamily')", "hasattr(pb, 'PreferredMemory')",
    "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU, 0) is None", "pb.PreferredMemory(pb.TRITONSERVER_MEMORY_GPU) is None",
]


@each(EXPRESSIONS)
def expression(side, source):
    return side.ask("surface", EXPRESSION=text(source), A=A, _request_id="r1", _timeout=60_000_000)


@case
def parameters_of_a_request(side):
    return side.both("surface", EXPRESSION=text("json.loads(r.parameters())"), A=A, _parameters={"color": "blue", "number": 7, "yes": True})


@case
def an_input_that_was_left_out(side):
    return side.both("optional", IN=floats([1, 2]))


@case
def an_input_that_may_be_left_out(side):
    return side.both("optional", IN=floats([1, 2]), MORE=floats([3, 4]))


LEFT, RIGHT, IN = floats([5]), floats([6, 7, 8]), floats([1, 2])
GIVEN = {
    "none of two": {"IN": IN}, "one": {"IN": IN, "RIGHT": RIGHT}, "both": {"LEFT": LEFT, "IN": IN, "RIGHT": RIGHT},
    "in another order": {"RIGHT": RIGHT, "IN": IN, "LEFT": LEFT}, "another one": {"LEFT": LEFT, "IN": IN},
    "too many": {"LEFT": LEFT, "IN": IN, "RIGHT": RIGHT, "MORE": IN}, "what there is not": {"IN": IN, "MORE": IN},
    "the others alone": {"LEFT": LEFT, "RIGHT": RIGHT}, "nothing": {}, "other rows": {"IN": IN, "LEFT": floats([5], [6])},
    "another type": {"IN": IN, "LEFT": numpy.array([[5]], numpy.int32)}, "another shape": {"IN": IN, "LEFT": IN},
}


@each(GIVEN)
def optional_inputs(side, which):
    return side.both("sparse", **GIVEN[which])


@case
def requests_that_leave_out_the_same_share_a_batch(side):
    plain, right, left = {"IN": IN}, {"IN": IN, "RIGHT": RIGHT}, {"IN": IN, "LEFT": LEFT}
    return side.together("sparse", sleeps, [plain, plain, right, right, left, plain])


SEQUENCES = {"a number": 7, "a large number": 2**63 - 1, "a name": "a name", "no name": "", "a name in UTF-8": "größer", "digits": "7", "128 bytes": "x" * 128, "129 bytes": "x" * 129}


@each(SEQUENCES)
def correlation_id(side, which):
    source = text("[r.correlation_id(), type(r.correlation_id()).__name__, r.flags()]")
    return side.both("surface", EXPRESSION=source, A=A, _sequence_id=SEQUENCES[which], _sequence_start=True)


@case
def outputs_that_were_asked_for(side):
    return side.both("surface", EXPRESSION=text("sorted(r.requested_output_names())"), A=A, outputs=["VALUE"])


# Strings.


@each(["plain ASCII", "größer", "", "a\0b", "日本語"])
def string(side, element):
    return side.both("strings", IN=text(element, shape=[1, 1]))


@case
def strings_of_any_bytes(side):
    return side.ask("strings", IN=text(b"\xff\xfe\x00", b"", bytes(range(256)), shape=[1, 3]))


@case
def strings_in_rows(side):
    return side.both("strings", IN=text("a", "bb", "ccc", "", "eeeee", "ffffff", shape=[3, 2]))


@case
def strings_of_fixed_length(side):
    return side.both("strings", IN=text("fixed", "ab", "", shape=[1, 3]))


@case
def strings_that_are_text(side):
    return side.both("strings", IN=text("text", "größer", "", shape=[1, 3]))


@case
def no_strings_at_all(side):
    return side.ask("strings", IN=text(shape=[1, 0]))


@case
def a_long_string(side):
    answer = side.ask("strings", IN=text("x" * 3_000_000, shape=[1, 1]), outputs=["LENGTHS"])
    return answer


# Configurations that a model completes.


@case
def a_completed_model_answers(side):
    return side.both("completes", IN=floats([1, -2, 3]))


@case
def a_completed_configuration(side):
    return json.loads(side.get("/v2/models/completes/config"))


@case
def metadata_of_a_completed_model(side):
    return json.loads(side.get("/v2/models/completes"))


COMPLETING = {
    "an input twice": 'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})',
    "another type": 'config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})',
    "other dims": 'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [3]})',
    "no name": 'config.add_input({"data_type": "TYPE_FP32", "dims": [-1]})',
    "no type": 'config.add_input({"name": "NEW", "dims": [-1]})',
    "an unknown key": 'config.add_output({"name": "NEW", "data_type": "TYPE_FP32", "dims": [1], "color": 1})',
    "a smaller batch": "config.set_max_batch_size(2)",
    "a larger batch": "config.set_max_batch_size(9)",
    "batching twice": "config.set_dynamic_batching(); config.set_dynamic_batching()",
    "decoupled": 'config.set_model_transaction_policy({"decoupled": True})',
    "an unknown policy": 'config.set_model_transaction_policy({"coupled": True})',
    "an exception": 'raise ValueError("no configuration today")',
    "nothing returned": "return None",
    "as a dict": 'assert config.as_dict()["max_batch_size"] == 4 and config.as_dict()["input"][0]["name"] == "IN"',
}
COMPLETED = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        {}
        return config

    def execute(self, requests):
        return []
"""
WRITTEN = {
    "backend": "python", "max_batch_size": 4,
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}], "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
}


@each(COMPLETING)
def completing(side, what):
    """What becomes of a configuration that has max_batch_size 4, IN and OUT; of a load that fails only that it does, since the words are ours."""
    source = COMPLETED.format(COMPLETING[what]).encode()
    try:
        side.http.load_model("completing", config=json.dumps(WRITTEN), files={"file:1/model.py": source})
    except InferenceServerException as e:
        return {"status": e.status()}
    config = json.loads(side.get("/v2/models/completing/config"))
    side.http.unload_model("completing")
    return {k: config.get(k) for k in ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")}


# Models that answer more than once.


@each([
    '["end"]', '[["send", 1], "end"]', '[["send last", 1]]', '[["send", 1], ["send", 2], ["send last", 3]]', '["here", ["send", 1], ["send", 2], "end"]',
    '[["error last", "no more"]]', '[["send", 1], ["error last", "no more"]]', '[["error", "goes on"], ["send last", 2]]',
    '["here", ["send", 1], ["raise", "in the midst"]]', '[["send", 1], ["sleep", 50], ["send last", 2]]',
    '[["try", ["send", 1]], ["try", ["send", 2]], "tell"]',
])
def stream(side, steps):
    return side.stream("streams", {"SCRIPT": text(steps)})


@case
def two_requests_on_a_stream(side):
    return side.stream("streams", script(["send", 1], ["sleep", 100], ["send last", 2]), script(["send", 3], ["send last", 4]))


@case
def a_hundred_answers(side):
    return side.stream("streams", script(*[["send", n] for n in range(100)], "end"))


@case
def sending_after_the_end(side):
    first = side.stream("streams", script("here", "end", ["try", ["send", 1]]))
    return [first, side.stream("streams", script("tell"))]


@case
def a_decoupled_model_asked_for_one_answer(side):
    return side.both("streams", **script(["send last", 1]))


# Calls to other models.

DOUBLES = {"model": "doubles", "inputs": {"IN": ["float32", [[1, 2]]]}, "outputs": ["OUT"]}


@each([
    ["exec", DOUBLES], ["exec", {**DOUBLES, "outputs": ["OUT", "SHARED"]}], ["exec", {**DOUBLES, "model": "nobody"}], ["exec", {**DOUBLES, "model_version": 9}],
    ["exec", {**DOUBLES, "inputs": {"IN": ["float32", [[1, 2, 3]]]}}], ["exec", {**DOUBLES, "inputs": {"IN": ["int32", [[1, 2]]]}}],
    ["exec", {**DOUBLES, "inputs": {}}], ["exec", {**DOUBLES, "outputs": ["NONE"]}],
    ["exec", {"model": "fails", "inputs": {"HOW": ["BYTES", [["error"]]]}, "outputs": ["OUT"]}],
    ["exec", {"model": "fails", "inputs": {"HOW": ["BYTES", [["raise"]]]}, "outputs": ["OUT"]}],
    ["hand on", {"model": "fails", "inputs": {"HOW": ["BYTES", [["error:NOT_FOUND:handed on"]]]}, "outputs": ["OUT"]}],
    ["exec", {"model": "strings", "inputs": {"IN": ["BYTES", [["a", "größer"]]]}, "outputs": ["SAME", "LENGTHS"]}],
    ["exec", {"model": "surface", "inputs": {"EXPRESSION": ["BYTES", ["[r.request_id(), r.correlation_id(), json.loads(r.parameters()), r.timeout()]"]],
                                            "A": ["float32", [[1, 2]]]}, "outputs": ["VALUE"], "request_id": "inner", "parameters": {"k": "v"}}],
    ["exec", {"model": "surface", "inputs": {"EXPRESSION": ["BYTES", ["[r.correlation_id(), r.flags()]"]], "A": ["float32", [[1, 2]]]}, "outputs": ["VALUE"],
              "correlation_id": 9, "flags": 1}],
    ["exec", {"model": "surface", "inputs": {"EXPRESSION": ["BYTES", ["[r.correlation_id(), r.flags()]"]], "A": ["float32", [[1, 2]]]}, "outputs": ["VALUE"],
              "correlation_id": "inner", "flags": 2}],
    ["exec", {"model": "sparse", "inputs": {"IN": ["float32", [[1, 2]]]}, "outputs": ["SEEN"]}],
    ["async", DOUBLES, DOUBLES, {**DOUBLES, "model": "nobody"}], ["stream", {"model": "streams", "inputs": {"SCRIPT": ["BYTES", ['[["send", 1], ["send last", 2]]']]}, "outputs": ["OUT"]}],
    ["stream", DOUBLES], ["exec", {"model": "streams", "inputs": {"SCRIPT": ["BYTES", ['[["send last", 1]]']]}, "outputs": ["OUT"]}],
    # load_model of a model that there is not is not asked for: Triton 2.51.0 ends.
    ["ready", "doubles"], ["ready", "nobody"], ["ready", "doubles", "1"], ["ready", "doubles", "9"],
])
def call(side, steps):
    return side.ask("calls", SCRIPT=text(json.dumps(steps)))


# Readiness.


@each(["yes", "no", "raise", "yes again"])
def a_model_says_whether_it_is_ready(side, how):
    side.ask("readies", HOW=text(how))
    return [side.get("/v2/models/readies/ready"), side.grpc.is_model_ready("readies"), side.ask("calls", SCRIPT=text('["ready", "readies"]'))]


@case
def a_busy_model_says_that_it_is_ready(side):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        busy = pool.submit(side.ask, "readies", HOW=text("busy"))
        time.sleep(0.3)
        began = time.monotonic()
        told = side.get("/v2/models/readies/ready")
        soon = time.monotonic() - began < 1
        busy.result()
    return [told, soon]


# Cancellation.


@case
def a_request_that_is_cancelled(side):
    finished = queue.Queue()
    wait = tensors(tritonclient.grpc, {"MILLISECONDS": numpy.array([3000], numpy.int32)})
    context = side.grpc.async_infer("waits", wait, callback=lambda result, error: finished.put(error))
    time.sleep(0.3)
    context.cancel()
    error = finished.get(timeout=PATIENCE)
    return [error.status(), side.ask("waits", MILLISECONDS=numpy.array([0], numpy.int32))]


@case
def a_request_that_is_not_cancelled(side):
    first = side.both("waits", MILLISECONDS=numpy.array([50], numpy.int32))
    return [first, side.ask("waits", MILLISECONDS=numpy.array([0], numpy.int32))]


@case
def a_stream_that_is_cancelled(side):
    side.stream("streams", script(["await cancel", 3000]), cancel_after=0.3)
    time.sleep(0.3)
    return side.stream("streams", script(["sleep", 100], "tell"))


# Logging.

TRITON_LINE = re.compile(r'^([IWE])\d{4} \S+ \d+ \S+\] "?(\w+ of logged)"?$', re.MULTILINE)
SHOAL_LINE = re.compile(r'level=(INFO|WARN|ERROR|DEBUG) msg="(\w+ of logged)"')
PRINTED = re.compile(r"^(\w+ of logged)$", re.MULTILINE)


@case
def lines_of_the_log(side):
    """The lines with their levels. What a model prints has none in Triton."""
    side.ask("logs", IN=text("logged"))
    time.sleep(0.5)
    log = side.log()
    lines = [[level[0], line] for level, line in TRITON_LINE.findall(log) + SHOAL_LINE.findall(log)]
    return sorted(lines + [["I", line] for line in PRINTED.findall(log)], key=lambda pair: pair[1])


# Metrics.


# A counter that is to count down is not asked for: Triton 2.51.0 ends.
METRICS = {
    "a counter": [["red", "increment", 2], ["red", "increment", 0.5], ["red", "value"], ["blue", "increment", 1]],
    "a gauge": [["level", "set", 7], ["level", "increment", -2.5], ["level", "value"]],
    "a histogram": [["sizes", "observe", 0.05], ["sizes", "observe", 5], ["sizes", "observe", 50]],
    "what a counter cannot": [["red", "set", 1], ["red", "value"]],
    "what a gauge cannot": [["level", "observe", 1]],
    "what a histogram cannot": [["sizes", "value"], ["sizes", "set", 1]],
    "what there is not": [["red", "forget"]],
}


@each(METRICS)
def metrics(side, what):
    answer = side.ask("counts", **script(*METRICS[what]))
    lines = [line for line in side.get("/metrics", "metrics").splitlines() if "suite_" in line]
    return [answer, sorted(lines)]


# Loads by a model come last: Triton 2.51.0 may end some time after.

ECHO = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", {} * r.inputs()[0].as_numpy())]) for r in requests]
"""


@case
def a_model_that_loads_others(side):
    """From the repository, from files that it gives, and others in place of those."""

    def told(*steps):
        return side.ask("calls", SCRIPT=text(json.dumps(steps)), _client_timeout=LOADING)

    question = ["exec", {"model": "echo", "inputs": {"IN": ["float32", [[1, 2]]]}, "outputs": ["OUT"]}]
    answers = [told("load", "doubles"), told("load", "echo", WRITTEN, ECHO.format(2)), told("ready", "echo"), told(*question)]
    answers += [told("load", "echo", WRITTEN, ECHO.format(3)), told(*question), json.loads(side.get("/v2/models/echo/config"))["max_batch_size"]]
    answers += [told("unload", "echo"), told("unload", "nobody")]
    late = time.monotonic() + PATIENCE
    while "true" in json.dumps(told("ready", "echo")) and time.monotonic() < late:
        time.sleep(0.05)  # it may take a while to end
    return answers + [told("ready", "echo"), told(*question)]
