"""Starts bin/shoal for a test, on free ports of the loopback interface."""

import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/measure"))  # for those who measure
BINARY = ROOT / "bin/shoal"
PYTHON = ROOT / "bin/worker/bin/python3"  # which has numpy; make numpy brings it
TESTDATA = ROOT / "internal/engine/onnx/testdata"

LISTENING = re.compile(r"msg=listening protocol=(\w+) address=(\S+)")


def library():
    """Whether ONNX models can run: `make onnxruntime` brings their library."""
    return any((ROOT / "lib").glob("libonnxruntime.so*"))


def simulated(name, *, fixed_us=1000, dims="[ 4 ]", scheduling="dynamic_batching { }", count=1):
    """The configuration of a model that only takes time, and answers with its input's rows."""
    return f"""
name: "{name}"
backend: "simulated"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: {dims} }} ]
instance_group [ {{ count: {count} }} ]
{scheduling}
parameters {{ key: "fixed_us" value {{ string_value: "{fixed_us}" }} }}
"""


class Repository:
    """A model repository in a temporary directory."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="shoal-clients-"))

    def add(self, name, config=None, onnx=None):
        version = self.path / name / "1"
        version.mkdir(parents=True)
        if config:
            (self.path / name / "config.pbtxt").write_text(config)
        if onnx:
            shutil.copy(onnx, version / "model.onnx")

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


def ready(address):
    """Whether the server whose HTTP is at the address says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Ended(RuntimeError):
    """The server ended before it was ready."""


class Server:
    """One run of the binary. http, grpc and metrics are host:port once it is ready, which takes at most patience
    seconds. Python models run with python, if that is given."""

    def __init__(self, *arguments, python=None, patience=30):
        command = [BINARY, "serve", "--calibration-dir=", *map(str, arguments), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"} if python else None
        self.log = []
        self._addresses = queue.Queue()
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._await(time.monotonic() + patience)
        except BaseException:
            self.stop()
            raise

    def _read(self):
        for line in self._process.stderr:
            self.log.append(line)
            if match := LISTENING.search(line):
                self._addresses.put(match.groups())
        self._addresses.put(None)  # the process has ended

    def _await(self, patience):
        addresses = {}
        while not {"http", "grpc", "metrics"} <= addresses.keys():
            try:
                found = self._addresses.get(timeout=patience - time.monotonic())
            except (queue.Empty, ValueError):
                raise RuntimeError("the server does not listen\n" + self.text()) from None
            if found is None:
                raise Ended("the server ended\n" + self.text())
            addresses[found[0]] = found[1]
        self.http, self.grpc, self.metrics = addresses["http"], addresses["grpc"], addresses["metrics"]
        while not ready(self.http):
            if self._process.poll() is not None or time.monotonic() > patience:
                raise RuntimeError("the server does not become ready\n" + self.text())
            time.sleep(0.01)

    def pending(self, model):
        """How many requests wait in the model's queue."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return int(re.search(rf'^nv_inference_pending_request_count{{model="{model}",version="1"}} (\d+)', text, re.MULTILINE)[1])

    def text(self):
        return "".join(self.log)

    def stop(self):
        """Ends the server and returns its exit status."""
        self._process.terminate()
        try:
            status = self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join()
        self._process.stderr.close()
        return status
