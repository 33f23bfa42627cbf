"""A conversation of three questions over a long document with facts made up just now, through `sluice chat`.

Prints the answers and what compression saved; exits 1 when an answer is wrong.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ADJECTIVES = "quiet amber frozen hollow rapid silver gentle crooked lonely golden".split()
NOUNS = "harbor lantern meadow glacier orchard compass violin thicket anchor raven".split()


def make_document(haystack, characters, facts, rng):
    """Prose from a random place of the haystack with one sentence a fact spread over it."""
    sentences = [line for line in haystack.splitlines() if line.strip()]
    begin = rng.randrange(len(sentences) // 2)
    picked, size = [], 0
    for sentence in sentences[begin:]:
        picked.append(sentence.strip())
        size += len(sentence) + 1
        if size >= characters:
            break
    for i, (key, value) in enumerate(facts):
        at = int(len(picked) * (i + rng.uniform(0.2, 0.8)) / len(facts))
        picked.insert(at, f"One of the special magic numbers for {key} is: {value}.")
    return " ".join(picked)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--router", required=True)
    parser.add_argument("--haystack", required=True)
    parser.add_argument("--characters", type=int, default=42000)
    parser.add_argument("--budget", type=int, default=512)
    args = parser.parse_args()

    rng = random.SystemRandom()
    keys = [f"{a}-{n}" for a, n in zip(rng.sample(ADJECTIVES, 3), rng.sample(NOUNS, 3))]
    facts = [(key, str(rng.randrange(1000000, 10000000))) for key in keys]
    text = make_document(pathlib.Path(args.haystack).read_text(), args.characters, facts, rng)
    questions = [
        f"What is the special magic number for {key} mentioned in the provided text? Answer with only the number."
        for key, _ in facts
    ]

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as document:
        document.write(text)
        document.flush()
        command = [args.sluice, "chat", "--router", args.router, "--file", document.name, "--preset", "sluice-mt",
                   "--budget", str(args.budget), "--temperature", "0", "--max-tokens", "32", "--json"]
        for question in questions:
            command += ["--ask", question]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"sluice chat failed with exit code {done.returncode}")
    turns = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(turns) != len(questions):
        sys.exit(f"expected {len(questions)} answers, got {len(turns)}")
    if turns[0]["prompt_tokens"] < 8000:
        sys.exit(f"the document has {turns[0]['prompt_tokens']} tokens, fewer than 8000")

    wrong = 0
    for (key, value), turn in zip(facts, turns):
        right = value in turn["answer"]
        wrong += not right
        print(f"  magic number for {key}: {turn['answer'].strip()}   {'right' if right else f'WRONG, it is {value}'}")
    print()
    print("  turn  prompt  from history  kept  read a step  KV on the wire  full KV   saved  first token  a token")
    for i, turn in enumerate(turns, 1):
        saved = turn["kv_bytes_full"] / max(1, turn["wire_bytes"])
        print(f"  {i:4}  {turn['prompt_tokens']:6}  {turn['cached_tokens']:12}  {turn['kept_tokens_mean']:4.0f}  "
              f"{turn['read_tokens']:11}  {turn['wire_bytes'] / 1e6:11.1f} MB  {turn['kv_bytes_full'] / 1e6:4.1f} MB  "
              f"{saved:5.1f}x  {turn['ttft_seconds']:9.2f} s  {turn['tpot_seconds'] * 1e3:4.1f} ms")
    if wrong:
        sys.exit(f"{wrong} of {len(facts)} answers are wrong")


if __name__ == "__main__":
    main()
