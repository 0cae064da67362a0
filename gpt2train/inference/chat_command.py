"""The command `gpt2train chat`, a conversation with a model in the terminal."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpt2train.command_line import ModelFolder, printable
from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.inference.open_model import check_model, open_model
from gpt2train.inference.settings import SamplingSettings, ServingLayout

if TYPE_CHECKING:
    from gpt2train.data.chat import Chat
    from gpt2train.inference.decoder import Decoder

DEFAULT = SamplingSettings(max_new_tokens=256)
UNUSED = ("samples", "log_probs", "prompt_log_probs", "top_log_probs", "window")
ONE_PROCESS = ServingLayout()


def chat(
    *,
    model: ModelFolder,
    system: str | None = None,
    sampling: Annotated[SamplingSettings, Parameter(name="*")] = DEFAULT,
    device: Device = "auto",
) -> None:
    """Talk with a model that was tuned on conversations: a line is a message, Ctrl-D ends.

    Ctrl-C ends an answer. What no longer fits the context is forgotten, the first question and answer first.

    Parameters
    ----------
    model
        Model folder with a chat template.
    system
        Message of the system, before the conversation.
    device
        auto uses a GPU if there is one.
    """
    for name in UNUSED:
        if getattr(sampling, name) != getattr(DEFAULT, name):
            raise UserError(f"--{name.replace('_', '-')} has no effect in a conversation; leave it out")
    shape = check_model(model, ONE_PROCESS)
    from gpt2train.convert.hf_config import read_end_tokens
    from gpt2train.data.chat import open_chat
    from gpt2train.data.tokenizer import load_model_tokenizer

    tokenizer = load_model_tokenizer(model, shape.vocab)
    encoder = open_chat(model, tokenizer, needed=True)
    assert encoder is not None
    with encoder, open_model(model, ONE_PROCESS, device) as opened:
        from gpt2train.inference.decoder import decoder_of

        ends = (*read_end_tokens(model, shape.vocab), *(() if encoder.end is None else (encoder.end,)))
        chosen = sampling.model_copy(update={"stop_tokens": (*sampling.stop_tokens, *ends)})
        history = [] if system is None else [{"role": "system", "content": system}]
        talk(encoder, decoder_of(opened, 1), chosen, history)


def talk(
    encoder: "Chat",
    decoder: "Decoder",
    sampling: SamplingSettings,
    history: list[dict[str, str]],
    read: Callable[[str], str] = input,
) -> None:
    """Read messages and print answers until the input ends, or Ctrl-C is pressed instead of a message."""
    prompt, turn = "> " if sys.stdin.isatty() else "", 0
    while True:
        try:
            said = read(prompt)
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not said.strip():
            continue
        asked = [*history, {"role": "user", "content": said}]
        try:
            ids, asked = _prompt(encoder, asked, decoder.context, sampling.max_new_tokens)
        except UserError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            continue
        answer = ""
        try:
            for piece in _answer(encoder, decoder, ids, sampling, turn):
                answer += piece
                print(printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            print(" …", end="")
        print()
        history, turn = [*asked, {"role": "assistant", "content": answer}], turn + 1


def _prompt(
    encoder: "Chat", messages: list[dict[str, str]], context: int, wanted: int
) -> tuple[list[int], list[dict[str, str]]]:
    """Encode a conversation so that an answer has space, and return what is left of it.

    Raises:
        UserError: its last message alone is too long, or the template refuses it.
    """
    from gpt2train.data.chat import without_first_turn

    space = min(wanted, context // 4)
    while len(ids := encoder.prompt(messages)) + space > context and (fewer := without_first_turn(messages)):
        messages = [dict(one) for one in fewer]
    if len(ids) >= context:
        raise UserError(f"the message has {len(ids)} tokens, the model's context is {context}; shorten it")
    return ids, messages


def _answer(
    encoder: "Chat", decoder: "Decoder", ids: list[int], sampling: SamplingSettings, turn: int
) -> Iterator[str]:
    """Yield the pieces of an answer."""
    from gpt2train.data.tokenizer import end_of_text_id
    from gpt2train.inference.batch import Batch, Continuation
    from gpt2train.inference.prompts import ids_without_token
    from gpt2train.inference.sequence import TokenSequence

    tokenizer = encoder.tokenizer
    excluded = ids_without_token(decoder.shape, tokenizer, sampling.stop_tokens)
    end = end_of_text_id(tokenizer)
    job = Continuation(TokenSequence(ids, sampling, decoder.context, tokenizer, end, turn, 0, excluded))
    batch = Batch(decoder)
    try:
        ended = batch.join([job])
        while not ended:
            yield job.sequence.pop_delta()
            ended = batch.step()
        if job.error is not None:
            raise job.error
        yield job.sequence.pop_delta()
    finally:
        batch.drop([job])
