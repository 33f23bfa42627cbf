"""Carries out a grid: bounded parallelism, no sample twice, stop and go on."""

import collections
import concurrent.futures
import dataclasses
import functools
import threading

from lab import sample as sample_lib
from lab import scores, tasks

FAILURES_IN_A_ROW = 10


@dataclasses.dataclass(frozen=True)
class Reply:
    """What came back for one turn."""

    text: str
    facts: dict  # numbers and words for the record: tokens, bytes, seconds, what was applied
    score: float = None  # where it does not follow from the text


class Refused(Exception):
    """The server will not do this, however often it is asked: a result of the cell."""


class Failed(Exception):
    """No answer this time; the next run asks again."""


class Samples:
    """Samples by (task, length, index); the last few are kept, as all methods ask the same."""

    def __init__(self, texts, count, seed):
        self.texts, self.count, self.seed, self.lock = texts, count, seed, threading.Lock()
        self.make = functools.lru_cache(maxsize=64)(self._make)

    def _make(self, task, length, index):
        rng = sample_lib.rng_of(self.seed, task, length, index)
        return tasks.TASKS[task](self.texts, rng, length, index, self.count)

    def get(self, task, length, index):
        with self.lock:
            return self.make(task, length, index)


def record_of(job, sample, replies):
    """What is stored of one sample."""
    turns = []
    for turn, reply in zip(sample.turns, replies):
        entry = {"answer": reply.text, **reply.facts}
        if reply.score is not None:
            entry = {"score": reply.score, **entry}
        elif turn.refs:
            score = scores.SCORES[sample.score]
            entry = {"score": score(reply.text, turn.refs), "refs": list(turn.refs), **entry}
        turns.append(entry)
    scored = [turn["score"] for turn in turns if "score" in turn]
    return {**_head(job), "depth": sample.depth, "score": sum(scored) / len(scored), "turns": turns}


def refusal_of(job, why):
    return {**_head(job), "refused": str(why)}


def _head(job):
    return {"kind": "sample", "key": job.key, "task": job.task, "length": job.length, "method": job.method.name,
            "definition": job.method.definition, "budget": job.budget, "index": job.index, "seed": job.seed}


def run(jobs, samples, ask, store, parallel, step=lambda failed: None):
    """ask(sample, method, budget) -> [Reply]. step(failed) is called after each job. Returns the failures' texts; after
    ten in a row it gives up. KeyboardInterrupt: what is under way is waited for and stored, then raised again."""
    waiting = collections.deque(job for job in jobs if job.key not in store.done)
    failures, in_a_row = [], 0

    def one(job):
        sample, method = samples.get(job.task, job.length, job.index), job.method.at(job.length, job.budget)
        try:
            store.add(record_of(job, sample, ask(sample, method, job.budget)))
        except Refused as why:
            store.add(refusal_of(job, why))

    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        running = {}
        while (waiting and in_a_row < FAILURES_IN_A_ROW) or running:
            while waiting and len(running) < parallel and in_a_row < FAILURES_IN_A_ROW:
                job = waiting.popleft()
                running[pool.submit(one, job)] = job
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                job, failed = running.pop(future), False
                try:
                    future.result()
                    in_a_row = 0
                except Failed as why:
                    failures.append(f"{job.key}: {why}")
                    in_a_row, failed = in_a_row + 1, True
                step(failed)
    return failures
