"""Model card, the `README.md` of a model folder: description, training data, scores, and use of the model.

The text depends only on the checkpoint, the manifests of the data steps, the scores and the given sections: no path or
machine name. Unknown facts are omitted.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from gpt2train.checkpoint.manifest import CheckpointManifest
from gpt2train.config import read_run_settings
from gpt2train.convert.card_scores import Score
from gpt2train.convert.dataset import data_steps
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.markdown import plain
from gpt2train.convert.markdown import table as _table
from gpt2train.convert.settings import Dtype
from gpt2train.errors import RunError, UserError
from gpt2train.model.families import MODELS
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_record import read_record, tokenize_manifest
from gpt2train.store.hub import HUB, repository_of, with_commit
from gpt2train.store.manifest import Manifest

# Names of architectures by `model_type`; a plug-in's is its own.
TITLES = {"gpt2": "GPT-2", "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "arcee": "Arcee", "t5": "T5"}


@dataclass(frozen=True)
class CardFacts:
    """Contents of a model card besides the model's shape."""

    training: tuple[tuple[str, str], ...] = ()  # rows of the training table: name, value
    data: tuple[tuple[str, int, int], ...] = ()  # rows of the data table: step, rows in, rows kept
    languages: tuple[str, ...] = ()  # ISO 639 codes of the training text
    license: str | None = None  # identifier of the weights' licence; None if unknown
    scores: tuple[Score, ...] = ()  # scores of the model
    base: str | None = None
    """Address on the hub, with its commit, of the model that the weights began from; None for any other."""
    sections: tuple[tuple[str, str], ...] = ()  # further sections about the training data: title, Markdown


NO_FACTS = CardFacts()


