"""Servers that are started on demand."""

import os
import pathlib
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import numpy

import serving
import shoal
from shoal import _start


def ask(code, **environment):
    """Runs code in a new interpreter that has the package."""
    path = os.pathsep.join(sys.path)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": path, **environment})


def accepts(path):
    """Whether a server listens at the path. The file is there a moment before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(str(path)) == 0


class OnDemand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-python-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.addCleanup(self.end)

    def end(self):
        for pid in serving.servers(str(self.folder)):
            os.kill(pid, signal.SIGTERM)
        serving.await_(lambda: not serving.servers(str(self.folder)), "the servers to exit")

    def test_many_processes_share_one_server(self):
        models = serving.repository(self.folder / "models")
        code = f"import numpy, shoal; print(shoal.load('echo', repository={str(models)!r}).forward(numpy.full((1, 4), os.getpid(), numpy.float32)).sum() == 4 * os.getpid())"
        processes = [ask("import os; " + code) for _ in range(16)]
        self.assertEqual([p.communicate()[0] for p in processes], ["True\n"] * 16)
        self.assertEqual(len(serving.servers(str(self.folder))), 1)

    def test_a_broken_model_does_not_delay_the_others(self):
        (self.folder / "models" / "broken").mkdir(parents=True)
        (self.folder / "models" / "broken" / "config.pbtxt").write_text('backend: "no such backend"')
        server = serving.Server(self.folder, "--exit-on-error=false")
        self.addCleanup(server.stop)
        began = time.monotonic()
        for url in (server.url, "unix:" + server.socket):
            shoal.load("echo", url=url).close()
            for name in ("broken", "misspelt"):
                with self.assertRaises(shoal.NotFoundError):
                    shoal.load(name, url=url)
        self.assertLess(time.monotonic() - began, 60)

    def test_a_file_is_configured_by_the_call(self):
        file = shutil.copy(pathlib.Path(__file__).parents[2] / "examples" / "image-classifier" / "digits.onnx", self.folder / "digits.onnx")
        measured = shoal.load(file)
        limited = shoal.load(file, max_batch_size=2, max_delay=0.001, instances=2)
        for model in (measured, limited, pickle.loads(pickle.dumps(limited))):
            self.addCleanup(model.close)
        rows = numpy.zeros((3, *(max(1, size) for size in limited.inputs[0].shape[1:])), numpy.float32)
        self.assertEqual(len(measured.run({measured.inputs[0].name: rows})[measured.outputs[0].name]), 3)
        with self.assertRaisesRegex(shoal.InvalidError, "batch.size"):
            limited.run({limited.inputs[0].name: rows})
        self.assertEqual(len(limited.run({limited.inputs[0].name: rows[:2]})[limited.outputs[0].name]), 2)
        self.assertEqual(len(serving.servers(str(self.folder))), 2)  # with and without the configuration

    def test_the_program_may_be_named_by_a_relative_path(self):
        models = serving.repository(self.folder / "models")
        code = f"import shoal; print(shoal.load('echo', repository={str(models)!r}).name)"
        folder = os.path.relpath(serving.BINARY.parent)
        for environment in ({"SHOAL_BINARY": os.path.relpath(serving.BINARY)}, {"SHOAL_BINARY": "", "PATH": folder}):
            self.assertEqual(ask(code, **environment).communicate()[0], "echo\n")
            self.end()

    def test_models_run_in_the_environment_that_has_the_command(self):
        program = self.folder / "program"
        program.write_text("#!/bin/sh\ncommand -v python3\n")
        program.chmod(0o755)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True)
        inside = self.folder / "venv" / "bin" / "python3"

        def found(python, **environment):
            plain = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
            ran = subprocess.run([python, "-c", "from shoal import _start; _start.main()"], stdout=subprocess.PIPE, text=True, check=True, env={**plain, "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "SHOAL_BINARY": str(program), **environment})
            return ran.stdout.strip()

        self.assertEqual(found(inside), str(inside))
        # An activated environment is the user's choice, and so is the PATH outside of environments.
        self.assertNotEqual(found(inside, VIRTUAL_ENV="/elsewhere"), str(inside))
        outside = os.path.join(sys.base_prefix, "bin", "python3")
        self.assertEqual(found(outside), shutil.which("python3", path="/usr/bin:/bin") or "")

    def test_only_a_file_is_configured_by_the_call(self):
        models = serving.repository(self.folder / "models")
        for wrong in ({"max_batch_size": -1}, {"instances": 0}, {"max_delay": float("nan")}, {"instances": 1.5}):
            with self.assertRaisesRegex(shoal.InvalidError, "expected a number of at least"):
                shoal.load(self.folder / "absent.onnx", **wrong)
        for place in ({"repository": models}, {"url": "http://127.0.0.1:1"}):
            with self.assertRaisesRegex(shoal.InvalidError, "config.pbtxt"):
                shoal.load("echo", max_batch_size=4, **place)
        self.assertEqual(serving.servers(str(self.folder)), [])

    def test_a_server_that_was_killed_is_started_again(self):
        model = shoal.load("echo", repository=serving.repository(self.folder / "models"))
        self.addCleanup(model.close)
        array = numpy.ones((1, 4), numpy.float32)
        (pid,) = serving.servers(str(self.folder))
        os.kill(pid, signal.SIGKILL)
        serving.await_(lambda: not serving.servers(str(self.folder)), "the server to exit")
        with self.assertRaisesRegex(shoal.UnavailableError, "has exited"):
            model.forward(array)
        numpy.testing.assert_array_equal(model.forward(array), array)

    def test_a_server_that_dies_while_it_loads_is_not_started_for_ever(self):
        starts = self.folder / "starts"
        program = self.folder / "program"  # says that it loads models, and is killed
        program.write_text(f"""#!{sys.executable}
