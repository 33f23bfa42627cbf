"""RULER's aggregation tasks: the ten most common words of a list (`cwe`) and the three most frequent ones of a coded
text (`fwe`)."""

import random
import string

from lab import texts as t
from lab.sample import Sample, Turn, chatml, largest

CWE_TOKENS, FWE_TOKENS = 120, 50
COMMON = 10
ZETA_2 = 1.6449340668482264


def _numbered(rng, common, n_common, rare, n_rare):
    words = common * n_common + rare * n_rare
    rng.shuffle(words)
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def _cwe_question(words):
    return ("Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
            f"that appear most often.\n{words}\nQuestion: What are the {COMMON} most common words in the above list?")


CWE_PREFIX = "Answer: The top 10 words that appear most often in the list are:"


def cwe(texts, rng, length, index, count):
    short = length < 4096
    n_common, n_rare = (6, 1) if short else (30, 3)
    shown_words, shown_common, shown_rare = (20, 3, 1) if short else (40, 10, 3)
    words = rng.sample(texts.nouns, len(texts.nouns))
    shown, words = words[:shown_words], words[shown_words:]
    example = _cwe_question(_numbered(rng, shown[:COMMON], shown_common, shown[COMMON:], shown_rare))
    answer = " ".join(f"{i}. {word}" for i, word in enumerate(shown[:COMMON], 1))
    common, rare = words[:COMMON], words[COMMON:]
    order = rng.getrandbits(64)

    def prompt(n):
        shuffled = random.Random(order)
        list_ = _numbered(shuffled, common, n_common, rare[:n], n_rare)
        return chatml(f"{example} {CWE_PREFIX} {answer}\n{_cwe_question(list_)}", CWE_PREFIX)

    n = largest(lambda n: count(prompt(n)), length - CWE_TOKENS, at_most=len(rare))
    return Sample("completion", (Turn(prompt(n), tuple(common), CWE_TOKENS),))


def fwe(texts, rng, length, index, count):
    vocabulary = max(8, (length - FWE_TOKENS) // 50)
    words = t.Distinct(lambda r: t.letters(r, 6, string.ascii_lowercase), rng).first(vocabulary)
    words[0] = "..."
    order = rng.getrandbits(64)

    def prompt(n):
        text = [word for rank, word in enumerate(words, 1) for _ in range(int(n / rank**2 / ZETA_2))]
        random.Random(order).shuffle(text)
        return chatml("Read the following coded text and track the frequency of each coded word. Find the three most "
                      f"frequently appeared coded words. {' '.join(text)}\nQuestion: Do not provide any explanation. "
                      "Please ignore the dots '....'. What are the three most frequently appeared words in the above "
                      "coded text?",
                      "Answer: According to the coded text above, the three most frequently appeared words are:")

    n = largest(lambda n: count(prompt(n)), length - FWE_TOKENS)
    return Sample("completion", (Turn(prompt(n), tuple(words[1:4]), FWE_TOKENS),))
