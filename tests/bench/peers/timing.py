"""CUDA graphs and their times."""

import contextlib
import statistics
import time

import torch


def capture(run, warm=2):
    """run() as a CUDA graph. It is first run as it is: kernels are compiled and chosen outside a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def seconds_of(run, repeats=20, warm=3):
    """Median over runs queued one behind another, by events."""
    for _ in range(warm):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) * 1e-3


def graph_seconds(run, repeats=20):
    graph = capture(run)
    seconds = seconds_of(graph.replay, repeats)
    del graph
    return seconds


class Clock:
    """What is left of the time this program may take."""

    def __init__(self, limit):
        self.begin, self.limit = time.monotonic(), limit

    def spent(self):
        return time.monotonic() - self.begin

    def left(self):
        return self.limit - self.spent()


class Report:
    """Rows as they are measured: printed at once and written to the JSON file, so that a time limit loses nothing."""

    def __init__(self, clock, write):
        self.clock, self.write = clock, write
        self.rows, self.failures = [], []

    def add(self, **row):
        self.rows.append(row)
        print(f"{self.clock.spent():6.1f} s ", *(f"{name}={format_value(value)}" for name, value in row.items()),
              flush=True)
        self.write(self)

    @contextlib.contextmanager
    def step(self, what):
        """A part that may fail without taking the rest along; OutOfMemory and refused kernels are told and passed."""
        try:
            yield
        except Exception as error:  # whatever a library throws: the row is missing, and says why
            text = f"{what}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            self.failures.append(text)
            print(f"{self.clock.spent():6.1f} s  FAILED {text}", flush=True)
            self.write(self)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def format_value(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)
