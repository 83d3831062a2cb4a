"""Calls of a server that has TLS, and requires a credential."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy

import serving
import shoal

GRANTS = """version: 1
grants:
  - {to: ["certificate:scheduler"], role: infer}
"""


def setUpModule():
    global folder, server, token
    folder = tempfile.TemporaryDirectory(prefix="shoal-python-")
    for name in ("server", "scheduler"):
        certificate(name)
    pathlib.Path(path("access.yaml")).write_text(GRANTS)
    token = subprocess.check_output([serving.BINARY, "keys", "create", "--role=infer", "--api-keys", path("keys.json")], stderr=subprocess.DEVNULL, text=True).strip()
    server = serving.Server(
        pathlib.Path(folder.name), "--api-keys", path("keys.json"), "--access", path("access.yaml"),
        "--tls-cert", path("server.pem"), "--tls-key", path("server.key"), "--tls-client-ca", path("scheduler.pem"), scheme="https",
    )  # fmt: skip


def tearDownModule():
    status = server.stop()
    folder.cleanup()
    assert status == 0, f"the server ended with status {status}"


def path(name):
    return os.path.join(folder.name, name)


def certificate(name):
    """Writes a certificate that signs itself, and its key."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path(f"{name}.key"), "-out", path(f"{name}.pem")],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip


class Credentials(unittest.TestCase):
    def infer(self, **credentials):
        model = shoal.load("echo", url=server.url, ca=path("server.pem"), **credentials)
        rows = numpy.ones((1, 4), numpy.float32)
        return model.forward(rows)

    def test_a_token_is_accepted(self):
        self.infer(token=token)

    def test_the_token_may_be_in_the_environment(self):
        os.environ["SHOAL_TOKEN"] = token
        try:
            self.infer()
        finally:
            del os.environ["SHOAL_TOKEN"]

    def test_a_certificate_is_accepted(self):
        self.infer(cert=(path("scheduler.pem"), path("scheduler.key")))

    def test_without_a_credential_it_is_an_error_of_its_own(self):
        for wrong in (None, "shoal_a_b"):
            with self.assertRaises(shoal.UnauthenticatedError):
                self.infer(token=wrong)

    def test_a_server_that_is_not_trusted_is_not_used(self):
        with self.assertRaisesRegex(shoal.UnavailableError, "CERTIFICATE_VERIFY_FAILED"):
            shoal.load("echo", url=server.url, token=token)

    def test_certificates_need_https(self):
        with self.assertRaisesRegex(shoal.InvalidError, "https://"):
            shoal.load("echo", url="http://127.0.0.1:1", ca=path("server.pem"))


if __name__ == "__main__":
    unittest.main()
