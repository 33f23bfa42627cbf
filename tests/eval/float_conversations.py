#!/usr/bin/env python3
"""Conversations whose later turns have only what the earlier ones kept, in plain float32: RocketKV and SnapKV on the
lab's `turns_needles`, turn by turn beside the servers' answers.

    python3 tests/eval/float_conversations.py --length 4096 --methods rocketkv:512,snapkv-max63:1024 --samples 20 \\
        --samples-file samples.jsonl --out build/eval/float_turns.json

A later turn attends densely to the rows kept so far and to itself; then the best of all these are kept, as many as
after the first turn. The answer's tokens are part of the next turn's prompt. Needs what float_reference.py needs.
"""

import argparse
import collections
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import float_reference as reference  # noqa: E402
from lab import runner, scores, texts, tokens  # noqa: E402

TASK = "turns_needles"


def extended(model, kept, ids, position):
    """Logits behind `ids`, and per layer keys, values and the window's queries, of kept rows and new ones."""
    positions = torch.arange(position, position + len(ids), device=model.device)
    x, cache = model.w["model.embed_tokens.weight"][torch.tensor(ids, device=model.device)], []
    for layer, (old_k, old_v) in enumerate(kept):
        q, k, v = model.qkv(layer, x, positions)
        k, v = torch.cat((old_k, k), 1), torch.cat((old_v, v), 1)
        wide = [y.repeat_interleave(reference.HEADS // reference.GROUPS, 0)[None] for y in (k, v)]
        seen = torch.ones(len(ids), k.shape[1], dtype=torch.bool, device=model.device).tril(old_k.shape[1])
        y = F.scaled_dot_product_attention(q[None], *wide, attn_mask=seen)[0]
        x = model.after(layer, x, y.transpose(0, 1).reshape(len(ids), -1))
        cache.append((k, v, q[:, -reference.WINDOW:]))
    return model.logits(x[-1:]), cache


def rows_kept(cache, room):
    """Keys and values of `room` rows a layer, in order."""
    if cache[0][0].shape[1] <= room:
        return [(k, v) for k, v, _ in cache]
    out = []
    for (k, v, _), mask in zip(cache, reference.observed_best(reference.observed(cache), room, 63)):
        rows = mask.nonzero()[:, 1].view(reference.GROUPS, -1, 1).expand(-1, -1, reference.DIM)
        out.append((k.gather(1, rows), v.gather(1, rows)))
    return out


def said(model, logits, kept, position, allow, most, end):
    """The answer's tokens, without its end."""
    state, out = reference.State(kept, 1, most, position), []
    token = logits.argmax(-1)
    while token.item() != end and len(out) < most:
        out.append(token.item())
        if len(out) < most:
            token = model.step(token, state, [allow]).argmax(-1)
    return out


def talk(model, words, sample, first, method, budget):
    """The answers of a conversation. first: ids, logits and cache of its first prompt."""
    end = words.ids("<|im_end|>")[0]
    ids, logits, cache = first
    position, answers = len(ids), []
    if method == "rocketkv":
        room, page, channels, count = reference.split(len(ids), reference.RESERVE, budget)
    else:
        room = budget
    for turn, later in zip(sample.turns, [*sample.turns[1:], None]):
        kept = rows_kept(cache, room)
        if method == "rocketkv":
            n = kept[0][0].shape[1]
            all_rows = torch.arange(n, device=model.device).expand(reference.GROUPS, -1)
            allow = reference.hsa([all_rows] * model.layers, n, page, channels, count)
        else:
            allow = reference.everything
        answer = said(model, logits, kept, position, allow, turn.max_tokens, end)
        answers.append(words.tokenizer.decode(answer))
        if later is not None:
            new = answer + words.ids(f"<|im_end|>\n<|im_start|>user\n{later.text}<|im_end|>\n<|im_start|>assistant\n")
            if len(new) < reference.WINDOW:
                raise ValueError(f"a turn of {len(new)} tokens: the window is {reference.WINDOW}")
            logits, cache = extended(model, kept, new, position)
            position += len(new)
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(reference.ROOT / "models/needle-14m"))
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--methods", default="rocketkv:512,snapkv-max63:1024,snapkv-max63:2048")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--samples-file", help="samples.jsonl of the servers, of seed 1")
    parser.add_argument("--threads", type=int, help="of torch on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    if args.threads:
        torch.set_num_threads(args.threads)
    model, words = reference.Model(args.model, args.device), tokens.Tokens(args.model)
    samples = runner.Samples(texts.Texts(args.model), words.count, seed=1)
    servers = {}
    for line in open(args.samples_file) if args.samples_file else ():
        record = json.loads(line)
        if record["kind"] == "sample" and record["task"] == TASK and "refused" not in record:
            key = (record["method"], record["length"], record["budget"], record["index"])
            servers[key] = [turn["score"] for turn in record["turns"]]
    ours, same = collections.defaultdict(list), collections.defaultdict(list)
    for index in range(args.samples):
        sample = samples.get(TASK, args.length, index)
        ids = words.ids(f"<|im_start|>user\n{sample.turns[0].text}<|im_end|>\n<|im_start|>assistant\n")
        first = (ids, *model.prefill(ids))
        for name in args.methods.split(","):
            method, budget = name.split(":")
            answers = talk(model, words, sample, first, method, int(budget))
            found = [scores.SCORES[sample.score](answer, turn.refs) for answer, turn in zip(answers, sample.turns)]
            ours[name].append(found)
            theirs = servers.get((method, args.length, int(budget), index))
            if theirs:
                same[name].append((found, theirs))
        pathlib.Path(args.out).write_text(json.dumps(summed(args.length, ours, same), indent=1) + "\n")
    for line in summed(args.length, ours, same):
        print(line)
    return 0


def summed(length, ours, same):
    out = []
    for name, of in ours.items():
        method, budget = name.split(":")
        later = [score for found in of for score in found[1:]]
        row = {"task": TASK, "method": method, "length": length, "budget": int(budget), "samples": len(of),
               "first": round(100 * sum(found[0] for found in of) / len(of), 1),
               "later": round(100 * sum(later) / len(later), 1)}
        pairs = [(a, b) for found, theirs in same[name] for a, b in zip(found[1:], theirs[1:])]
        if pairs:
            row |= {"samples_of_both": len(same[name]),
                    "servers_later": round(100 * sum(b for _, b in pairs) / len(pairs), 1),
                    "as_servers": round(100 * sum((a >= 1) == (b >= 1) for a, b in pairs) / len(pairs), 1)}
        out.append(row)
    return out


if __name__ == "__main__":
    sys.exit(main())
