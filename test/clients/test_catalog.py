"""Health, metadata, configuration, statistics, index, and loading of models."""

import json
import unittest

import fixture


class Catalog(fixture.Sync):
    def test_server_and_models_are_ready(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("echo"))
        self.assertTrue(self.client.is_model_ready("echo", "1"))
        self.assertFalse(self.client.is_model_ready("echo", "7"))
        self.assertFalse(self.client.is_model_ready("nosuch"))

    def test_server_says_what_it_can(self):
        answer = self.plain(self.client.get_server_metadata())
        self.assertEqual(answer["name"], "shoal")
        self.assertTrue({"binary_tensor_data", "model_repository", "schedule_policy", "statistics"} <= set(answer["extensions"]))

    def test_metadata_has_the_batch_dimension(self):
        answer = self.plain(self.client.get_model_metadata("echo"))
        self.assertEqual((answer["name"], answer["versions"], answer["platform"]), ("echo", ["1"], "simulated"))
        (tensor,) = answer["inputs"]
        self.assertEqual((tensor["name"], tensor["datatype"], [int(d) for d in tensor["shape"]]), ("IN", "FP32", [-1, 4]))

    def test_configuration_is_complete(self):
        answer = self.plain(self.client.get_model_config("slow"))
        config = answer.get("config", answer)  # gRPC has a message around it
        self.assertEqual((config["name"], config["backend"], config["max_batch_size"]), ("slow", "simulated", 8))
        self.assertEqual(config["instance_group"][0]["count"], 1)
        self.assertIn("dynamic_batching", config)

    def test_unknown_models_are_named(self):
        for ask in (self.client.get_model_metadata, self.client.get_model_config):
            with self.refused("NOT_FOUND", "'nosuch'"):
                ask("nosuch")
        with self.refused("INVALID_ARGUMENT", "'nosuch'"):
            self.client.get_inference_statistics("nosuch")

    def test_index_lists_every_model(self):
        answer = self.plain(self.client.get_model_repository_index())
        models = {m["name"]: m for m in (answer if isinstance(answer, list) else answer["models"])}
        self.assertTrue({"echo", "slow", "wide"} <= models.keys())
        self.assertEqual((models["echo"]["version"], models["echo"]["state"]), ("1", "READY"))

    def statistics(self, name=""):
        answer = self.plain(self.client.get_inference_statistics(name))
        return {m["name"]: m for m in answer["model_stats"]}

    def test_statistics_have_every_model(self):
        self.assertTrue({"echo", "slow"} <= self.statistics().keys())

    def test_statistics_count_requests_and_rows(self):
        model = f"counted_{self.protocol}"
        self.client.infer(model, self.rows(1, 2))
        self.client.infer(model, self.rows(3))
        found = self.statistics(model)[model]
        self.assertEqual((int(found["inference_count"]), int(found["execution_count"])), (3, 2))
        parts = found["inference_stats"]
        self.assertEqual(int(parts["success"]["count"]), 2)
        took = sum(int(parts[part].get("ns", 0)) for part in ("queue", "compute_input", "compute_infer", "compute_output"))
        self.assertLessEqual(took, int(parts["success"]["ns"]))
        self.assertGreaterEqual(int(parts["compute_infer"]["ns"]), 2_000_000, "two batches of a millisecond")
        self.assertEqual(sorted(int(b["batch_size"]) for b in found["batch_stats"]), [1, 2])

    def test_models_come_and_go(self):
        model = f"comes_{self.protocol}"
        self.client.infer(model, self.rows(1))
        self.client.unload_model(model)
        self.assertFalse(self.client.is_model_ready(model))
        with self.refused("NOT_FOUND", model):
            self.client.infer(model, self.rows(1))
        self.client.load_model(model)
        self.assertTrue(self.client.is_model_ready(model))
        self.client.infer(model, self.rows(1))

    def test_a_load_may_bring_its_configuration(self):
        model = f"comes_{self.protocol}"
        answer = self.plain(self.client.get_model_config(model))
        config = dict(answer.get("config", answer), max_batch_size=2, dynamic_batching={})
        self.client.load_model(model, config=json.dumps(config))
        with self.refused("INVALID_ARGUMENT", "batch-size must be <= 2"):
            self.client.infer(model, self.rows(1, 2, 3))
        self.client.unload_model(model)
        self.client.load_model(model)

    def test_a_load_that_fails_says_why(self):
        with self.refused("NOT_FOUND", "'nosuch'"):
            self.client.load_model("nosuch")
        self.assertTrue(self.client.is_server_ready())


class CatalogHTTP(Catalog, fixture.HTTP, unittest.TestCase):
    pass


class CatalogGRPC(Catalog, fixture.GRPC, unittest.TestCase):
    pass
