"""Trains small tokenizers in five styles and writes what `tokenizers` and `sentencepiece` make of 1,000 strings.

  pip install tokenizers==0.23.3 sentencepiece
  python make_tokenizer_goldens.py

Writes beside itself: strings.json, <style>.tokenizer.json, <style>.golden.json, variants.golden.json,
sentencepiece.golden.json. Everything is seeded; the corpus is the held-out prose of the bundled model, this script,
and generated text.
"""

import collections
import io
import json
import pathlib
import random

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MODEL = ROOT / "models" / "needle-14m"

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# Ranges of assigned characters, all in Unicode 9 or older.
SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F)],
    "greek": [(0x391, 0x3A1), (0x3B1, 0x3C9)],
    "cyrillic": [(0x410, 0x44F)],
    "hebrew": [(0x5D0, 0x5EA)],
    "arabic": [(0x627, 0x63A), (0x641, 0x64A), (0x660, 0x669)],
    "devanagari": [(0x905, 0x939), (0x93E, 0x94C), (0x966, 0x96F)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE5B)],
    "hangul": [(0xAC00, 0xD7A3)],
    "jamo": [(0x1100, 0x1112), (0x1161, 0x1175)],
    "kana": [(0x3041, 0x3096), (0x30A1, 0x30FA)],
    "han": [(0x4E00, 0x9FD5), (0x20000, 0x20100)],
    "emoji": [(0x1F600, 0x1F64F), (0x1F300, 0x1F320), (0x2600, 0x26FF)],
    "math": [(0x2200, 0x22FF), (0x1D400, 0x1D454)],
    "numbers": [(0x2150, 0x2188), (0x2460, 0x249B), (0xBC, 0xBE), (0xB2, 0xB3)],
}
COMBINING = [chr(c) for c in list(range(0x300, 0x32A)) + [0x5B0, 0x64B, 0x94D, 0x20DD, 0x1F3FB, 0xFE0F, 0x200D]]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u180e",
          "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c"]
CONTROLS = [chr(c) for c in list(range(0, 32)) + [0x7F, 0x80, 0x9F, 0xAD, 0xFFFD, 0xE000]]
CODE = ["def f(x):\n    return x**2\n", "if (a&&b) {\n\t\tfoo->bar();\n}", "SELECT * FROM t WHERE id=42;", "x += 1;  // done",
        "<div class=\"a\">&nbsp;</div>", "http://example.com/a?b=c&d=%20e", "{\"k\": [1, 2.5e-3, null]}", "#!/bin/sh\nset -e",
        "a_b-c.d/e\\f", "--flag=value", "0xDEADBEEF", "1_000_000", "3.14159", "2026-11-30T12:34:56Z", "'tis I'LL we'Re don'T"]
TAGS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_", "start|>", "<s>", "</s>", "<unk>", "<tool_call>", "[INST]",
        "<|begin_of_text|>", "<|eot_id|>", "<0x41>", "▁", "Ġ", "ſ", "K", "İ", "ß"]


def script_word(rng):
    ranges = SCRIPTS[rng.choice(list(SCRIPTS))]
    out = []
    for _ in range(rng.randint(1, 6)):
        lo, hi = rng.choice(ranges)
        out.append(chr(rng.randint(lo, hi)))
        if rng.random() < 0.1:
            out.append(rng.choice(COMBINING))
    return "".join(out)


