"""Cases of distributed decoding on four processes, whole model and shards; run by `run_cases.py`."""

import time
from collections.abc import Callable
from datetime import timedelta
from math import log
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gpt2train.convert.huggingface import open_model, read_model, read_shape
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.lambada import evaluate_lambada
from gpt2train.inference.beam_search import beam_search
from gpt2train.inference.decoder import Decoder, LocalDecoder, decoder_of
from gpt2train.inference.distributed_decoder import CommandChannel, DistributedModel, follow
from gpt2train.inference.generate import continue_tokens
from gpt2train.inference.model_shard import ModelShard
from gpt2train.inference.settings import BeamSettings, SamplingSettings
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import DistContext

LIMIT = timedelta(seconds=60)
SHORT = [[5, 8, 13, 21, 34], [7], list(range(3, 40)), [99, 98, 97]]  # for a vocabulary of 150
PROMPTS = [[5, 1, 279, 7], [8], [3, 3, 3, 200, 100, 4, 17], [250, 251]]


def run_distributed(
    folder: str, tp: int, pp: int, work: Callable[[DistributedModel], Any], limit: timedelta = LIMIT
) -> Any:
    """Load a shard on each process; rank 0 does the work, the others follow it. The result, on rank 0."""
    ctx = DistContext(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), limit)
    part = ModelShard(read_shape(Path(folder)), Layout.of_model(read_shape(Path(folder)), tp, pp, ctx.world), ctx)
    part.read(open_model(Path(folder)))
    line = CommandChannel(limit)
    sizes = {"parameters": sum(p.numel() for p in part.model.parameters())}
    if ctx.rank:
        follow(part, line)
        return sizes
    model = DistributedModel(part, line, limit)
    try:
        return sizes | work(model)
    finally:
        model.close()


def drive(decoder: Decoder) -> list[torch.Tensor]:
    """Make every call of a decoder: rows that are added, continued, dropped, moved, copied, and only scored."""
    seen = [decoder.add(PROMPTS[:3])]
    seen.append(decoder.step([1, 2, 3]))
    decoder.select([2, 0])
    seen.append(decoder.step([4, 5]))
    seen.append(decoder.logits(list(range(100))[:24]))
    seen.append(decoder.add(PROMPTS[3:]))
    decoder.select([1, 2, 2, 0])
    seen += [decoder.step([9, 10, 11, 12]), decoder.step([7, 7, 8, 8])]
    decoder.select([])
    seen.append(decoder.add([[279] * 100]))  # longer than the first message of a call
    return seen


def equal(folder: str, tp: int, pp: int) -> dict[str, Any]:
    """The logits of every call, against the decoder of the whole model."""

    def work(team: DistributedModel) -> dict[str, Any]:
        whole, parts = LocalDecoder(read_model(Path(folder)), 5), team.decoder(5)
        expected, found = drive(whole), drive(parts)
        return {
            "sizes": [list(x.shape) for x in found] == [list(x.shape) for x in expected],
            "difference": max(float((x - y).abs().max()) for x, y in zip(found, expected, strict=True)),
            "scale": max(float(x.abs().max()) for x in expected),
            "lengths": list(parts.lengths) == list(whole.lengths),
            "dtype": str(found[0].dtype),
        }

    return run_distributed(folder, tp, pp, work)


