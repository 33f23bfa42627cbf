"""Asks a router over gRPC."""

import concurrent.futures
import os
import threading
import time

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it would write across the progress bar

import grpc  # noqa: E402

from lab import compression_fields, divergence, wire  # noqa: E402
from lab.runner import Failed, Refused, Reply  # noqa: E402
from lab.sample import Turn  # noqa: E402

DETAILS = "grpc-status-details-bin"
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
REFERENCES = 8  # distributions of full KV that are kept: each is asked for by all methods, one after the other


class Client:
    """ask() from any thread."""

    def __init__(self, router, tokens, timeout, patience, loss=False):
        """loss: every answer brings what the servers measured that compression lost on its prompt."""
        self.tokens, self.timeout, self.patience, self.loss = tokens, timeout, patience, loss
        channel = grpc.insecure_channel(router, options=[("grpc.max_receive_message_length", 64 << 20)])
        self.inference = wire.Service(channel, "Inference")
        self.sessions = wire.Service(channel, "Sessions")
        self.models = wire.Service(channel, "Models")
        self.stopping = threading.Event()  # no pause outlasts it
        self.served = _Once(lambda _: self.model(), 1)
        self.reference = _Once(self._reference, REFERENCES)

    def model(self):
        """The model that is served. Failed where nothing answers."""
        request = wire.message("ListModelsRequest")()
        return self._patiently(lambda: self.models.ListModels(request, timeout=self.timeout)).models[0]

    def check_tokenizer(self, text):
        """ValueError where the server makes another number of tokens of the text than ours."""
        request = wire.message("CompleteRequest")(prompt=text, compression={"preset": "full"})
        _greedy(request, Turn(text, max_tokens=1), ())
        response = self._patiently(lambda: self.inference.Complete(request, timeout=self.timeout))
        ours, theirs = self.tokens.count(text), response.done.usage.prompt_tokens
        if ours != theirs:
            raise ValueError(f"--model: its tokenizer makes {ours} tokens of a text, the server {theirs}: name the "
                             "served model's own")

    def ask(self, sample, method, budget):
        """The sample's replies, turn by turn. A sample that is interrupted starts anew: its session is deleted."""
        spec = compression_fields.fill(wire.message("CompressionSpec")(), method, budget)
        way = {"completion": self._complete, "session": self._converse, "forks": self._ask_forks,
               "forced": self._force}[sample.form]
        return self._patiently(lambda: way(sample, spec))

    def _patiently(self, call):
        """The call's result. Where the server says that it may be repeated, it is, after the pause that it names."""
        give_up, pause = time.monotonic() + self.patience, FIRST_PAUSE
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                again, named = _verdict(error)
                text = f"{error.code().name}: {error.details()}"
                if error.code() in REFUSALS:
                    raise Refused(text) from None
                wait = named if named is not None else pause
                if not again or time.monotonic() + wait > give_up or self.stopping.wait(wait):
                    raise Failed(text) from None
                pause = min(2 * pause, LONGEST_PAUSE)

    def _complete(self, sample, spec):
        (turn,) = sample.turns
        request = wire.message("CompleteRequest")(prompt_token_ids={"ids": self.tokens.ids(turn.text)},
                                                  compression=spec)
        _greedy(request, turn, sample.stop)
        request.output.compression_loss = self.loss
        return [_reply(self.inference.Complete(request, timeout=self.timeout))]

    def _force(self, sample, spec):
        """The given continuation, or full KV's own, under `spec`, and how far its steps are from full KV's."""
        ids, full = self.reference(sample)
        response = self._complete_forced(sample, spec, ids)
        kl, agreement = divergence.over(full, _steps(response))
        reply, served = _reply(response), self.served(None)
        whole = served.max_logprobs == served.vocabulary
        facts = {**reply.facts, "kl": kl, "kl_whole": whole, "token_ids": list(response.token_ids)}
        return [Reply(reply.text, facts, agreement)]

    def _reference(self, sample):
        (turn,) = sample.turns
        ids = self.tokens.ids(turn.follow)[:turn.max_tokens]
        response = self._complete_forced(sample, wire.message("CompressionSpec")(preset="full"), ids)
        return list(response.token_ids), _steps(response)

    def _complete_forced(self, sample, spec, ids):
        (turn,), told = sample.turns, self.served(None).max_logprobs
        if told < 1:
            raise Refused("the router tells no log-probabilities: start it with --max-logprobs -1")
        request = wire.message("CompleteRequest")(prompt_token_ids={"ids": self.tokens.ids(turn.text)},
                                                  compression=spec)
        _greedy(request, turn, ())
        request.stopping.ignore_eos = True
        request.sampling.forced_token_ids.extend(ids)
        request.output.compression_loss = self.loss
        request.output.logprobs = True
        request.output.top_logprobs = told
        return self.inference.Complete(request, timeout=self.timeout)

    def _converse(self, sample, spec):
        id_ = self._create()
        try:
            return [self._say(id_, turn, spec) for turn in sample.turns]
        finally:
            self._delete(id_)

    def _ask_forks(self, sample, spec):
        id_ = self._create()
        try:
            replies = [self._say(id_, sample.turns[0], spec)]
            for turn in sample.turns[1:]:
                request = wire.message("ForkSessionRequest")(session_id=id_)
                fork = self.sessions.ForkSession(request, timeout=self.timeout).id
                try:
                    replies.append(self._say(fork, turn, spec))
                finally:
                    self._delete(fork)
            return replies
        finally:
            self._delete(id_)

    def _create(self):
        return self.sessions.CreateSession(wire.message("CreateSessionRequest")(), timeout=self.timeout).id

    def _delete(self, id_):
        try:
            self.sessions.DeleteSession(wire.message("DeleteSessionRequest")(session_id=id_), timeout=self.timeout)
        except grpc.RpcError:
            pass  # the server forgets it by its own rules

    def _say(self, session, turn, spec):
        request = wire.message("ChatRequest")(compression=spec, session_turn={
            "session_id": session, "new_messages": [{"role": "user", "content": turn.text}]})
        _greedy(request, turn, ())
        request.output.compression_loss = self.loss
        return _reply(self.inference.Chat(request, timeout=self.timeout))


