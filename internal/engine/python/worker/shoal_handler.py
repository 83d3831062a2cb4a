"""Runs a handler of MMS or TorchServe as a model with one input and one output, body. Each element is the body of one request.

Requests over MMS's REST API consist of more than a body. They are encoded as an envelope; internal/mms/message.go is the other side.
"""

import enum
import importlib
import importlib.util
import inspect
import io
import json
import logging
import os
import struct
import sys
import traceback
import types

import shoal_worker
import triton_python_backend_utils as pb_utils
from shoal_wire import U32

ENVELOPE = 1 << 31  # request flag: the input is an envelope, and the output must be one
REPLY = struct.Struct("<III")  # status, whether the handler failed, number of headers
log = logging.getLogger("shoal.handler")


class PredictionException(Exception):
    def __init__(self, message, error_code=500):
        super().__init__(message)
        self.message, self.error_code = message, error_code

    def __str__(self):
        return "%s : %s" % (self.message, self.error_code)


class Headers(dict):
    """Headers with case-insensitive names. Those of a request's parts are included under the part's name."""

    def get(self, key, default=None):
        if key in self:
            return self[key]
        wanted = key.lower()
        return next((v for k, v in self.items() if k.lower() == wanted), default)


class RequestProcessor:
    """The headers of one request, and the status and headers of its response."""

    def __init__(self, request_header):
        self._request_header = request_header
        self._status, self._phrase, self._response_header = 200, None, {}

    def get_request_property(self, key):
        return self._request_header.get(key)

    def get_request_properties(self):
        return self._request_header

    def report_status(self, code, reason_phrase=None):
        self._status, self._phrase = code, reason_phrase

    def get_response_status_code(self):
        return self._status

    def get_response_status_phrase(self):
        return self._phrase

    def add_response_property(self, key, value):
        self._response_header[key] = value

    def get_response_headers(self):
        return self._response_header

    def get_response_header(self, key):
        return self._response_header.get(key)


class Dimension:
    """A property of a metric's value."""

    def __init__(self, name, value):
        self.name, self.value = name, value


class MetricTypes(enum.Enum):
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class CachingMetric:
    """A metric that a handler creates once, and then gives values. Wrong ones are logged: they fail no request."""

    def __init__(self, store, metric_name, unit, dimension_names, metric_type):
        self.store, self.metric_name, self.unit, self.dimension_names, self.metric_type = store, metric_name, unit, dimension_names, metric_type

    def add_or_update(self, value, dimension_values=(), request_id=""):
        if len(dimension_values) != len(self.dimension_names):
            log.error("metric %s: found the dimension values %s, expected one for each of %s", self.metric_name, list(dimension_values), self.dimension_names)
            return
        self.update(value, request_id, [Dimension(*pair) for pair in zip(self.dimension_names, dimension_values)])

    def update(self, value, request_id="", dimensions=()):
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            log.error("metric %s: found %s, expected a counter not to fall", self.metric_name, value)
            return
        self.store.add_metric(self.metric_name, value, self.unit, dimensions=dimensions)


class MetricsStore:
    """Writes the metrics of a handler to the log, one line each."""

    def __init__(self, request_ids=None, model_name=""):
        self.request_ids, self.model_name, self.store = request_ids, model_name, []
        self.cache = {}  # by name and type

    def add_metric_to_cache(self, metric_name, unit, dimension_names=None, metric_type=MetricTypes.COUNTER):
        one = self.cache[metric_name, metric_type] = CachingMetric(self, metric_name, unit, dimension_names or [], metric_type)
        return one

    def get_metric(self, metric_name, metric_type=MetricTypes.COUNTER):
        if (metric_name, metric_type) not in self.cache:
            raise KeyError("no metric %s of this type; create it with add_metric_to_cache" % metric_name)
        return self.cache[metric_name, metric_type]

    def add_metric(self, name, value, unit="", idx=None, dimensions=None, **_):
        text = ",".join("%s:%s" % (getattr(d, "name", d), getattr(d, "value", "")) for d in dimensions or [])
        print("[METRICS]%s.%s:%s|#ModelName:%s%s" % (name, unit, value, self.model_name, "," + text if text else ""))

    def add_counter(self, name, value, idx=None, dimensions=None):
        self.add_metric(name, value, "Count", idx, dimensions)

    def add_time(self, name, value, idx=None, unit="ms", dimensions=None, metric_type=None):
        self.add_metric(name, value, unit, idx, dimensions)

    def add_size(self, name, value, idx=None, unit="MB", dimensions=None, metric_type=None):
        self.add_metric(name, value, unit, idx, dimensions)

    def add_percent(self, name, value, idx=None, dimensions=None, metric_type=None):
        self.add_metric(name, value, "percent", idx, dimensions)

    def add_error(self, name, value, dimensions=None):
        self.add_metric(name, value, "", None, dimensions)


