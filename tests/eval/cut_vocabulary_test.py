"""A smaller vocabulary says the same texts with the same tokens, and leaves every other tensor alone."""

import json
import pathlib
import random
import struct
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

try:
    import cut_vocabulary
    from lab import gguf, tokens
    MISSING = ""
except ImportError as error:
    MISSING = f"needs requirements.txt: {error}"

MODEL = HERE.parents[1] / "models/needle-14m"
TEXT = "One of the special magic numbers for quick-fox is: 1234567.<|im_end|>\n<|im_start|>user\nIt was he."
TIED = ("token_embd.weight", (32, None), 8), ("blk.0.attn_norm.weight", (5,), 0)
UNTIED = TIED + (("output.weight", (32, None), 6),)


def pack(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def write_model(path, tensors, rng):
    """A GGUF file with the bundled model's tokenizer. Returns the tensors' bytes."""
    table = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    names = {i: token for token, i in table["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in table["added_tokens"]}
    special = {token["id"] for token in table["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in table["model"]["merges"]]
    n = len(names)

    def strings(values):
        return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(pack, values))

    keys = [("general.architecture", struct.pack("<I", 8) + pack("llama")),
            ("tokenizer.ggml.model", struct.pack("<I", 8) + pack("gpt2")),
            ("tokenizer.ggml.pre", struct.pack("<I", 8) + pack("qwen2")),
            ("tokenizer.ggml.tokens", strings([names[i] for i in range(n)])),
            ("tokenizer.ggml.token_type", struct.pack("<IIQ", 9, 5, n)
             + struct.pack(f"<{n}i", *(3 if i in special else 1 for i in range(n)))),
            ("tokenizer.ggml.merges", strings(merges)),
            ("tokenizer.ggml.eos_token_id", struct.pack("<II", 4, n - 1))]
    infos, data, offset = b"", [], 0
    for name, shape, type_ in tensors:
        shape = tuple(n if size is None else size for size in shape)
        values, size = cut_vocabulary.BLOCKS[type_]
        total = 1
        for of in shape:
            total *= of
        raw = rng.randbytes(total // values * size)
        infos += pack(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_, offset)
        data.append(raw)
        offset += len(raw) + -len(raw) % 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    head += b"".join(pack(key) + value for key, value in keys) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + b"".join(raw + b"\0" * (-len(raw) % 32) for raw in data))
    return data


@unittest.skipIf(MISSING, MISSING)
class Cut(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.whole, self.small = (pathlib.Path(folder.name, name) for name in ("whole.gguf", "small.gguf"))
        texts_of = cut_vocabulary.texts_of
        self.addCleanup(setattr, cut_vocabulary, "texts_of", texts_of)
        cut_vocabulary.texts_of = lambda model, folder: [TEXT]

    def test_rows_follow_their_tokens_and_the_rest_stays(self):
        for tensors in (TIED, UNTIED):
            data = write_model(self.whole, tensors, random.Random(1))
            left = cut_vocabulary.cut(self.whole, self.small, MODEL)
            before, after = gguf.metadata(self.whole), gguf.metadata(self.small)
            names = after["tokenizer.ggml.tokens"]
            self.assertEqual(left, len(names))
            self.assertLess(left, len(before["tokenizer.ggml.tokens"]))
            self.assertEqual(names[after["tokenizer.ggml.eos_token_id"]], "<|im_end|>")
            ids = [before["tokenizer.ggml.tokens"].index(name) for name in names]
            expected = b""
            for (name, _, type_), raw in zip(tensors, data):
                if name in cut_vocabulary.CUT_TENSORS:
                    row = cut_vocabulary.BLOCKS[type_][1]
                    raw = b"".join(raw[i * row:(i + 1) * row] for i in ids)
                expected += raw + b"\0" * (-len(raw) % 32)
            self.assertTrue(self.small.read_bytes().endswith(expected))
            whole, small = tokens.Tokens(self.whole), tokens.Tokens(self.small)
            self.assertEqual([ids[i] for i in small.ids(TEXT)], list(whole.ids(TEXT)))

    def test_the_same_model_gives_the_same_file(self):
        write_model(self.whole, UNTIED, random.Random(2))
        cut_vocabulary.cut(self.whole, self.small, MODEL)
        first = self.small.read_bytes()
        cut_vocabulary.cut(self.whole, self.small, MODEL)
        self.assertEqual(self.small.read_bytes(), first)


if __name__ == "__main__":
    unittest.main()
