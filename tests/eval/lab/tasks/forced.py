"""Held-out prose that the model is made to go on with: no question, no right answer. What is measured is how far each
step's distribution is from that of full KV.

`prose`: as full KV itself goes on, greedily; `prose_text`: as the book goes on. The prompt opens as documents did when
the model was trained: without that token, which all heads may rest on, full KV is another model than it was meant to be,
and the divergence from it three times as large.
"""

from lab.sample import Sample, Turn, largest

TOKENS = 64
OPENING = "<|endoftext|>"  # of the bundled model, Qwen2.5 and SmolLM2 alike


def prose(texts, rng, length, index, count):
    return _sample(texts, rng, length, count, of_the_book=False)


def prose_text(texts, rng, length, index, count):
    return _sample(texts, rng, length, count, of_the_book=True)


def _sample(texts, rng, length, count, of_the_book):
    start = rng.randrange(len(texts.sentences))

    def prompt(n):
        return OPENING + " ".join(texts.prose(start, n))

    n = largest(lambda n: count(prompt(n)), length - TOKENS)
    following, m = "", 0
    while of_the_book and count(following) < TOKENS:
        m += 1
        following = " " + " ".join(texts.prose(start + n, m))
    return Sample("forced", (Turn(prompt(n), (), TOKENS, following),), "agreement")
