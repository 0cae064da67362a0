"""Run file of another system's command line, script or config: its values as settings, each with its source."""

from collections.abc import Mapping
from typing import Any

from gpt2train.command_line import printable
from gpt2train.config.commented import commented_run
from gpt2train.config.foreign_values import CONVERSIONS, Converted
from gpt2train.errors import UserError
from gpt2train.foreign.read import Foreign, Given, read_foreign
from gpt2train.foreign.table import Row, systems
from gpt2train.settings import layer, nest

ORDER = tuple(CONVERSIONS)
MAX_NOTES = 50
AUTO = "chosen there when it starts"
LAUNCHER = ("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port")
ROTARY = ("model.family", "model.options.activation", "model.options.kv_heads", "model.options.qk_norm")
LLAMA_ACTIVATIONS = ("swiglu", "relu2")


def foreign_run(
    source: str, train: str | None, valid: str | None, vocab: int | None, output: str | None
) -> tuple[str, int]:
    """Generate the run file of another system's training.

    Args:
        source: path of its script or config, or its command line.
        train: prefix of the token files, in place of theirs.
        valid: prefix of the token files for validation, in place of theirs.
        vocab: vocabulary size, in place of theirs.
        output: run folder; theirs holds checkpoints of another format.

    Returns:
        The file, and the number of names without a counterpart.

    Raises:
        UserError: the source cannot be read, or one of its values is out of bounds.
    """
    foreign = read_foreign(source)
    made = convert(foreign)
    settings = made.settings
    if settings.pop("output", None) is not None:
        made.left[made.sources.pop("output")] = "a run has a folder of its own; --output names it"
    given = {"data.train": train, "data.valid": valid, "vocab": vocab}
    for path, value in given.items():
        if value is not None:
            settings[path] = value
            made.sources.pop(path, None)
    if valid is not None and settings.pop("data.split", None) is not None:
        made.left[made.sources.pop("data.split")] = "--valid takes its place"
    sources = {path: printable(source, keep="") for path, source in made.sources.items()}
    left = [printable(f"    {source}: {reason}", keep="") for source, reason in made.left.items()]
    head = ["", "Behind a value: its source there. A value without one is the default of gpt2train.", ""]
    head += ["Without a counterpart here:", *left, ""] if left else []
    head += [printable(f"Note: {note}", keep="") for note in foreign.notes[:MAX_NOTES]]
    head.append(f"See docs/{foreign.system.page}.md.")
    text = commented_run(
        printable(foreign.title, keep=""),
        nested(settings),
        settings.get("data.train", "out/tokens/train/tokens"),
        settings.get("data.valid"),
        settings.get("vocab", 50257),
        output or f"out/runs/{foreign.system.key}",
        sources=sources,
        head=head,
        launcher=_launcher(settings),
    )
    return text, len(left)


def _launcher(settings: Mapping[str, Any]) -> str:
    """The torchrun of a run file's head, with the processes and machines of the original."""
    machines, processes = settings.get("launch.nodes", 1), settings.get("launch.processes", 1)
    several = isinstance(machines, int) and machines > 1
    place = f"--nnodes {machines} --node-rank 0 --master-addr HOST" if several else "--standalone"
    return f"torchrun {place} --nproc-per-node {processes if isinstance(processes, int) else 1}"


def convert(foreign: Foreign) -> Converted:
    """Convert the values of another system to settings of a run."""
    made, title = Converted(), foreign.system.title
    names = {given.name for given in foreign.given}
    rows: list[tuple[Given, Row | None, bool]] = []
    for name, value in foreign.system.defaults.items():
        if (row := foreign.system.row(name)) is None:
            made.put({name: value}, f"{title}'s default", default=True)
        elif name not in names:
            rows.append((Given(name, value, f"{title}'s default of {name}"), row, True))
    rows += [(given, _row_of(foreign, given.name), False) for given in foreign.given]
    made.values = {given.name: given.value for given, _, _ in rows}
    deferred = []
    for given, row, default in rows:
        if row is not None and row.by is not None:
            deferred.append((ORDER.index(row.by), given, row, default))
        else:
            _take(made, given, row, default)
    _settle_batch(made)
    for place, given, row, default in sorted(deferred, key=lambda one: one[0]):
        _compute(made, given, row, ORDER[place], default)
        _settle_batch(made)
    _settle_schedule(made)
    _settle_family(made, foreign)
    return made


def _row_of(foreign: Foreign, name: str) -> Row | None:
    """Entry for a name; those of a launcher and of DeepSpeed's config belong to every system."""
    candidates = (foreign.system, systems()["deepspeed"], systems()["megatron"] if name in LAUNCHER else foreign.system)
    return next((row for system in candidates if (row := system.row(name)) is not None), None)


def _take(made: Converted, given: Given, row: Row | None, default: bool) -> None:
    """Take a value that needs no arithmetic."""
    if row is None:
        if given.name not in ("m", "standalone"):
            made.left[given.source] = "not known"
        return
    if row.setting is None:
        made.left[given.source] = row.why or f"the option {row.to[0]}"
        return
    value = given.value
    if value == "auto" and row.values is None:
        made.left[given.source] = AUTO
        return
    if row.value is not None:
        if value is False:
            return
        value = row.value
    elif value is True and given.source.startswith("-"):
        made.left[given.source] = "a value was expected"
        return
    elif row.values is not None:
        value = row.values.get(str(value), value)
    made.put({row.setting: value}, given.source, default=default)


