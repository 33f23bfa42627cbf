#!/usr/bin/env python3
"""Quest, ChunkKV and SnapKV in plain float32, in more than one reading of their definitions, on the lab's own prompts.

    python3 tests/eval/float_reference.py --lengths 4096,16384 --samples 40 --out build/eval/float.json

Where a figure of another measurement is not reproduced, this says which reading of the method gives it, and whether the
servers do what their reading says: `--samples-file samples.jsonl` compares with their answers, prompt by prompt. Needs
torch, safetensors and tokenizers, and knows the bundled model only. Whatever is left out of a step is masked: it is
slow, and has nothing in common with the servers' code.
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

WINDOW, STEPS, EPS, THETA = 32, 12, 1e-5, 500000.0
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

    def decode(self, first, cache, ways, steps=STEPS):
        """The tokens of every way [way][step]."""
        state = State(cache, len(ways), steps)
        token, out = first.expand(len(ways)), []
        for _ in range(steps):
            out.append(token)
            token = self.step(token, state, ways).argmax(-1)
        return torch.stack(out, 1)

    def step(self, token, state, ways):
        """Logits [way, token] behind one more token of each way. A way is allow(layer, q [HEADS, DIM], keys [GROUPS, n,
        DIM]) -> the rows that the step reads, a mask [HEADS, n]."""
        x = self.w["model.embed_tokens.weight"][token]
        position = torch.full((len(ways),), state.rows, device=self.device)
        for layer in range(self.layers):
            q, k, v = self.qkv(layer, x, position)
            q = q.transpose(0, 1)
            keys, values = state.add(layer, k, v)
            mask = torch.stack([allow(layer, q[i], keys[i]) for i, allow in enumerate(ways)])
            grouped = q.reshape(len(ways), GROUPS, -1, DIM)
            scores = torch.einsum("bghd,bgnd->bghn", grouped, keys).flatten(1, 2) / DIM**0.5
            weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            y = torch.einsum("bghn,bgnd->bghd", weights.view(len(ways), GROUPS, -1, weights.shape[-1]), values)
            x = self.after(layer, x, y.reshape(len(ways), -1))
        state.rows += 1
        return self.logits(x)


class State:
    """Keys and values of every way, with room for `steps` rows behind the prompt's."""

    def __init__(self, cache, ways, steps):
        room = cache[0][0].new_zeros(ways, GROUPS, steps, DIM)
        self.keys, self.values = ([torch.cat((of[i].expand(ways, -1, -1, -1), room), 2) for of in cache]
                                  for i in (0, 1))
        self.rows = cache[0][0].shape[1]

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


def snapkv(observations, budget, kernel, pool_first):
    masks = []
    for scores in observations:
        def pooled(x):
            return F.max_pool1d(x[None], kernel, 1, kernel // 2)[0]
        masks.append(with_window(best(grouped(pooled(scores)) if pool_first else pooled(grouped(scores)),
                                      budget - WINDOW)))
    return kept_rows(masks)


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


def rocketkv(observations, budget, kernel=63, reserve=32):
    n = observations[0].shape[1] + WINDOW
    room, page, channels, count = split(n, reserve, budget)
    kept = []
    for scores in observations:
        pooled = F.max_pool1d(grouped(scores)[None], kernel, 1, kernel // 2)[0]
        mask = with_window(best(pooled, room - WINDOW) if room < n else torch.ones_like(pooled, dtype=torch.bool))
        kept.append(mask.nonzero()[:, 1].view(GROUPS, -1))

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
    """{(method, reading, budget): allow}."""
    out = {}
    observations = None
    for budget in budgets:
        for dense_layers in (2, 0):
            for shared in (False, True):
                reading = f"{'group' if shared else 'head'}, {dense_layers} dense layers"
                page = max(2, length // budget)
                out["quest", reading, budget] = quest(16, max(3, budget // 16), dense_layers, shared)
                out["quest-eq", reading, budget] = quest(page, max(1, budget // 2 // page), dense_layers, shared)
        if not any(method.startswith(("snapkv", "chunkkv")) for method in methods):
            continue
        observations = observations or observed(cache)
        for pool_first in (False, True):
            reading = "pooled, then summed" if pool_first else "summed, then pooled"
            out["snapkv-max7", reading, budget] = snapkv(observations, budget, 7, pool_first)
        for one_set in (False, True):
            reading = "one set a layer" if one_set else "a set a KV head"
            out["chunkkv-unpooled", reading, budget] = chunkkv(observations, budget, 1, one_set)
            out["chunkkv-reuse2", reading, budget] = chunkkv(observations, budget, 2, one_set)
    return {name: allow for name, allow in out.items() if name[0] in methods}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/needle-14m"))
    parser.add_argument("--task", default="niah_multikey_1")
    parser.add_argument("--lengths", default="4096")
    parser.add_argument("--methods", default="quest,quest-eq,chunkkv-unpooled,chunkkv-reuse2,snapkv-max7")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--samples-file", help="samples.jsonl of the servers, of seed 1")
    parser.add_argument("--batch", type=int, default=30, help="ways decoded together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    model, words = Model(args.model, args.device), tokens.Tokens(args.model)
    samples = runner.Samples(texts.Texts(args.model), words.count, seed=1)
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
                answers = model.decode(first, cache, [ways[name] for name in some]).tolist()
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
