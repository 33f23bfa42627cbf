"""The generators: lengths, seeds, depths, keys, and that every wanted string is there to be found."""

import pathlib
import re
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import word_tokens  # noqa: E402
from lab import sample as sample_lib  # noqa: E402
from lab import tasks, texts  # noqa: E402

TEXTS = texts.Texts(HERE.parents[1] / "models/needle-14m")
LENGTH = 4096
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def make(task, length=LENGTH, index=0, seed=1):
    return tasks.TASKS[task](TEXTS, sample_lib.rng_of(seed, task, length, index), length, index, word_tokens.count)


def tokens(sample):
    """Of the longest prompt with its answers."""
    of = [word_tokens.count(turn.text) + turn.max_tokens for turn in sample.turns]
    return of[0] + max(of[1:]) if sample.form == "forks" else sum(of)


def sentences(text):
    return len(re.findall(r"[.!?]\W*\s", text))


def spoken(sample):
    """All that the user says, turn by turn."""
    return "\n".join(turn.text for turn in sample.turns)


class Generators(unittest.TestCase):
    def test_prompt_and_answer_fit_the_length_and_nearly_fill_it(self):
        for task in tasks.TASKS:
            for length in (2048, LENGTH):
                sample = make(task, length)
                used = tokens(sample)
                with self.subTest(task=task, length=length, used=used):
                    self.assertLessEqual(used, length)
                    self.assertGreater(used, length * (0.6 if length == 2048 else 0.75))

    def test_every_reference_is_in_the_prompt(self):
        for task in (task for task in tasks.TASKS if make(task).form != "forced"):
            for index in range(3):
                sample = make(task, index=index)
                said, scored = spoken(sample), [turn for turn in sample.turns if turn.refs]
                with self.subTest(task=task, index=index):
                    self.assertTrue(scored)
                    for turn in scored:
                        for ref in turn.refs:
                            self.assertIn(ref, said)

    def test_the_same_seed_gives_the_same_sample_and_another_seed_another_one(self):
        for task in tasks.TASKS:
            with self.subTest(task=task):
                self.assertEqual(make(task, index=3), make(task, index=3))
                self.assertNotEqual(make(task, index=3), make(task, index=4))
                self.assertNotEqual(make(task, index=3), make(task, index=3, seed=2))

    def test_a_seed_gives_these_prompts_for_ever(self):
        # Results are kept under task, length, seed and index: another prompt under the same ones would mix with them.
        self.assertEqual(make("niah_multikey_1", 1024).turns[0].refs, ("6730776",))
        self.assertEqual(make("turns_kv", 2048).turns[1].refs, ("950bc099-6de0-4d1f-a7fd-8e2efe506b97",))

    def test_completions_end_where_the_answer_begins(self):
        for task in tasks.GROUPS["ruler"]:
            prompt = make(task).turns[0].text
            with self.subTest(task=task):
                self.assertTrue(prompt.startswith("<|im_start|>user\n"))
                self.assertRegex(prompt, r"<\|im_end\|>\n<\|im_start\|>assistant\n\S.*\S$")

    def test_too_short_a_length_is_an_error_with_numbers(self):
        with self.assertRaisesRegex(ValueError, "tokens without any filling"):
            make("niah_single_1", 200)


class Forced(unittest.TestCase):
    def test_a_book_goes_on_where_its_prompt_ends(self):
        sample = make("prose_text")
        turn = sample.turns[0]
        self.assertGreaterEqual(word_tokens.count(turn.follow), turn.max_tokens)
        book = " ".join(TEXTS.sentences + TEXTS.sentences)
        self.assertTrue(turn.text.startswith("<|endoftext|>"))  # as documents open
        self.assertTrue(turn.text.removeprefix("<|endoftext|>") + turn.follow in book)
        self.assertEqual(make("prose").turns[0].follow, "")  # as the model says


class Depths(unittest.TestCase):
    def test_niah_a_and_b_go_through_ten_depths(self):
        for task in ("niah_a", "niah_b"):
            depths = [make(task, 1024, index).depth for index in range(11)]
            self.assertEqual(depths[:10], [i / 9 for i in range(10)])
            self.assertEqual(depths[10], 0)

    def test_the_needle_lies_at_its_depth(self):
        for task in ("niah_a", "niah_b", "niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2"):
            for index in (0, 4, 9):
                sample = make(task, index=index)
                prompt = sample.turns[0].text
                place = sentences(prompt[:prompt.index(sample.turns[0].refs[0])]) / sentences(prompt)
                with self.subTest(task=task, index=index, depth=sample.depth):
                    self.assertAlmostEqual(place, sample.depth, delta=0.06)

    def test_needles_of_an_essay_stand_at_different_depths(self):
        for index in range(20):
            rng = sample_lib.rng_of(1, "x", 1, index)
            self.assertEqual(len(set(tasks.ruler_niah.places(rng, 8))), 8)

    def test_inserting_keeps_order_and_everything(self):
        lines = [str(i) for i in range(10)]
        out = sample_lib.insert_at_depths(lines, ["b", "a", "c"], [0.5, 0.0, 1.0])
        self.assertEqual(out, ["a", *lines[:5], "b", *lines[5:], "c"])
        self.assertEqual(sample_lib.insert_at_depths([], ["x", "y"], [0.9, 0.1]), ["x", "y"])


