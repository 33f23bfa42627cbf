"""Conversations over a shared context, after SCBench's: what a method forgets for the sake of the first question.

They are sessions of the product: later turns see the model's own answers, where SCBench puts the right ones into the
history. Every question asks for the bare value, so that the answer begins where the prompt ends. `questions_apart` is
SCBench's other mode: each question starts from the document, which was read before any question was known.
"""

from lab import texts as t
from lab.sample import Sample, Turn, insert_at_depths, largest
from lab.tasks import ruler_niah

TURNS = 5
TURN_TOKENS, UUID_TURN_TOKENS = 80, 120  # a later turn: template, question, answer
NUMBER_TOKENS, UUID_TOKENS, CHAT_TOKENS = 24, 56, 24
NEEDLES = 8
BARE = " Answer with only the number."
SMALL_TALK = ["Hi!", "How are you?", "What can you do?", "Thanks!", "That is correct.", "Let us begin."]


def _ask(key):
    return f"What is the special magic number for {key} mentioned in the provided text?{BARE}"


def _facts(texts, rng, n):
    return list(zip(t.Distinct(texts.word_key, rng).first(n), t.Distinct(t.number, rng).first(n)))


def _needles(facts):
    return [ruler_niah.needle("number", key, value) for key, value in facts]


def _document(texts, start, facts, depths, n):
    return " ".join(insert_at_depths(texts.prose(start, n), _needles(facts), depths))


def _question(fact):
    return Turn(_ask(fact[0]), (fact[1],), NUMBER_TOKENS)


def needles(texts, rng, length, index, count):
    """Eight needles in prose, five of them asked for, a turn each."""
    facts, depths = _facts(texts, rng, NEEDLES), ruler_niah.places(rng, NEEDLES)
    start = rng.randrange(len(texts.sentences))
    asked = rng.sample(range(NEEDLES), TURNS)

    def first(n):
        return (ruler_niah.instruction("number", one=False) + _document(texts, start, facts, depths, n) + "\n"
                + _ask(facts[asked[0]][0]))

    n = largest(lambda n: count(first(n)), length - TURNS * TURN_TOKENS)
    turns = [Turn(first(n), (facts[asked[0]][1],), NUMBER_TOKENS)] + [_question(facts[i]) for i in asked[1:]]
    return Sample("session", tuple(turns), depth=depths[asked[0]])


def kv(texts, rng, length, index, count):
    """A JSON object of uuids; five keys asked for, a turn each."""
    keys, values = t.Distinct(t.uuid, rng), t.Distinct(t.uuid, rng)
    where = [rng.random() for _ in range(TURNS)]

    def ask(key):
        return f'Key: "{key}"\nCorresponding value:'

    def data(n):
        return list(zip(keys.first(n), values.first(n)))

    def asked(n):
        """Five different places of n."""
        free = list(range(n))
        return [free.pop(int(share * len(free))) for share in where]

    def first(n):
        n += TURNS
        pairs = data(n)
        body = ", ".join(f'"{key}": "{value}"' for key, value in pairs)
        return ("Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{" + body
                + "}\n\n" + ask(pairs[asked(n)[0]][0]))

    n = largest(lambda n: count(first(n)), length - TURNS * UUID_TURN_TOKENS)
    pairs = data(n + TURNS)
    turns = [Turn(ask(pairs[i][0]), (pairs[i][1],), UUID_TOKENS) for i in asked(n + TURNS)]
    turns[0] = Turn(first(n), turns[0].refs, UUID_TOKENS)
    return Sample("session", tuple(turns), depth=where[0])


def late_document(texts, rng, length, index, count):
    """A document and a question, small talk, a question; then a second document, and questions about both."""
    facts = _facts(texts, rng, 2 * NEEDLES)
    old, new = facts[:NEEDLES], facts[NEEDLES:]
    old_depths, new_depths = ruler_niah.places(rng, NEEDLES), ruler_niah.places(rng, NEEDLES)
    starts = [rng.randrange(len(texts.sentences)) for _ in range(2)]
    a, b, c, d, e = rng.sample(old, 3) + rng.sample(new, 2)
    talk = rng.sample(SMALL_TALK, 2)

    def first(n):
        return (ruler_niah.instruction("number", one=False) + _document(texts, starts[0], old, old_depths, n) + "\n"
                + _ask(a[0]))

    def second(n):
        return "Here is another text:\n" + _document(texts, starts[1], new, new_depths, n) + "\n" + _ask(d[0])

    room = length - 8 * TURN_TOKENS
    n_first = largest(lambda n: count(first(n)), room // 2)
    n_second = largest(lambda n: count(second(n)), room // 2)
    turns = [Turn(first(n_first), (a[1],), NUMBER_TOKENS), Turn(talk[0], (), CHAT_TOKENS), _question(b),
             Turn(talk[1], (), CHAT_TOKENS), Turn(second(n_second), (d[1],), NUMBER_TOKENS), _question(c), _question(e)]
    return Sample("session", tuple(turns))


def questions_apart(texts, rng, length, index, count):
    """A document that is read with no question at hand; then four questions, each to the conversation at that point."""
    facts, depths = _facts(texts, rng, NEEDLES), ruler_niah.places(rng, NEEDLES)
    start = rng.randrange(len(texts.sentences))
    asked = rng.sample(facts, 4)

    def first(n):
        return (_document(texts, start, facts, depths, n)
                + "\n\nRead it carefully. I will ask you questions about it.")

    n = largest(lambda n: count(first(n)), length - 2 * TURN_TOKENS)
    return Sample("forks", (Turn(first(n), (), CHAT_TOKENS), *map(_question, asked)))
