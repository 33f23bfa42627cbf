"""A compression method of a grid: `[NAME=]PRESET[:FIELD=VALUE]...`, in the words of sluice.v1.CompressionSpec.

    rocketkv
    narrow=snapkv:pooling=max7:window=32
    sluice:propagation.layer=5:propagation.rate=0.2:pooling=fading16/4:split_max_tokens=32

A FIELD is a path into the message. An enum's value goes without its prefix (`tsp`, `keep`); a message that has a kind
takes it at once (`retention=snapkv`); `pooling` takes max7, avg5 or fading16/4 (reach after and before).
compression_fields.py writes it into the message.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Method:
    name: str        # how tables call it
    definition: str  # what it is, name and budget apart: part of a result's key

    @property
    def budgeted(self):
        """`full` alone reads everything, whatever the budget."""
        return self.definition.split(":")[0] != "full" or any(
            part.startswith(("retention", "selection")) for part in self.definition.split(":")[1:])


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
    return Method(name or text, ":".join(parts))
