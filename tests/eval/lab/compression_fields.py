"""Writes a method and its budget into a sluice.v1.CompressionSpec, by the message's own description: a field or a kind
that the server learns needs no change here, and what the message does not have is an error that lists what it has."""

import re

from google.protobuf.descriptor import FieldDescriptor as F

POOLING = re.compile(r"(max|avg)(\d+)$|fading([\d.]+)/([\d.]+)$")
INTEGERS = (F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64)


def fill(spec, method, budget):
    """`method` without braces: Method.at. ValueError says what is wrong with it."""
    preset, *fields = method.definition.split(":")
    spec.preset = preset
    for part in fields:
        path, _, value = part.partition("=")
        try:
            _set(spec, path.split("."), value)
        except ValueError as error:
            raise ValueError(f"method \"{method.name}\": {part}: {error}") from None
    if budget is not None and spec.WhichOneof("budget") is None:  # a method may set its own
        spec.budget_tokens = budget
    return spec


def _set(message, path, value):
    fields = message.DESCRIPTOR.fields_by_name
    if path[0] not in fields:
        raise ValueError(f"{message.DESCRIPTOR.name} has no {path[0]}; it has {', '.join(fields)}")
    field = fields[path[0]]
    if field.type == F.TYPE_MESSAGE:
        inner = getattr(message, path[0])
        if len(path) > 1:
            return _set(inner, path[1:], value)
        match = POOLING.match(value)
        if match and "kernel" in field.message_type.fields_by_name:
            return _set_pooling(inner, match)
        if "kind" not in field.message_type.fields_by_name:
            raise ValueError(f"name one of its fields: {', '.join(field.message_type.fields_by_name)}")
        return _set(inner, ["kind"], value)
    if len(path) > 1:
        raise ValueError(f"{path[0]} has no fields")
    setattr(message, path[0], _value(field, value))


def _set_pooling(pooling, match):
    kind, kernel, after, before = match.groups()
    _set(pooling, ["kind"], kind or "fading")
    if kind:
        pooling.kernel = int(kernel)
    else:
        pooling.after, pooling.before = float(after), float(before)


def _value(field, text):
    if field.type == F.TYPE_ENUM:
        wanted = text.upper().replace("-", "_")
        for value in field.enum_type.values:
            if value.name == wanted or value.name.endswith("_" + wanted):
                return value.number
        raise ValueError(f"want one of {', '.join(value.name for value in field.enum_type.values)}")
    if field.type == F.TYPE_BOOL:
        if text not in ("true", "false"):
            raise ValueError("want true or false")
        return text == "true"
    if field.type == F.TYPE_STRING:
        return text
    return int(text) if field.type in INTEGERS else float(text)