class Context:
    """The context argument of a handler."""

    def __init__(self, model_name, model_dir, manifest, batch_size, gpu, version, server="MMS", model_yaml_config=None):
        self.model_name, self.manifest, self.model_yaml_config = model_name, manifest, model_yaml_config or {}
        self.system_properties = {"model_dir": model_dir, "gpu_id": gpu, "batch_size": batch_size, "server_name": server, "server_version": version,
                                  "limit_max_image_pixels": True}
        self.request_ids, self.request_processor, self.metrics = None, None, MetricsStore(None, model_name)

    def get_request_id(self, idx=0):
        return self.request_ids.get(idx)

    def get_request_header(self, idx, key):
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx):
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx, value):
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx):
        return self.request_processor[idx].get_response_headers().get("content-type")

    def set_response_header(self, idx, key, value):
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx):
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code=200, phrase="", idx=0):
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code=200, phrase=""):
        for one in self.request_processor:
            one.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx):
        one = self.request_processor[idx]
        return one.get_response_status_code(), one.get_response_status_phrase()

    set_http_response_status, get_http_response_status = set_response_status, get_response_status


def emit_metrics(metrics):
    for one in metrics or []:
        print("[METRICS]%s" % one)


# Modules that handlers import, with the names that they expect. An installed package takes precedence.
SHIM = {
    "mms": {},
    "mms.context": {"Context": Context, "RequestProcessor": RequestProcessor},
    "mms.service": {"PredictionException": PredictionException, "emit_metrics": emit_metrics},
    "mms.metrics": {},
    "mms.metrics.dimension": {"Dimension": Dimension},
    "mms.metrics.metrics_store": {"MetricsStore": MetricsStore},
    "ts": {},
    "ts.context": {"Context": Context, "RequestProcessor": RequestProcessor},
    "ts.service": {"PredictionException": PredictionException, "emit_metrics": emit_metrics},
    "ts.utils": {},
    "ts.utils.util": {"PredictionException": PredictionException},
    "ts.metrics": {},
    "ts.metrics.dimension": {"Dimension": Dimension},
    "ts.metrics.metric_type_enum": {"MetricTypes": MetricTypes},
    "ts.metrics.metrics_store": {"MetricsStore": MetricsStore},
}


def register_stand_ins():
    """Registers stand-ins for the packages that are not installed."""
    absent = {name for name in SHIM if "." not in name and importlib.util.find_spec(name) is None}
    for name, members in SHIM.items():
        parent, _, last = name.rpartition(".")
        if name.partition(".")[0] not in absent:
            continue
        module = types.ModuleType(name, "Stands in for the package, which is not installed.")
        module.__path__ = []
        module.__version__ = "0"
        module.__dict__.update(members)
        sys.modules[name] = module
        if parent:
            setattr(sys.modules[parent], last, module)


# Handlers that are part of TorchServe, with the packages that they need besides it.
BUILT_IN = {
    "base_handler": "torch", "vision_handler": "torch torchvision captum", "text_handler": "torch torchtext captum",
    "image_classifier": "torch torchvision captum", "image_segmenter": "torch torchvision captum", "object_detector": "torch torchvision captum",
    "densenet_handler": "torch torchvision captum", "text_classifier": "torch torchtext captum", "dali_image_classifier": "torch nvidia-dali-cuda120",
    "vllm_handler": "vllm", "trt_llm_handler": "tensorrt_llm",
}


def missing(error):
    """Says what to install for a module that is missing."""
    top, _, last = (error.name or "").rpartition(".")
    name = "base_handler" if error.name == "ts.torch_handler" else last
    install = sys.executable + " -m pip install "
    if name in BUILT_IN and (not top or top.startswith("ts")):
        return "handler %s is part of TorchServe, which this interpreter does not have; install it, %storchserve %s, or put a handler of your own into the archive" % (
            name, install, BUILT_IN[name])
    top = (error.name or "").partition(".")[0]
    if top in ("ts", "mms"):
        return "%s: only some modules of package %s are built in; install it, %s%s" % (error, top, install, "torchserve" if top == "ts" else "multi-model-server")
    return ("%s; install it, %s%s, or list it in the requirements of the archive and set install_py_dep_per_model=true in config.properties" %
            (error, install, top))


def find(handler):
    """Returns the module of a handler, and the function name after the colon, if it has one."""
    name, _, function = handler.partition(":")
    if name.endswith(".py"):
        name = name[:-len(".py")]
    name = name.rpartition("/")[2]
    try:
        return importlib.import_module(name), function
    except ModuleNotFoundError as e:
        if e.name != name or not hasattr(importlib.import_module("ts"), "__file__"):
            raise
    return importlib.import_module("ts.torch_handler." + name), function  # a handler that is part of TorchServe


