"""A conversation of three questions over a long document with facts made up just now, through `sluice chat`.

Prints the answers and what compression saved. Exits 1 when a turn fails; and when an answer is wrong, unless
--chat-model says that the model is a general one, which may be unsure.
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
FIRST_NAMES = "Miriam Tomas Adaeze Henrik Yusuf Ottilie Ravi Celeste".split()
LAST_NAMES = "Okafor Lindqvist Marchetti Novak Haddad Thornbury Iyer Castellan".split()


def magic_numbers(rng):
    """What the bundled model was trained for. Each fact: its sentence, the question, the value, a short name."""
    keys = [f"{a}-{n}" for a, n in zip(rng.sample(ADJECTIVES, 3), rng.sample(NOUNS, 3))]
    facts = []
    for key in keys:
        value = str(rng.randrange(1000000, 10000000))
        facts.append((f"One of the special magic numbers for {key} is: {value}.",
                      f"What is the special magic number for {key} mentioned in the provided text? "
                      "Answer with only the number.", value, f"magic number for {key}"))
    return facts


def everyday_facts(rng):
    """The same for a general chat model."""
    keeper = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
    time = f"{rng.randrange(6, 12)}:{rng.randrange(10, 60)}"
    code = str(rng.randrange(1000, 10000))
    facts = [(f"The keeper of the lighthouse is called {keeper}.",
              "What is the name of the keeper of the lighthouse?", keeper, "keeper of the lighthouse"),
             (f"The ferry to the island leaves at {time} every morning.",
              "At what time does the ferry to the island leave?", time, "ferry to the island"),
             (f"The door of the archive opens with the code {code}.",
              "Which code opens the door of the archive?", code, "code of the archive")]
    rng.shuffle(facts)
    return facts


def make_document(haystack, characters, facts, rng):
    """Prose from a random place of the haystack with the facts' sentences spread over it."""
    sentences = [line for line in haystack.splitlines() if line.strip()]
    begin = rng.randrange(len(sentences) // 2)
    picked, size = [], 0
    for sentence in sentences[begin:]:
        picked.append(sentence.strip())
        size += len(sentence) + 1
        if size >= characters:
            break
    n = len(picked)
    for i, fact in reversed(list(enumerate(facts))):
        picked.insert(int(n * (i + rng.uniform(0.2, 0.8)) / len(facts)), fact[0])
    return " ".join(picked)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--router", required=True)
    parser.add_argument("--haystack", required=True)
    parser.add_argument("--chat-model", action="store_true", help="a general model: a shorter text, everyday facts")
    args = parser.parse_args()

    rng = random.SystemRandom()
    facts = everyday_facts(rng) if args.chat_model else magic_numbers(rng)
    characters, least_tokens = (6000, 1000) if args.chat_model else (42000, 8000)
    text = make_document(pathlib.Path(args.haystack).read_text(), characters, facts, rng)

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as document:
        document.write(text)
        document.flush()
        command = [args.sluice, "chat", "--router", args.router, "--file", document.name, "--preset", "sluice-mt",
                   "--budget", "512", "--temperature", "0", "--max-tokens", "64", "--json"]
        for _, question, _, _ in facts:
            command += ["--ask", question]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"sluice chat failed with exit code {done.returncode}")
    turns = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(turns) != len(facts):
        sys.exit(f"expected {len(facts)} answers, got {len(turns)}")
    if turns[0]["prompt_tokens"] < least_tokens:
        sys.exit(f"the document has {turns[0]['prompt_tokens']} tokens, fewer than {least_tokens}")

    wrong = 0
    for (_, _, value, name), turn in zip(facts, turns):
        right = value.lower() in turn["answer"].lower()
        wrong += not right
        verdict = "right" if right else f"{'unsure' if args.chat_model else 'WRONG'}, the text says {value}"
        print(f"  {name}: {' '.join(turn['answer'].split())}   {verdict}")
    print()
    print("  turn  prompt  from history  kept  read a step  KV on the wire  full KV   saved  first token  a token")
    for i, turn in enumerate(turns, 1):
        saved = turn["kv_bytes_full"] / max(1, turn["wire_bytes"])
        print(f"  {i:4}  {turn['prompt_tokens']:6}  {turn['cached_tokens']:12}  {turn['kept_tokens_mean']:4.0f}  "
              f"{turn['read_tokens']:11}  {turn['wire_bytes'] / 1e6:11.1f} MB  {turn['kv_bytes_full'] / 1e6:4.1f} MB  "
              f"{saved:5.1f}x  {turn['ttft_seconds']:9.2f} s  {turn['tpot_seconds'] * 1e3:4.1f} ms")
    if args.chat_model:
        print("\n  a small general model may be unsure: only a turn that fails ends this with an error")
    elif wrong:
        sys.exit(f"{wrong} of {len(facts)} answers are wrong")


if __name__ == "__main__":
    main()