import os, signal, socket, struct, sys
sys.path[:0] = {sys.path!r}
from shoal import _wire
with open({str(starts)!r}, "a") as starts:
    starts.write("x")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
path = sys.argv[sys.argv.index("--local-socket") + 1]
if os.path.exists(path):
    os.remove(path)
listener.bind(path)
listener.listen()
client, _ = listener.accept()
client.recv(_wire.MAX_FRAME)
client.send(_wire.FRAME.pack(_wire.WELCOME, 0, 0, _wire.PROTOCOL, 256, 1 << 30))
client.recv(_wire.MAX_FRAME)
client.send(_wire.FRAME.pack(_wire.FAILED, _wire.STILL_LOADING, 1, 4, 0, 0))
client.recv(_wire.MAX_FRAME)
os.kill(os.getpid(), signal.SIGKILL)
""")
        program.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, SHOAL_BINARY=str(program)):
            loading = ask(f"import shoal; shoal.load('echo', repository={str(self.folder)!r}, timeout=5)")
        try:
            said, _ = loading.communicate(timeout=serving.PATIENCE)
        finally:
            loading.kill()
            loading.wait()
        self.assertRegex(said, "UnavailableError: the server exited while it loaded its models; .*[.]log is its log")
        self.assertEqual(starts.read_text(), "x")

    def test_only_the_first_connection_waits_for_the_models(self):
        server = _start.Server(str(serving.repository(self.folder / "models")), 60, serving.PATIENCE)
        real = _start.Connection.describe
        with unittest.mock.patch.object(_start.Connection, "describe", autospec=True, side_effect=real) as asked:
            server.connect().close()
            self.assertTrue(asked.called)
            asked.reset_mock()
            server.connect().close()
            self.assertFalse(asked.called)
            (pid,) = serving.servers(str(self.folder))
            os.kill(pid, signal.SIGKILL)
            serving.await_(lambda: not serving.servers(str(self.folder)), "the server to exit")
            server.connect().close()
            self.assertTrue(asked.called)

    def test_an_unused_server_exits(self):
        model = shoal.load("echo", repository=serving.repository(self.folder / "models"), linger=1)
        self.assertEqual(len(serving.servers(str(self.folder))), 1)
        model.close()
        serving.await_(lambda: not serving.servers(str(self.folder)), "the server to exit")
        numpy.testing.assert_array_equal(model.forward([[1] * 4]), [[1] * 4])  # and comes back
        model.close()

    def test_a_server_that_was_unused_before_anybody_connected_is_started_again(self):
        starts = self.folder / "starts"
        program = self.folder / "program"  # the first one exits as if this process had not got to run for its linger
        program.write_text(f"""#!/bin/sh
