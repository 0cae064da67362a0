"""The training step: one job, launched, followed and ended as a whole.

The engine (`gpt2train.train`) runs without Prefect; this room writes its `config.toml`, has the job started
(`tasks/launch/`) and its metrics passed on while it runs (`tasks/follow.py`). A run lives in
`runs/<name>-<fingerprint>/`: another setting is another run, so no setting ever overwrites a trained model, and the
same setting goes on from its last checkpoint.
"""

from pathlib import Path

from gpt2train.config import CONFIG_FILE, TrainSettings, run_config, to_toml
from gpt2train.data.stream import open_tokens
from gpt2train.data.tokenizer import load_tokenizer, tokenizer_hash
from gpt2train.errors import RunError, UserError
from gpt2train.metrics import FILE, read_metrics
from gpt2train.runs.record import note_flow
from tasks.follow import followed
from tasks.launch import run_job
from tasks.launch.job import Job
from tasks.launch.settings import LaunchSettings
from tasks.runner import Runner
from tasks.steps import Manifest, Outcome, Step, fingerprint
from tasks.storage import Folder

VERSION = 1


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
        TransientError: a process of the job was lost, more often than `launch.restarts` allows.
        RunError: the job failed; the message has the engine's own last error.
    """
    for folder in (root, data):
        if not folder.is_local:
            raise UserError(f"training needs local folders (memory maps, checkpoints), not {folder.url}; copy it first")
    inputs = {"tokenize": tokens, "tokenizer": tokenizer}
    identities = {key: manifest.identity for key, manifest in inputs.items()}
    step = Step(
        root,
        "train",
        version=VERSION,
        parameters=settings,
        inputs=inputs,
        folder=run_folder(tokens, tokenizer, settings, name),
        packages=("torch",),
    )
    if done := runner.finished(step):
        return done
    config = write_config(data, tokens, tokenizer, settings, step.folder)
    note_flow(step.folder.path(), name, identities, launch.model_dump(mode="json"))
    with runner.turn(settings, launch, step.folder.url), followed(Path(step.folder.path()), settings.steps, runner):
        run_job(Job(config, launch))
    from gpt2train.checkpoint import store  # imports torch (1-2 s), which a run that is all cached never needs

    # A job that is asked to stop saves and ends well, but early.
    reached = store.read_manifest(store.newest(step.folder.path())).position.step
    if reached < settings.steps:
        raise RunError(
            f"the training was stopped from outside at step {reached} of {settings.steps}; run again to go on"
        )
    return step.commit(_outcome(step.folder, settings), sweep=False)


def run_folder(tokens: Manifest, tokenizer: Manifest, settings: TrainSettings, name: str) -> str:
    """Where a run lives, under the output URL: another setting, or other tokens, is another run."""
    inputs = {"tokenize": tokens.identity, "tokenizer": tokenizer.identity}
    return f"runs/{name}-{fingerprint('train', VERSION, settings.model_dump(mode='json'), inputs)[:8]}"


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
