"""Ready tokens as a step: a manifest with the identity and the counts of token files that were made elsewhere.

Nothing is copied. The manifest holds no path, so that files that moved are the same input of a training.
"""

from gpt2train.config.data import split_weights
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.ready_tokens.tokens import ReadyTokens

NAME = "ready_tokens"


def ready_tokens(root: Folder, tokens: ReadyTokens, runner: Runner) -> Manifest:
    """Record token files that were made elsewhere -> `ready_tokens/_manifest.json`."""
    step = step_of(root, tokens)
    if done := runner.finished(step):
        return done
    documents = sum(count for name, count in tokens.facts.items() if name.endswith("_documents"))
    return step.commit(Outcome(seen=documents, kept=documents, facts=tokens.facts), content=digest(step.inputs))


def step_of(root: Folder, tokens: ReadyTokens) -> Step:
    """Return the step of these tokens; its fingerprint depends on their content, split, weights and tokenizer."""
    inputs = {f"tokens-{number}": identity for number, identity in enumerate(tokens.identities)}
    if tokens.valid is not None:  # its identity is the last one
        inputs["valid"] = inputs.pop(f"tokens-{len(tokens.corpora)}")
    if tokens.tokenizer_hash is not None:
        inputs["tokenizer"] = tokens.tokenizer_hash
    parameters = {
        "split": None if tokens.split is None else list(split_weights(tokens.split)),
        "weights": [corpus.weight for corpus in tokens.corpora],
        "vocab": tokens.vocab,
    }
    return Step(root, NAME, version=1, parameters=parameters, inputs=inputs)
