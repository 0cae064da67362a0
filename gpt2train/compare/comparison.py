"""The comparison: data of all seeds, a pilot, the trainings two at a time, and the verdict."""

import hashlib
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.compare.documents import Corpus, draw_heldout, drop_overlaps, group_corpora, read_corpus, read_heldout
from gpt2train.compare.proxy import PROXIES, Job, run_job
from gpt2train.compare.request import Request
from gpt2train.compare.statistics import Difference, detectable, paired_difference, seeds_needed, sentence
from gpt2train.data.bpe_tables import tokenizer_files
from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.indexed import bin_path, token_dtype, write_index
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id, load_tokenizer, vocab_size
from gpt2train.errors import UserError
from gpt2train.store.counts import count_of
from gpt2train.store.files import write_atomic
from gpt2train.store.process import die_with_parent

VERSION = 3  # of the data and of the trainings; another one invalidates all results
ARMS = ("A", "B")
PILOT_PAIRS, PILOT_SHARE = 3, 8  # pairs, at one of so many steps
MIN_STEPS = 16
TOKENIZER_CHARACTERS = 5_000_000  # of each corpus
CHUNK = 256  # texts encoded at a time


@dataclass(frozen=True)
class Estimate:
    """What the pilot says before the comparison starts."""

    deviation: float  # standard deviation of the paired differences over seeds, the largest of all sets
    needed: int | None  # seeds for the requested difference; None above 100
    detectable: float  # difference in bits per byte that the chosen seeds find
    minutes: float  # expected time of the chosen seeds


