"""The train step: write the config of one training job, launch it, report its metrics, and commit its checkpoint.

The engine (`gpt2train.train`) runs without Prefect. This step writes its `config.toml`, starts the job
(`tasks/train/launch/`) and reports its metrics while it runs (`tasks/train/metrics_tail.py`). A run has the folder
`runs/<name>-<fingerprint>/`: changed settings give another run, so that they never overwrite a trained model, and
unchanged settings resume from the last checkpoint.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.config import CONFIG_FILE, RunConfig, TrainSettings, read_run_config, resolve_epochs, run_config, to_toml
from gpt2train.config.data import split_weights
from gpt2train.data.chat_template import copy_chat_template
from gpt2train.data.samples import Samples, samples_per_epoch
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.tokenizer import copy_tokenizer, load_tokenizer, tokenizer_hash, vocab_size
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.metrics import FILE, read_metrics
from gpt2train.monitoring.run_record import read_record, record_flow
from gpt2train.parallel.layout import Layout
from gpt2train.store.files import atomic_folder
from gpt2train.store.folder import Folder
from gpt2train.store.hub import local_copy
from gpt2train.store.manifest import Manifest, Outcome, digest, fingerprint
from gpt2train.store.run_folder import checkpoint_step, newest_checkpoint, selected_checkpoint
from gpt2train.training.train_state import newest_state
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.ready_tokens.tokens import TOKENIZER, ReadyTokens
from tasks.train.launch.job import Job
from tasks.train.launch.launchers import devices_of, run_job
from tasks.train.launch.settings import LaunchSettings
from tasks.train.metrics_tail import tail_metrics

log = logging.getLogger("gpt2train")

VERSION = 1
VALID_REMEDY = "give more documents or a larger clean.split.valid"
READY_REMEDY = "give more documents or a split with a larger second weight, as --split 949,50,1"
VALID_FILES_REMEDY = "give more documents in the files of --valid"


def train(
    root: Folder,
    data: Folder | ReadyTokens,
    tokens: Manifest,
    tokenizer: Manifest | None,
    settings: TrainSettings,
    launch: LaunchSettings,
    name: str = "run",
    *,
    runner: Runner,
) -> Manifest:
    """Train on token shards -> `runs/<name>-<fingerprint>/`; resume from the last checkpoint of the same run.

    `data` is the output that holds `tokens/` and `tokenizer/`, often the same as `root`; or token files made elsewhere,
    whose manifest stands for their tokenizer too. The fingerprint depends on the settings of the engine, not on those
    of the launcher. The manifest names the selected checkpoint and the config.

    Raises:
        UserError: The engine rejected a setting or the data.
        TransientError: A process of the job was lost more often than `launch.restarts` allows.
        RunError: The job failed; the message has the engine's last error.
    """
    for folder in (root, data):
        if isinstance(folder, Folder) and not folder.is_local:
            raise UserError(f"training needs local folders (memory maps, checkpoints), not {folder.url}; copy it first")
    identities = {manifest.step: manifest.identity for manifest in (tokens, tokenizer) if manifest is not None}
    # No `packages`: a run can resume under another release of torch; `run.json` has the versions of each start.
    step = Step(
        root,
        "train",
        version=VERSION,
        parameters=settings,
        inputs=content_of(tokens, tokenizer),
        folder=run_folder(tokens, tokenizer, settings, name),
        shared=True,
    )
    if done := runner.finished(step):
        return done
    if reason := validation_warning(tokens.outcome.facts, settings, data):
        log.warning(reason)
    config = resolved_config(data, tokens, tokenizer, settings, step.folder, launch.world)
    if isinstance(data, ReadyTokens) and data.tokenizer is not None:  # where merge finds it, wherever the tokens are
        with atomic_folder(Path(step.folder.path(TOKENIZER))) as draft:
            copy_tokenizer(data.tokenizer, draft)
            copy_chat_template(data.tokenizer, draft)
    step.folder.write_bytes(CONFIG_FILE, to_toml(config).encode())
    record_flow(step.folder.path(), name, identities, launch.model_dump(mode="json"))
    with (
        runner.gpu_slot(devices_of(settings, launch), launch.max_jobs_per_gpu, step.folder.url),
        tail_metrics(Path(step.folder.path()), config.steps, runner),
    ):
        run_job(Job(step.folder.path(CONFIG_FILE), launch))
    config = read_run_config(step.folder.path(CONFIG_FILE))  # with the steps of the checkpoint that the job began from
    # A job that receives SIGTERM saves a checkpoint and exits with 0 before its last step.
    reached = read_manifest(newest_checkpoint(step.folder.path())).position.step
    if (record := read_record(step.folder.path())) and (early := record.early_stop) and early.step == reached:
        log.info("training finished at step %d of %d: %s", reached, config.steps, early.reason)
    elif reached < config.steps:
        raise RunError(f"the training was stopped from outside at step {reached} of {config.steps}; run again to go on")
    return step.commit(_outcome(step.folder, config, reached))


def content_of(tokens: Manifest, tokenizer: Manifest | None) -> dict[str, str]:
    """Return hashes of the token ids and of the tokenizer, the only data that the weights depend on.

    Without a tokenizer's manifest the tokens were made elsewhere, and their identity is of nothing else.

    The identities of the steps would be too strict: upgrading a library repeats the data steps, and if these give the
    same tokens again, a training run of days can resume. The Parquet files beside the tokens are left out because they
    record the version of their writer.
    """
    if tokenizer is None:
        return {tokens.step: tokens.identity}
    files = [[record.name, record.sha256] for record in tokens.outputs if record.name.endswith((".bin", ".idx"))]
    return {"tokenize": digest(files), "tokenizer": tokenizer.content}


def run_folder(tokens: Manifest, tokenizer: Manifest | None, settings: TrainSettings, name: str) -> str:
    """Return the folder of a run under the output URL; its name depends on the settings and the tokens."""
    inputs = content_of(tokens, tokenizer)
    return f"runs/{name}-{fingerprint('train', VERSION, settings.model_dump(mode='json'), inputs)[:8]}"


def check_corpora(settings: TrainSettings) -> None:
    """Check that the corpora of the mixture can be opened.

    Raises:
        UserError: A corpus is missing or is not a token data set.
        RunError: A corpus is truncated.
    """
    for corpus in settings.mixture.corpora:
        open_tokens(corpus.prefix)


def check_ready_tokens(tokens: ReadyTokens, settings: TrainSettings) -> None:
    """Check that each corpus of token files made elsewhere has training samples, and that nothing else mixes corpora.

    Raises:
        UserError: The split leaves too few tokens for one sample, or there is a mixture.
    """
    if settings.mixture.corpora:
        raise UserError("train.mixture is for tokens of the data flow; give these corpora and weights in --tokens")
    weights = None if tokens.split is None else split_weights(tokens.split)
    for corpus in tokens.corpora:
        Samples(corpus.prefix, settings.sample_length, tokens.vocab, None, split=weights)


def validation_warning(
    facts: Mapping[str, int], settings: TrainSettings, data: Folder | ReadyTokens | None = None
) -> str | None:
    """Return the reason for training without validation, too few validation tokens for one sample, else None.

    The facts are those of the step that made or counted the tokens `data`, which decide the remedy.
    """
    found, needed = facts.get("valid_tokens", 0), settings.sample_length + 1
    if settings.objective.name in ("classification", "answers"):  # whose samples are not packed
        return None if found else "no validation: the task names no rows for it; give data.valid or data.holdout"
    if found >= needed:
        return None
    remedy = VALID_REMEDY
    if isinstance(data, ReadyTokens):
        remedy = READY_REMEDY if data.valid is None else VALID_FILES_REMEDY
    return (
        f"no validation: the valid split holds {found:,} tokens, fewer than one sample of {needed:,}; for one, {remedy}"
    )


def resolved_config(
    data: Folder | ReadyTokens,
    tokens: Manifest,
    tokenizer: Manifest | None,
    settings: TrainSettings,
    run: Folder,
    world: int,
) -> RunConfig:
    """Return the settings of the run, complete, with `epochs` turned into `steps`, of a begun run from where it is.

    The arguments are those of `train`; `world` is the number of processes of the job.
    """
    given: dict[str, Any]
    if isinstance(data, ReadyTokens):
        vocab = data.vocab
        given = {"train": data.corpora, "valid": data.valid, "split": data.split}
        given["tokenizer_hash"] = data.tokenizer_hash
    else:
        assert tokenizer is not None
        tokenizer_folder, token_folder = ((data / step.folder).path() for step in (tokenizer, tokens))
        vocab = vocab_size(load_tokenizer(tokenizer_folder))
        given = {"train": f"{token_folder}/train/tokens", "valid": f"{token_folder}/valid/tokens"}
        given["tokenizer_hash"] = tokenizer_hash(tokenizer_folder)
    if validation_warning(tokens.outcome.facts, settings):
        given["valid"] = None
    config = run_config(settings, **given, vocab=_rows(vocab, settings), output=run.path())
    if not config.epochs:
        return config
    per_epoch = samples_per_epoch(config) if config.objective.name == "next_token" else _samples_of_objective(config)
    return resolve_epochs(config, per_epoch, Layout.of(config, world).batches.after(newest_state(run.path()).done))


def _samples_of_objective(config: RunConfig) -> int:
    """Samples of an epoch of another objective than next-token prediction."""
    from gpt2train.data.dataset import open_data  # imports torch (1-2 s)

    data = open_data(config, "train")
    if data is None:
        raise UserError(f"the objective {config.objective.name} has no training data; its `data` returned None")
    return data.per_epoch


def _rows(tokens: int, settings: TrainSettings) -> int:
    """Size of the model's vocabulary: of the tokenizer, or of the model to start from, which may have more rows."""
    if (source := settings.checkpoints.init_from) is None:
        return tokens
    from gpt2train.convert.detect import vocabulary_of  # imports torch (1-2 s)

    return max(tokens, vocabulary_of(local_copy(source)) or 0)


def _outcome(run: Folder, config: RunConfig, reached: int) -> Outcome:
    selected = selected_checkpoint(run.path(), config.checkpoints.select)
    names = [name for name in run.files() if name.startswith(f"checkpoints/{selected.name}/")]
    records = read_metrics(run.path())
    last = records[-1] if records else {}
    counts = {"tokens": int(last.get("tokens", 0)), "skipped_steps": int(last.get("skipped", 0))}
    best = {"selected_step": checkpoint_step(selected)} if config.checkpoints.select == "best" else {}
    return Outcome(
        outputs=tuple(run.record(name) for name in ["checkpoints/latest", CONFIG_FILE, *names]),
        audit=(run.record(FILE),),
        facts={"steps": reached, **counts, **best},
    )
