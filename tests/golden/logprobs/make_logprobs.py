"""Golden log-probabilities of the bundled model, by Transformers in float32.

    python make_logprobs.py    (torch, transformers)

For prompts of models/needle-14m/golden.json: the model's own greedy tokens, and tokens that are forced upon it instead
(the greedy ones of another prompt). Each step has log_softmax of the raw logits, computed in float64: of the token that
is taken, and the five best ids with theirs.
"""
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
MODEL = HERE.parents[2] / "models/needle-14m"
CASES = [("hello", "hello"), ("hello", "who"), ("needle_noise_300", "needle_noise_300"), ("json_500", "hello")]
STEPS, TOP = 12, 5


def steps_of(model, ids, taken):
    with torch.no_grad():
        logits = model(torch.tensor([ids + taken[:-1]])).logits[0, len(ids) - 1:]
    for row, token in zip(torch.log_softmax(logits.double(), dim=-1), taken):
        best = row.topk(TOP)
        yield {"token": token, "logprob": round(float(row[token]), 5), "top_ids": best.indices.tolist(),
               "top": [round(float(x), 5) for x in best.values]}


def main():
    prompts = {prompt["name"]: prompt for prompt in json.loads((MODEL / "golden.json").read_text())["prompts"]}
    model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.float32, attn_implementation="eager")
    cases = [{"prompt": name, "tokens_of": source,
              "steps": list(steps_of(model, prompts[name]["ids"], prompts[source]["greedy_ids"][:STEPS]))}
             for name, source in CASES]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "needle-14m.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
