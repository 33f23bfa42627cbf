"""Golden logits of the two real models, whose GGUF files are not in the repository.

    python make_logits.py MODELS_DIR    (torch, transformers, gguf, tokenizers)

Transformers itself reads the GGUF file, decodes its types and restores the order of q and k rows; matrices are then
rounded to bfloat16 and everything runs in float32 with eager attention. README.md describes the fields.
"""
import hashlib
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
HAYSTACK = HERE.parents[2] / "models/needle-14m/haystack.txt"
MODELS = {
    "smollm2-135m": ("SmolLM2-135M-Instruct.Q4_1.gguf",
                     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "qwen2.5-coder-0.5b": ("qwen2.5-coder-0.5b.gguf",
                           "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
}
LONG, GREEDY, TOP = 1000, 32, 20


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def prompts(tokenizer):
    """Name and ids: a question, code to go on with, and about a thousand tokens of prose with a fact inside."""
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    yield "question", encode(chat("What is the capital of France?"))
    yield "code", encode("def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n")
    sentences = HAYSTACK.read_text().splitlines()[:400]
    fact = "The special magic number for Lisbon is 7214."
    question = "\n\nWhat is the special magic number for Lisbon? Answer with only the number."
    n = next(n for n in range(10, 400)
             if len(encode(chat(" ".join(sentences[:n]) + fact + question))) >= LONG)
    text = " ".join(sentences[:n // 3] + [fact] + sentences[n // 3:n])
    yield "needle", encode(chat(text + question))


def golden(model, ids):
    n = len(ids)
    positions = sorted({0, 1, n // 4, n // 2, n - 2, n - 1})
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True)
        rows = out.logits[0, positions]
        step, cache = out.logits[0, -1], out.past_key_values
        greedy, gaps = [], []
        for _ in range(GREEDY):
            best = step.topk(2)
            greedy.append(int(best.indices[0]))
            gaps.append(round(float(best.values[0] - best.values[1]), 4))
            out = model(torch.tensor([[greedy[-1]]]), past_key_values=cache, use_cache=True)
            step, cache = out.logits[0, -1], out.past_key_values
    top = rows.topk(TOP)
    return {
        "ids": ids,
        "positions": positions,
        "top_ids": top.indices.tolist(),
        "top_logits": [[float(f"{x:.7g}") for x in row] for row in top.values.tolist()],
        "mean_logits": [float(f"{x:.7g}") for x in rows.mean(-1).tolist()],
        "greedy_ids": greedy,
        "greedy_gaps": gaps,
    }


def main():
    directory = pathlib.Path(sys.argv[1])
    for name, (file, sha256) in MODELS.items():
        if hashlib.sha256((directory / file).read_bytes()).hexdigest() != sha256:
            raise SystemExit(f"{file}: not the file these numbers are for")
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16).to(torch.float32) if p.ndim == 2 else p.data
        parts = []
        for prompt, ids in prompts(tokenizer):
            result = golden(model, ids)
            print(name, prompt, len(ids), min(result["greedy_gaps"]), repr(tokenizer.decode(result["greedy_ids"])))
            body = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
            parts.append(f'  {json.dumps(prompt)}: {{\n{body}\n  }}')
        made = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager"
        header = f' "file": {json.dumps(file)},\n "sha256": {json.dumps(sha256)},\n "made_with": {json.dumps(made)},'
        (HERE / f"{name}.json").write_text("{\n" + header + '\n "prompts": {\n' + ",\n".join(parts) + "\n }\n}\n")


if __name__ == "__main__":
    main()
