"""Servers for the tests, and their state in /proc."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "bin/shoal"
TESTDATA = ROOT / "internal/engine/onnx/testdata"
PATIENCE = 30.0


def library():
    """Returns whether ONNX models can run: `make onnxruntime` installs their library."""
    return any((ROOT / "lib").glob("libonnxruntime.so*"))


@contextlib.contextmanager
def runtime():
    """Sets up directories for the sockets and measurements of the tests, and stops the servers that they started."""
    with tempfile.TemporaryDirectory(prefix="shoal-python-") as folder:
        os.environ.update(XDG_RUNTIME_DIR=folder, XDG_CACHE_HOME=folder, SHOAL_BINARY=str(BINARY))
        for name in ("SHOAL_MODEL_REPOSITORY", "SHOAL_LOCAL_SOCKET"):
            os.environ.pop(name, None)
        try:
            yield
        finally:
            for pid in servers(folder):
                os.kill(pid, signal.SIGTERM)
            await_(lambda: not servers(folder), "the servers to end")


def servers(folder):
    """Returns the process ids of the servers whose sockets are below a folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve" in command and any(part.startswith(os.fsencode(folder)) for part in command):
                found.append(int(entry.name))
    return found


def await_(is_so, what):
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            raise AssertionError(f"timed out waiting for {what}")
        time.sleep(0.01)


def simulated(*, fixed_us=0, scheduling="dynamic_batching { max_queue_delay_microseconds: 0 }"):
    """Returns the configuration of a model that takes fixed_us and returns its input."""
    return f"""
backend: "simulated"
max_batch_size: 8
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ count: 1 }} ]
{scheduling}
parameters {{ key: "fixed_us" value {{ string_value: "{fixed_us}" }} }}
"""


def repository(folder):
    """Writes the models that the tests use."""
    models = {
        "echo": simulated(),
        "slow": simulated(fixed_us=300_000),
        "full": simulated(fixed_us=300_000, scheduling="dynamic_batching { default_queue_policy { max_queue_size: 1 } }"),
    }
    for name, config in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    if library():
        for name, file in {"add_sub": "add_sub", "strings": "strings", "types": "types_spelled", "negate": "anyshape"}.items():
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.onnx").symlink_to(TESTDATA / f"{file}.onnx")
        (folder / "negate" / "config.pbtxt").write_text("""
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 0 }
""")
    return folder


class Server:
    """A running server with HTTP and a local socket."""

    def __init__(self, folder, *args, scheme="http"):
        self.socket = str(folder / "socket")
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [BINARY, "serve", repository(folder / "models"), "--local-socket", self.socket, "--calibration-dir=", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false", *args],
                stderr=log,
            )
        await_(lambda: "protocol=local" in self.log() or self.process.poll() is not None, "the server to listen")
        self.url = f"{scheme}://" + re.search(r"protocol=http address=(\S+)", self.log())[1]

    def log(self):
        return self._log.read_text()

    def stop(self):
        self.process.terminate()
        return self.process.wait()

    def rows_run(self, model):
        """How many rows of a model it has run."""
        with urllib.request.urlopen(f"{self.url}/v2/models/{model}/stats", timeout=PATIENCE) as answer:
            return int(json.load(answer)["model_stats"][0]["inference_count"])

    def holds(self):
        """Returns how many descriptors it has open, and how many pieces of shared memory it has mapped."""
        process = pathlib.Path(f"/proc/{self.process.pid}")
        return len(list((process / "fd").iterdir())), (process / "maps").read_text().count("memfd:shoal")
