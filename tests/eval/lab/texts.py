"""What prompts are made of: held-out prose, noise, word lists, and keys and values drawn from them.

Standard library only, as all of the generators: they give the same prompts everywhere.
"""

import json
import pathlib
import random
import string

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


class Texts:
    """The prose and the words of a folder that holds haystack.txt and train/words.json."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        lines = (folder / "haystack.txt").read_text(encoding="utf-8").splitlines()
        self.sentences = [line.strip() for line in lines if line.strip()]
        words = json.loads((folder / "train" / "words.json").read_text(encoding="utf-8"))
        self.adjectives, self.nouns = words["adjectives"], words["nouns"]
        self.words = " ".join(self.sentences).split(" ")

    def prose(self, start, n):
        """n sentences from number `start` on; behind the last comes the first again."""
        return [self.sentences[(start + i) % len(self.sentences)] for i in range(n)]

    def word_key(self, rng):
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"


def number(rng):
    """Seven digits."""
    return str(rng.randrange(1000000, 10000000))


def uuid(rng):
    digits = f"{rng.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{digits[16:20]}-{digits[20:]}"


def letters(rng, n, alphabet=string.ascii_uppercase):
    return "".join(rng.choice(alphabet) for _ in range(n))


class Distinct:
    """An endless list of different values of make(rng), drawn as far as it is read."""

    def __init__(self, make, rng, taken=()):
        self.make, self.rng = make, random.Random(rng.getrandbits(64))
        self.drawn, self.seen = [], set(taken)

    def first(self, n):
        while len(self.drawn) < n:
            value = self.make(self.rng)
            if value not in self.seen:
                self.seen.add(value)
                self.drawn.append(value)
        return self.drawn[:n]


def listing(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + ", and " + words[-1]
