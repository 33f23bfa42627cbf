"""Counting tokens: as the tokenizer does, only faster; the length that is found is the largest that fits."""

import pathlib
import random
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from lab import sample, tasks, texts  # noqa: E402

try:
    from lab import runner, tokens
    from tokenizers import Tokenizer, models, pre_tokenizers
    MISSING = ""
except ImportError as error:
    MISSING = f"needs requirements.txt: {error}"

MODEL = HERE.parents[1] / "models/needle-14m"


class Largest(unittest.TestCase):
    def test_is_the_largest_that_fits(self):
        rng = random.Random(1)
        for _ in range(200):
            steps = [rng.choice((1, 1, 2, 20, 90)) for _ in range(rng.randrange(1, 400))]
            sums = [sum(steps[:k]) for k in range(len(steps) + 1)]
            at_most, limit, calls = rng.randrange(len(steps) + 1), rng.randrange(sums[-1] + 9), []
            found = sample.largest(lambda k: calls.append(k) or sums[k], limit, at_most)
            self.assertEqual(found, max(k for k in range(at_most + 1) if sums[k] <= limit))
            self.assertLess(len(calls), 40)

    def test_what_does_not_fit_even_empty_is_said(self):
        with self.assertRaisesRegex(ValueError, "5 tokens without any filling, more than the 4"):
            sample.largest(lambda k: 5 + k, 4)


@unittest.skipIf(MISSING, MISSING)
class Pieces(unittest.TestCase):
    def test_pieces_give_the_tokens_of_the_whole(self):
        ours = tokens.Tokens(MODEL)
        self.assertTrue(ours.by_pieces)
        samples = runner.Samples(texts.Texts(MODEL), ours.count, 5)
        for task in tasks.TASKS:
            for turn in samples.get(task, 2048, 0).turns:
                self.assertEqual(ours.ids(turn.text), ours.tokenizer.encode(turn.text, add_special_tokens=False).ids)

    def test_a_tokenizer_whose_words_hang_together_is_asked_for_the_whole(self):
        joined = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "\u0120": 2, "a\u0120": 3, "a\u0120b": 4},
                                      merges=[("a", "\u0120"), ("a\u0120", "b")]))
        joined.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            joined.save(file.name)
            ours = tokens.Tokens(file.name, probe="a b a b")
        self.assertFalse(ours.by_pieces)
        self.assertEqual(ours.ids("a b"), [4])



if __name__ == "__main__":
    unittest.main()
