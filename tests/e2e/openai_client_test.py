"""OpenAI's own Python client against `sluice up`: real processes, nothing special in the client.

openai_client_test.py SLUICE MODEL: the sluice command, and a model's path. Exits 77 where the client is not installed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

try:
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; tests/e2e/fetch_openai.sh fetches it")
    sys.exit(77)

SLUICE, MODEL = sys.argv[1:3]
PATIENCE = 60 * float(os.environ.get("SLUICE_TEST_PATIENCE", "1"))
FACT = "One of the special magic numbers for quiet-harbor is: 4718293."
QUESTION = ("What is the special magic number for quiet-harbor mentioned in the provided text? "
            "Answer with only the number.")
PROSE = "The river went on past the mill, and nobody asked where it was going. "


class Servers:
    """Router, prefill and decode on ports of their own."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        for _ in range(20):
            base = random.randrange(20000, 50000)
            self.process = subprocess.Popen(
                [SLUICE, "up", "--model", MODEL, "--port-base", str(base), "--threads", "1", "--prefill-device", "cpu",
                 "--decode-device", "cpu", "--log-dir", self.directory.name],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            words = dict(word.split("=") for word in self.process.stdout.readline().split()[1:])
            if "http" in words:
                self.router, self.http = words["router"], words["http"]
                return
            self.process.wait()
        raise RuntimeError("sluice up did not start")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        self.directory.cleanup()

    def command(self, *arguments):
        """What the command line, which speaks gRPC, prints."""
        return subprocess.run([SLUICE, *arguments, "--router", self.router], capture_output=True, text=True, check=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL).stdout


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = Servers()
        cls.client = openai.OpenAI(base_url=f"http://{cls.servers.http}/v1", api_key="none", timeout=PATIENCE)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.servers.stop()

    def ask(self, content, **more):
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": content}], **{"temperature": 0, **more})

    def test_models(self):
        listed = self.client.models.list().data
        self.assertEqual([model.id for model in listed], [self.model])
        self.assertEqual(self.client.models.retrieve(self.model), listed[0])
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_a_chat_answers(self):
        reply = self.ask(f"{FACT}\n{QUESTION}", max_completion_tokens=32)
        self.assertIn("4718293", reply.choices[0].message.content)
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)
        self.assertGreater(reply.usage.prompt_tokens, 20)
        self.assertEqual(reply.id, f"chatcmpl-{reply._request_id}")

    def test_unary_is_the_stream(self):
        asked = dict(temperature=0.8, seed=11, max_tokens=40, logprobs=True, top_logprobs=3,
                     extra_body={"ignore_eos": True, "top_k": 50})
        unary = self.ask(PROSE * 3, **asked)
        text, logprobs, finish, usage, report = "", [], None, None, None
        for chunk in self.ask(PROSE * 3, stream=True, stream_options={"include_usage": True}, **asked):
            usage, report = chunk.usage, getattr(chunk, "sluice", None)
            for choice in chunk.choices:
                text += choice.delta.content or ""
                logprobs += choice.logprobs.content if choice.logprobs else []
                finish = choice.finish_reason or finish
        choice = unary.choices[0]
        self.assertEqual(text, choice.message.content)
        self.assertEqual(finish, choice.finish_reason)
        self.assertEqual(finish, "length")
        self.assertEqual(logprobs, choice.logprobs.content)
        self.assertEqual(len(logprobs), 40)
        self.assertTrue(all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in logprobs))
        self.assertEqual(usage, unary.usage)
        self.assertEqual(report["compression"], unary.sluice["compression"])

    def test_a_stop_string_is_not_shown(self):
        whole = self.ask(PROSE, max_tokens=24, extra_body={"ignore_eos": True}).choices[0].message.content
        stop = whole[8:11]
        cut = self.ask(PROSE, max_tokens=24, stop=[stop], extra_body={"ignore_eos": True}).choices[0]
        self.assertEqual(cut.message.content, whole[:whole.index(stop)])
        self.assertEqual(cut.finish_reason, "stop")

    def test_completions(self):
        asked = dict(model=self.model, prompt=PROSE, max_tokens=12, temperature=0, logprobs=2,
                     extra_body={"ignore_eos": True})
        unary = self.client.completions.create(**asked)
        self.assertEqual(unary.object, "text_completion")
        self.assertEqual(len(unary.choices[0].logprobs.tokens), 12)
        self.assertEqual("".join(unary.choices[0].logprobs.tokens), unary.choices[0].text)
        text = "".join(chunk.choices[0].text for chunk in self.client.completions.create(stream=True, **asked))
        self.assertEqual(text, unary.choices[0].text)
        ids = json.load(urllib.request.urlopen(urllib.request.Request(
            f"http://{self.servers.http}/tokenize", json.dumps({"prompt": PROSE}).encode())))["tokens"]
        same = self.client.completions.create(**{**asked, "prompt": ids})
        self.assertEqual(same.choices[0].text, unary.choices[0].text)

    def test_compression_is_asked_for_and_reported(self):
        reply = self.ask(f"{PROSE * 60}{FACT}\n{PROSE * 60}\n{QUESTION}", max_tokens=16,
                         extra_body={"sluice": {"compression": {"preset": "snapkv", "budgetTokens": 256}}})
        report = reply.sluice["compression"]
        self.assertEqual(report["method"], "snapkv")
        self.assertEqual(report["retention_budget"], 256)
        self.assertLess(int(report["kv_bytes_kept"]), int(report["kv_bytes_full"]) / 2)

    def test_errors_are_the_clients_own(self):
        for error, field, more in [
                (openai.BadRequestError, "temperature", {"temperature": 3}),
                (openai.BadRequestError, "response_format", {"response_format": {"type": "json_object"}}),
                (openai.BadRequestError, "tools",
                 {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
                (openai.BadRequestError, "no_such_field", {"extra_body": {"no_such_field": 1}}),
                (openai.BadRequestError, "max_tokens", {"max_tokens": 0}),
                (openai.BadRequestError, "temperature", {"temperature": 3, "stream": True})]:
            with self.subTest(field=field), self.assertRaises(error) as caught:
                self.ask("hi", **more)
            self.assertEqual(caught.exception.param, field)
            self.assertIn(field, caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask("word " * 40000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_client_that_leaves_a_stream_harms_nobody(self):
        stream = self.ask(PROSE, stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertIn("4718293", self.ask(f"{FACT}\n{QUESTION}", max_tokens=32).choices[0].message.content)

    def test_a_session_is_the_same_over_grpc(self):
        self.servers.command("chat", "--ask", f"{PROSE * 20}{FACT}\n{PROSE * 5}Are you there?", "--max-tokens", "8")
        session = self.servers.command("sessions", "list").split()
        session = next(word for word in session if len(word) == 32)
        turn = {"sluice": {"session_id": session}}
        reply = self.ask(QUESTION, max_tokens=16, extra_body=turn)
        self.assertIn("4718293", reply.choices[0].message.content)  # it was said over gRPC
        self.assertEqual(reply.sluice["session_id"], session)
        self.assertGreater(reply.usage.prompt_tokens_details.cached_tokens, 100)
        with self.assertRaises(openai.ConflictError):
            self.ask("again", extra_body={"sluice": {**turn["sluice"], "parent_turn_id": "0" * 32}})
        third = json.loads(self.servers.command("chat", "--session", session, "--ask", QUESTION, "--max-tokens", "16",
                                                "--json").splitlines()[-1])
        self.assertIn("4718293", third["answer"])
        self.assertGreater(third["cached_tokens"], 0.8 * reply.usage.prompt_tokens)  # whole chunks are kept


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
