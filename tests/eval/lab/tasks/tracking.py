"""RULER's variable tracking: one chain of four hops in noise. `vt` is RULER's, with a solved example in front and a
blank behind each assignment; `vt_plain` is without both, as the bundled model was trained. RULER's 30 tokens of answer
cut off the fifth name where a vocabulary is small: here they are 48."""

from lab import texts as t
from lab.sample import Sample, Turn, chatml, insert_at_depths, largest

TOKENS = 48
HOPS = 4
EXAMPLE_LINES = 14  # of noise: about 500 tokens with the rest of the example


def _chain(rng, name_letters, end):
    names = t.Distinct(lambda r: t.letters(r, name_letters), rng).first(HOPS + 1)
    value = str(rng.randrange(10000, 100000))
    lines = [f"VAR {names[0]} = {value}"] + [f"VAR {b} = VAR {a}{end}" for a, b in zip(names, names[1:])]
    return names, value, lines


def _question(context, value):
    return ("Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
            f"{context}\nQuestion: Find all variables that are assigned the value {value} in the text above.")


def _prefix(value):
    return ("Answer: According to the chain(s) of variable assignment in the text above, "
            f"{HOPS + 1} variables are assigned the value {value}, they are:")


def _context(lines, depths, n):
    return "\n".join(insert_at_depths([t.NOISE] * n, lines, depths))


def _make(rng, length, count, example):
    before, end = "", " " if example else ""
    if example:
        names, value, lines = _chain(rng, 3, end)
        context = _context(lines, sorted(rng.random() for _ in lines), EXAMPLE_LINES)
        before = f"{_question(context, value)} {_prefix(value)} {' '.join(names)}\n\n"
    names, value, lines = _chain(rng, 5, end)
    depths = sorted(rng.random() for _ in lines)

    def prompt(n):
        return chatml(before + _question(_context(lines, depths, n), value), _prefix(value))

    n = largest(lambda n: count(prompt(n)), length - TOKENS)
    return Sample("completion", (Turn(prompt(n), tuple(names), TOKENS),), depth=depths[0])


def vt(texts, rng, length, index, count):
    return _make(rng, length, count, example=True)


def vt_plain(texts, rng, length, index, count):
    return _make(rng, length, count, example=False)
