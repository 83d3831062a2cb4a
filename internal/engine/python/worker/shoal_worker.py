"""Runs one instance of a model for the server that started this process."""

import base64
import functools
import gc
import importlib
import importlib.util
import json
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import traceback

import shoal_app
import shoal_connections as connections
import shoal_files
import shoal_snapshot
import shoal_wire as wire
import triton_python_backend_utils as pb_utils
from shoal._app import declared
from shoal_numpy import MISSING, np

MAX_DESCRIPTORS = 1 << 16  # a higher limit slows down programs that close all that they may have
TABLES = 64  # size of the caches of decoded tables and of output descriptions
PLAIN = wire.RESPONSE.pack(0, 0, 1, 0)  # a response with one output


class Memory:
    """Memory shared with the server. Arrays in memory that has been replaced keep it mapped."""

    def __init__(self, descriptor, size):
        self.size = size
        self.map = mmap.mmap(descriptor, size)
        self.base = memoryview(self.map) if np is None else np.frombuffer(self.map, dtype=np.uint8)
        self.tables = {}  # decoded tables, by their bytes
        self.count()

    def count(self):
        """Records the current number of references to base. Each array in use by the model adds one."""
        self.holders = sys.getrefcount(self.base)

    def kept(self):
        return sys.getrefcount(self.base) > self.holders

    def cache_table(self, table, entries):
        """Caches a decoded table with its arrays. It is called before the model has any of them."""
        if len(self.tables) >= TABLES:
            self.tables.clear()
        self.tables[table] = entries
        self.count()


class Failure(Exception):
    """An error whose message is sent to the server."""


