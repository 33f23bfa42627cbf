"""What is to be measured: parts of tasks x lengths x methods x budgets, each cell with so many samples."""

import dataclasses
import tomllib

from lab import expectations, methods, tables, tasks

PART_KEYS = {"tasks", "lengths", "methods", "budgets", "samples"}
TOP_KEYS = PART_KEYS | {"defaults", "define", "seed", "part", "reference", "expect", "about"}
REFERENCE_KEYS = {"task", "length", "method", "budgets", "scores", "samples", "turns"}


@dataclasses.dataclass(frozen=True)
class Job:
    """One sample of one cell."""

    task: str
    length: int
    method: methods.Method
    budget: int  # None: the method has none
    index: int
    seed: int

    @property
    def key(self):
        return f"{self.task}|{self.length}|{self.method.definition}|{self.budget}|seed{self.seed}|{self.index}"


@dataclasses.dataclass(frozen=True)
class Part:
    tasks: tuple
    lengths: tuple
    methods: tuple
    budgets: tuple
    samples: int


@dataclasses.dataclass(frozen=True)
class Grid:
    parts: tuple
    seed: int = 1
    references: tuple = ()  # figures of another measurement, to be compared with: dictionaries as in the file
    expectations: tuple = ()  # what must hold: dictionaries as in the file
    about: str = ""

    def jobs(self, shard=(0, 1)):
        """All samples of all cells, none twice; those that share a prompt follow each other. shard (i, n): those of the
        i-th of n runs, each of which has prompts of its own."""
        seen = set()
        for part in self.parts:
            for length in part.lengths:
                for index in range(shard[0], part.samples, shard[1]):
                    for task in part.tasks:
                        for method in part.methods:
                            for budget in part.budgets if method.budgeted else (None,):
                                job = Job(task, length, method, budget, index, self.seed)
                                if job.key not in seen:
                                    seen.add(job.key)
                                    yield job

    def again(self, cells, samples):
        """The cells of `cells` whose figures another measurement does not bear out: `samples` of each."""
        by_name = {method.name: method for part in self.parts for method in part.methods}
        apart = dict.fromkeys((reference["task"], reference["length"], reference["method"], budget)
                              for reference in self.references
                              for budget, _, share, same in tables.compared(cells, reference) if share and not same)
        return dataclasses.replace(self, parts=tuple(
            Part((task,), (length,), (by_name[method],), (budget,), samples)
            for task, length, method, budget in apart))

    def narrowed(self, tasks=None, lengths=None, methods=None, budgets=None, samples=None, seed=None):
        """Only what is named, where something is named. ValueError where nothing is left."""
        def only(values, wanted):
            return tuple(v for v in values if wanted is None or v in wanted)

        parts = []
        for part in self.parts:
            of = Part(only(part.tasks, tasks), only(part.lengths, lengths),
                      tuple(m for m in part.methods if methods is None or m.name in methods),
                      only(part.budgets, budgets), samples or part.samples)
            if of.tasks and of.lengths and of.methods and of.budgets:
                parts.append(of)
        if not parts:
            raise ValueError("nothing of the grid is left: the named tasks, lengths, methods and budgets meet nowhere")
        return dataclasses.replace(self, parts=tuple(parts), seed=self.seed if seed is None else seed)


def _positive(values, what):
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{what}: {value!r} is not a positive whole number")
    return tuple(values)


def _known(table, keys, where):
    for key in table:
        if key not in keys:
            raise ValueError(f"{where}: unknown key \"{key}\"; known are {', '.join(sorted(keys))}")


def load(path):
    with open(path, "rb") as file:
        try:
            table = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: {error}") from None
    try:
        return from_table(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_table(table):
    """README.md says what a file holds."""
    _known(table, TOP_KEYS, "the grid")
    defined = {name: methods.parse(f"{name}={text}", table.get("defaults", ""))
               for name, text in table.get("define", {}).items()}
    parts = []
    for part in table.get("part", [{}]):
        _known(part, PART_KEYS, "a part")
        of = {key: part.get(key, table.get(key)) for key in PART_KEYS}
        missing = sorted(key for key in PART_KEYS if of[key] is None)
        if missing:
            raise ValueError(f"neither the grid nor a part says {', '.join(missing)}")
        used = tuple(defined.get(name) or methods.parse(name, table.get("defaults", "")) for name in of["methods"])
        parts.append(Part(tuple(tasks.names(of["tasks"])), _positive(of["lengths"], "lengths"), used,
                          _positive(of["budgets"], "budgets"), _positive([of["samples"]], "samples")[0]))
    known = {method.name for part in parts for method in part.methods}
    for entry in table.get("reference", []) + table.get("expect", []):
        entry.setdefault("budgets", table.get("budgets"))
    for reference in table.get("reference", []):
        reference.setdefault("samples", table.get("samples"))
        _known(reference, REFERENCE_KEYS, "a reference")
        if len(reference["budgets"]) != len(reference["scores"]):
            raise ValueError(f"the reference {reference['task']}, {reference['method']}: needs a score for each budget")
        if reference["method"] not in known:
            raise ValueError(f"a reference names the method {reference['method']}, which no part has")
    for expectation in table.get("expect", []):
        _known(expectation, expectations.KEYS, "an expectation")
        expectations.check(expectation)
    return Grid(tuple(parts), table.get("seed", 1), tuple(table.get("reference", ())), tuple(table.get("expect", ())),
                table.get("about", ""))
