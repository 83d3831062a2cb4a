"""Starts the real Triton server that tools/get-tritonserver brings to bin/tritonserver."""

import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import shoal

BINARY = shoal.ROOT / "bin/tritonserver/tritonserver"
MODELS = pathlib.Path(__file__).resolve().parent / "triton"


def free_ports(count):
    """Ports that nobody listens on. Triton cannot be told to find its own."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Server:
    """One run of tritonserver with the models of a folder. http, grpc and metrics are host:port once it is ready."""

    def __init__(self, models=MODELS, *arguments):
        http, grpc, metrics = free_ports(3)
        self.http, self.grpc, self.metrics = f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-triton-"))
        self.models = self._folder / "models"
        shutil.copytree(models, self.models)  # Python writes beside its files
        self._log = open(self._folder / "log", "w")
        command = [BINARY, f"--model-repository={self.models}", "--allow-gpu-metrics=false", *arguments]
        for name, port in (("http", http), ("grpc", grpc), ("metrics", metrics)):
            command += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._await(time.monotonic() + 60)
        except BaseException:
            self.stop()
            raise

    def _await(self, patience):
        while not shoal.ready(self.http):
            if self._process.poll() is not None or time.monotonic() > patience:
                raise RuntimeError("tritonserver does not become ready\n" + self.text())
            time.sleep(0.05)

    def text(self):
        return (self._folder / "log").read_text(errors="replace")

    def stop(self):
        """Ends the server, with its models' processes."""
        self._process.terminate()
        try:
            self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
