"""The client against a router made up here: what may be done again is done again, when the router says."""

import concurrent.futures
import math
import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from lab import methods, runner  # noqa: E402
from lab.sample import Sample, Turn  # noqa: E402

try:
    from lab import client as client_lib
    from lab import wire

    import grpc
    MISSING = ""
except ImportError as error:
    MISSING = f"needs requirements.txt: {error}"


class ByteTokens:
    """Stands in for a tokenizer: a byte is a token."""

    def ids(self, text):
        return list(text.encode())

    def count(self, text):
        return len(self.ids(text))


class FakeRouter:
    """Serves the calls that the client makes. `troubles`: (code, reason, retry seconds or None) for the next calls of
    Chat and Complete, one each, before they succeed again."""

    def __init__(self):
        self.troubles, self.calls, self.live, self.times, self.extra_tokens = [], [], set(), [], 0
        self.told = 3  # of a vocabulary of three
        self.loss = wire.message("CompressionLoss")(retained_mass=[1, 0.5], top1_tokens=8, top1_agreed=6)
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        calls = {"Inference": {"Complete": self.complete, "Chat": self.chat},
                 "Models": {"ListModels": self.models},
                 "Sessions": {"CreateSession": self.create, "DeleteSession": self.delete, "ForkSession": self.fork}}
        for service, of in calls.items():
            types = {name: wire.message(f"{name}Request") for name in of}
            self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"sluice.v1.{service}", {
                name: grpc.unary_unary_rpc_method_handler(
                    call, request_deserializer=types[name].FromString,
                    response_serializer=lambda message: message.SerializeToString())
                for name, call in of.items()}),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def trouble(self, context):
        self.times.append(time.monotonic())
        if not self.troubles:
            return
        code, reason, delay = self.troubles.pop(0)
        status = wire.message("RpcStatus")(code=code.value[0], message="as told")
        if reason:
            status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo",
                               value=wire.message("ErrorInfo")(reason=reason).SerializeToString())
        if delay is not None:
            status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=wire.message("RetryInfo")(
                retry_delay={"nanos": int(delay * 1e9)}).SerializeToString())
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, "as told")

    def answer(self, text, tokens):
        response = wire.message("ChatResponse")(text=text)
        response.done.usage.prompt_tokens = tokens + self.extra_tokens
        response.done.compression.wire_bytes = 77
        return response

    def lose(self, request, response):
        if request.output.compression_loss:
            response.done.compression.loss.CopyFrom(self.loss)
        return response

    def complete(self, request, context):
        self.calls.append(request)
        self.trouble(context)
        response = self.answer("done", len(request.prompt_token_ids.ids) + len(request.prompt))
        if request.output.logprobs:
            self.tell(request, response)
        return self.lose(request, response)

    def tell(self, request, response):
        """Token 0 has a half, but with compression a quarter; the other two share what is left."""
        first = 0.5 if request.compression.preset == "full" else 0.25
        shares = {0: first, 1: (1 - first) / 2, 2: (1 - first) / 2}
        told = sorted(shares, key=lambda token: (-shares[token], token))[:request.output.top_logprobs]
        said = list(request.sampling.forced_token_ids) or [0] * request.stopping.max_tokens
        response.token_ids.extend(said)
        for token in said:
            step = response.logprobs.add(chosen={"token_id": token, "logprob": math.log(shares[token])})
            for other in told:
                step.top.add(token_id=other, logprob=math.log(shares[other]))

    def models(self, request, context):
        return wire.message("ListModelsResponse")(models=[{"id": "m", "vocabulary": 3, "max_logprobs": self.told}])

    def chat(self, request, context):
        turn = request.session_turn
        self.calls.append((turn.session_id, turn.new_messages[0].content))
        self.trouble(context)
        return self.lose(request, self.answer(turn.new_messages[0].content.upper(), 5))

    def create(self, request, context):
        return self.new("s")

    def fork(self, request, context):
        return self.new(request.session_id + "f")

    def new(self, name):
        id_ = f"{name}{len(self.live)}{len(self.calls)}"
        self.live.add(id_)
        return wire.message("Session")(id=id_)

    def delete(self, request, context):
        self.live.remove(request.session_id)
        return wire.message("DeleteSessionResponse")()


