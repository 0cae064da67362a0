"""The training step: one torchrun job, launched, followed and ended as a whole.

The engine (`gpt2train.train`) runs without Prefect; this room writes its `config.toml`, starts
`python -m gpt2train.launch` in a session of its own, streams its lines, and passes its metrics on while it runs. A run
lives in `runs/<name>-<fingerprint>/`: another setting is another run, so no setting ever overwrites a trained model,
and the same setting goes on from its last checkpoint.
"""

import collections
import contextlib
import contextvars
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.config import CONFIG_FILE, TrainSettings, run_config, to_toml
from gpt2train.data.stream import open_tokens
from gpt2train.data.tokenizer import load_tokenizer, tokenizer_hash
from gpt2train.errors import RunError, UserError
from gpt2train.metrics import FILE, read_metrics
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.steps import Manifest, Outcome, Step, fingerprint
from tasks.storage import Folder

log = logging.getLogger("gpt2train")

VERSION = 1
LAST_LINES = 20
USER_ERROR = 2  # exit code of the engine for a user's mistake
FOLLOW_SECONDS = 2.0


class LaunchSettings(Settings):
    """How the training job is started. Nothing here changes what is learned."""

    processes: PositiveInt = 2
    """Processes of the torchrun job on each machine: its GPUs, or CPU cores where there is none."""
    nodes: PositiveInt = 1
    """Machines; the others are told the command to run, and see the same run folder on a shared disk."""
    endpoint: str | None = Field(None, pattern=r"^[^\s:]+:\d+$")
    """HOST:PORT of the machine where they meet, with more than one."""
    restarts: NonNegativeInt = 0
    """How often all processes start again from the last checkpoint when one was lost."""
    timeout: float = Field(300.0, gt=0)
    """Seconds until a process that says nothing counts as lost."""
    threads: PositiveInt = 1
    """OMP threads of each process; on a CPU, processes x threads should not exceed the cores."""
    grace: float = Field(60.0, gt=0)
    """Seconds that a cancelled job has to save a checkpoint before it is killed."""

    @property
    def world(self) -> int:
        """Processes on all machines."""
        return self.processes * self.nodes

    @model_validator(mode="after")
    def _meet_somewhere(self) -> "LaunchSettings":
        if self.nodes > 1 and self.endpoint is None:
            raise ValueError(f"{self.nodes} nodes need launch.endpoint, the HOST:PORT where they meet")
        return self


def train(
    root: Folder,
    data: Folder,
    tokens: Manifest,
    tokenizer: Manifest,
    settings: TrainSettings,
    launch: LaunchSettings,
    name: str = "run",
    *,
    runner: Runner,
) -> Manifest:
    """Train on token shards -> `runs/<name>-<fingerprint>/`; goes on from the last checkpoint of the same run.

    Args:
        root: the output URL, where the run folder goes.
        data: the output URL that holds `tokens/` and `tokenizer/`; often the same.

    Raises:
        UserError: the engine refused a setting or the data.
        RunError: the job failed; the message has the engine's own last error.
    """
    for folder in (root, data):
        if not folder.is_local:
            raise UserError(f"training needs local folders (memory maps, checkpoints), not {folder.url}; copy it first")
    inputs = {"tokenize": tokens, "tokenizer": tokenizer}
    identities = {key: manifest.identity for key, manifest in inputs.items()}
    identity = fingerprint("train", VERSION, settings.model_dump(mode="json"), identities)
    step = Step(
        root,
        "train",
        version=VERSION,
        parameters=settings,
        inputs=inputs,
        folder=f"runs/{name}-{identity[:8]}",
        packages=("torch",),
    )
    if done := runner.finished(step):
        return done
    config = write_config(data, tokens, tokenizer, settings, step.folder)
    follower = Follower(Path(step.folder.path()), settings.steps, runner)
    run_job(config, launch, follower)
    from gpt2train.checkpoint import store  # imports torch (1-2 s), which a run that is all cached never needs

    # A job that is asked to stop saves and ends well, but early.
    reached = store.read_manifest(store.newest(step.folder.path())).position.step
    if reached < settings.steps:
        raise RunError(
            f"the training was stopped from outside at step {reached} of {settings.steps}; run again to go on"
        )
    return step.commit(_outcome(step.folder, settings), sweep=False)


def check_corpora(settings: TrainSettings) -> None:
    """Look whether the corpora that are mixed in are there.

    Raises:
        UserError: one is missing, or is no token data set.
        RunError: one is truncated.
    """
    for corpus in settings.mix.corpora:
        open_tokens(corpus.prefix)