class Worker:
    def __init__(self, connection, side):
        self.connection = connection  # requests of the server and their responses
        self.side = side  # what the model sends at any time: logs, calls
        self.memory = [None, None]
        self.iterative = False  # the model may have requests run again
        self.senders = {}  # by correlation ID: response senders of requests that will run again
        self.model = None
        self.inputs, self.outputs, self.output_names = [], {}, []
        self.describe = functools.lru_cache(TABLES)(self.description)  # most outputs have the same description as in the last batch
        pb_utils.Logger._send = lambda level, message: side.send(wire.FRAME.pack(wire.LOG, level, 0, 0, 0, 0) + wire.text(message))
        pb_utils.Logger._send_traceback = lambda text: side.send(wire.FRAME.pack(wire.TRACEBACK, 0, 0, 0, 0, 0) + wire.end_of_text(text))
        pb_utils._begin_call = self.begin_call
        pb_utils._worker_calls = connections.WorkerCalls(side)

    def send(self, kind, flags=0, number=0, a=0, b=0, c=0, text=""):
        self.connection.send(wire.FRAME.pack(kind, flags, number, a, b, c) + (wire.text(text) if text else b""))

    def begin_call(self, document, tensors):
        """Sends a call to the server, and returns the connection on which the responses arrive."""
        ours, theirs = connections.pair()
        with theirs:
            connections.send_payload(self.side, wire.CALL, document, tensors, descriptors=[theirs.fileno()])
        return ours

    def receive(self):
        """Returns the next frame that is not about memory, or None if the server has closed the connection."""
        while True:
            data, ancillary, _, _ = self.connection.recvmsg(wire.FRAME.size, 64)
            if not data:
                return None
            frame = wire.FRAME.unpack(data)
            if frame[0] != wire.MEMORY:
                return frame
            self.map(frame[1], frame[3], ancillary)
            if frame[1] == wire.OUTPUT:
                return frame

    def map(self, which, size, ancillary):
        descriptor = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
        self.memory[which] = None  # released first, so that both exist only if the model keeps arrays
        self.memory[which] = Memory(descriptor, size)
        os.close(descriptor)

    def ensure_output(self, n):
        """Ensures that the output memory has n bytes, or as many as the server allows."""
        if n <= self.memory[wire.OUTPUT].size:
            return
        self.send(wire.NEED_MEMORY, a=n)
        self.receive()
        if n > self.memory[wire.OUTPUT].size:
            raise Failure("the response has %d bytes, and the server accepts at most %d" % (n, self.memory[wire.OUTPUT].size))

    def serve(self):
        handlers = {wire.LOAD: self.load, wire.INIT: self.initialize, wire.RUN: self.run}
        while True:
            frame = self.receive()
            if frame is None or frame[0] == wire.FINISH:
                break
            kind, _, number, a, b, _ = frame
            if kind not in handlers:  # output MEMORY that was not requested
                continue
            failure = ""
            try:
                handlers[kind](number, a, b)
            except Failure as e:
                failure = str(e)  # a string, because the exception references the model's frames
            if failure:
                self.send(wire.FAILED, wire.INPUTS_KEPT if self.memory[wire.INPUT].kept() else 0, number, text=failure)
        if hasattr(self.model, "finalize"):
            self.model.finalize()

    def document(self, a, b):
        return json.loads(self.memory[wire.INPUT].map[a:a + b])

    def load(self, number, a, b):
        args = self.document(a, b)
        config = pb_utils.ModelConfig(args["config"])
        shoal_snapshot.install({path: base64.b64decode(text) for path, text in args["sources"].items()})
        with ModelErrors(self, args["name"]):
            try:
                self.kind = self.find(args, config)
            except (shoal_files.CannotServe, shoal_app.DuplicateModel) as e:
                raise Failure(str(e)) from None
            if hasattr(self.kind, "auto_complete_config"):
                config = self.kind.auto_complete_config(config)
                if not isinstance(config, pb_utils.ModelConfig):
                    raise Failure("auto_complete_config of %s returned %s, expected the configuration that it was given" % (args["file"], type(config).__name__))
        flags = 0
        if isinstance(self.kind, shoal_app.Model):
            flags = wire.ROWS_JOINED | (wire.RETRY_APART if self.kind.retry_apart else 0)
        answer = json.dumps(config.as_dict()).encode()
        self.ensure_output(len(answer))
        self.memory[wire.OUTPUT].map[:len(answer)] = answer
        self.send(wire.LOADED, flags, number, 0, len(answer))

    def find(self, args, config):
        """Returns a callable that creates instances of the model: a class, or an equivalent."""
        if MISSING and not args["handler"]:
            raise Failure(MISSING)
        folder, version, file = args["directory"], args["version"], args["file"]
        # Without a version there is only the file.
        self.folder = os.path.dirname(folder) if version else folder
        path = os.path.join(folder, version, file)
        if not file.endswith(".py"):
            return shoal_files.open_model(path, args["name"], config)
        pb_utils._model_dir = os.path.join(folder, version)
        if version:
            sys.path[:0] = [folder, os.path.join(folder, version)]
            # Imported under the name that it has in Triton, where versions are packages, so that it can import its siblings.
            module = importlib.import_module(version + "." + file[:-len(".py")])
            if hasattr(module, "TritonPythonModel"):
                return module.TritonPythonModel
        else:
            run_file(path)
        kind = shoal_app.choose(args["name"], file)
        if kind is None and version:
            raise Failure("%s has no class TritonPythonModel" % file)
        if kind is None:
            raise Failure("%s defines no model %r, but %s" % (file, args["name"], ", ".join(repr(d.name) for d in declared) or "none"))
        return kind

    def initialize(self, number, a, b):
        args = self.document(a, b)
        config = json.loads(args["model_config"])
        self.name = args["model_instance_name"]
        self.model_name, self.version = args["model_name"], int(args["model_version"])
        self.inputs = [t["name"] for t in config["input"]]
        self.output_names = [t["name"] for t in config["output"]]
        sequences = config.get("sequence_batching", {})  # the server adds its controls and states
        self.inputs += [t["name"] for t in sequences.get("control_input", [])]
        self.inputs += [t["input_name"] for t in sequences.get("state", [])]
        self.output_names += [t["output_name"] for t in sequences.get("state", []) if t["output_name"] not in self.output_names]
        self.outputs = {name: i for i, name in enumerate(self.output_names)}
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.iterative = pb_utils.InferenceRequest._iterative = sequences.get("iterative_sequence", False)
        self.model_errors = ModelErrors(self, self.name)
        with self.model_errors:
            self.model = self.kind()
            if hasattr(self.model, "initialize"):
                self.model.initialize(args)
            if not hasattr(self.model, "execute"):
                raise Failure("TritonPythonModel has no method execute")
        if hasattr(self.model, "is_ready"):
            self.open_probe_connection()
        # These objects live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        self.send(wire.READY, number=number)

    def open_probe_connection(self):
        """Opens a connection for readiness probes, which are answered even while a batch runs."""
        ours, theirs = connections.pair()
        with theirs:
            connections.send(self.connection, wire.OPEN_PROBE, descriptors=[theirs.fileno()])
        threading.Thread(target=self.answer_probes, args=(ours,), daemon=True).start()

    def answer_probes(self, connection):
        while True:
            data = connection.recv(wire.FRAME.size)
            if not data:
                return
            ready = False
            try:
                ready = bool(resolved(self.model.is_ready()))
            except Exception as e:
                log_exception(e)
            connection.send(wire.FRAME.pack(wire.READY, 0, wire.FRAME.unpack(data)[2], ready, 0, 0))

    def run(self, number, a, b):
        at, size = self.execute(number, a, b)
        # Only the model can still reference arrays of the inputs here.
        self.send(wire.RAN, wire.INPUTS_KEPT if self.memory[wire.INPUT].kept() else 0, number, at, size)

    def execute(self, number, a, b):
        requests = self.requests(number, a, b)
        if not self.iterative:
            return self.execute_once(requests)
        self.resume(requests)
        try:
            return self.execute_once(requests)
        except Failure as e:
            for r in requests:
                self.senders.pop(r.correlation_id(), None)
                if r._sender is not None:
                    r._sender._fail(str(e))  # the server knows only of senders that were opened for this batch
            raise

    def resume(self, requests):
        """Gives requests that run again their response senders."""
        for r in requests:
            r._again, r._sender = False, self.senders.pop(r.correlation_id(), None)
        for key in [key for key, sender in self.senders.items() if sender.is_cancelled()]:
            del self.senders[key]  # the client has left, and the request does not run again

    def execute_once(self, requests):
        with self.model_errors:
            responses = resolved(self.model.execute(requests))
            if self.decoupled:
                if responses is not None:
                    raise self.failed("Python model '%s' is using the decoupled mode and the execute function must return None." % self.name)
                for r in requests:
                    r.get_response_sender()  # creates the sender, which lives as long as the request
                responses = [None] * len(requests)
            elif responses is None and all(r._sender is not None for r in requests):
                responses = [None] * len(requests)
            return self.answer(requests, responses)

    def requests(self, number, at, size):
        """Returns the requests of a table in the input memory."""
        memory = self.memory[wire.INPUT]
        table = memory.map[at:at + size]
        entries = memory.tables.get(table) or self.read(memory, table)
        base = memory.base  # read after self.read, which counts the references to it
        make, kind, tensor = object.__new__, pb_utils.InferenceRequest, pb_utils.Tensor
        requests, batch = [], (self.connection, number, base)
        for index, (properties, cancelled, places) in enumerate(entries):
            r = make(kind)
            r._properties, r._batch, r._index, r._cancelled, r._sender = properties, batch, index, at + cancelled, None
            r._inputs = inputs = []
            for name, code, array, place in places:
                t = make(tensor)
                t._name, t._code = name, code
                if array is None:
                    t._array, t._place, t._memory = None, place, base
                else:
                    t._array = array[...]  # a view per request, which the model may keep or reshape
                inputs.append(t)
            requests.append(r)
        return requests

    def read(self, memory, table):
        """Decodes a table: for each request its properties, the offset of its cancelled word, and its inputs. Most tables are repeated and are therefore
        cached, except those that contain ids or other texts."""
        count, _ = wire.COUNT.unpack_from(table, 0)
        at, entries, texts = wire.COUNT.size, [], 0

        def text(size):
            nonlocal at, texts
            at, texts = at + size, texts + size
            return table[at - size:at].decode("utf-8", "replace")

        for _ in range(count):
            cancelled = at + wire.CANCELLED
            inputs, outputs, id_size, parameters_size, timeout, priority, correlation, flags, _, name_size, trace_size = wire.REQUEST.unpack_from(table, at)
            at += wire.REQUEST.size
            places = []
            for _ in range(inputs):
                index, code, dims, _, offset, length = wire.TENSOR.unpack_from(table, at)
                place = wire.SHAPES[dims].unpack_from(table, at + wire.TENSOR.size), offset, length
                places.append((self.inputs[index], code, pb_utils._array_of(code, place, memory.base), place))
                at += wire.TENSOR.size + 8 * dims
            names = [self.output_names[wire.U32.unpack_from(table, at + 4 * i)[0]] for i in range(outputs)]
            at += 4 * outputs
            properties = pb_utils._Properties(
                text(id_size), names or self.output_names, "{}", timeout, priority, correlation, flags, self.model_name, self.version)
            if name_size:
                properties.correlation = text(name_size)
            if parameters_size:
                properties.parameters = text(parameters_size)
            if trace_size:
                properties.trace = pb_utils.InferenceTrace(text(trace_size))
            at = wire.aligned(at, 8)
            entries.append((properties, cancelled, places))
        if not texts:
            memory.cache_table(table, entries)
        return entries

    def answer(self, requests, responses):
        """Writes the responses to the output memory: tensors, followed by the table. Returns the offset and length of the table."""
        if not isinstance(responses, (list, tuple)):
            raise self.failed("Expected a list in the execute return, found type '%s'." % type(responses))
        if len(responses) != len(requests):
            raise self.failed("Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                              "InferenceRequest(s) size is:%d, and InferenceResponse(s) size is:%d\n" % (len(requests), len(responses)))
        table, data, end = [wire.COUNT.pack(len(responses), 0)], [], 0
        describe, response_type = self.describe, pb_utils.InferenceResponse
        for r, request in zip(responses, requests):
            if self.iterative and request._again:
                if r is not None:
                    raise self.failed("Expected None in the execute return list for a request that is rescheduled, found type '%s'." % type(r))
                if request._sender is not None:
                    self.senders[request.correlation_id()] = request._sender
                table.append(wire.RESPONSE.pack(3, 0, 0, 0))
                continue
            if request._sender is not None and (r is None or isinstance(r, response_type)):
                if r is not None:
                    request._sender._send_last(r)
                table.append(wire.RESPONSE.pack(2, 0, 0, 0))
                continue
            if not isinstance(r, response_type):
                raise self.failed("Expected an 'InferenceResponse' object in the execute function return list, found type '%s'." % type(r))
            if r._error is not None:
                code, text = r._failure()
                table.append(wire.RESPONSE.pack(1, code, len(text), 0))
                table.append(text.ljust(wire.aligned(len(text), 8), b"\0"))
                continue
            head = len(table)
            table.append(PLAIN)
            names = request._properties.outputs
            for t in r._tensors:
                name, code, array = t._name, t._code, t._array
                if name not in names:
                    continue  # as in Triton, outputs that were not requested are omitted
                if array is None or code == pb_utils._BYTES:
                    array, shape = t._content()
                else:
                    shape = array.shape
                size = array.nbytes
                table.append(describe(name, code, size, shape))
                data.append((array, end, size))
                end = (end + size + 63) & -64
            count, parameters = len(table) - head - 1, b""
            if count > 1:
                pb_utils._check_outputs([t for t in r._tensors if t._name in names])
            if r._parameters:
                parameters = r.parameters().encode()
                if len(parameters) > wire.MAX_PARAMETERS:
                    raise self.failed("found parameters of %d bytes, expected at most %d" % (len(parameters), wire.MAX_PARAMETERS))
                table.append(parameters.ljust(wire.aligned(len(parameters), 8)))
            if count != 1 or parameters:
                table[head] = wire.RESPONSE.pack(0, 0, count, len(parameters))
        table = b"".join(table)
        self.ensure_output(end + len(table))
        memory = self.memory[wire.OUTPUT].map
        for array, at, size in data:
            connections.put(memory, at, size, array)
        memory[end:end + len(table)] = table
        return end, len(table)

    def description(self, name, code, size, shape):
        """Returns the table entry of an output."""
        return wire.OUTPUTS[len(shape)].pack(self.outputs[name], code, len(shape), 0, size, *shape)

    def failed(self, message):
        return Failure("Failed to process the request(s) for model '%s', message: %s" % (self.name, message))

    def display_path(self, file):
        """Returns a file name as clients may see it: without directories of this machine."""
        inside = os.path.relpath(file, self.folder) if os.path.isabs(file) else file
        return os.path.basename(file) if inside.startswith("..") else inside


def log_exception(error):
    """Writes an exception to the server's log, with its traceback in the model, as one record."""
    trace = error.__traceback__
    while trace is not None and is_worker_code(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        pb_utils.Logger._send_traceback(text)
    except (OSError, TypeError):  # the server has closed the connection, or there is none
        sys.stderr.write(text)


event_loops = threading.local()


def resolved(result):
    """Returns the result of a method, awaited if the method is async: in the event loop of this thread, so that is_ready does not wait for execute."""
    if not hasattr(result, "__await__"):
        return result
    if not hasattr(event_loops, "mine"):
        import shoal_async  # it imports asyncio, which is slow, and few models need it

        event_loops.mine = shoal_async.EventLoop()
    value, error = event_loops.mine.wait(result)
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # it refers to this frame


def run_file(path):
    """Imports a file by its path. It can import from its own directory."""
    sys.path.insert(0, os.path.dirname(path))
    # A file that changes twice within a second would otherwise match its stale bytecode.
    sys.dont_write_bytecode = True
    name = os.path.basename(path)[:-len(".py")]
    spec = shoal_snapshot.spec(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


class ModelErrors:
    """Converts an exception of the model to a Failure with Triton's wording. The traceback goes to the log."""

    def __init__(self, worker, name):
        self.worker, self.name = worker, name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, Failure):
            return False
        if issubclass(kind, SystemExit):
            error = RuntimeError("the model called sys.exit(%s)" % error.code)
            kind = RuntimeError
        log_exception(error.with_traceback(trace))
        frames = [f for f in traceback.extract_tb(trace) if not is_worker_code(f.filename)]
        lines = ["  %s(%d): %s\n" % (self.worker.display_path(f.filename), f.lineno, f.name) for f in reversed(frames)]
        at = "\n\nAt:\n" + "".join(lines) if lines else ""
        text = str(error) or "<EMPTY MESSAGE>"
        raise Failure("Failed to process the request(s) for model '%s', message: %s: %s%s" % (self.name, kind.__name__, text, at)) from None


def is_worker_code(file):
    """Returns whether a file belongs to the worker rather than to the model."""
    return file.startswith(os.path.dirname(__file__) + os.sep)


def prefer_as_oom_victim():
    """Makes the kernel's OOM killer prefer this process to the server."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def raise_descriptor_limit():
    """Lets the model have more descriptors than the usual soft limit of 1024: each open response sender and each call to another model is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def inherited_socket(descriptor):
    s = socket.socket(fileno=descriptor)
    s.setblocking(True)
    s.set_inheritable(False)
    return s


def main(connection, side):
    prefer_as_oom_victim()
    raise_descriptor_limit()
    # The server ends the process with FINISH. Ctrl-C in a terminal is meant for the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(inherited_socket(connection), inherited_socket(side))
    # Exceptions of threads, and of finalize.
    threading.excepthook = lambda args: args.exc_type is SystemExit or log_exception(args.exc_value)
    sys.excepthook = lambda kind, error, trace: log_exception(error)
    worker.serve()