def model_card(
    shape: Shape, parameters: int, dtype: Dtype, tokenizer: str, facts: CardFacts, model_type: str | None = None
) -> str:
    """Return the text of the card, in Markdown, with the front matter that model hubs read.

    Args:
        shape: shape of the model.
        parameters: number of stored parameters, without the padding of the vocabulary.
        dtype: data type of the stored weights.
        tokenizer: kind of the tokenizer, such as "byte-level BPE".
        facts: further contents.
        model_type: `model_type` of the folder's `config.json`; by default that of the shape.
    """
    layout = layout_of(shape.family)
    encodes = len(MODELS[shape.family].lengths(shape)) > 1
    purpose = "text2text-generation" if encodes else "text-classification" if shape.labels else "text-generation"
    kind = model_type or str(layout.config(shape)["model_type"])
    title = f"{TITLES.get(kind.removeprefix('gpt2train_'), kind)} trained with gpt2train"
    sizes = [
        ("parameters", f"{parameters:,}"),
        ("layers", f"{shape.layers}"),
        ("attention heads", f"{shape.heads}"),
        ("width", f"{shape.hidden:,}"),
        ("context", f"{shape.context:,} tokens"),
        ("vocabulary", f"{shape.vocab:,} tokens, {tokenizer}"),
        *([("classes", f"{shape.labels:,}")] if shape.labels else []),
        *((name.replace("_", " "), str(value)) for name, value in shape.options),
        ("stored as", dtype),
    ]
    licence = "The licence of the weights is not stated; ask the publisher before you use them."
    if facts.license:
        licence = f"The weights are published under the licence `{facts.license}`."
    task = "which writes a text after it has read another" if encodes else "trained to predict the next token"
    parts = [
        "---\n" + "\n".join(_front_matter(facts, title, kind, purpose, layout.in_transformers(shape))) + "\n---",
        f"# {title}",
        f"A classifier of texts: {layout.description}, whose output layer reads the last token."
        if shape.labels
        else f"A language model: {layout.description}, {task}.",
        "## Model\n\n" + _table(("property", "value"), sizes),
    ]
    training = list(facts.training)
    if facts.base:
        training.insert(0, ("initial weights", f"{plain(facts.base)}, with the licence that is stated there"))
    if training:
        parts.append("## Training\n\n" + _table(("property", "value"), training))
    data = "The training data is not known."
    if facts.data:
        rows = [(name, f"{seen:,}", f"{kept:,}") for name, seen, kept in facts.data]
        data = "Steps that made the training text, with the number of rows before and after each:\n\n"
        data += _table(("step", "in", "kept"), rows)
    parts.append("## Training data\n\n" + data)
    parts += [f"## {name}\n\n{text}" for name, text in facts.sections]
    if facts.scores:
        scores = [(plain(score.name), score.text) for score in facts.scores]
        parts.append("## Evaluation\n\n" + _table(("measure", "value (95 % interval)"), scores))
    with_transformers, with_gpt2train = WITH_TRANSFORMERS, WITH_GPT2TRAIN
    if encodes:
        with_transformers, with_gpt2train = ENCODE_WITH_TRANSFORMERS, ENCODE_WITH_GPT2TRAIN
    elif shape.labels:
        with_transformers, with_gpt2train = CLASSIFY_WITH_TRANSFORMERS, ""
    use = (with_transformers if layout.in_transformers(shape) else "") + with_gpt2train
    parts.append("## Use\n\n" + use.strip())
    about = (
        "It knows the classes of its training data alone, and can reproduce errors and prejudice of these."
        if shape.labels
        else "A base model: it continues text and does not follow instructions. It can reproduce errors, prejudice and "
        "personal data of its training text."
    )
    limits = f"{about} It reads at most {shape.context:,} tokens at a time."
    parts.append(f"## Limits\n\n{limits} {licence}")
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: CardFacts, title: str, kind: str, purpose: str, in_transformers: bool) -> list[str]:
    """Return the lines of the front matter."""
    front = [f"license: {facts.license or 'unknown'}"]
    if facts.languages:
        front += ["language:", *(f"- {code}" for code in facts.languages)]
    if named := repository_of(facts.base or ""):
        front.append(f"base_model: {named[0].removeprefix(HUB)}")
    front += ["library_name: transformers"] if in_transformers else []
    front += [f"pipeline_tag: {purpose}", "tags:", *(f"- {tag}" for tag in (kind, purpose, "gpt2train"))]
    return front + _model_index(title, purpose, facts.scores)


def _model_index(name: str, task: str, scores: tuple[Score, ...]) -> list[str]:
    """Return the lines of the front matter from which hubs show scores."""
    if not scores:
        return []
    lines = ["model-index:", f"- name: {name}", "  results:"]
    for dataset, some in groupby(scores, key=lambda score: score.dataset):
        kind = "".join(c if c.isascii() and c.isalnum() else "_" for c in dataset.lower())
        lines += ["  - task:", f"      type: {task}", "    dataset:", f"      name: {json.dumps(dataset)}"]
        lines.append(f"      type: {kind}")
        lines.append("    metrics:")
        for score in some:
            lines += [
                f"    - type: {score.metric}",
                f"      name: {json.dumps(score.label)}",
                f"      value: {score.value:.6g}",
            ]
    return lines


WITH_TRANSFORMERS = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("MODEL"), AutoTokenizer.from_pretrained("MODEL")
ids = tokenizer("The first thing to know", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=40)[0]))
```

"""
ENCODE_WITH_TRANSFORMERS = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("MODEL"), AutoTokenizer.from_pretrained("MODEL")
prompt = "The first <extra_id_0> to know" + tokenizer.eos_token
ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=40)[0]))
```

