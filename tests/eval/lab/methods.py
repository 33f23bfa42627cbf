"""A compression method of a grid: `[NAME=]PRESET[:FIELD=VALUE]...`, in the words of sluice.v1.CompressionSpec.

    rocketkv
    narrow=snapkv:pooling=max7:window=32
    sluice:propagation.layer=5:propagation.rate=0.2:pooling=fading16/4:split_max_tokens=32

A FIELD is a path into the message. An enum's value goes without its prefix (`tsp`, `keep`); a message that has a kind
takes it at once (`retention=snapkv`); `pooling` takes max7, avg5 or fading16/4 (reach after and before). A value in
braces is worked out for each cell, from left to right, rounded down, at least 1: `selection.page={length/budget}`;
`budget_tokens={budget/2}` then is what the server gets.
compression_fields.py writes it into the message.
"""

import dataclasses
import fractions
import re

TERM = re.compile(r"([*/]?)(length|budget|\d+)")


@dataclasses.dataclass(frozen=True)
class Method:
    name: str        # how tables call it
    definition: str  # what it is, name and budget apart: part of a result's key

    @property
    def budgeted(self):
        """`full` alone reads everything, whatever the budget."""
        return self.definition.split(":")[0] != "full" or any(
            part.startswith(("retention", "selection")) for part in self.definition.split(":")[1:])

    def at(self, length, budget):
        """With the numbers of a cell in place of what braces hold."""
        def value(match):
            return str(_worked_out(match[1], {"length": length, "budget": budget}))
        return Method(self.name, re.sub(r"\{([^}]*)\}", value, self.definition))


def _worked_out(text, known):
    if not re.fullmatch(r"(length|budget|\d+)([*/](length|budget|\d+))*", text):
        raise ValueError(f"\"{{{text}}}\": want length, budget and whole numbers with * or / between")
    out = fractions.Fraction(1)
    for sign, word in TERM.findall(text):
        number = known.get(word) if word in known else int(word)
        if not number:
            raise ValueError(f"\"{{{text}}}\": {word} is {number or 'not there'}")
        out = out / number if sign == "/" else out * number
    return max(1, int(out))


def parse(text, defaults=""):
    """`defaults`: FIELD=VALUE:... for every method, in front of its own fields."""
    head, *fields = text.split(":")
    name, _, preset = head.rpartition("=")
    if not preset:
        raise ValueError(f"method \"{text}\": name a preset")
    fields = [part for part in defaults.split(":") if part] + fields
    last = {}  # a field said twice counts as said last
    for part in fields:
        field, equals, value = part.partition("=")
        if not equals or not field or not value:
            raise ValueError(f"method \"{text}\": \"{part}\" is not FIELD=VALUE")
        last[field] = value
    parts = [preset] + [f"{field}={value}" for field, value in sorted(last.items())]
    method = Method(name or text, ":".join(parts))
    method.at(1024, 512)  # says what is wrong between braces
    return method
