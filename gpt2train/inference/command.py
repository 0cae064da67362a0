"""The command `gpt2train generate`, which continues prompts."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.command_line import ModelFolder, printable
from gpt2train.convert.settings import Device, Dtype
from gpt2train.errors import UserError
from gpt2train.inference.open_model import check_model, open_model
from gpt2train.inference.settings import BeamSettings, SamplingSettings, ServingLayout
from gpt2train.settings import build
from gpt2train.store.counts import count_of

if TYPE_CHECKING:
    from gpt2train.data.tokenizer import Tokenizer
    from gpt2train.inference.decoder import OpenedModel
    from gpt2train.runs.text_trace import TextTracer

AnySettings = TypeVar("AnySettings", SamplingSettings, BeamSettings)
EXCERPT = 300  # characters shown around a span
DEFAULT, DEFAULT_LAYOUT = SamplingSettings(), ServingLayout()
BEAM_FIELDS = {"max_new_tokens", "stop_tokens"}  # the sampling settings that beam search also uses


def generate(
    *,
    model: ModelFolder,
    prompt: Annotated[list[str], Parameter(negative=())],
    sampling: Annotated[SamplingSettings, Parameter(name="*")] = DEFAULT,
    beams: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    length_penalty: float = 1.0,
    early_stopping: Literal["false", "true", "never"] = "false",
    layout: Annotated[ServingLayout, Parameter(name="*")] = DEFAULT_LAYOUT,
    device: Device = "auto",
    dtype: Dtype = "float32",
    trace: Annotated[list[Path] | None, Parameter(consume_multiple=(0, 1), negative=(), metavar="[OUT]")] = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Continue prompts.

    Parameters
    ----------
    model
        Model folder.
    prompt
        Text to continue; can be given several times. An empty prompt begins a new document.
    beams
        Beam search with this number of beams, all of which are shown; 0 samples instead.
    length_penalty
        Beam search: the score is the sum of log-probabilities divided by length ** length_penalty.
    early_stopping
        Beam search ends once enough beams have finished (true), once no unfinished beam can win at its present length
        (false), or once none can win at any length (never).
    device
        auto uses a GPU if there is one.
    dtype
        Data type of the model; bfloat16 and float16 need half the memory.
    trace
        Show which spans of each text occur in training tokens, and on which pages: a run folder, an output folder of
        the data steps or the prefix of token files, with an index (gpt2train data index). Without a value the run that
        the model lies in.
    json_
        Print one JSON line per continuation, with its tokens and log-probabilities.
    """
    beam_settings = _beam_settings(sampling, beams, length_penalty, early_stopping) if beams else None
    if layout.processes > 1 and dtype != "float32":
        raise UserError(f"--dtype {dtype} needs a model in one process; leave out --tp and --pp, or --dtype")
    tracer = None
    if trace is not None:
        from gpt2train.runs.text_trace import TextTracer, find_source, traced_place

        tracer = TextTracer(find_source(traced_place(trace, model)))
    shape = check_model(model, layout)
    from gpt2train.convert.hf_config import read_end_tokens
    from gpt2train.data.tokenizer import load_model_tokenizer

    tokenizer, ends = load_model_tokenizer(model, shape.vocab), read_end_tokens(model, shape.vocab)
    with open_model(model, layout, device) as opened:
        from gpt2train.convert.tensor_files import DTYPES
        from gpt2train.inference.prompts import unknown_prompts
        from gpt2train.model.causal_lm import CausalLM
        from gpt2train.model.lazy_weights import beyond_half

        if isinstance(opened, CausalLM):
            opened.to(dtype=DTYPES[dtype])
            if beyond := next((name for name, tensor in opened.named_parameters() if tensor.isinf().any()), None):
                raise beyond_half(beyond)
        for text in unknown_prompts(tokenizer, prompt):
            stated = f"every token of the prompt {text[:EXCERPT]!r} is the unknown one: the model reads nothing of it"
            print(f"note: {stated}; check its letters, their case and the tokenizer", file=sys.stderr)
        if beam_settings is None:
            answers = _sampled(opened, tokenizer, prompt, _with_ends(sampling, ends))
        else:
            answers = _searched(opened, tokenizer, prompt, _with_ends(beam_settings, ends))
        for answer in answers:
            _show(answer, json_, tracer)