"""
CLASSIFY_WITH_TRANSFORMERS = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model, tokenizer = AutoModelForSequenceClassification.from_pretrained("MODEL"), AutoTokenizer.from_pretrained("MODEL")
ids = tokenizer("The first text\\nThe second text of a pair", return_tensors="pt")
print(model.config.id2label[int(model(**ids).logits.argmax())])
```
"""
WITH_GPT2TRAIN = """\
`MODEL` is this folder. With gpt2train: `gpt2train generate --model MODEL --prompt "The first thing to know"`,
or `gpt2train serve --model MODEL`."""
ENCODE_WITH_GPT2TRAIN = """\
`MODEL` is this folder. With gpt2train: `gpt2train generate --model MODEL --prompt "The first <extra_id_0> to know"`."""


def training_facts(manifest: CheckpointManifest, run: Path | None) -> CardFacts:
    """Collect the facts of a training; empty for a converted checkpoint.

    Args:
        manifest: manifest of the checkpoint.
        run: run folder; None for a checkpoint without one.
    """
    position, config = manifest.position, manifest.config
    base = _base(config, run)
    if position.step == 0:
        return CardFacts(base=base)
    tokens = position.samples * int(config["model"]["context"])
    rows = [("steps", f"{position.step:,}"), ("tokens read", f"{tokens:,}")]
    corpus_tokens = sum(corpus.tokens for corpus in manifest.data)
    unit = "sample" if config["model"].get("labels") else "token"
    if "objective" in config:  # samples are not packed: each is padded to the context
        rows = [("steps", f"{position.step:,}"), ("samples read", f"{position.samples:,}")]
        rows.append(("objective", str(config["objective"].get("name"))))
    elif corpus_tokens:
        rows.append(("tokens of training text", f"{corpus_tokens:,} ({tokens / corpus_tokens:.2f} epochs)"))
    if base is None and (config.get("checkpoints") or {}).get("init_from"):  # a path, which a card does not state
        rows.append(("initial weights", "those of another model, which is to be named here with its licence"))
    with contextlib.suppress(KeyError, TypeError):
        rows.append(("samples per step", f"{config['batch']['global_batch']:,}"))
        rows.append(("peak learning rate", f"{config['optimizer']['lr']:g}"))
        rows.append(("precision", str(config["precision"])))
    if run is not None and (loss := _loss(run, position.step)) is not None:
        rows.append(("training loss of the last step", f"{loss:.4f} nats per {unit}"))
    if manifest.valid_loss is not None:
        rows.append(("validation loss", f"{manifest.valid_loss:.4f} nats per {unit}"))
    steps = _steps(run) if run is not None else []
    language: Any = next((step.parameters.get("language") for step in steps if step.step == "clean"), None)
    codes = language.get("keep", ()) if isinstance(language, dict) else ()
    return CardFacts(
        training=tuple(rows),
        data=tuple((step.step, step.outcome.seen, step.outcome.kept) for step in steps if step.outcome.seen),
        languages=tuple(sorted(str(code) for code in codes if str(code).isalpha() and code != "any")),
        base=base,
    )


def _base(config: Mapping[str, Any], run: Path | None) -> str | None:
    """Return the address and commit of the model of the hub that a training began from, as far as it is recorded."""
    with contextlib.suppress(RunError):
        record = read_record(run) if run is not None else None
        source = (record and record.init_from) or (config.get("checkpoints") or {}).get("init_from")
        return with_commit(source) if source and repository_of(source) else None
    return None


def _loss(run: Path, step: int) -> float | None:
    with contextlib.suppress(RunError, OSError, ValueError, TypeError, KeyError):
        found = [row["loss"] for row in read_metrics(run) if row.get("step") == step]
        return float(found[-1]) if found else None
    return None


def _steps(run: Path) -> list[Manifest]:
    """Return the manifests of the data steps that made a run's first corpus, in order.

    Token files made elsewhere have none that names them, even in a folder beside those of a data flow.
    """
    try:
        prefix = Path(read_run_settings(run).data.corpora[0].prefix)
    except (UserError, RunError):
        return []
    made = tokenize_manifest(prefix)
    return [] if made is None else data_steps(prefix.parents[2], made.identity)  # OUT of OUT/tokens/train/tokens