def chain(service):
    """Calls the steps of a handler class that has no handle method."""
    steps = [getattr(service, name, None) for name in ("preprocess", "inference", "postprocess")]
    if steps[1] is None:
        raise AttributeError("class %s has neither a method handle nor inference" % type(service).__name__)

    def handle(data, context):
        if asks_for(context, "describe") and hasattr(service, "describe_handle"):
            return [service.describe_handle()]
        rows = data
        for step in steps:
            if step is steps[1] and asks_for(context, "explain") and hasattr(service, "explain_handle"):
                return service.explain_handle(rows, data)
            if step is not None:
                rows = step(rows)
        return rows

    return handle


def asks_for(context, what):
    """Reports whether the requests are for an explanation or a description, which a header says. Those of a batch are all of one kind."""
    return context is not None and context.get_request_header(0, what) == "True"


def kinds(processors):
    """Returns the indexes of the requests that a handler may get together. Handlers look at the first request for what all are for, and describe one model."""
    groups = {}
    for i, one in enumerate(processors):
        # The server writes these names in lower case; headers of clients begin with a capital. Under the name of a part are its headers, a dictionary.
        explain, describe = (dict.get(one._request_header, name) == "True" for name in ("explain", "describe"))
        groups.setdefault((explain, i if describe else -1), []).append(i)
    return list(groups.values())


def entry(handler, context):
    """Returns the callable for batches. The handler is initialized."""
    module, name = find(handler)
    found = getattr(module, name or "handle", None)
    if found is not None and not inspect.isclass(found):
        found(None, context)
        return found
    if found is None:
        classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
        if len(classes) > 1:  # the others may be helper classes
            classes = [c for c in classes if hasattr(c, "handle") or hasattr(c, "inference")]
        if len(classes) != 1:
            raise ValueError("handler %s: found no function %s, and %d classes that could be it in module %s, expected the function or one class" %
                             (handler, name or "handle", len(classes), module.__name__))
        found = classes[0]
    service = found()
    if hasattr(service, "initialize"):
        service.initialize(context)
    return service.handle if hasattr(service, "handle") else chain(service)


def read_bytes(data, at):
    """Returns a view of length-prefixed bytes, and the offset after them."""
    n, = U32.unpack_from(data, at)
    return data[at + 4:at + 4 + n], at + 4 + n


def value(kind, data, decode):
    try:
        if decode and kind == "application/json":
            return json.loads(bytes(data))
        if decode and kind.startswith("text"):
            return str(data, "utf-8")
    except (ValueError, RecursionError):  # the latter if it is nested too deeply
        log.warning("a request is not valid %s, and is passed to the handler undecoded", kind)
    return bytearray(data)


def read(request, decode):
    """Returns what the handler receives for a request: for each body its parts by name, and its headers."""
    tensor = request.inputs()[0]
    if not request.flags() & ENVELOPE:
        return [({"body": bytearray(body)}, Headers()) for body in tensor._elements()]
    _, at, length = tensor._place
    return [unpack(memoryview(tensor._memory)[at + 4:at + length], decode)]


def unpack(data, decode):
    """Decodes the parts and the headers of an envelope."""
    lines, at = read_bytes(data, 0)
    lines = str(lines, "latin-1").split("\n")
    count, = U32.unpack_from(data, at)
    at += 4
    parts, headers = {}, Headers()
    for _ in range(count):
        name, at = read_bytes(data, at)
        kind, at = read_bytes(data, at)
        content, at = read_bytes(data, at)
        name, kind = str(name, "utf-8", "replace"), str(kind, "latin-1")
        parts[name] = value(kind, content, decode)
        headers[name] = {"content-type": kind}
    headers.update(zip(lines[::2], lines[1::2]))
    return parts, headers


class Reply:
    """The response to one body of a request."""

    __slots__ = ("status", "failed", "headers", "body")

    def __init__(self, status, failed, headers, body):
        self.status, self.failed, self.headers, self.body = status, failed, headers, body

    def pack(self):
        out = [REPLY.pack(self.status, self.failed, len(self.headers))]
        for name, content in self.headers.items():
            for one in (str(name).encode(), str(content).encode()):
                out += [U32.pack(len(one)), one]
        out.append(self.body)
        return out


def strings(elements):
    """Builds the output tensor. Each element is a list of byte strings."""
    out = []
    for pieces in elements:
        out.append(U32.pack(sum(map(len, pieces))))
        out += pieces
    memory = memoryview(b"".join(out))
    return pb_utils.InferenceResponse([pb_utils.Tensor._view("body", pb_utils._BYTES, ((len(elements),), 0, len(memory)), memory)])