def encoder_decoder(folder: str, tp: int, pp: int) -> dict[str, Any]:
    """Greedy tokens and beams of an encoder-decoder, and the logits of every call, against the whole model."""

    def written(decoder: Decoder) -> list[list[int]]:
        beams = beam_search(decoder, SHORT[0], BeamSettings(beams=3, max_new_tokens=8))
        return [list(beam.tokens) for beam in beams]

    def calls(decoder: Decoder) -> list[torch.Tensor]:
        seen = [decoder.add(SHORT[:3]), decoder.step([1, 2, 3])]
        decoder.select([2, 0])
        return [*seen, decoder.step([4, 5]), decoder.add(SHORT[3:]), decoder.step([6, 7, 8])]

    def work(team: DistributedModel) -> dict[str, Any]:
        model = read_model(Path(folder))
        settings = SamplingSettings(max_new_tokens=12, top_k=1)
        greedy = [[s.tokens for s in continue_tokens(one, SHORT, settings, batch=3)] for one in (model, team)]
        whole, parts = decoder_of(model, 3), team.decoder(3)
        pairs = list(zip(calls(whole), calls(parts), strict=True))
        lengths = list(whole.lengths) == list(parts.lengths)
        try:
            parts.logits([1, 2])
        except UserError as error:
            refused = str(error)
        return {
            "difference": max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs),
            "greedy": greedy[0] == greedy[1],
            "tokens": greedy[0],
            "beams": written(decoder_of(model, 3)) == written(team.decoder(3)),
            "lengths": lengths,
            "refused": refused,
        }

    return run_distributed(folder, tp, pp, work)


def scored(folder: str, tp: int, pp: int) -> dict[str, Any]:
    """Log-probabilities of targets without their logits, against the logits of the whole model."""

    def work(team: DistributedModel) -> dict[str, Any]:
        model = read_model(Path(folder))
        rows = [row for row, prompt in enumerate(PROMPTS) for _ in prompt]
        places = [ctx for prompt in PROMPTS for ctx in range(len(prompt))]
        logits = torch.cat([LocalDecoder(model, 1).logits(prompt) for prompt in PROMPTS])
        targets = [int(x.argmax()) if n % 3 else (n * 37) % 280 for n, x in enumerate(logits)]
        log_probs, greedy = team.score(PROMPTS, rows, places, targets)
        expected = logits.log_softmax(1)[range(len(targets)), targets]
        return {
            "difference": float((log_probs - expected).abs().max()),
            "greedy": greedy.tolist() == (logits.argmax(1) == torch.tensor(targets)).tolist(),
            "likeliest": int(greedy.sum()),
            "of": len(targets),
        }

    return run_distributed(folder, tp, pp, work)


def lambada(folder: str, tp: int, pp: int) -> dict[str, Any]:
    """LAMBADA's scores of lines of a text, against those of the whole model."""
    lines = [
        line.strip()
        for line in (Path(__file__).parents[3] / "LICENSE").read_text().splitlines()
        if len(line.split()) > 8
    ]

    def work(team: DistributedModel) -> dict[str, Any]:
        tokenizer = load_tokenizer(Path(folder))
        of_one = evaluate_lambada(Scorer(read_model(Path(folder)), tokenizer), lines)
        of_all = evaluate_lambada(Scorer(team, tokenizer), lines)
        log_perplexity = [log(one["definitions"]["lambada_openai"].pop("perplexity")) for one in (of_one, of_all)]
        return {
            "same": of_one["definitions"] == of_all["definitions"] and of_one["passages"] == of_all["passages"],
            "difference": abs(log_perplexity[0] - log_perplexity[1]),
            "passages": of_all["passages"],
            "correct": of_all["definitions"]["last_token"]["correct"],
        }

    return run_distributed(folder, tp, pp, work)


def idle(folder: str, tp: int, pp: int, seconds: int) -> dict[str, Any]:
    """A call after an idle time of three times the peer timeout."""
    before = psutil.Process().cpu_times()

    def work(team: DistributedModel) -> dict[str, Any]:
        decoder = team.decoder(1)
        time.sleep(3 * seconds)
        return {"answers": list(decoder.add([[1, 2]]).shape)}

    found = run_distributed(folder, tp, pp, work, timedelta(seconds=seconds))
    after = psutil.Process().cpu_times()
    return found | {"seconds": after.user + after.system - before.user - before.system}


def over(folder: str, tp: int, pp: int) -> dict[str, Any]:
    def work(team: DistributedModel) -> dict[str, Any]:
        first, second = team.decoder(2), team.decoder(3)
        second.add([[1]])
        try:
            first.add([[1]])
        except RuntimeError as error:
            return {"said": str(error)}
        return {"said": ""}

    return run_distributed(folder, tp, pp, work)
