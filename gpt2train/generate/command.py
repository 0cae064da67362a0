"""`gpt2train generate`: continue prompts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.checkpoint.format import Device, Dtype
from gpt2train.errors import UserError
from gpt2train.generate.settings import BeamSettings, SamplingSettings
from gpt2train.parallel.opened import Parts, opened
from gpt2train.settings import build

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from gpt2train.generate.decoder import Opened
    from gpt2train.model.gpt2 import GPT2

DEFAULT, DEFAULT_PARTS = SamplingSettings(), Parts()
OF_BEAMS = {"max_new_tokens", "stop_tokens"}  # the settings of sampling that a beam search has too


def generate(
    *,
    model: Path,
    prompt: Annotated[list[str], Parameter(negative=())],
    sampling: Annotated[SamplingSettings, Parameter(name="*")] = DEFAULT,
    beams: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    length_penalty: float = 1.0,
    early_stopping: Literal["false", "true", "never"] = "false",
    parts: Annotated[Parts, Parameter(name="*")] = DEFAULT_PARTS,
    device: Device = "auto",
    dtype: Dtype = "float32",
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Continue prompts.

    Parameters
    ----------
    model
        Model folder.
    prompt
        Text to go on with; can be given several times. An empty one begins a new document.
    beams
        Search for the likeliest continuations with so many beams, and show as many; 0 draws them.
    length_penalty
        With beams: a score is the sum of log-probabilities over length ** length_penalty.
    early_stopping
        With beams: end at the first answers (true), once an open one falls behind at its present length (false), or at
        any length (never).
    device
        auto takes a GPU where there is one.
    dtype
        What the model computes in; bfloat16 and float16 need half the memory.
    json_
        Print one line of JSON for each answer, with its tokens and log-probabilities.
    """
    wanted = _beam_settings(sampling, beams, length_penalty, early_stopping) if beams else None
    if parts.processes > 1 and dtype != "float32":
        raise UserError(f"--dtype {dtype} is for a model in one process; leave out --tp and --pp, or --dtype")
    with opened(model, parts, device) as answering:
        from gpt2train.checkpoint.huggingface import DTYPES
        from gpt2train.data.tokenizer import load_tokenizer
        from gpt2train.model.gpt2 import GPT2

        if isinstance(answering, GPT2):
            answering.to(dtype=DTYPES[dtype])
        tokenizer = load_tokenizer(model)
        if wanted is None:
            answers = _sampled(answering, tokenizer, prompt, sampling)
        else:
            answers = _searched(answering, tokenizer, prompt, wanted)
        for answer in answers:
            _show(answer, json_)


def _show(answer: dict[str, Any], as_json: bool) -> None:
    """Print one answer."""
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
        return
    score = f", score {answer['score']:.4f}" if "score" in answer else ""
    print(_printable(answer["prompt"] + answer["text"]))
    print(f"[{len(answer['tokens'])} tokens, stopped: {answer['stopped']}{score}]")
    for name, scored in (("prompt", "prompt_scores"), ("generated", "scores")):
        for token in answer.get(scored, ()):
            others = "".join(f"  {other['token']!r} {other['log_prob']:.4f}" for other in token["top"])
            print(f"  {name:<9} {token['token']!r:<16} {token['log_prob']:.4f}{others and ' | ' + others.strip()}")


def _beam_settings(sampling: SamplingSettings, beams: int, penalty: float, early: str) -> BeamSettings:
    """The settings of a beam search.

    Raises:
        UserError: a setting of drawing was given, which a beam search has no use for, or one is out of bounds.
    """
    fields = set(SamplingSettings.model_fields) - OF_BEAMS
    idle = sorted(name for name in fields if getattr(sampling, name) != getattr(DEFAULT, name))
    if idle:
        raise UserError(f"--{idle[0].replace('_', '-')} has no meaning with --beams, which draws nothing; leave it out")
    given = {
        "beams": beams,
        "length_penalty": penalty,
        "early_stopping": "never" if early == "never" else early == "true",
        "max_new_tokens": sampling.max_new_tokens,
        "stop_tokens": sampling.stop_tokens,
    }
    return build(BeamSettings, given, source="beam search")


def _sampled(
    model: "GPT2 | Opened", tokenizer: "Tokenizer", prompts: list[str], settings: SamplingSettings
) -> Iterator[dict[str, Any]]:
    from gpt2train.generate.continuation import generate as continue_prompts
    from gpt2train.generate.sequence import TokenScore

    def told(tokens: tuple[int, ...], scores: tuple[TokenScore, ...]) -> list[dict[str, Any]]:
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
            line["prompt_scores"] = told(answer.prompt_tokens, answer.prompt_scores)
        if settings.log_probs:
            line["scores"] = told(answer.tokens, answer.scores)
        yield line


def _searched(
    model: "GPT2 | Opened", tokenizer: "Tokenizer", prompts: list[str], settings: BeamSettings
) -> Iterator[dict[str, Any]]:
    from gpt2train.generate.beam import beam_search
    from gpt2train.generate.continuation import encode_prompts
    from gpt2train.generate.decoder import decoder_of

    decoder = decoder_of(model, settings.beams)
    for prompt, ids in zip(prompts, encode_prompts(tokenizer, prompts), strict=True):
        for beam in beam_search(decoder, ids, settings, tokenizer):
            yield {
                "prompt": prompt,
                "text": beam.text,
                "tokens": beam.tokens,
                "stopped": beam.stopped,
                "score": beam.score,
            }


def _printable(text: str) -> str:
    """Text of a model without what would command the terminal."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
