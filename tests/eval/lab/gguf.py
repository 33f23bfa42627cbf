"""The tokenizer inside a GGUF file."""

import struct

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL, USER_DEFINED = 3, 4  # token types that are matched as a whole
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")


def tokenizer(path):
    """ValueError: not such a file, or a tokenizer of a kind that is not known here."""
    meta = metadata(path)
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in ("qwen2", "smollm"):
        raise ValueError(f"{path}: its tokenizer is \"{kind}\", \"{pre}\"; known are gpt2 with qwen2 or smollm: give "
                         "the model's tokenizer.json instead")
    tokens = meta["tokenizer.ggml.tokens"]
    out = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                               merges=[tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]))
    if pre == "qwen2":
        out.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        out.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    else:
        out.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    types = meta["tokenizer.ggml.token_type"]
    out.add_special_tokens([AddedToken(token, normalized=False) for token, type_ in zip(tokens, types)
                            if type_ in (CONTROL, USER_DEFINED)])
    return out


def metadata(path):
    """Key to value, all of them."""
    with open(path, "rb") as file:
        try:
            magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError(f"{path}: no GGUF file of version 2 or 3")
            return {_string(file): _value(file, *struct.unpack("<I", file.read(4))) for _ in range(count)}
        except (struct.error, KeyError, UnicodeDecodeError):
            raise ValueError(f"{path}: a broken GGUF file") from None


def _string(file):
    return file.read(*struct.unpack("<Q", file.read(8))).decode()


def _value(file, type_):
    if type_ == STRING:
        return _string(file)
    if type_ == ARRAY:
        inner, n = struct.unpack("<IQ", file.read(12))
        if inner in (STRING, ARRAY):
            return [_value(file, inner) for _ in range(n)]
        size = struct.calcsize("<" + FORMATS[inner])
        return list(struct.unpack(f"<{n}{FORMATS[inner]}", file.read(n * size)))
    format_ = "<" + FORMATS[type_]
    return struct.unpack(format_, file.read(struct.calcsize(format_)))[0]