def _show(answer: dict[str, Any], as_json: bool, tracer: "TextTracer | None" = None) -> None:
    """Print one continuation, and the spans of its text in the training tokens."""
    from gpt2train.runs.trace_command import as_values, show

    found = tracer.trace_text(answer["prompt"] + answer["text"]) if tracer else None
    if as_json:
        traced = {"trace": as_values(tracer, found)} if tracer and found else {}
        print(json.dumps(answer | traced, ensure_ascii=False))
        return
    score = f", score {answer['score']:.4f}" if "score" in answer else ""
    print(printable(answer["prompt"] + answer["text"]))
    print(f"[{count_of(len(answer['tokens']), 'token')}, stopped: {answer['stopped']}{score}]")
    for name, scored in (("prompt", "prompt_scores"), ("generated", "scores")):
        for token in answer.get(scored, ()):
            others = "".join(f"  {other['token']!r} {other['log_prob']:.4f}" for other in token["top"])
            print(f"  {name:<9} {token['token']!r:<16} {token['log_prob']:.4f}{others and ' | ' + others.strip()}")
    if tracer and found:
        show(tracer, found, EXCERPT, as_json=False)


def _beam_settings(sampling: SamplingSettings, beams: int, penalty: float, early_stopping_flag: str) -> BeamSettings:
    """Build the settings of a beam search from the command's flags.

    Raises:
        UserError: a setting that only sampling uses was given, or a setting is out of bounds.
    """
    fields = set(SamplingSettings.model_fields) - BEAM_FIELDS
    if unused := sorted(name for name in fields if getattr(sampling, name) != getattr(DEFAULT, name)):
        option = unused[0].replace("_", "-")
        raise UserError(f"--{option} has no effect with --beams, which never samples; leave it out")
    early_stopping = "never" if early_stopping_flag == "never" else early_stopping_flag == "true"
    given = {"beams": beams, "length_penalty": penalty, "early_stopping": early_stopping}
    given |= {name: getattr(sampling, name) for name in BEAM_FIELDS}
    return build(BeamSettings, given, source="beam search")


def _with_ends(settings: AnySettings, ends: tuple[int, ...]) -> AnySettings:
    """Return settings with further tokens that end a text."""
    return settings.model_copy(update={"stop_tokens": (*settings.stop_tokens, *ends)})


def _sampled(
    model: "OpenedModel", tokenizer: "Tokenizer", prompts: list[str], settings: SamplingSettings
) -> Iterator[dict[str, Any]]:
    from gpt2train.inference.generate import generate as continue_prompts
    from gpt2train.inference.sequence import TokenScore

    def scored_tokens(tokens: tuple[int, ...], scores: tuple[TokenScore, ...]) -> list[dict[str, Any]]:
        def text(token: int) -> str:
            return tokenizer.decode([token], skip_special_tokens=False)

        return [
            {
                "token": text(token),
                "log_prob": score.log_prob,
                "top": [{"token": text(other), "log_prob": value} for other, value in score.top],
            }
            for token, score in zip(tokens[len(tokens) - len(scores) :], scores, strict=True)
        ]

    for answer in continue_prompts(model, tokenizer, prompts, settings):
        line = {"prompt": answer.prompt, "text": answer.text, "tokens": answer.tokens, "stopped": answer.stopped}
        if settings.prompt_log_probs:
            line["prompt_scores"] = scored_tokens(answer.prompt_tokens, answer.prompt_scores)
        if settings.log_probs:
            line["scores"] = scored_tokens(answer.tokens, answer.scores)
        yield line


def _searched(
    model: "OpenedModel", tokenizer: "Tokenizer", prompts: list[str], settings: BeamSettings
) -> Iterator[dict[str, Any]]:
    from gpt2train.inference.beam_search import beam_search
    from gpt2train.inference.decoder import decoder_of
    from gpt2train.inference.prompts import encode_for

    decoder = decoder_of(model, settings.beams)
    for prompt, ids in zip(prompts, encode_for(model.shape, tokenizer, prompts), strict=True):
        for beam in beam_search(decoder, ids, settings, tokenizer):
            line = {"prompt": prompt, "text": beam.text, "tokens": beam.tokens}
            yield line | {"stopped": beam.stopped, "score": beam.score}