class Needles(unittest.TestCase):
    def test_keys_and_values_are_unique(self):
        for task in ("niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery"):
            found = re.findall(r"One of the special magic (\w+) for (\S+) is: (\S+)\.", make(task).turns[0].text)
            keys, values = [key for _, key, _ in found], [value for _, _, value in found]
            with self.subTest(task=task):
                self.assertEqual(len(set(values)), len(values))
                self.assertEqual(len(set(keys)), 1 if task == "niah_multivalue" else len(keys))
                self.assertEqual(len(keys) > 30, task in ("niah_multikey_2", "niah_multikey_3"))

    def test_as_many_needles_as_ruler_has(self):
        wanted = {"niah_single_1": (1, 1), "niah_single_2": (1, 1), "niah_single_3": (1, 1), "niah_multikey_1": (4, 1),
                  "niah_multivalue": (4, 4), "niah_multiquery": (4, 4)}
        for task, (there, asked) in wanted.items():
            sample = make(task)
            self.assertEqual(sample.turns[0].text.count("One of the special magic"), there, task)
            self.assertEqual(len(sample.turns[0].refs), asked, task)

    def test_values_are_of_their_kind_and_stand_once(self):
        for task in ("niah_single_1", "niah_single_2", "niah_multikey_1"):
            sample = make(task)
            self.assertRegex(sample.turns[0].refs[0], r"^\d{7}$")
            self.assertEqual(sample.turns[0].text.count(sample.turns[0].refs[0]), 1)
        for task in ("niah_single_3", "niah_multikey_3"):
            self.assertRegex(make(task).turns[0].refs[0], UUID)

    def test_one_needle_is_asked_for_in_the_singular(self):
        one, many = make("niah_single_2").turns[0].text, make("niah_multiquery").turns[0].text
        self.assertIn("A special magic number is hidden within the following text. Make sure to memorize it. I will "
                      "quiz you about the number afterwards.", one)
        self.assertRegex(one, r"What is the special magic number for \S+ mentioned in the provided text\?")
        self.assertRegex(many, r"What are all the special magic numbers for \S+, \S+, \S+, and \S+ mentioned in the")


class Aggregation(unittest.TestCase):
    def test_the_chain_leads_from_the_value_through_all_variables(self):
        sample = make("vt")
        question = sample.turns[0].text.rsplit("Memorize and track", 1)[1]
        names = sample.turns[0].refs
        value = re.search(rf"VAR {names[0]} = (\d{{5}})\n", question)[1]
        self.assertIn(f"assigned the value {value} in the text above", question)
        places = [question.index(f"VAR {b} = VAR {a}") for a, b in zip(names, names[1:])]
        self.assertEqual(places, sorted(places))
        self.assertNotIn("Memorize and track", make("vt_plain").turns[0].text.split("Memorize and track", 1)[1])

    def test_the_common_words_are_the_most_common_ones(self):
        for length, times in ((2048, 6), (LENGTH, 30)):
            sample = make("cwe", length)
            words = re.findall(r"\d+\. (\S+)", sample.turns[0].text.rsplit("Below is a numbered list", 1)[1])
            counts = {word: words.count(word) for word in set(words)}
            self.assertEqual({word for word, n in counts.items() if n == times}, set(sample.turns[0].refs))
            self.assertEqual(len(sample.turns[0].refs), 10)

    def test_the_frequent_words_are_ranks_two_to_four(self):
        sample = make("fwe")
        words = sample.turns[0].text.split("coded words. ")[1].split("\nQuestion")[0].split(" ")
        ranks = sorted(set(words), key=words.count, reverse=True)
        self.assertEqual(ranks[0], "...")
        self.assertEqual(set(ranks[1:4]), set(sample.turns[0].refs))


class Conversations(unittest.TestCase):
    def test_turns_ask_for_different_facts(self):
        for task in tasks.CONVERSATIONS:
            sample = make(task)
            refs = [turn.refs for turn in sample.turns if turn.refs]
            with self.subTest(task=task):
                self.assertEqual(len(set(refs)), len(refs))
                self.assertGreaterEqual(len(refs), 4)

    def test_no_later_question_is_known_at_the_first_turn(self):
        for task in ("turns_needles", "turns_late_document", "questions_apart"):
            sample = make(task)
            for turn in sample.turns[1:]:
                if turn.refs and "Here is another text" not in turn.text:
                    self.assertNotIn(turn.text, sample.turns[0].text, task)

    def test_the_second_document_comes_late_and_holds_its_own_facts(self):
        sample = make("turns_late_document")
        late = [i for i, turn in enumerate(sample.turns) if turn.text.startswith("Here is another text:")]
        self.assertEqual(late, [4])
        first, second = sample.turns[0].text, sample.turns[4].text
        self.assertIn(sample.turns[5].refs[0], first)
        self.assertNotIn(sample.turns[5].refs[0], second)
        self.assertIn(sample.turns[6].refs[0], second)

    def test_questions_apart_are_forks_of_a_document_without_a_question(self):
        sample = make("questions_apart")
        self.assertEqual(sample.form, "forks")
        self.assertEqual(sample.turns[0].refs, ())
        self.assertNotIn("special magic number for", sample.turns[0].text.rsplit("\n\n", 1)[1])


class Code(unittest.TestCase):
    def test_the_function_asked_for_is_there_once_with_its_lines(self):
        sample = make("code_function")
        prompt = sample.turns[0].text
        name = re.search(r"Repeat the function (\S+) exactly", prompt)[1]
        body = prompt.split(f"def {name}(", 1)[1]
        self.assertEqual(tuple(line.strip() for line in body.splitlines()[:len(sample.turns[0].refs)]),
                         sample.turns[0].refs)
        self.assertEqual(prompt.count(f"def {name}("), 2)  # and where the answer begins
        self.assertTrue(prompt.endswith(f"\ndef {name}("))


if __name__ == "__main__":
    unittest.main()
