"""One needle in a haystack, as RocketKV ("NIAH-A") and as Kamradt, FastKV and GemFilter ("NIAH-B") ask for it.

Ten depths in turn, from the beginning to the end. No chat template: the model goes on with the text. Here the haystack
is held-out novels instead of Paul Graham's essays, and lengths are tokens instead of words.
"""

from lab import texts as t
from lab.sample import Sample, Turn, largest

DEPTHS = 10
A_TOKENS, B_TOKENS = 128, 30
CITY = "The best thing to do in San Francisco is"
CITY_ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."


def _depth(index):
    return index % DEPTHS / (DEPTHS - 1)


def niah_a(texts, rng, length, index, count):
    value = t.number(rng)
    needle = f"The pass key is {value}. Remember it. {value} is the pass key."
    start, depth = rng.randrange(len(texts.words) // 2), _depth(index)

    def prompt(n):
        words = texts.words[start:start + n]
        words.insert(int(len(words) * depth), needle)
        return ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will "
                f"quiz you about the important information there.\n{' '.join(words)}\nWhat is the pass key? "
                "The pass key is ")

    n = largest(lambda n: count(prompt(n)), length - A_TOKENS, at_most=len(texts.words) // 2)
    return Sample("completion", (Turn(prompt(n), (value,), A_TOKENS),), depth=depth)


def niah_b(texts, rng, length, index, count):
    start, depth = rng.randrange(len(texts.sentences)), _depth(index)

    def prompt(n):
        sentences = texts.prose(start, n)
        place = int(n * depth)  # behind a sentence's end
        context = " ".join(sentences[:place]) + f"\n{CITY} {CITY_ANSWER}\n" + " ".join(sentences[place:])
        return (f"<|im_start|> This is a very long story book: <book> {context} </book>.\n Based on the content of the "
                f"book, Question: {CITY}: \nAnswer:")

    n = largest(lambda n: count(prompt(n)), length - B_TOKENS)
    return Sample("completion", (Turn(prompt(n), (f"{CITY} {CITY_ANSWER}",), B_TOKENS),), "rouge1", ("\n",), depth)
