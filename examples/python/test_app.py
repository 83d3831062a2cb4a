"""Tests of app.py that need no server: python3 -m unittest test_app.py"""

import unittest

import numpy as np
import shoal

import app


class Total(unittest.TestCase):
    def test_rows_are_added_up(self):
        self.assertEqual(app.total(np.ones((2, 3), np.float32))["y"].tolist(), [3, 3])

    def test_values_that_are_not_finite_are_rejected(self):
        with self.assertRaises(shoal.BadInput):
            app.total(np.full((1, 3), np.nan, np.float32))


class CountWords(unittest.TestCase):
    def test_an_object_counts_the_rows_that_it_has_seen(self):
        model = app.CountWords()
        model(np.array([[b"one two"]], dtype=object))
        answer = model(np.array([[b"three"]], dtype=object))
        self.assertEqual((answer["words"].tolist(), answer["seen"].tolist()), ([[1]], [[2]]))


if __name__ == "__main__":
    unittest.main()
