"""A long answer that has to be exact: one function of a made-up module, to be repeated line by line."""

import random

from lab import texts as t
from lab.sample import Sample, Turn, chatml, largest

TOKENS = 128
LINES = 4
SIGNS = "+-*"


def _function(rng):
    """The lines behind `def name(`."""
    variables = t.Distinct(lambda r: t.letters(r, 1, "abcdefghkmnpqrstuvwxyz"), rng).first(LINES + 1)
    lines = [f"{variables[0]}, {variables[1]}):"]
    for i in range(2, LINES + 1):
        lines.append(f"    {variables[i]} = {variables[i - 1]} {rng.choice(SIGNS)} {rng.randrange(100, 1000)} "
                     f"{rng.choice(SIGNS)} {variables[i - 2]}")
    lines.append(f"    return {variables[-1]} {rng.choice(SIGNS)} {rng.randrange(100, 1000)}")
    return lines


def function(texts, rng, length, index, count):
    names = t.Distinct(lambda r: f"{r.choice(texts.adjectives)}_{r.choice(texts.nouns)}", rng)
    bodies, body_rng = [], random.Random(rng.getrandbits(64))
    depth = rng.random()

    def parts(n):
        while len(bodies) < n + 1:
            bodies.append(_function(body_rng))
        return [f"def {name}(" + "\n".join(body) for name, body in zip(names.first(n + 1), bodies)]

    def prompt(n):
        wanted, *others = parts(n)
        others.insert(int(depth * len(others)), wanted)
        name = names.first(1)[0]
        module = "\n\n\n".join(others)
        return chatml(f"Here is a Python module:\n\n{module}\n\n\nRepeat the function {name} exactly.", f"def {name}(")

    n = largest(lambda n: count(prompt(n)), length - TOKENS)
    refs = tuple(line.strip() for line in bodies[0])
    return Sample("completion", (Turn(prompt(n), refs, TOKENS),), "first_lines", depth=depth)
