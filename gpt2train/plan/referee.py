"""Simulation of the best layouts of a plan, which decides what memory they need and whether they fit.

A simulated step is not compiled, and a run on a GPU is by default: what that changes is counted by the formulas.
"""

from bisect import insort
from dataclasses import replace

from gpt2train.errors import UserError
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.memory import compiled_change
from gpt2train.plan.parameters import pieces
from gpt2train.plan.search import Candidate, Plan, available_bytes, best_of, offload_of, order, with_smaller_chunk
from gpt2train.plan.simulation import on_cpu, simulated

BEST = 5  # layouts that are simulated, at 2 to 20 s each
MOST = 3 * BEST  # with those that turn out not to fit


def refereed(plan: Plan, vocab: int, hardware: Hardware) -> Plan:
    """Simulate the best layouts of a search with a tolerance; exclude those that need more memory than there is.

    In place of an excluded layout comes the same one with fewer logits at a time, or with a micro-batch or a
    recomputation that needs less. Layouts whose optimizer state fills the device (offload `auto`) are not simulated.
    """
    available = available_bytes(hardware)
    waiting, fits, refused = list(plan.fits), list[Candidate](), list(plan.refused)
    done = tries = 0
    while waiting and done < BEST and tries < MOST:
        candidate = waiting.pop(0)
        if offload_of(candidate.settings.parallel) == "auto":
            fits.append(candidate)
            continue
        tries += 1
        try:
            found = _with_simulation(candidate, vocab)
            reason = f"{found.device / GB:.1f} GB, more than {available / GB:.1f} GB"
        except UserError as error:  # what only the engine checks
            found, reason = None, str(error).split(";")[0]
        if found and found.device <= available:
            fits.append(found)
            done += 1
            continue
        p = candidate.settings.parallel
        refused.append((f"tp {p.tp} x pp {p.pp}, ZeRO {p.zero}: {reason}", 1))
        less = [one for one in plan.others_of(candidate) if one.memory.device < candidate.memory.device]
        if found and (smaller := with_smaller_chunk(candidate, candidate.settings.model.shape(vocab), hardware)):
            less.append(smaller)
        if found and less:
            insort(waiting, best_of(less), key=order)
    rest = [one for one in waiting if one.memory.device <= available]
    return replace(plan, fits=fits + rest, refused=refused)


def _with_simulation(candidate: Candidate, vocab: int) -> Candidate:
    """Return the candidate with the memory of each pipeline rank: simulated, and changed as by compilation."""
    settings, layout = candidate.settings, candidate.layout
    shape = settings.model.shape(vocab)
    kinds = simulated(settings, vocab, layout, None)
    changes = [compiled_change(settings, shape, layout, piece, at) for at, piece in enumerate(pieces(settings, shape))]
    found = [
        dict(kind.step.memory) | ({"compiled": change} if any(changes) else {})
        for kind, change in zip(kinds, changes, strict=True)
    ]
    on_device = (sum(memory.values()) - on_cpu(settings, memory) for memory in found)
    return replace(candidate, simulated=tuple(found), on_device=tuple(on_device))