def make_strings(prose):
    rng = random.Random(20261130)
    words = prose.split()
    strings = ["", " ", "  ", "\n", "▁", "a", "\u0301", "e\u0301", "é", "\u212b", "각", "ᄀ" + "ᅡ" + "ᆨ", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", " " * 37,
               "\n" * 9, "a" * 70, "ab " * 20, "1234567890" * 3, " \u00a0 x", "x \t\n y  ", "don't DON'T don’t", "hello\u0000world"]
    kinds = [lambda: rng.choice(words), lambda: rng.choice(words).upper(), lambda: script_word(rng), lambda: script_word(rng),
             lambda: rng.choice(CODE), lambda: str(rng.randint(0, 10 ** rng.randint(1, 9))), lambda: rng.choice(TAGS),
             lambda: "".join(rng.choice("!?.,;:'\"()[]{}<>|-_=+*/&^%$#@~`\\") for _ in range(rng.randint(1, 4))),
             lambda: rng.choice(CONTROLS), lambda: rng.choice(words) + rng.choice(COMBINING)]
    while len(strings) < 1000:
        parts = []
        for _ in range(rng.randint(1, 6)):
            parts.append(rng.choice(kinds)())
            parts.append(rng.choice(SPACES) if rng.random() < 0.35 else rng.choice([" ", " ", ""]))
        if rng.random() < 0.6:
            parts.pop()
        strings.append("".join(parts))
    return strings


def corpus(prose, strings):
    rng = random.Random(7)
    yield from prose.splitlines()[:4000]
    yield from CODE * 20
    yield from pathlib.Path(__file__).read_text().splitlines()
    for _ in range(3000):
        yield " ".join(script_word(rng) for _ in range(4))
    yield from strings[::5]


def special(text, **kw):
    return AddedToken(text, special=True, normalized=kw.pop("normalized", False), **kw)


def byte_level(style, texts, vocab_size):
    tok = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    if style == "qwen2":
        tok.normalizer = normalizers.NFC()
    pattern = {"qwen2": QWEN2, "llama3": LLAMA3}.get(style)
    if pattern:
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if style == "llama3":
        tok.add_special_tokens([special(t) for t in ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]])
        bos = tok.token_to_id("<|begin_of_text|>")
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                          special_tokens=[("<|begin_of_text|>", bos)])])
    else:
        tok.add_special_tokens([special(t) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
        tok.add_tokens([AddedToken("<tool_call>", normalized=False)])
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def llama_style(texts, vocab_size):
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    # Only frequent characters get a token (the trainer's own limit breaks ties at random).
    count = collections.Counter("".join(texts))
    spaced = ["▁" + "".join(c for c in t.replace(" ", "▁") if count[c] >= 60) for t in texts]
    tok.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # only for training, as words
    tok.train_from_iterator(spaced, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)],
        show_progress=False))
    model = json.loads(tok.to_str())["model"]
    out = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], unk_token="<unk>",
                               fuse_unk=True, byte_fallback=True))
    out.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    out.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    out.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    out.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return out