def _compute(made: Converted, given: Given, row: Row, by: str, default: bool) -> None:
    """Take a value that needs arithmetic or other values."""
    if given.value == "auto":
        made.left[given.source] = AUTO
        return
    try:
        found = CONVERSIONS[by](made, given.value, str(row.setting))
    except (UserError, KeyError, TypeError, ZeroDivisionError, OverflowError, ValueError) as error:
        reason = str(error) if isinstance(error, UserError) else "no number that fits"
        if not default:
            made.left[given.source] = f"{error.args[0]} is not known" if isinstance(error, KeyError) else reason
        return
    if not found and not default and row.why:
        made.left[given.source] = row.why
    made.put(found, given.source, default=default)


def _settle_batch(made: Converted) -> None:
    """Leave as many of the three sizes of the batch as determine the others."""
    names = ("batch.micro_batch", "batch.gradient_accumulation_steps", "batch.global_batch")
    micro, steps, whole = names
    chosen = [name for name in names if made.settings.get(name) and name not in made.defaults]
    if whole in chosen and micro in chosen and steps in chosen:
        product = f"{made.settings[micro]} x {made.settings[steps]} x the data-parallel processes"
        made.left[made.sources[whole]] = f"follows from the others: {product}"
        made.put({whole: 0}, product, default=True)
    elif whole in chosen and micro in chosen and made.settings.get(steps):
        made.put({steps: 0}, "follows from the others", default=True)
    elif whole in chosen and micro not in chosen and not made.settings.get(micro):
        made.put({micro: 0}, "follows from the others", default=True)
        made.put(
            {steps: made.settings.get(steps) or 1},
            made.sources.get(steps, "one micro-batch"),
            default=steps not in chosen,
        )
    elif micro in chosen and steps in chosen and whole not in made.settings:
        made.put({whole: 0}, "follows from the others", default=True)


def _settle_schedule(made: Converted) -> None:
    """One length of the warm-up; defaults of another system that fit the length and the learning rate of this run."""
    settings = made.settings
    fraction, warmup, least = "schedule.warmup_fraction", "schedule.warmup", "schedule.min_lr"
    if settings.get(fraction) and (warmup in made.defaults or warmup not in settings):
        made.put({warmup: 0}, made.sources[fraction])
    elif settings.get(warmup) and fraction in made.defaults:
        made.put({fraction: 0.0}, made.sources[warmup])
    steps, given = settings.get("schedule.decay_steps") or settings.get("steps"), settings.get(warmup)
    if warmup in made.defaults and isinstance(steps, int) and isinstance(given, int) and given >= steps:
        made.put({warmup: steps - 1}, f"{made.sources[warmup]}, below the steps", default=True)
    lr, last = settings.get("optimizer.lr"), settings.get(least)
    if least in made.defaults and isinstance(lr, int | float) and isinstance(last, int | float) and last > lr:
        made.put({least: lr}, f"{made.sources[least]}, at most the learning rate", default=True)


def _settle_family(made: Converted, foreign: Foreign) -> None:
    """Options of the family that the others imply: Llama's, or those of an encoder with a decoder."""
    settings = made.settings
    llama = settings.get("model.family") == "llama" or settings.get("model.options.activation") in LLAMA_ACTIVATIONS
    if llama or settings.get("model.options.kv_heads") or settings.get("model.options.qk_norm"):
        source = next(made.sources[path] for path in ROTARY if path in made.sources)
        made.put({"model.family": "llama"}, source)
        bias = settings.pop("model.options.bias", True)
        if foreign.system.key == "megatron" or foreign.system.like == "megatron":
            if "model.options.activation" not in settings:
                made.left[source] = "the family llama, with RMSNorm and the MLP swiglu in place of LayerNorm and gelu"
            made.put(
                {"model.options.attention_bias": "all" if bias else "none", "model.options.mlp_bias": bool(bias)},
                source,
            )
            settings.setdefault("model.options.tied", True)
    if "t5" in foreign.program:
        _encoder_decoder(made)
    elif "model.options.decoder_context" in settings:
        made.left[made.sources["model.options.decoder_context"]] = "of an encoder with a decoder: pretrain_t5.py"
        del settings["model.options.decoder_context"]
    if "t5" not in foreign.program:
        for path in [path for path in settings if path.startswith("objective.options.")]:
            del settings[path]


def _encoder_decoder(made: Converted) -> None:
    layers = made.settings.get("model.layers", 12)
    source = made.sources.get("model.layers", "")
    objective = {"objective.name": "span_corruption"}
    both = {"model.layers": 2 * layers, "model.options.encoder_layers": layers} if isinstance(layers, int) else {}
    made.put({"model.family": "t5"} | objective, "pretrain_t5.py", follows=True)
    made.put(both, f"{source}, of the encoder and of the decoder", follows=True)
    for name in ("model.max_positions", "model.options.bias"):
        if made.settings.pop(name, None) is not None:
            made.left[made.sources.pop(name)] = "T5 has relative positions and no biases"


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables of settings by dotted names, without those of the launcher."""
    return layer(*(nest(path, value) for path, value in settings.items() if not path.startswith("launch.")))