echo >> {starts}
[ "$(wc -l < {starts})" -gt 1 ] || exec sleep 1.1
exec {serving.BINARY} "$@"
""")
        program.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, SHOAL_BINARY=str(program)):
            model = shoal.load("echo", repository=serving.repository(self.folder / "models"), linger=1)
        self.addCleanup(model.close)
        numpy.testing.assert_array_equal(model.forward([[1] * 4]), [[1] * 4])
        self.assertEqual(starts.read_text(), "\n\n")

    def test_a_server_that_exits_at_once_is_not_started_again(self):
        starts, repository = self.folder / "starts", serving.repository(self.folder / "models")
        for command, status in (("exit 0", 0), ("sleep 1.1; exit 3", 3)):
            starts.write_text("")
            program = self.folder / "program"
            program.write_text(f"#!/bin/sh\necho >> {starts}\n{command}\n")
            program.chmod(0o755)
            with unittest.mock.patch.dict(os.environ, SHOAL_BINARY=str(program)):
                with self.assertRaisesRegex(shoal.UnavailableError, f"the server could not be started: it ended with status {status}; .*[.]log is its log"):
                    shoal.load("echo", repository=repository, linger=1)
            self.assertEqual(starts.read_text(), "\n")

    def test_models_can_be_pickled(self):
        model = shoal.load("echo", repository=serving.repository(self.folder / "models"))
        self.addCleanup(model.close)
        again = pickle.loads(pickle.dumps(model))
        numpy.testing.assert_array_equal(again.forward([[1] * 4]), [[1] * 4])
        self.assertEqual(len(serving.servers(str(self.folder))), 1)

    @unittest.skipUnless(serving.library(), "needs ONNX Runtime: run make onnxruntime")
    def test_a_file_is_enough(self):
        file = self.folder / "sums.onnx"
        file.write_bytes((serving.TESTDATA / "add_sub.onnx").read_bytes())
        model = shoal.load(file)
        self.addCleanup(model.close)
        ones = numpy.ones((1, 16), numpy.float32)
        numpy.testing.assert_array_equal(model.forward(ones, ones, output="OUTPUT0"), ones + ones)

    def test_the_reason_of_a_failed_start_is_in_the_error(self):
        (self.folder / "models" / "bad" / "1").mkdir(parents=True)
        (self.folder / "models" / "bad" / "config.pbtxt").write_text('backend: "nonsense"')
        with self.assertRaisesRegex(shoal.UnavailableError, "nonsense"):
            shoal.load("bad", repository=self.folder / "models")
        with self.assertRaisesRegex(shoal.NotFoundError, "found nothing at"):
            shoal.load("bad", repository=self.folder / "nowhere")
        with self.assertRaisesRegex(shoal.NotFoundError, "found nothing at nothing.onnx"):
            shoal.load("nothing.onnx")
        with self.assertRaisesRegex(shoal.NotFoundError, "found no server at .*shoal.sock"):
            shoal.load("echo")

    def test_a_server_that_the_user_started_is_found(self):
        path = pathlib.Path(os.environ["XDG_RUNTIME_DIR"]) / "shoal" / "shoal.sock"
        server = subprocess.Popen(
            [serving.BINARY, "serve", serving.repository(self.folder / "models"), "--local-socket=auto", "--calibration-dir=",
             "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            serving.await_(lambda: accepts(path), "the socket")
            numpy.testing.assert_array_equal(shoal.load("echo").forward([[1] * 4]), [[1] * 4])
        finally:
            server.terminate()
            self.assertEqual(server.wait(), 0)

    def test_a_directory_open_to_other_users_is_rejected(self):
        runtime = self.folder / "runtime"
        (runtime / "shoal").mkdir(parents=True)
        (runtime / "shoal").chmod(0o777)
        process = ask("import shoal; shoal.load('echo')", XDG_RUNTIME_DIR=str(runtime))
        self.assertIn("open to other users", process.communicate()[0])


if __name__ == "__main__":
    unittest.main()
