"""Choice of the recipe's depth and tokens for a budget of time or of FLOPs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpt2train.config.recipe import MAX_DEPTH, RECIPES, horizon, model_of, modern, shape_of
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.plan.devices import Gpu, find_gpus, usable_cores
from gpt2train.plan.fit import CORE_FLOPS, CPU_SLOWDOWN, DEFAULT_TFLOPS
from gpt2train.plan.hardware import Hardware
from gpt2train.settings import nearest

SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600}
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([mhd])", re.IGNORECASE)
MIN_TOKENS = 1_000_000  # a smaller budget trains nothing
MAX_OVERTRAINING = 100  # times the tokens of the deepest model that a budget may buy

Rate = Callable[[str], float]  # FLOP/s of all devices in a precision


@dataclass(frozen=True)
class Goal:
    """Capability of a published model, as a budget of the recipe: a prediction from published runs."""

    what: str  # the model and its score
    flops: float  # FLOPs of the run that is expected to reach it
    low: float  # FLOPs with which a published run of a richer recipe reached it
    high: float  # FLOPs that are enough if the run is as unlucky as the worst of equal published runs


# nanochat's first release (October 2025) is a model without value embeddings, trained with Muon on 20 tokens for each
# parameter of FineWeb-Edu, as this recipe's is. CORE .2219 at depth 20 (3.9e19 FLOPs), "slightly" above GPT-2 at depth
# 26, which are 21.6e9 tokens of 6.9e9 FLOPs. Its record of January 2026 took 4.33e19. Of seven equal runs of March
# 2026 the best and the worst differ by .0165: at .0346 per factor 3.8, .008 below the mean are a factor of 1.36.
GOALS = {"gpt2": Goal("GPT-2 1.5B: CORE 0.2565", flops=1.5e20, low=4.3e19, high=2.0e20)}


@dataclass(frozen=True)
class Recipe:
    """A recipe with its numbers."""

    name: str  # name of its runs, as `modern-12`
    depth: int  # blocks of the model
    tokens: int  # tokens of the training
    settings: Mapping[str, Any]  # layer for `gpt2train.settings.build`

    @property
    def flops(self) -> float:
        """FLOPs of the training."""
        return float(self.tokens) * cost_of_token(self.depth)

    @property
    def flops_budget(self) -> str:
        """Budget that gives this recipe on every machine; half a token above its FLOPs, so that rounding takes none."""
        return f"{(self.tokens + 0.5) * cost_of_token(self.depth):.16g}"


def given_recipe(
    name: str | None, preset: str | None, depth: int | None, budget: str | None, rate: Callable[[], Rate]
) -> Recipe | None:
    """Recipe of a command's options, which are those of `choose_recipe`; None if they ask for a preset.

    The complete settings of a run have the name of its recipe as the preset.

    Raises:
        UserError: the options contradict each other, or one is out of bounds.
    """
    if name is None:
        for option, value in (("--depth", depth), ("--budget", budget)):
            if value is not None:
                raise UserError(f"{option} {value} is for a recipe; add --recipe modern")
        return None
    recipe = choose_recipe(name, depth, budget, rate)
    if preset not in (None, recipe.name):
        raise UserError(f"--recipe {name} and --preset {preset} both give the settings; leave one out")
    return recipe


def choose_recipe(name: str, depth: int | None, budget: str | None, rate: Callable[[], Rate]) -> Recipe:
    """Apply a recipe to a depth, or to a budget.

    The depth for a budget is the largest even one, so that the heads can be split, whose own tokens cost no more. The
    budget that is left buys more tokens; one below the cost of depth 2 buys fewer tokens of that.

    Args:
        name: name of the recipe.
        depth: blocks of the model.
        budget: time, as 8h, FLOPs, as 1e18, or a goal, as gpt2, in place of the depth.
        rate: function that returns the speed of the devices; called for a time alone.

    Raises:
        UserError: the name is unknown, not exactly one of depth and budget is given, or one is out of bounds.
    """
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; {nearest(name, RECIPES)}")
    if (depth is None) == (budget is None):
        found = "is without a size" if depth is None else "has both --depth and --budget"
        raise UserError(f"--recipe {name} {found}; give one of --depth 12, --budget 8h, --budget 1e18, --budget gpt2")
    if depth is not None:
        return Recipe(f"{name}-{depth}", depth, horizon(depth), modern(depth))
    amount, unit = read_budget(str(budget))
    speed = rate() if unit == "seconds" else lambda _: 1.0
    fitting = [2]
    for candidate in range(4, MAX_DEPTH + 1, 2):
        if horizon(candidate) * cost_of_token(candidate) > amount * speed(modern(candidate)["precision"]):
            break
        fitting.append(candidate)
    chosen = fitting[-1]
    spent, own = amount * speed(modern(chosen)["precision"]), horizon(chosen) * cost_of_token(chosen)
    if spent > MAX_OVERTRAINING * own:
        of_time = f", {spent:.3g} FLOPs on these devices," if unit == "seconds" else ""
        raise UserError(
            f"--budget {budget}{of_time} is more than {MAX_OVERTRAINING} times what the deepest model, depth {chosen}, "
            f"takes; give at most {MAX_OVERTRAINING * own:.2g} FLOPs"
        )
    tokens = int(spent / cost_of_token(chosen))
    if tokens < MIN_TOKENS:
        raise UserError(f"--budget {budget} buys {tokens:,} tokens of the smallest model; give above {MIN_TOKENS:,}")
    return Recipe(f"{name}-{chosen}", chosen, tokens, modern(chosen, tokens))


def read_budget(text: str) -> tuple[float, Literal["seconds", "FLOPs"]]:
    """Read a budget: a time in minutes, hours or days (90m, 8h, 2d), FLOPs (1e18), or a goal (gpt2).

    Raises:
        UserError: it is none of them.
    """
    if goal := GOALS.get(text):
        return goal.flops, "FLOPs"
    if found := TIME.fullmatch(text.strip()):
        return float(found[1]) * SECONDS[found[2].lower()], "seconds"
    try:
        flops = float(text)
    except ValueError:
        flops = 0.0
    if not 0 < flops < float("inf"):
        goals = ", ".join(GOALS)
        raise UserError(f"--budget {text} is neither a time (90m, 8h, 2d) nor FLOPs (1e18) nor a goal ({goals})")
    return flops, "FLOPs"


def cost_of_token(depth: int) -> int:
    """FLOPs of the recipe's model of a depth for one token of training."""
    return flops_per_token(shape_of(model_of(depth)))


def gpu_rate(hardware: Hardware) -> Rate:
    """Speed of GPUs, without communication: peak times efficiency."""
    return lambda _: hardware.gpus * hardware.tflops * 1e12 * hardware.efficiency


def cpu_rate(cores: int) -> Rate:
    """Speed of CPU cores, as measured (`plan.fit.CORE_FLOPS`)."""
    return lambda precision: cores * CORE_FLOPS / CPU_SLOWDOWN[precision]


def machine_rate(gpus: Sequence[Gpu], *, processes: int, nodes: int, threads: int, cores: int) -> Rate:
    """Speed of this machine, with its GPUs and cores, for the processes of a launch, and of others that are equal."""
    if len(gpus) < processes:
        return cpu_rate(min(processes * threads, cores) * nodes)
    slowest = min(gpu.tflops or DEFAULT_TFLOPS for gpu in gpus[:processes])
    return gpu_rate(Hardware(gpus=processes * nodes, gpus_per_node=processes, tflops=slowest))


def this_machine() -> Rate:
    """Speed of all GPUs of this machine, or of all its cores."""
    gpus, cores = find_gpus(), usable_cores()
    return machine_rate(gpus, processes=len(gpus) or cores, nodes=1, threads=1, cores=cores)