class _Once:
    """call(key), and its last few results; who asks while it is under way waits for it. Errors are not kept."""

    def __init__(self, call, keep):
        self.call, self.keep, self.lock, self.results = call, keep, threading.Lock(), {}

    def __call__(self, key):
        with self.lock:
            result = self.results.get(key)
            mine = result is None
            if mine:
                result = self.results[key] = concurrent.futures.Future()
                while len(self.results) > self.keep:
                    del self.results[next(iter(self.results))]
        if mine:
            try:
                result.set_result(self.call(key))
            except BaseException as error:
                with self.lock:
                    self.results.pop(key, None)
                result.set_exception(error)
        return result.result()


def _steps(response):
    return [{told.token_id: told.logprob for told in step.top} for step in response.logprobs]


def _greedy(request, turn, stop):
    request.sampling.temperature = 0
    request.stopping.max_tokens = turn.max_tokens
    request.stopping.stop.extend(stop)


def _reply(response):
    report, usage, timings = response.done.compression, response.done.usage, response.done.timings
    return Reply(response.text, {
        "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens, "applied": report.method, "off": report.off_reason,
        "kept_tokens": report.kept_tokens_mean, "read_tokens": report.read_tokens,
        "kv_bytes_full": report.kv_bytes_full, "kv_bytes_kept": report.kv_bytes_kept, "wire_bytes": report.wire_bytes,
        "prefill_seconds": round(timings.prefill_seconds, 6), "total_seconds": round(timings.total_seconds, 6),
        **_loss(report)})


def _loss(report):
    """As fields of the record; nothing where it was not asked for."""
    if not report.HasField("loss"):
        return {}
    loss = report.loss
    if loss.skipped:
        return {"loss_skipped": loss.skipped}
    return {"retained_mass": [round(mass, 4) for mass in loss.retained_mass], "top1_tokens": loss.top1_tokens,
            "top1_agreed": loss.top1_agreed}


def _verdict(error):
    """(whether to ask again, after how many seconds if the server says so)."""
    reason, delay = "", None
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS:
            continue
        status = wire.message("RpcStatus").FromString(value)
        for detail in status.details:
            if detail.type_url.endswith("google.rpc.RetryInfo"):
                retry = wire.message("RetryInfo").FromString(detail.value).retry_delay
                delay = retry.seconds + retry.nanos / 1e9
            elif detail.type_url.endswith("google.rpc.ErrorInfo"):
                reason = wire.message("ErrorInfo").FromString(detail.value).reason
    # A lost worker took tokens with it that were shown to somebody; here nobody has seen them.
    again = delay is not None or error.code() == grpc.StatusCode.UNAVAILABLE or reason == "WORKER_LOST"
    return again, delay
