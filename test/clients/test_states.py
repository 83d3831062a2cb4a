"""Configurations that people write load where they load in Triton, with a warning for what has no effect."""

import json
import pathlib
import tempfile
import unittest

import shoal
import states

# The models that load with a warning, and the field that it is about.
WARNED = {
    "format": "input[0].format", "response_cache": "response_cache.enable", "rate_limiter": "instance_group[0].rate_limiter.resources",
    "passive": "instance_group[1].passive", "cc_model_filenames": "cc_model_filenames", "op_library_filename": "model_operations.op_library_filename",
    "execution_accelerators": "optimization.execution_accelerators.cpu_execution_accelerator", "host_policy": "instance_group[0].host_policy",
}


@unittest.skipUnless(shoal.PYTHON.exists(), "there is no interpreter with numpy in bin/worker; make numpy brings it")
class TestStates(unittest.TestCase):
    def test_models_have_the_states_of_triton(self):
        recorded = json.loads(states.RECORDED.read_text())
        self.assertEqual(set(recorded), set(states.FIELDS), "make measure WHAT=states-beside-triton with --record")
        with tempfile.TemporaryDirectory(prefix="shoal-states-") as folder:
            models = pathlib.Path(folder)
            states.write(models)
            found, log = states.here(models)
        for name, state in recorded.items():
            with self.subTest(name):
                expected = states.DIFFERENT[name][0] if name in states.DIFFERENT else state
                self.assertEqual(found[name][0], expected, found[name][1])
        for name, field in WARNED.items():
            with self.subTest(name, of="the warning"):
                warnings = [line for line in log.splitlines() if 'msg="model configuration"' in line and f"model={name} " in line and f'field={field} ' in line.replace('"', "")]
                self.assertEqual(len(warnings), 1, log)
                self.assertRegex(warnings[0], rf"at=\S+/{name}/config.pbtxt:\d+ ")
        self.assertRegex(found["runtime"][1], r"config.pbtxt:\d+: runtime: .+; remove runtime")
