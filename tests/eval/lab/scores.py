"""How an answer is scored, from 0 to 1, against what a right one holds."""

import collections
import re


def contains(answer, refs):
    """RULER's: the share of the wanted strings in the answer, upper and lower case alike."""
    answer = answer.lower()
    return sum(ref.lower() in answer for ref in refs) / len(refs)


def rouge1(answer, refs):
    """ROUGE-1 F of the answer against refs[0], words lower-cased, without stemming."""
    words = [re.findall(r"[a-z0-9]+", text.lower()) for text in (answer, refs[0])]
    common = sum((collections.Counter(words[0]) & collections.Counter(words[1])).values())
    return 2 * common / max(1, len(words[0]) + len(words[1]))


def first_lines(answer, refs):
    """The share of the wanted lines that are the answer's lines at the same places: code has to be right in order."""
    lines = [line.strip() for line in answer.strip().splitlines()]
    return sum(i < len(lines) and lines[i] == ref for i, ref in enumerate(refs)) / len(refs)


SCORES = {"contains": contains, "rouge1": rouge1, "first_lines": first_lines}
