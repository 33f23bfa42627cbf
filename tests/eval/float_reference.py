#!/usr/bin/env python3
"""Quest, SparQ, ChunkKV, SnapKV and RocketKV in plain float32, in more than one reading of their definitions, on the
lab's own prompts.

    python3 tests/eval/float_reference.py --lengths 4096,16384 --samples 40 --out build/eval/float.json
    python3 tests/eval/float_reference.py --task prose --lengths 8192 --samples 10 --methods rocketkv,exact_topk \\
        --samples-file samples.jsonl --out build/eval/float_prose.json

Where a figure of another measurement is not reproduced, this says which reading of the method gives it, and whether the
servers do what their reading says: `--samples-file samples.jsonl` compares with their answers, prompt by prompt; of
`prose` with their divergence from full KV on the words that they said. Needs torch, safetensors and tokenizers, and
knows the bundled model only. Whatever is left out of a step is masked: it is slow, and has nothing in common with the
servers' code.
"""

import argparse
import collections
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import runner, texts, tokens  # noqa: E402

WINDOW, RESERVE, EPS, THETA = 32, 32, 1e-5, 500000.0  # RESERVE: m of RocketKV's split
STEPS = {"niah_single_3": 44}  # a uuid and a blank; other answers: 12
HEADS, GROUPS, DIM = 6, 2, 64
BUDGETS = (128, 256, 512, 1024, 2048)


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


