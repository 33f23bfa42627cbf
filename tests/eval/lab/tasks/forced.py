"""Held-out prose that the model is made to go on with: no question, no right answer. What is measured is how far each
step's distribution is from that of full KV.

`prose`: as full KV itself goes on, greedily; `prose_text`: as the book goes on.
"""

from lab.sample import Sample, Turn, largest

TOKENS = 64


def prose(texts, rng, length, index, count):
    return _sample(texts, rng, length, count, of_the_book=False)


def prose_text(texts, rng, length, index, count):
    return _sample(texts, rng, length, count, of_the_book=True)


def _sample(texts, rng, length, count, of_the_book):
    start = rng.randrange(len(texts.sentences))

    def prompt(n):
        return " ".join(texts.prose(start, n))

    n = largest(lambda n: count(prompt(n)), length - TOKENS)
    following, m = "", 0
    while of_the_book and count(following) < TOKENS:
        m += 1
        following = " " + " ".join(texts.prose(start + n, m))
    return Sample("forced", (Turn(prompt(n), (), TOKENS, following),), "agreement")
