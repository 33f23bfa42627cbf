#!/usr/bin/env python3
"""Cuts the vocabulary of a GGUF model down to what the lab's tasks use, so that less of it has to be carried.

    python3 tests/eval/cut_vocabulary.py MODEL.gguf OUT.gguf

Kept are: single bytes, control tokens, every token of the haystack, of the word lists, of the chat template and of
many prompts of every task, short runs of letters as random values are made of, and whatever these are merged from. A
text made of kept tokens then has the same tokens as before, under new numbers, and every other tensor stays as it is,
byte by byte: so do the logits of what is kept. What the whole model would say with another token, the cut one cannot.
The same model and texts give the same file.
"""

import argparse
import hashlib
import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import gguf, runner, tasks, texts, tokens  # noqa: E402

CUT_TENSORS = ("token_embd.weight", "output.weight")
ID_KEYS = re.compile(r"tokenizer\.ggml\.\w+_token_id$")
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
          13: (256, 176), 14: (256, 210)}  # GGML type: values and bytes of a block
RANDOM_VALUES = re.compile(r"\u0120?([a-z]{1,2}|[A-Z]{1,3}|[a-f]{3,4})$")  # U+0120 is byte-level BPE's blank
LENGTH, PROMPTS = 4096, 20


def texts_of(model, folder):
    haystack = texts.Texts(folder)
    yield from (text for sentence in haystack.sentences for text in (sentence, " " + sentence))
    yield from (before + word for word in haystack.adjectives + haystack.nouns for before in ("", " ", "-", "_"))
    yield model.get("tokenizer.chat_template", "")
    count = tokens.Tokens(model["path"]).count
    samples = runner.Samples(haystack, count, seed=0)
    for task in tasks.TASKS:
        for index in range(PROMPTS):
            for turn in samples.get(task, LENGTH, index).turns:
                yield turn.text
                yield from (text for ref in turn.refs for text in (ref, " " + ref))


def kept_ids(model, folder):
    names = model["tokenizer.ggml.tokens"]
    types = model["tokenizer.ggml.token_type"]
    tokenizer = tokens.Tokens(model["path"])
    kept = {i for i, name in enumerate(names)
            if len(name) == 1 or types[i] in (gguf.CONTROL, gguf.USER_DEFINED) or RANDOM_VALUES.match(name)}
    for text in texts_of(model, folder):
        kept.update(tokenizer.ids(text))
    numbers = {name: i for i, name in enumerate(names)}
    parts = {}
    for merge in model["tokenizer.ggml.merges"]:
        left, right = merge.split(" ", 1)
        parts.setdefault(numbers[left + right], []).append((numbers[left], numbers[right]))
    todo = list(kept)
    while todo:
        for pair in parts.get(todo.pop(), ()):
            todo += [part for part in pair if part not in kept]
            kept.update(pair)
    return sorted(kept)


def cut(path, out_path, folder):
    """Returns how many tokens are left."""
    model = {**gguf.metadata(path), "path": path}
    ids = kept_ids(model, folder)
    new = {old: i for i, old in enumerate(ids)}
    names, types = model["tokenizer.ggml.tokens"], model["tokenizer.ggml.token_type"]
    known = {names[i] for i in ids}
    merges = [merge for merge in model["tokenizer.ggml.merges"]
              if merge.replace(" ", "", 1) in known and all(part in known for part in merge.split(" ", 1))]
    data = memoryview(pathlib.Path(path).read_bytes())
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at, head = 24, []
    for _ in range(n_keys):
        start = at
        key, at = _string(data, at)
        (type_,) = struct.unpack_from("<I", data, at)
        end = _skip(data, at + 4, type_)
        raw = bytes(data[start:end])
        if key == "tokenizer.ggml.tokens":
            raw = _key(key) + _array(8, [_packed(names[i]) for i in ids])
        elif key == "tokenizer.ggml.merges":
            raw = _key(key) + _array(8, [_packed(merge) for merge in merges])
        elif key == "tokenizer.ggml.token_type":
            raw = _key(key) + _array(5, [struct.pack("<i", types[i]) for i in ids])
        elif ID_KEYS.match(key):
            raw = raw[:-4] + struct.pack("<I", new[model[key]])
        head.append(raw)
        at = end
    tensors = []
    for _ in range(n_tensors):
        name, at = _string(data, at)
        (dims,) = struct.unpack_from("<I", data, at)
        shape = struct.unpack_from(f"<{dims}Q", data, at + 4)
        type_, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dims)
        at += 16 + 8 * dims
        tensors.append((name, shape, type_, offset))
    align = model.get("general.alignment", 32)
    base, offset, infos, places = -(-at // align) * align, 0, [], []
    for name, shape, type_, old in tensors:
        values, size = BLOCKS[type_]
        row, rows = shape[0] // values * size, 1
        for n in shape[1:]:
            rows *= n
        if name in CUT_TENSORS:
            rows, shape = len(ids), (shape[0], len(ids))
        infos.append(_packed(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_, offset))
        places.append((base + old, row, name in CUT_TENSORS, rows))
        offset += -(-row * rows // align) * align
    with open(out_path, "wb") as out:
        out.write(bytes(data[:24]) + b"".join(head) + b"".join(infos))
        for start, row, is_cut, rows in places:
            out.write(b"\0" * (-out.tell() % align))
            if is_cut:
                for i in ids:
                    out.write(data[start + i * row:start + (i + 1) * row])
            else:
                out.write(data[start:start + row * rows])
        out.write(b"\0" * (-out.tell() % align))
    return len(ids)


def _packed(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(key):
    return _packed(key) + struct.pack("<I", gguf.ARRAY)


def _array(type_, items):
    return struct.pack("<IQ", type_, len(items)) + b"".join(items)


def _string(data, at):
    (size,) = struct.unpack_from("<Q", data, at)
    return bytes(data[at + 8:at + 8 + size]).decode(), at + 8 + size


def _skip(data, at, type_):
    """Where the value ends."""
    if type_ == gguf.STRING:
        return _string(data, at)[1]
    if type_ != gguf.ARRAY:
        return at + struct.calcsize("<" + gguf.FORMATS[type_])
    inner, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner not in (gguf.STRING, gguf.ARRAY):
        return at + n * struct.calcsize("<" + gguf.FORMATS[inner])
    for _ in range(n):
        at = _skip(data, at, inner)
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--texts", default=str(ROOT / "models/needle-14m"), help="as run.py's")
    args = parser.parse_args()
    try:
        left = cut(args.model, args.out, args.texts)
    except (ValueError, OSError, KeyError) as error:
        print(f"cut_vocabulary.py: {error}", file=sys.stderr)
        return 2
    digest = hashlib.sha256(pathlib.Path(args.out).read_bytes()).hexdigest()
    print(f"{args.out}: {left} tokens, {pathlib.Path(args.out).stat().st_size} bytes, SHA-256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
