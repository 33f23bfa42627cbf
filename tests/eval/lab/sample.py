"""One sample: what is sent, turn by turn, and what a right answer holds; and how its length is fitted."""

import dataclasses
import random


@dataclasses.dataclass(frozen=True)
class Turn:
    text: str         # a completion's whole prompt, special tokens included; else the user's message
    refs: tuple = ()  # what a right answer holds; empty: the turn is not scored
    max_tokens: int = 32
    follow: str = ""  # of "forced": what the model is made to say


@dataclasses.dataclass(frozen=True)
class Sample:
    """form: "completion": one prompt as it is. "session": turns of one conversation. "forks": the first turn is
    a conversation of its own; each further turn is asked of a fork of it, so that none sees the others. "forced": one
    prompt, and the model is made to say `follow`, or else what full KV says; the score is the share of steps at which
    it would have chosen as full KV does."""

    form: str
    turns: tuple
    score: str = "contains"  # a name of scores.SCORES; of "forced" the client says it
    stop: tuple = ()
    depth: float = None      # of the first needle that is asked for: 0 the beginning, 1 the end


def rng_of(seed, task, length, index):
    """The same sample for every method and budget."""
    return random.Random(f"{seed}/{task}/{length}/{index}")


def chatml(message, prefix=""):
    """A single user message, and the beginning of the answer where a task gives one."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n{prefix}"


def largest(tokens_of, limit, at_most=1 << 20):
    """The largest k for which tokens_of(k) <= limit; tokens_of grows with k, about as fast everywhere."""
    low, tokens = 0, tokens_of(0)
    if tokens > limit:
        raise ValueError(f"{tokens} tokens without any filling, more than the {limit} that there are: take a "
                         "greater length")
    high, tokens_high = at_most + 1, None
    guess = 8
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        there = tokens_of(guess)
        if there <= limit:
            low, tokens = guess, there
        else:
            high, tokens_high = guess, there
        if tokens_high is None:
            guess = 2 * low
        else:  # where a straight line crosses the limit
            guess = low + round((limit - tokens) * (high - low) / (tokens_high - tokens))
    return low


def insert_at_depths(lines, needles, depths):
    """`lines` with the needles in between, at the depths [0, 1] among the lines; on equal places in their order."""
    places = sorted((int(depth * len(lines)), i) for i, depth in enumerate(depths))
    out, done = [], 0
    for place, i in places:
        out += lines[done:place]
        out.append(needles[i])
        done = place
    return out + lines[done:]