class Model:
    def __init__(self, folder, device):
        self.w = {name: value.float().to(device) for name, value in load_file(f"{folder}/model.safetensors").items()}
        self.layers = max(int(name.split(".")[2]) for name in self.w if ".layers." in name) + 1
        self.frequencies = THETA ** (-torch.arange(0, DIM, 2, device=device, dtype=torch.float64) / DIM)
        self.device = device

    def rotate(self, x, positions):
        """x [..., n, DIM]."""
        angle = positions[:, None].double() * self.frequencies
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def qkv(self, layer, x, positions):
        """x [n, hidden] -> q [HEADS, n, DIM], k and v [GROUPS, n, DIM]."""
        x = norm(x, self.w[f"model.layers.{layer}.input_layernorm.weight"])
        q, k, v = (torch.einsum("nc,dc->nd", x, self.w[f"model.layers.{layer}.self_attn.{part}_proj.weight"])
                   .view(len(x), -1, DIM).transpose(0, 1) for part in "qkv")
        return self.rotate(q, positions), self.rotate(k, positions), v

    def after(self, layer, x, attention):
        """attention [n, HEADS * DIM]."""
        names = ("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
                 "mlp.down_proj")
        w = {name: self.w[f"model.layers.{layer}.{name}.weight"] for name in names}
        x = x + attention @ w["self_attn.o_proj"].T
        y = norm(x, w["post_attention_layernorm"])
        return x + (F.silu(y @ w["mlp.gate_proj"].T) * (y @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T

    def logits(self, x):
        return norm(x, self.w["model.norm.weight"]) @ self.w["model.embed_tokens.weight"].T

    def prefill(self, ids):
        """The next token's logits, and per layer keys, values and the window's queries."""
        positions = torch.arange(len(ids), device=self.device)
        x, cache = self.w["model.embed_tokens.weight"][torch.tensor(ids, device=self.device)], []
        for layer in range(self.layers):
            q, k, v = self.qkv(layer, x, positions)
            wide = [y.repeat_interleave(HEADS // GROUPS, 0)[None] for y in (k, v)]
            y = F.scaled_dot_product_attention(q[None], *wide, is_causal=True)[0]
            x = self.after(layer, x, y.transpose(0, 1).reshape(len(ids), -1))
            cache.append((k, v, q[:, -WINDOW:]))
        return self.logits(x[-1:]), cache

    def decode(self, first, cache, ways, steps):
        """The tokens of every way [way][step]."""
        state = State(cache, len(ways), steps)
        token, out = first.expand(len(ways)), []
        for _ in range(steps):
            out.append(token)
            token = self.step(token, state, ways).argmax(-1)
        return torch.stack(out, 1)

    def step(self, token, state, ways):
        """Logits [way, token] behind one more token of each way. A way is allow(layer, q [HEADS, DIM], keys [GROUPS, n,
        DIM]) -> the rows that the step reads, a mask [HEADS, n]; or that and what they count for [HEADS], where the
        mean of all values stands for the others."""
        x = self.w["model.embed_tokens.weight"][token]
        position = torch.full((len(ways),), state.position, device=self.device)
        for layer in range(self.layers):
            q, k, v = self.qkv(layer, x, position)
            q = q.transpose(0, 1)
            keys, values = state.add(layer, k, v)
            allowed = [allow(layer, q[i], keys[i]) for i, allow in enumerate(ways)]
            mask = torch.stack([of[0] if isinstance(of, tuple) else of for of in allowed])
            counts = torch.stack([of[1] if isinstance(of, tuple) else q.new_ones(HEADS) for of in allowed])
            grouped = q.reshape(len(ways), GROUPS, -1, DIM)
            scores = torch.einsum("bghd,bgnd->bghn", grouped, keys).flatten(1, 2) / DIM**0.5
            weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            y = torch.einsum("bghn,bgnd->bghd", weights.view(len(ways), GROUPS, -1, weights.shape[-1]), values)
            counts = counts.view(len(ways), GROUPS, -1, 1)
            y = counts * y + (1 - counts) * values.mean(2)[:, :, None]
            x = self.after(layer, x, y.reshape(len(ways), -1))
        state.rows, state.position = state.rows + 1, state.position + 1
        return self.logits(x)


class State:
    """Keys and values of every way, with room for `steps` rows behind the prompt's. position: of the next token, where
    rows before it are gone."""

    def __init__(self, cache, ways, steps, position=None):
        room = cache[0][0].new_zeros(ways, GROUPS, steps, DIM)
        self.keys, self.values = ([torch.cat((of[i].expand(ways, -1, -1, -1), room), 2) for of in cache]
                                  for i in (0, 1))
        self.rows = cache[0][0].shape[1]
        self.position = self.rows if position is None else position

    def add(self, layer, k, v):
        """k, v [GROUPS, way, DIM]; returns all rows so far."""
        for rows, new in ((self.keys[layer], k), (self.values[layer], v)):
            rows[:, :, self.rows] = new.transpose(0, 1)
        return self.keys[layer][:, :, :self.rows + 1], self.values[layer][:, :, :self.rows + 1]


def best(scores, count):
    """A mask of the `count` largest of the last dimension, the lowest of equals."""
    count = min(count, scores.shape[-1])
    least = scores.topk(count, -1).values[..., -1:]
    above, equal = scores > least, scores == least
    return above | equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True))


def quest(page, pages, dense_layers, shared):
    """shared: one choice a group, by the sum of its heads' bounds."""
    def allow(layer, q, keys):
        n = keys.shape[1]
        if layer < dense_layers:
            return torch.ones(HEADS, n, dtype=torch.bool, device=q.device)
        pad = -n % page
        low = F.pad(keys, (0, 0, 0, pad), value=torch.inf).view(GROUPS, -1, page, DIM).amin(2)
        high = F.pad(keys, (0, 0, 0, pad), value=-torch.inf).view(GROUPS, -1, page, DIM).amax(2)
        low, high = (y.repeat_interleave(HEADS // GROUPS, 0) for y in (low, high))
        bound = torch.maximum(q[:, None] * low, q[:, None] * high).sum(-1)
        if shared:
            bound = bound.view(GROUPS, -1, bound.shape[-1]).sum(1).repeat_interleave(HEADS // GROUPS, 0)
        return best(bound, pages).repeat_interleave(page, 1)[:, :n]
    return allow


def sparq(channels, count, shared, mean):
    """shared: one choice of channels and rows a group, with a quarter of the rows for the latest ones; else every head
    its own, and no row is safe."""
    def allow(layer, q, keys):
        q = q.view(GROUPS, -1, DIM)
        size = q.abs()
        used = best(size.sum(1, keepdim=True) if shared else size, channels)
        share = (size * used).sum(-1) / size.sum(-1)
        scores = torch.einsum("ghd,gnd->ghn", q * used, keys) / (DIM * share).sqrt()[..., None]
        rank = scores.clone()
        if shared:
            rank = scores.sum(1, keepdim=True).expand_as(scores).clone()
            rank[..., -(count // 4 + 1):] = torch.inf
        read = best(rank, count)
        counts = (scores.softmax(-1) * read).sum(-1) if mean else torch.ones_like(share)
        return read.reshape(HEADS, -1), counts.reshape(HEADS)
    return allow


def kept_rows(masks):
    """Attention to what was kept, and to everything after it. masks: per layer [GROUPS, n]."""
    def allow(layer, q, keys):
        mask = masks[layer].repeat_interleave(HEADS // GROUPS, 0)
        return F.pad(mask, (0, keys.shape[1] - mask.shape[1]), value=True)
    return allow


def observed(cache):
    """Per layer and head [HEADS, n - WINDOW]: what the window's queries attend to."""
    out = []
    for k, _, q in cache:
        n = k.shape[1]
        scores = torch.einsum("hwd,hnd->hwn", q, k.repeat_interleave(HEADS // GROUPS, 0)) / DIM**0.5
        late = torch.ones(WINDOW, n, dtype=torch.bool, device=q.device).triu(n - WINDOW + 1)
        out.append(scores.masked_fill(late, -torch.inf).softmax(-1).sum(1)[:, :n - WINDOW])
    return out


def grouped(scores):
    return scores.view(GROUPS, -1, scores.shape[-1]).sum(1)


def with_window(mask):
    return F.pad(mask, (0, WINDOW), value=True)


def observed_best(observations, room, kernel, pool_first=False):
    """Per layer a mask [GROUPS, n] of `room` rows, the window's among them."""
    def pooled(x):
        return F.max_pool1d(x[None], kernel, 1, kernel // 2)[0]
    return [with_window(best(grouped(pooled(scores)) if pool_first else pooled(grouped(scores)), room - WINDOW))
            for scores in observations]


def snapkv(observations, budget, kernel, pool_first):
    return kept_rows(observed_best(observations, budget, kernel, pool_first))


def chunkkv(observations, budget, reuse, one_set, chunk=10):
    masks = []
    for layer, scores in enumerate(observations):
        if layer % reuse:
            masks.append(masks[-1])
            continue
        rows = grouped(scores)
        if one_set:
            rows = rows.sum(0, keepdim=True).expand(GROUPS, -1)
        n, pad = rows.shape[1], -rows.shape[1] % chunk
        sums = F.pad(rows, (0, pad)).view(GROUPS, -1, chunk).sum(-1)
        sizes = torch.full_like(sums, chunk)
        sizes[:, -1] = chunk - pad
        means = (sums / sizes).repeat_interleave(chunk, 1)[:, :n]
        masks.append(with_window(best(means, budget - WINDOW)))
    return kept_rows(masks)


def everything(layer, q, keys):
    return torch.ones(HEADS, keys.shape[1], dtype=torch.bool, device=q.device)


def exact_topk(budget):
    """For every head its largest scores."""
    def allow(layer, q, keys):
        return best(torch.einsum("hd,hnd->hn", q, keys.repeat_interleave(HEADS // GROUPS, 0)), budget)
    return allow


def split(tokens, reserve, budget):
    """RocketKV: rows kept of the prompt, page, channels, rows read."""
    whole = tokens + reserve
    ratio = max(1.0, whole / budget)
    kept = max(int(whole / ratio ** min(0.2 + 0.06 * math.log2(ratio), 0.8)), min(2 * reserve, whole))
    rest = max(1.0, kept / budget)
    page = math.ceil(math.sqrt(rest))
    page = 1 if page > rest else page
    return kept - reserve, page, int(DIM * page / rest), budget // 2


def rocketkv(observations, budget):
    n = observations[0].shape[1] + WINDOW
    room, page, channels, count = split(n, RESERVE, budget)
    everything = torch.ones(GROUPS, n, dtype=torch.bool, device=observations[0].device)
    masks = observed_best(observations, room, 63) if room < n else [everything] * len(observations)
    return hsa([mask.nonzero()[:, 1].view(GROUPS, -1) for mask in masks], n, page, channels, count)


def hsa(kept, n, page, channels, count):
    """kept: per layer [GROUPS, rows], the numbers of the rows that are left of the first n."""
    def allow(layer, q, keys):
        later = torch.arange(n, keys.shape[1], device=q.device).expand(GROUPS, -1)
        rows = torch.cat((kept[layer], later), 1)
        k = keys.gather(1, rows[..., None].expand(-1, -1, DIM))
        q = q.view(GROUPS, -1, DIM)
        sign = torch.where(q.sum(1) > 0, 1.0, -1.0)
        bound = F.pad(k * sign[:, None], (0, 0, 0, -k.shape[1] % page), value=-torch.inf)
        bound = bound.view(GROUPS, -1, page, DIM).amax(2)
        size = q.abs().sum(1)
        used = best(size, channels)[:, None]
        score = torch.einsum("ghd,gpd->ghp", q * sign[:, None] * used, bound)
        share = (q.abs() * used).sum(-1) / q.abs().sum(-1)
        by_row = (score / (DIM * share).sqrt()[..., None]).repeat_interleave(page, 2)[..., :k.shape[1]]
        read = best(by_row.softmax(-1).mean(1), count)
        mask = torch.zeros(GROUPS, keys.shape[1], dtype=torch.bool, device=q.device).scatter_(1, rows, read)
        return mask.repeat_interleave(HEADS // GROUPS, 0)
    return allow


def ways_of(length, cache, methods, budgets):
    """{(method, reading, budget): allow}. SparQ's equal traffic: head_dim budget / length channels, rounded down; "a
    longer whole": where the answer is counted, too, which costs a channel wherever that divides."""
    out = {}
    observations = None
    for budget in budgets:
        for dense_layers in (2, 0):
            for shared in (False, True):
                reading = f"{'group' if shared else 'head'}, {dense_layers} dense layers"
                page = max(2, length // budget)
                out["quest", reading, budget] = quest(16, max(3, budget // 16), dense_layers, shared)
                out["quest-eq", reading, budget] = quest(page, max(1, budget // 2 // page), dense_layers, shared)
        for shared in (True, False):
            for mean in (True, False):
                reading = f"{'group' if shared else 'head'}, {'with' if mean else 'without'} the mean"
                for whole, said in ((length, reading), (length + 1, f"{reading}, a longer whole")):
                    channels = max(1, DIM * budget // whole)
                    out["sparq-eq", said, budget] = sparq(channels, budget // 2, shared, mean)
        if not any(method.startswith(("snapkv", "chunkkv", "rocketkv")) for method in methods):
            continue
        observations = observations or observed(cache)
        out["rocketkv", "as the servers", budget] = rocketkv(observations, budget)
        for pool_first in (False, True):
            reading = "pooled, then summed" if pool_first else "summed, then pooled"
            for kernel in (7, 63, 127):
                out[f"snapkv-max{kernel}", reading, budget] = snapkv(observations, budget, kernel, pool_first)
        for one_set in (False, True):
            reading = "one set a layer" if one_set else "a set a KV head"
            out["chunkkv-unpooled", reading, budget] = chunkkv(observations, budget, 1, one_set)
            out["chunkkv-reuse2", reading, budget] = chunkkv(observations, budget, 2, one_set)
    return {name: allow for name, allow in out.items() if name[0] in methods}


def prose_ways(cache, methods, budgets):
    """{(method, budget): allow}."""
    observations = observed(cache)
    make = {"rocketkv": lambda budget: rocketkv(observations, budget), "exact_topk": exact_topk,
            "snapkv63": lambda budget: snapkv(observations, budget, 63, False),
            "quest": lambda budget: quest(16, max(3, budget // 16), 2, False)}
    return {(method, budget): make[method](budget) for method in methods for budget in budgets}


def divergences(model, ids, words, ways, batch):
    """Of every way its mean KL(full KV to it) and the share of steps with full KV's best token, over the steps behind
    the first. words: what is said; so many tokens of full KV's own where that is a number."""
    logits, cache = model.prefill(ids)
    ways, own = ways(cache), isinstance(words, int)
    steps = words if own else len(words)
    said, full = [logits.argmax().item() if own else words[0]], []
    state = State(cache, 1, steps)
    while len(full) < steps - 1:
        full.append(model.step(torch.tensor([said[-1]], device=model.device), state, [everything])[0].log_softmax(-1))
        said.append(full[-1].argmax().item() if own else words[len(full)])
    out, names = {}, list(ways)
    for at in range(0, len(names), batch):
        some = names[at:at + batch]
        state, kl, agreed = State(cache, len(some), steps), 0, 0
        for token, p in zip(said, full):
            token = torch.tensor([token], device=model.device).expand(len(some))
            q = model.step(token, state, [ways[name] for name in some]).log_softmax(-1)
            kl, agreed = kl + (p.exp() * (p - q)).sum(-1), agreed + (q.argmax(-1) == p.argmax()).float()
        for name, a, b in zip(some, (kl / len(full)).tolist(), (agreed / len(full)).tolist()):
            out[name] = a, b
    return out


def prose(args, model, words, samples, budgets):
    """Of every method, length and budget the divergence here, and that of the servers on the same words."""
    servers = {}
    for line in open(args.samples_file) if args.samples_file else ():
        record = json.loads(line)
        if record["kind"] == "sample" and record["task"] == args.task and "token_ids" in record["turns"][0]:
            servers[record["method"], record["length"], record["budget"], record["index"]] = record["turns"][0]
    rows = collections.OrderedDict()
    for index in range(args.samples):
        for length in map(int, args.lengths.split(",")):
            (turn,) = samples.get(args.task, length, index).turns
            said = next((of["token_ids"] for key, of in servers.items() if (key[1], key[3]) == (length, index)),
                        words.ids(turn.follow)[:turn.max_tokens] or turn.max_tokens)
            found = divergences(model, words.ids(turn.text), said,
                                lambda cache: prose_ways(cache, args.methods.split(","), budgets), args.batch)
            for (method, budget), (kl, agreed) in found.items():
                row = rows.setdefault((method, length, budget), {
                    "task": args.task, "method": method, "length": length, "budget": budget, "kl": [], "agreed": [],
                    "servers_kl": []})
                row["kl"].append(round(kl, 5))
                row["agreed"].append(round(agreed, 4))
                theirs = servers.get((method, length, budget, index))
                row["servers_kl"].append(None if theirs is None else round(theirs["kl"], 5))
            pathlib.Path(args.out).write_text(json.dumps([summed(row) for row in rows.values()], indent=1) + "\n")
    for row in rows.values():
        print(summed(row))


def summed(row):
    """Means of both, over the prompts that both have, and how far apart they are, prompt by prompt."""
    both = [(a, b) for a, b in zip(row["kl"], row["servers_kl"]) if b is not None]
    out = {key: row[key] for key in ("task", "method", "length", "budget")}
    out |= {"samples": len(row["kl"]), "kl": round(sum(row["kl"]) / len(row["kl"]), 5),
            "agreed": round(sum(row["agreed"]) / len(row["agreed"]), 4)}
    if both:
        out |= {"samples_of_both": len(both), "kl_of_both": round(sum(a for a, _ in both) / len(both), 5),
                "servers_kl": round(sum(b for _, b in both) / len(both), 5),
                "apart": round(sum(abs(a - b) for a, b in both) / max(1e-9, sum(a for a, _ in both)), 4)}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/needle-14m"))
    parser.add_argument("--task", default="niah_multikey_1")
    parser.add_argument("--lengths", default="4096")
    parser.add_argument("--methods", default="quest,quest-eq,chunkkv-unpooled,chunkkv-reuse2,snapkv-max7")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--samples-file", help="samples.jsonl of the servers, of seed 1")
    parser.add_argument("--threads", type=int, help="of torch on a CPU")
    parser.add_argument("--batch", type=int, default=30, help="ways decoded together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    if args.threads:
        torch.set_num_threads(args.threads)
    model, words = Model(args.model, args.device), tokens.Tokens(args.model)
    samples = runner.Samples(texts.Texts(args.model), words.count, seed=1)
    if args.task.startswith("prose"):
        prose(args, model, words, samples, tuple(map(int, args.budgets.split(","))))
        return 0
    servers = {}
    for line in open(args.samples_file) if args.samples_file else ():
        record = json.loads(line)
        if record["kind"] == "sample" and record["task"] == args.task and "refused" not in record:
            servers[record["method"], record["length"], record["budget"], record["index"]] = record["score"]
    methods, budgets = args.methods.split(","), tuple(map(int, args.budgets.split(",")))
    hits, same = collections.defaultdict(list), collections.defaultdict(list)
    for index in range(args.samples):
        for length in map(int, args.lengths.split(",")):
            (turn,) = samples.get(args.task, length, index).turns
            logits, cache = model.prefill(words.ids(turn.text))
            first = logits.argmax(-1)
            ways = ways_of(length, cache, methods, budgets)
            names = list(ways)
            for at in range(0, len(names), args.batch):
                some = names[at:at + args.batch]
                answers = model.decode(first, cache, [ways[name] for name in some],
                                       STEPS.get(args.task, 12)).tolist()
                for (method, reading, budget), answer in zip(some, answers):
                    hit = turn.refs[0] in words.tokenizer.decode(answer)
                    hits[method, length, reading, budget].append(hit)
                    theirs = servers.get((method, length, budget, index))
                    if theirs is not None:
                        same[method, length, reading, budget].append(hit == (theirs >= 1))
            report(args.out, hits, same)
    for line in json.loads(pathlib.Path(args.out).read_text()):
        print(line)
    return 0


def report(path, hits, same):
    rows = collections.OrderedDict()
    for (method, length, reading, budget), of in hits.items():
        row = rows.setdefault((method, length, reading), {"method": method, "length": length, "reading": reading,
                                                           "samples": len(of), "scores": {}, "as_servers": {}})
        row["scores"][budget] = round(100 * sum(of) / len(of), 1)
        agreeing = same.get((method, length, reading, budget))
        if agreeing:
            row["as_servers"][budget] = round(100 * sum(agreeing) / len(agreeing), 1)
    pathlib.Path(path).write_text(json.dumps(list(rows.values()), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