@unittest.skipIf(MISSING, MISSING)
class ClientTest(unittest.TestCase):
    COMPLETION = Sample("completion", (Turn("prompt", ("done",), 9),), stop=("\n",))

    def setUp(self):
        self.router = FakeRouter()
        self.addCleanup(self.router.server.stop, None)
        self.client = client_lib.Client(f"127.0.0.1:{self.router.port}", ByteTokens(), timeout=30, patience=20)

    def ask(self, sample, text="snapkv:window=16", budget=64):
        return self.client.ask(sample, methods.parse(text), budget)

    def test_a_completion_says_what_it_was_told(self):
        (reply,) = self.ask(self.COMPLETION)
        (request,) = self.router.calls
        self.assertEqual((reply.text, reply.facts["wire_bytes"], reply.facts["prompt_tokens"]), ("done", 77, 6))
        self.assertEqual(bytes(request.prompt_token_ids.ids), b"prompt")
        self.assertEqual((request.compression.preset, request.compression.window, request.compression.budget_tokens),
                         ("snapkv", 16, 64))
        self.assertEqual((request.stopping.max_tokens, list(request.stopping.stop)), (9, ["\n"]))
        self.assertTrue(request.sampling.HasField("temperature"))
        self.assertEqual(request.sampling.temperature, 0)

    FORCED = Sample("forced", (Turn("prompt", (), 4),), "agreement")
    # Of (1/2, 1/4, 1/4) to (1/4, 3/8, 3/8).
    KL = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)

    def test_what_full_kv_says_is_forced_upon_every_method(self):
        (reply,), (again,) = self.ask(self.FORCED), self.ask(self.FORCED, budget=128)
        full, compressed, other = self.router.calls  # full KV is asked once
        self.assertEqual((full.compression.preset, list(full.sampling.forced_token_ids)), ("full", []))
        self.assertEqual(list(compressed.sampling.forced_token_ids), [0, 0, 0, 0])
        self.assertEqual((compressed.compression.preset, compressed.compression.budget_tokens), ("snapkv", 64))
        self.assertEqual(other.compression.budget_tokens, 128)
        self.assertTrue(full.stopping.ignore_eos and compressed.stopping.ignore_eos)
        self.assertEqual(compressed.output.top_logprobs, 3)
        self.assertAlmostEqual(reply.facts["kl"], self.KL, places=6)
        self.assertEqual((reply.score, reply.facts["kl_whole"], again.score), (0, True, 0))
        (same,) = self.ask(self.FORCED, "full")
        self.assertEqual((same.score, same.facts["kl"]), (1, 0))

    def test_a_given_text_is_forced_upon_full_kv_too(self):
        self.ask(Sample("forced", (Turn("prompt", (), 2, "\1\2\0\0"),), "agreement"))
        self.assertEqual([list(call.sampling.forced_token_ids) for call in self.router.calls], [[1, 2], [1, 2]])

    def test_few_log_probabilities_bound_the_divergence_and_none_are_refused(self):
        self.router.told = 1
        (reply,) = self.ask(self.FORCED)
        self.assertFalse(reply.facts["kl_whole"])
        self.assertLess(reply.facts["kl"], self.KL)
        self.router.told = 0
        with self.assertRaisesRegex(runner.Refused, "--max-logprobs"):
            client_lib.Client(f"127.0.0.1:{self.router.port}", ByteTokens(), 30, 20).ask(
                self.FORCED, methods.parse("full"), None)

    def test_what_compression_lost_comes_with_every_answer_if_it_is_asked_for(self):
        self.assertNotIn("retained_mass", self.ask(self.COMPLETION)[0].facts)
        self.client.loss = True
        conversation = Sample("session", (Turn("one", ("ONE",), 9), Turn("two", ("TWO",), 9)))
        for sample in (self.COMPLETION, self.FORCED, conversation):
            for reply in self.ask(sample):
                self.assertEqual([reply.facts[name] for name in ("retained_mass", "top1_tokens", "top1_agreed")],
                                 [[1, 0.5], 8, 6])
        self.router.loss = wire.message("CompressionLoss")(skipped="busy")
        (reply,) = self.ask(self.COMPLETION)
        self.assertEqual(reply.facts["loss_skipped"], "busy")
        self.assertNotIn("top1_tokens", reply.facts)

    def test_full_kv_that_does_not_answer_is_asked_again_by_all_who_wait(self):
        self.router.troubles = [(grpc.StatusCode.UNAVAILABLE, "", 0.05)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(self.ask, self.FORCED, "snapkv", budget) for budget in (64, 128)]
            self.assertEqual([reply.result()[0].score for reply in replies], [0, 0])
        self.assertEqual([call.compression.preset for call in self.router.calls].count("full"), 2)

    def test_it_waits_as_long_as_the_router_says(self):
        self.router.troubles = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.5)] * 2
        self.assertEqual(self.ask(self.COMPLETION)[0].text, "done")
        first, second, third = self.router.times
        self.assertGreaterEqual(second - first, 0.5)
        self.assertGreaterEqual(third - second, 0.5)

    def test_what_may_be_repeated_is(self):
        for trouble in ((grpc.StatusCode.UNAVAILABLE, "", None), (grpc.StatusCode.ABORTED, "WORKER_LOST", None)):
            self.router.troubles = [trouble]
            self.assertEqual(self.ask(self.COMPLETION)[0].text, "done")

    def test_what_may_not_be_repeated_is_not(self):
        for code, error in ((grpc.StatusCode.INVALID_ARGUMENT, runner.Refused),
                            (grpc.StatusCode.UNIMPLEMENTED, runner.Refused),
                            (grpc.StatusCode.INTERNAL, runner.Failed), (grpc.StatusCode.DATA_LOSS, runner.Failed),
                            (grpc.StatusCode.RESOURCE_EXHAUSTED, runner.Failed)):
            self.router.calls.clear()
            self.router.troubles = [(code, "", None)]
            with self.subTest(code=code), self.assertRaisesRegex(error, f"{code.name}: as told"):
                self.ask(self.COMPLETION)
            self.assertEqual(len(self.router.calls), 1)

    def test_patience_ends(self):
        self.client.patience = 0.6
        self.router.troubles = [(grpc.StatusCode.UNAVAILABLE, "", 0.25)] * 9
        with self.assertRaises(runner.Failed):
            self.ask(self.COMPLETION)
        self.assertLess(len(self.router.calls), 5)

    def test_a_session_is_spoken_to_turn_by_turn_and_deleted(self):
        sample = Sample("session", (Turn("one", ("ONE",)), Turn("two", ("TWO",))))
        self.assertEqual([reply.text for reply in self.ask(sample)], ["ONE", "TWO"])
        self.assertEqual([text for _, text in self.router.calls], ["one", "two"])
        self.assertEqual(len({id_ for id_, _ in self.router.calls}), 1)
        self.assertEqual(self.router.live, set())

    def test_a_session_that_is_interrupted_begins_anew_with_another_one(self):
        sample = Sample("session", (Turn("one"), Turn("two")))
        self.router.troubles = [(grpc.StatusCode.UNAVAILABLE, "", 0.01)]
        self.ask(sample)
        self.assertEqual([text for _, text in self.router.calls], ["one", "one", "two"])
        self.assertEqual(len({id_ for id_, _ in self.router.calls}), 2)
        self.assertEqual(self.router.live, set())

    def test_forks_see_the_document_and_not_each_other(self):
        sample = Sample("forks", (Turn("doc"), Turn("a", ("A",)), Turn("b", ("B",))))
        self.assertEqual([reply.text for reply in self.ask(sample)], ["DOC", "A", "B"])
        ids = [id_ for id_, _ in self.router.calls]
        self.assertEqual(len(set(ids)), 3)
        self.assertTrue(all(id_.startswith(ids[0] + "f") for id_ in ids[1:]))
        self.assertEqual(self.router.live, set())

    def test_another_tokenizer_than_the_servers_is_noticed(self):
        self.client.check_tokenizer("prompt")
        self.router.extra_tokens = 1
        with self.assertRaisesRegex(ValueError, "makes 6 tokens of a text, the server 7"):
            self.client.check_tokenizer("prompt")


if __name__ == "__main__":
    unittest.main()
