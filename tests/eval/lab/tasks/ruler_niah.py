"""RULER's eight needle tasks: its sentences, its kinds of haystacks, its answer prefix behind the assistant's header.

Different from RULER: the essays are held-out novels; the prefix has no blank in front, as the bundled model was
trained; places are drawn anew for each sample, where RULER's shuffles are the same ones in every sample.
"""

from lab import texts as t
from lab.sample import Sample, Turn, chatml, insert_at_depths, largest

TOKENS = 128
PLACES = 40  # essays: needles stand at different ones of 40 depths, evenly spread


def needle(kind, key, value):
    return f"One of the special magic {kind}s for {key} is: {value}."


def instruction(kind, one):
    a, is_, s = ("A", "is", "") if one else ("Some", "are", "s")
    return (f"{a} special magic {kind}{s} {is_} hidden within the following text. Make sure to memorize it. I will "
            f"quiz you about the {kind}{s} afterwards.\n")


def question(kind, query, one):
    what, s = ("What is", "") if one else ("What are all", "s")
    return f"\n{what} the special magic {kind}{s} for {query} mentioned in the provided text?"


def prefix(kind, query, one):
    s, is_ = ("", "is") if one else ("s", "are")
    return f"The special magic {kind}{s} for {query} mentioned in the provided text {is_}"


def places(rng, n):
    """n different depths from 0 to 1."""
    return [place / (PLACES - 1) for place in rng.sample(range(PLACES), n)]


def task(hay="essay", keys="word", values="number", keys_there=1, values_a_key=1, keys_asked=1):
    def make_key(texts):
        return t.uuid if keys == "uuid" else texts.word_key

    make_value = t.uuid if values == "uuid" else t.number
    one = keys_asked * values_a_key == 1

    def make(texts, rng, length, index, count):
        all_keys = t.Distinct(make_key(texts), rng)
        all_values = t.Distinct(make_value, rng)
        there = all_keys.first(keys_there)
        facts = [(key, value) for i, key in enumerate(there)
                 for value in all_values.first(keys_there * values_a_key)[i * values_a_key:(i + 1) * values_a_key]]
        asked = there[:keys_asked]
        query = t.listing(asked)
        depths = places(rng, len(facts)) if hay == "essay" else [rng.random() for _ in facts]
        start = rng.randrange(len(texts.sentences))
        needles = [needle(values, key, value) for key, value in facts]

        def filling(n):
            if hay == "essay":
                return texts.prose(start, n)
            if hay == "noise":
                return [t.NOISE] * n
            others = all_keys.first(keys_there + n)[keys_there:], all_values.first(len(facts) + n)[len(facts):]
            return [needle(values, key, value) for key, value in zip(*others)]

        def prompt(n):
            context = (" " if hay == "essay" else "\n").join(insert_at_depths(filling(n), needles, depths))
            return chatml(instruction(values, one) + context + question(values, query, one), prefix(values, query, one))

        n = largest(lambda n: count(prompt(n)), length - TOKENS)
        refs = tuple(value for key, value in facts if key in asked)
        return Sample("completion", (Turn(prompt(n), refs, TOKENS),), depth=depths[0])

    return make
