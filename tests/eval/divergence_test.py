"""The divergence of told distributions, against its definition."""

import math
import pathlib
import random
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from lab import divergence  # noqa: E402


def step(shares, told=None):
    """Of shares by id: the `told` best, best first."""
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], i))[:told]
    return {i: math.log(shares[i]) if shares[i] else -math.inf for i in order}


def some_shares(rng, n):
    weights = [math.exp(rng.gauss(0, 3)) for _ in range(n)]
    return [weight / sum(weights) for weight in weights]


class Divergence(unittest.TestCase):
    def test_of_whole_vocabularies_it_is_the_definition(self):
        rng = random.Random(5)
        for _ in range(20):
            p, q = some_shares(rng, 300), some_shares(rng, 300)
            want = sum(a * math.log(a / b) for a, b in zip(p, q))
            self.assertAlmostEqual(divergence.kl(step(p), step(q)), want, places=6)
            self.assertAlmostEqual(divergence.kl(step(p), step(p)), 0, places=9)

    def test_of_parts_it_is_that_with_one_token_for_the_rest_and_never_more(self):
        p, q = [0.5, 0.25, 0.15, 0.1], [0.4, 0.1, 0.2, 0.3]
        # Told are 0, 1 of p and 0, 3 of q: both tell 0.
        want = 0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6)
        self.assertAlmostEqual(divergence.kl(step(p, 2), step(q, 2)), want)
        rng = random.Random(6)
        for _ in range(50):
            p, q = some_shares(rng, 100), some_shares(rng, 100)
            whole = divergence.kl(step(p), step(q))
            for told in (1, 5, 20, 60):
                self.assertLessEqual(divergence.kl(step(p, told), step(q, told)), whole + 1e-9)

    def test_nothing_in_common_and_nothing_possible(self):
        self.assertEqual(divergence.kl({1: 0.0}, {2: 0.0}), 0)  # all is rest
        self.assertGreater(divergence.kl({1: 0.0, 2: -math.inf}, {2: 0.0, 1: -math.inf}), 1e9)
        self.assertEqual(divergence.kl({1: 0.0, 2: -math.inf}, {1: 0.0, 2: -math.inf}), 0)

    def test_the_first_step_is_prefills_and_does_not_count(self):
        a, b = step([0.9, 0.1]), step([0.2, 0.8])
        self.assertEqual(divergence.over([a, a, b], [b, a, b]), (0, 1))
        kl, agreement = divergence.over([a, a, b], [a, b, b])
        self.assertAlmostEqual(kl, divergence.kl(a, b) / 2)
        self.assertEqual(agreement, 0.5)
        for other in ([a, a], [a, a, b, b]):
            with self.assertRaises(ValueError):
                divergence.over([a, a, b], other)


if __name__ == "__main__":
    unittest.main()