def respond(request, replies):
    """Builds the response to a request."""
    if request.flags() & ENVELOPE:
        return strings([replies[0].pack()])
    for one in replies:
        if one.failed or one.status >= 400:
            code = pb_utils.TritonError.INVALID_ARG if one.status < 500 else pb_utils.TritonError.UNAVAILABLE
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(bytes(one.body), "utf-8", "replace"), code))
    return strings([[one.body] for one in replies])


def encoded(item):
    if isinstance(item, (bytes, bytearray)):
        return item
    if isinstance(item, str):
        return item.encode()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.Tensor):  # same conversion as in TorchServe
        file = io.BytesIO()
        torch.save(item, file)
        return file.getvalue()
    return json.dumps(item, indent=2).encode()


def manifest_of(folder):
    path = os.path.join(folder, "MAR-INF", "MANIFEST.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def settings_of(folder, name, copy):
    """Loads the model's YAML configuration with the parser that TorchServe uses, or what the server read of it if that is not installed."""
    if not name:
        return {}
    try:
        import yaml
    except ImportError:
        if os.path.exists(copy):
            with open(copy, encoding="utf-8") as file:
                return json.load(file) or {}
        raise RuntimeError("%s has keys or numbers that JSON cannot represent, and the interpreter has no yaml module: install pyyaml" % name) from None
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return yaml.safe_load(file) or {}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: one["string_value"] for key, one in config["parameters"].items()}
        folder = os.path.abspath(parameters["model_dir"])
        os.chdir(folder)  # as in MMS and TorchServe: handlers open their files by relative paths
        sys.path.insert(0, folder)
        logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)  # as there, too
        register_stand_ins()
        self.retry_apart = parameters.get("retry_apart") == "true"
        self.decode_input = parameters.get("decode_input_request") != "false"
        manifest = manifest_of(folder)
        self.context = Context(args["model_name"], folder, manifest, config["max_batch_size"], None, parameters["server_version"], parameters["server_name"],
                               settings_of(folder, parameters.get("model_config_file"), os.path.join(args["model_repository"], "model-config.json")))
        try:
            self.handle = entry(parameters["handler"], self.context)
        except Exception as e:
            shoal_worker.log_exception(e)
            if isinstance(e, ModuleNotFoundError):
                raise shoal_worker.Failure(missing(e)) from None
            last = traceback.extract_tb(e.__traceback__)[-1]
            raise shoal_worker.Failure("%s: %s (%s, line %d)" % (type(e).__name__, e, os.path.basename(last.filename), last.lineno)) from None

    def execute(self, requests):
        data, processors, ids, ends = [], [], {}, []
        for request in requests:
            for parts, headers in read(request, self.decode_input):
                ids[len(data)] = request.request_id()
                data.append(parts)
                processors.append(RequestProcessor(headers))
            ends.append(len(data))
        replies = self.answer_kinds(data, processors, ids)
        return [respond(request, replies[begin:end]) for request, begin, end in zip(requests, [0] + ends, ends)]

    def answer_kinds(self, data, processors, ids):
        """Calls the handler once for each kind of requests."""
        groups = kinds(processors)
        if len(groups) == 1:
            return self.answer(data, processors, ids)
        replies = [None] * len(data)
        for group in groups:
            part = self.answer([data[i] for i in group], [processors[i] for i in group], {at: ids[i] for at, i in enumerate(group)})
            for i, one in zip(group, part):
                replies[i] = one
        return replies

    def answer(self, data, processors, ids):
        context = self.context
        context.request_ids, context.request_processor = ids, processors
        context.metrics.request_ids = ids
        try:
            results = self.handle(data, context)
        except Exception as e:
            if self.retry_apart and len(data) > 1:
                raise
            return self.failed(data, e)
        if not isinstance(results, list):
            log.warning("the handler returned %s, expected a list", type(results).__name__)
            return self.error_replies(data, 503, "Invalid model predict output")
        if len(results) != len(data):
            log.warning("the handler returned %d results for %d requests", len(results), len(data))
            return self.error_replies(data, 503, "number of batch response mismatched")
        try:
            bodies = [encoded(one) for one in results]
        except TypeError as e:
            log.warning("a result of the handler is neither bytes nor str, and cannot be encoded as JSON: %s", e)
            return self.error_replies(data, 503, "Unsupported model output data type.")
        return [Reply(p._status, False, p._response_header, body) for p, body in zip(processors, bodies)]

    def failed(self, data, error):
        shoal_worker.log_exception(error)
        if hasattr(error, "error_code") and hasattr(error, "message"):  # a PredictionException of any package
            return self.error_replies(data, int(error.error_code), str(error.message))
        if isinstance(error, MemoryError):
            return self.error_replies(data, 507, "Out of resources")
        return self.error_replies(data, 503, "Prediction failed")

    def error_replies(self, data, status, message):
        return [Reply(status, True, {}, message.encode()) for _ in data]
