"""The tasks by name. A task is make(texts, rng, length, index, count) -> Sample: `length` bounds the prompt and the
answer in tokens, `count` says how many tokens a text is (special tokens parsed), `index` numbers the samples, and
everything random comes from rng. A task is one function and one line here."""

from lab.tasks import code, counting, forced, niah, ruler_niah, tracking, turns

TASKS = {
    # Kamradt's and RocketKV's needle, over a grid of depths.
    "niah_a": niah.niah_a,
    "niah_b": niah.niah_b,
    # RULER.
    "niah_single_1": ruler_niah.task(hay="noise"),
    "niah_single_2": ruler_niah.task(),
    "niah_single_3": ruler_niah.task(values="uuid"),
    "niah_multikey_1": ruler_niah.task(keys_there=4),
    "niah_multikey_2": ruler_niah.task(hay="needles"),
    "niah_multikey_3": ruler_niah.task(hay="needles", keys="uuid", values="uuid"),
    "niah_multivalue": ruler_niah.task(values_a_key=4),
    "niah_multiquery": ruler_niah.task(keys_there=4, keys_asked=4),
    "vt": tracking.vt,
    "vt_plain": tracking.vt_plain,
    "cwe": counting.cwe,
    "fwe": counting.fwe,
    # Long answers.
    "code_function": code.function,
    # No question at all.
    "prose": forced.prose,
    "prose_text": forced.prose_text,
    # Conversations.
    "turns_kv": turns.kv,
    "turns_needles": turns.needles,
    "turns_late_document": turns.late_document,
    "questions_apart": turns.questions_apart,
}

GROUPS = {
    "niah": [name for name in TASKS if name.startswith("niah_")],
    "ruler": [name for name in TASKS if name.startswith("niah_") and name not in ("niah_a", "niah_b")]
    + ["vt", "cwe", "fwe"],
    "turns": ["turns_kv", "turns_needles", "turns_late_document", "questions_apart"],
    "all": list(TASKS),
}
CONVERSATIONS = GROUPS["turns"]


def names(words):
    """Names and groups, expanded and in order; ValueError names the one that is unknown."""
    out = []
    for word in words:
        if word not in GROUPS and word not in TASKS:
            raise ValueError(f"unknown task \"{word}\"; known are {', '.join(TASKS)}, and the groups "
                             f"{', '.join(GROUPS)}")
        out += [name for name in GROUPS.get(word, [word]) if name not in out]
    return out
