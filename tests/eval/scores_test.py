"""Scores and intervals, against values computed by hand or taken from the literature."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import intervals, scores  # noqa: E402


class Scores(unittest.TestCase):
    def test_contains_is_the_share_found_whatever_the_case(self):
        self.assertEqual(scores.contains("Alpha, BETA", ("alpha", "beta")), 1)
        self.assertEqual(scores.contains("1234567 is it", ("1234567", "7654321")), 0.5)
        self.assertEqual(scores.contains("", ("x",)), 0)

    def test_rouge_counts_words_both_ways(self):
        self.assertEqual(scores.rouge1("eat a sandwich", ("Eat a sandwich!",)), 1)
        self.assertAlmostEqual(scores.rouge1("a a b", ("a b c",)), 2 * 2 / 6)  # the second a has no partner
        self.assertEqual(scores.rouge1("", ("a",)), 0)

    def test_lines_count_at_their_places(self):
        refs = ("a, b):", "c = a + 1", "return c")
        self.assertEqual(scores.first_lines("a, b):\n    c = a + 1\n    return c\nmore", refs), 1)
        self.assertAlmostEqual(scores.first_lines("a, b):\n    return c", refs), 1 / 3)


class Intervals(unittest.TestCase):
    def test_wilson(self):
        # Newcombe (1998), Two-sided confidence intervals for the single proportion, table I, method 3.
        for hits, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                   (1, 29, 0.0061, 0.1718)):
            with self.subTest(hits=hits, n=n):
                self.assertAlmostEqual(intervals.wilson(hits / n, n)[0], low, places=4)
                self.assertAlmostEqual(intervals.wilson(hits / n, n)[1], high, places=4)

    def test_wilson_holds_its_share_and_stays_in_bounds(self):
        for n in (1, 7, 40):
            for hits in range(n + 1):
                low, high = intervals.wilson(hits / n, n)
                self.assertTrue(0 <= low <= hits / n <= high <= 1)
        self.assertEqual(intervals.wilson(0, 0), (0, 1))

    def test_difference(self):
        # Newcombe (1998), Interval estimation for the difference between independent proportions, table II, method 10.
        for a, n_a, b, n_b, low, high in ((56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090),
                                          (10, 10, 0, 10, 0.6075, 1.0)):
            with self.subTest(a=a, b=b):
                got = intervals.difference(a / n_a, n_a, b / n_b, n_b)
                self.assertAlmostEqual(got[0], low, places=4)
                self.assertAlmostEqual(got[1], high, places=4)

    def test_agreement(self):
        self.assertTrue(intervals.agree(1, 40, 1, 40))
        self.assertTrue(intervals.agree(0.95, 40, 1, 40))
        self.assertFalse(intervals.agree(0.5, 40, 1, 40))


if __name__ == "__main__":
    unittest.main()