class Comparison:
    """Data and trainings of a request, in its output folder; what is finished there is not repeated."""

    def __init__(self, corpora: Sequence[Path], output: Path, request: Request) -> None:
        self.request = request
        self.proxy = PROXIES[request.proxy]
        if len({*request.names}) < len(ARMS):
            raise UserError(f"--names {' '.join(request.names)}: both corpora have the same name; give two names")
        if request.seeds < 2:
            raise UserError("--seeds 1: one seed gives no interval; give at least 2, better 8")
        self.corpora = [
            read_corpus(path, request.json_key, name) for path, name in zip(corpora, request.names, strict=True)
        ]
        group_corpora(self.corpora)
        self.heldout = self._heldout()
        self.sizes = {name: [len(text.encode()) for text in texts] for name, texts in self.heldout.items()}
        tasks = {name: gold_sizes(name, request.data, request.limit) for name in request.tasks}
        self.sizes |= {name: sizes for name, (sizes, _) in tasks.items()}
        self.task_hashes = [identity for _, identity in tasks.values()]
        self.folder = output / self._identity()
        tokenizer = self._tokenizer()
        self.step_tokens = self.proxy.samples * self.proxy.context
        self.steps = self._write_tokens(tokenizer)
        self._pilot_steps = max(8, self.steps // PILOT_SHARE)

    def _heldout(self) -> dict[str, list[str]]:
        """Held-out sets by name; the training documents that overlap with them are left out."""
        first, second = self.corpora
        if not self.request.heldout:
            names = [f"held-out {name}" for name in self.request.names]
            return dict(zip(names, (draw_heldout(first, second), draw_heldout(second, first)), strict=True))
        found: dict[str, list[str]] = {}
        for path in self.request.heldout:
            name = path.name.split(".")[0]
            if name in found or name in self.request.tasks:
                raise UserError(f"--heldout {path}: another set is named {name} too; rename the file")
            found[name] = read_heldout(path, self.request.json_key)
        for corpus in self.corpora:
            drop_overlaps(corpus, list(chain(*found.values())))
        return found

    def _identity(self) -> str:
        """Hash of everything that the results depend on, but for the number of pairs that run at a time."""
        request = self.request
        training = [request.seeds, request.tokens, request.epochs, asdict(self.proxy)]
        facts = [VERSION, *training, self.sizes, self.task_hashes, self.heldout]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for corpus in self.corpora:
            digest.update(json.dumps(corpus.copies).encode())
        return digest.hexdigest()[:16]

    def _tokenizer(self) -> Tokenizer:
        """The common tokenizer, trained on as much text of either corpus."""
        folder = self.folder / "tokenizer"
        if not (folder / "vocab.json").is_file():  # the last of the files: a kill may have left the others alone
            texts = chain(*(_first(corpus, TOKENIZER_CHARACTERS) for corpus in self.corpora))
            for name, content in sorted(tokenizer_files(*train_bpe(texts, self.proxy.vocab)).items()):
                write_atomic(folder / name, content)
        return load_tokenizer(folder)

    def _write_tokens(self, tokenizer: Tokenizer) -> int:
        """Write the tokens of each arm and seed, cut to one number, and of the held-out sets; return the steps.

        A training reads its tokens `epochs` times.
        """
        seeds, done = range(self.request.seeds), self.folder / "steps.json"
        if done.is_file():
            return int(json.loads(done.read_bytes()))
        epochs = self.request.epochs
        wanted = (self.request.tokens or self.proxy.tokens) // self.step_tokens
        # One token more than the inputs: each has a target.
        limit = -(-wanted // epochs) * self.step_tokens + 1
        found = {
            (arm, seed): _encoded(tokenizer, corpus.of_seed(seed, len(seeds)), limit)
            for arm, corpus in zip(ARMS, self.corpora, strict=True)
            for seed in seeds
        }
        (arm, seed), smallest = min(((key, sum(map(len, ids))) for key, ids in found.items()), key=lambda pair: pair[1])
        name = self.request.names[ARMS.index(arm)]
        if self.request.tokens and smallest < limit:
            raise UserError(
                f"{name} has {smallest - 1:,} tokens for seed {seed} of {len(seeds)}, in {epochs} epochs fewer "
                f"than --tokens {self.request.tokens:,}; give a larger corpus, fewer --seeds or --tokens"
            )
        if wanted < MIN_STEPS:
            raise UserError(
                f"--tokens {self.request.tokens:,} are {wanted} steps of {self.step_tokens:,}, fewer than {MIN_STEPS}; "
                "give more, or --proxy micro"
            )
        own = min(smallest - 1, limit - 1) // self.step_tokens
        steps = min(wanted, own * epochs)
        if steps < MIN_STEPS:
            raise UserError(
                f"{name} has {smallest - 1:,} tokens for seed {seed} of {len(seeds)}, which are {max(0, steps)} steps "
                f"of {self.step_tokens:,} in {epochs} epochs, fewer than {MIN_STEPS}; give a larger corpus, fewer "
                "--seeds or --proxy micro"
            )
        for (arm, seed), ids in found.items():
            write_pair(self._prefix(arm, seed), _cut(ids, own * self.step_tokens + 1), vocab_size(tokenizer))
        valid = _encoded(tokenizer, list(chain(*self.heldout.values())), 1 << 40)
        write_pair(self.folder / "valid", valid, vocab_size(tokenizer))
        write_atomic(self.folder / "heldout.json", json.dumps(self.heldout).encode())
        write_atomic(done, json.dumps(steps).encode())
        return steps

    def _prefix(self, arm: str, seed: int) -> Path:
        return self.folder / f"{arm}-{seed}"

    def job(self, arm: str, seed: int, pilot: bool = False) -> Job:
        """One training."""
        return Job(
            key=f"{'pilot-' if pilot else ''}{arm}-{seed}",
            proxy=self.request.proxy,
            steps=self._pilot_steps if pilot else self.steps,
            seed=seed,
            train=self._prefix(arm, seed),
            tasks=self.request.tasks,
            data=self.request.data,
            limit=self.request.limit,
            folder=self.folder,
        )

    def pilot(self, report: Callable[[str], None]) -> Estimate:
        """Train the first pairs at an eighth of the steps, for the noise of the seeds and the speed."""
        seeds = min(PILOT_PAIRS, self.request.seeds)
        results = self._run([self.job(arm, seed, True) for seed in range(seeds) for arm in ARMS], report)
        found = self._differences(results)
        deviation, sets = max(value.seed_deviation for _, value in found), len(found)
        seconds = statistics.median(result["seconds"] for result in results) * self.steps / self._pilot_steps
        waves = -(-2 * self.request.seeds // self.request.jobs)
        return Estimate(
            deviation,
            seeds_needed(self.request.difference, deviation, sets),
            detectable(self.request.seeds, deviation, sets),
            waves * seconds / 60,
        )

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """Train what is missing and return the JSON-serialisable result."""
        seeds = self.request.seeds
        results = self._run([self.job(arm, seed) for seed in range(seeds) for arm in ARMS], report)
        found = self._differences(results)
        deviation = max(value.seed_deviation for _, value in found)
        return {
            "names": list(self.request.names),
            "verdict": sentence(found, self.request.names),
            "seeds": seeds,
            "tokens_per_seed": self.steps * self.step_tokens,
            "epochs": self.request.epochs,
            "proxy": {"name": self.request.proxy, **asdict(self.proxy)},
            "corpora": [
                {
                    "name": corpus.name,
                    "documents": corpus.documents,
                    "distinct": len(corpus.copies),
                    "near_duplicates": corpus.near_duplicates,
                    "dropped_as_held_out": corpus.dropped,
                    "without_text": corpus.skipped,
                    "over_limit": corpus.over_limit,
                }
                for corpus in self.corpora
            ],
            "sets": {name: self._row(name, value, results) for name, value in found},
            "seeds_needed": seeds_needed(self.request.difference, deviation, len(found)),
            "difference": self.request.difference,
            "curves": {
                name: [result["curve"] for result in results[at::2]] for at, name in enumerate(self.request.names)
            },
            "seconds": sum(result["seconds"] for result in results),
        }

    def _row(self, name: str, value: Difference, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        size = sum(self.sizes[name])
        arms = [[sum(result["sets"][name]) / size for result in results[at::2]] for at in (0, 1)]
        return {
            "kind": "task" if name in self.request.tasks else "documents",
            "items": len(self.sizes[name]),
            "bits_per_byte": arms,
            "better": None if value.better is None else self.request.names[value.better == "B"],
            **asdict(value),
        }

    def _differences(self, results: Sequence[dict[str, Any]]) -> list[tuple[str, Difference]]:
        found = []
        for name, sizes in self.sizes.items():
            first, second = ([result["sets"][name] for result in results[at::2]] for at in (0, 1))
            found.append((name, paired_difference(first, second, sizes, len(self.sizes))))
        return found

    def _run(self, jobs: list[Job], report: Callable[[str], None]) -> list[dict[str, Any]]:
        """Results of trainings in their order; each training has one thread."""
        if self.request.jobs == 1 or all(job.result.is_file() for job in jobs):
            return [run_job(job) for job in jobs]
        results = []
        context = multiprocessing.get_context("spawn")
        count, own = min(self.request.jobs, len(jobs)), (os.getpid(),)
        with ProcessPoolExecutor(count, context, die_with_parent, own) as pool:
            for job, result in zip(jobs, pool.map(run_job, jobs), strict=True):
                results.append(result)
                report(f"{job.key}: {result['tokens']:,} tokens, {result['seconds']:.0f} s")
        return results


def gold_sizes(name: str, data: Path, limit: int) -> tuple[list[int], str]:
    """Bytes of the gold answer of each item of a task, and the hash of what its scores depend on.

    Raises:
        UserError: there is no such task or data, or its log-probabilities are not of whole answers.
    """
    from gpt2train.evaluate.tasks.items import pick
    from gpt2train.evaluate.tasks.suite import read_work

    work = read_work(name, data)
    part, *others = work.parts
    if others or part.task.rule == "core":
        raise UserError(f"--tasks {name}: suites and the rule core are not compared; name tasks such as hellaswag")
    items = part.items[:limit]
    if len(items) < 2:
        raise UserError(f"--tasks {name}: {count_of(len(items), 'item')}; the interval needs at least two")
    sizes = [len(pick(item.targets, item.answer).encode()) for item in items]
    return sizes, work.identity(limit)


def write_pair(prefix: Path, ids: list[list[int]], vocab: int) -> None:
    """Write a token file pair."""
    dtype = token_dtype(vocab)
    write_atomic(bin_path(prefix), np.concatenate([np.asarray(part, dtype) for part in ids]).tobytes())
    write_index(f"{prefix}.idx", [len(part) for part in ids], dtype)


def _first(corpus: Corpus, characters: int) -> Iterator[str]:
    for text in corpus.copies:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def _encoded(tokenizer: Tokenizer, texts: list[str], limit: int) -> list[list[int]]:
    """Tokens of the first texts that have so many tokens together, each text ended."""
    end, found, total = end_of_text_id(tokenizer), [], 0
    for at in range(0, len(texts), CHUNK):
        for ids in encode_ordinary(tokenizer, texts[at : at + CHUNK]):
            found.append([*ids, end])
            total += len(ids) + 1
        if total >= limit:
            break
    return found


def _cut(ids: list[list[int]], tokens: int) -> list[list[int]]:
    kept = []
    for part in ids:
        if tokens <= 0:
            break
        kept.append(part[:tokens])
        tokens -= len(kept[-1])
    return kept