def id_streams(tok, rng, count, allowed):
    return [[rng.choice(allowed) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def golden(tok, strings, rng, no_byte_tokens=False):
    """ids of every string, ids with BOS of the first 40, and decodings of ids that no text gave."""
    vocab = tok.get_vocab()
    allowed = sorted(i for t, i in vocab.items() if not (no_byte_tokens and t.startswith("<0x")))
    ids = [tok.encode(s, add_special_tokens=False).ids for s in strings]
    streams = id_streams(tok, rng, 150, allowed)
    return {
        "ids": ids,
        "with_special": [tok.encode(s, add_special_tokens=True).ids for s in strings[:40]],
        # Where the decoding of a string's own ids is not the string itself.
        "decoded_differs": {str(i): d for i, (s, d) in enumerate(zip(strings, (tok.decode(x, skip_special_tokens=False)
                                                                               for x in ids))) if d != s},
        "streams": [{"ids": s, "text": tok.decode(s, skip_special_tokens=False),
                     "without_special": tok.decode(s, skip_special_tokens=True)} for s in streams],
    }


def variants(qwen2, llama, strings):
    """One changed section each, over every 12th string."""
    q, l = json.loads(qwen2), json.loads(llama)
    split = lambda behavior, invert, pattern: {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    bl = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    seq = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
    out = []
    def add(name, base, **sections):
        t = json.loads(json.dumps(base))
        for token in t["added_tokens"]:
            token.update(sections.get("tokens", {}).get(token["content"], {}))
        t.update({k: v for k, v in sections.items() if k != "tokens"})
        tok = Tokenizer.from_str(json.dumps(t))
        some = strings[::12]
        ids = [tok.encode(s, add_special_tokens=False).ids for s in some]
        out.append({"name": name, "base": "qwen2" if base is q else "llama", "sections": sections, "ids": ids,
                    "decoded": [tok.decode(i, skip_special_tokens=False) for i in ids]})
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            add(f"split {behavior} {invert}", q, pre_tokenizer=seq(split(behavior, invert, {"Regex": r"\s|[aeiou]"}), bl))
        add(f"literal {behavior}", q, pre_tokenizer=seq(split(behavior, False, {"String": "a"}), bl))
    add("prefix space", q, pre_tokenizer=dict(bl, add_prefix_space=True, use_regex=True))
    add("digits in runs", q, pre_tokenizer=seq({"type": "Digits", "individual_digits": False}, bl))
    add("empty matches", q, pre_tokenizer=seq(split("Isolated", False, {"Regex": r"\p{N}*"}), bl))
    for form in ["NFD", "NFKC", "NFKD"]:
        add(form, q, normalizer={"type": form})
    add("no normalizer", q, normalizer=None)
    add("stripping tokens", q, tokens={"<|im_start|>": {"lstrip": True}, "<|im_end|>": {"rstrip": True},
                                       "<tool_call>": {"lstrip": True, "rstrip": True}})
    add("normalized tokens", q, tokens={"<|im_start|>": {"normalized": True}, "<tool_call>": {"normalized": True}})
    add("llama normalized tokens", l, tokens={"<s>": {"normalized": True}, "</s>": {"normalized": True}})
    for scheme in ["always", "first", "never"]:
        for words in [True, False]:
            space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": words}
            add(f"metaspace {scheme} {words}", l, normalizer=None, pre_tokenizer=space,
                decoder={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space]})
    no_bytes = json.loads(json.dumps(l["model"]))
    no_bytes["byte_fallback"] = False
    add("unk fused", l, model=no_bytes)
    add("unk alone", l, model=dict(no_bytes, fuse_unk=False))
    add("no unk", l, model=dict(no_bytes, unk_token=None))
    # The models are the base's with other settings: the test patches them, so that they are stored once.
    for v in out:
        if "model" in v["sections"]:
            v["sections"]["model"] = {k: x for k, x in v["sections"]["model"].items() if k not in ("vocab", "merges")}
    return out


def sentencepiece_golden(texts, strings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t for t in texts if t and "\n" not in t and "\0" not in t]), model_writer=model, model_type="bpe",
        vocab_size=1600, byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2, allow_whitespace_only_pieces=True)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    types = []
    for i in range(sp.vocab_size()):
        types.append(2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1)
    some = [s for s in strings[::3] if "\0" not in s and "▁" not in s]
    return {"tokens": [sp.id_to_piece(i) for i in range(sp.vocab_size())],
            "scores": [round(sp.get_score(i), 3) for i in range(sp.vocab_size())], "types": types,
            "strings": some, "ids": [sp.encode(s) for s in some]}


def dump(name, value, **kw):
    (HERE / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":"), **kw) + "\n", encoding="utf-8")


def main():
    prose = (MODEL / "haystack.txt").read_text(encoding="utf-8")
    strings = make_strings(prose)
    texts = list(corpus(prose, strings))
    dump("strings.json", strings)
    rng = random.Random(3)
    bundled = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    dump("bundled.golden.json", golden(bundled, strings, rng))
    saved = {}
    for style in ["qwen2", "llama3", "smollm", "llama"]:
        tok = llama_style(texts, 1400) if style == "llama" else byte_level(style, texts, 1200)
        saved[style] = tok.to_str()
        dump(f"{style}.tokenizer.json", json.loads(saved[style]))
        # Byte tokens that are no text decode otherwise here (byte by byte, as SentencePiece does).
        dump(f"{style}.golden.json", golden(tok, strings, rng, no_byte_tokens=style == "llama"))
    dump("variants.golden.json", variants(saved["qwen2"], saved["llama"], strings))
    dump("sentencepiece.golden.json", sentencepiece_golden(texts, strings))


main()