def write_config(data: Folder, tokens: Manifest, tokenizer: Manifest, settings: TrainSettings, run: Folder) -> str:
    """Write the run's resolved `config.toml` and return its path."""
    tokenizer_folder = (data / tokenizer.folder).path()
    token_folder = (data / tokens.folder).path()
    facts = tokens.outcome.facts
    config = run_config(
        settings,
        train=f"{token_folder}/train/tokens",
        valid=f"{token_folder}/valid/tokens" if facts.get("valid_tokens") else None,
        vocab=load_tokenizer(tokenizer_folder).get_vocab_size(),
        tokenizer_hash=tokenizer_hash(tokenizer_folder),
        output=run.path(),
    )
    run.write_bytes(CONFIG_FILE, to_toml(config).encode())
    return run.path(CONFIG_FILE)


class Follower:
    """Reads a run's `metrics.jsonl` as it grows and passes it on."""

    def __init__(self, run: Path, steps: int, runner: Runner) -> None:
        self.run, self.steps, self.runner = run, steps, runner
        self._shown = 0

    def look(self) -> None:
        """Pass on the metrics so far, when there are new ones."""
        records = read_metrics(self.run)
        if len(records) != self._shown:
            self._shown = len(records)
            self.runner.training(records, self.steps)


def run_job(config: str, launch: LaunchSettings, follower: Follower) -> None:
    """Run torchrun to its end; on any exception here, the whole job gets SIGTERM, the grace time, then SIGKILL.

    Raises:
        RunError: it ended with an error.
    """
    arguments = job_arguments(config, launch)
    command = [sys.executable, "-m", "gpt2train.launch", "--parent", str(os.getpid()), "--", *arguments]
    if launch.nodes > 1:
        log.info("start on each other machine: python -m gpt2train.launch -- %s", shlex.join(arguments))
    environment = {**os.environ, "OMP_NUM_THREADS": str(launch.threads), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # one process group, so that a signal reaches torchrun and every rank
    )
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    stop = threading.Event()
    # In a copy of this thread's context, by which an orchestrator knows which run the metrics belong to.
    watcher = threading.Thread(target=contextvars.copy_context().run, args=(_follow, follower, stop), daemon=True)
    watcher.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            log.info(line.rstrip())
        process.wait()
    except BaseException:
        _end_group(process, launch.grace)
        raise
    finally:
        stop.set()
        watcher.join()
        follower.look()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode:
        raise job_error(process.returncode, list(last), config)


def job_arguments(config: str, launch: LaunchSettings) -> list[str]:
    """torchrun's arguments, the same on every machine of a job."""
    where = ["--standalone"]
    if launch.endpoint is not None and launch.nodes > 1:
        # The run folder's name has the fingerprint of all settings: no other job meets under it.
        where = ["--nnodes", str(launch.nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", launch.endpoint]
        where += ["--rdzv-id", Path(config).parent.name]
    ranks = ["--nproc-per-node", str(launch.processes), "--max-restarts", str(launch.restarts)]
    return [*where, *ranks, "-m", "gpt2train.train", "--config", config, "--timeout", str(launch.timeout)]


def job_error(code: int, last: list[str], config: str) -> Exception:
    """The error that ended a job: what the engine itself said where it said something, else where to look."""
    said = [line.split("error: ", 1)[1] for line in last if "error: " in line]
    logs = Path(config).parent / "logs"
    if said and code == USER_ERROR:
        return UserError(said[0])
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    reason = said[0] if said else f"the training job ended with {ended}"
    return RunError(f"{reason} (logs: {logs}); the same command goes on from the last checkpoint")


def _follow(follower: Follower, stop: threading.Event) -> None:
    while not stop.wait(FOLLOW_SECONDS):
        follower.look()


def _end_group(process: "subprocess.Popen[str]", grace: float) -> None:
    """SIGTERM to torchrun, which passes it on and waits for the ranks to save; SIGKILL to whatever is left."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Keeps reading, so that a full pipe cannot block the job while it saves.
        last_words, _ = process.communicate(timeout=grace)
        for line in last_words.splitlines():
            log.info(line)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(run: Folder, settings: TrainSettings) -> Outcome:
    latest = run.read_bytes("checkpoints/latest").decode().strip()
    names = [name for name in run.files() if name.startswith(f"checkpoints/{latest}/")]
    records = read_metrics(run.path())
    return Outcome(
        outputs=tuple(run.record(name) for name in ["checkpoints/latest", CONFIG_FILE, *names]),
        audit=(run.record(FILE),),
        facts={
            "steps": settings.steps,
            "tokens": int(records[-1].get("tokens", 0)) if records else 0,
            "skipped_steps": int(records[-1].get("skipped", 0)) if records else 0,
        },
    )
