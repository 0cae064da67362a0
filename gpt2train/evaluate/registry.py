"""Registry of evaluations: the built-in ones and those of plug-ins; does not import torch."""

from collections.abc import Iterable

from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Evaluation
from gpt2train.evaluate.lambada import LAMBADA_EVALUATION
from gpt2train.evaluate.wikitext import WIKITEXT_EVALUATION
from gpt2train.plugins import Registry, load_plugins

# Another command; other files in `eval/`; other inputs of the step that writes them.
RESERVED = ("curve", "perplexity", "samples", "merge", "held_out")


class EvaluationRegistry(Registry[Evaluation]):
    """Evaluations by name; a name is a command, and the name of a result file."""

    def register(self, name: str, entry: Evaluation) -> Evaluation:
        """Add an evaluation and return it; UserError if the name is taken, reserved or malformed."""
        if name in RESERVED:
            raise UserError(f"evaluation {name!r}: {', '.join(RESERVED)} have another meaning; rename it")
        return super().register(name, entry)

    def __getitem__(self, name: str) -> Evaluation:
        """Return an evaluation, or the task of the package that has this name; UserError if there is none."""
        from gpt2train.evaluate.tasks.scores import ready_evaluation  # here, since it reads files

        task = None if name in self._entries else ready_evaluation(name)
        return task or super().__getitem__(name)


BUILT_IN = {"lambada": LAMBADA_EVALUATION, "wikitext": WIKITEXT_EVALUATION}
EVALUATIONS = EvaluationRegistry("evaluation")
for name, evaluation in BUILT_IN.items():
    EVALUATIONS.register(name, evaluation)


def plugin_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions that results depend on: none for built-in evaluations, else those of all plug-ins."""
    return {} if BUILT_IN.keys() >= set(names) else load_plugins()
