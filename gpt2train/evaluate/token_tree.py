"""Token trees: inputs of several scoring requests, with the tokens of common prefixes once; does not import torch.

The choices of a question follow the same context. A tree holds the context once and each choice as a branch; a token
attends to its ancestors, so its hidden state is the one it has in its own sequence.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt2train.evaluate.scoring_request import ScoringRequest

ROOT = -1  # parent of a first token


@dataclass
class TokenTree:
    """Tree of input tokens. Parents precede their children.

    Attributes:
        tokens: token id of each node.
        parents: node before each node, `ROOT` for a first token.
        depths: position of each node in its sequence.
        nodes: for each request, the nodes after which its scored tokens follow.
        targets: for each request, its scored tokens.
        requests: indices of the requests.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    nodes: list[list[int]] = field(default_factory=list)
    targets: list[tuple[int, ...]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True if no node has two children."""
        return self.depths == list(range(len(self.tokens)))

    def shared(self, request: ScoringRequest) -> int:
        """Return the number of inputs of a request that the tree has."""
        node = ROOT
        for count, token in enumerate(request.tokens[:-1]):
            found = self._children.get((node, token))
            if found is None:
                return count
            node = found
        return len(request.tokens) - 1

    def add(self, index: int, request: ScoringRequest) -> None:
        """Add the inputs of a request."""
        node, path = ROOT, []
        for depth, token in enumerate(request.tokens[:-1]):
            found = self._children.get((node, token))
            if found is None:
                found = self._children[node, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(depth)
            node = found
            path.append(node)
        self.nodes.append(path[-request.scored :])
        self.targets.append(request.tokens[-request.scored :])
        self.requests.append(index)


def build_trees(requests: Sequence[ScoringRequest], hidden: int, max_tokens: int) -> list[TokenTree]:
    """Build the trees of all requests, sorted by their tokens, so that those with a common prefix are neighbours.

    Attention over a tree is computed as over one sequence, of which most pairs are masked. A request therefore joins
    the tree of its neighbour only where the shared tokens save more than the masked pairs cost: the matrices of a block
    have about 12 * hidden^2 weights and a pair of tokens takes 2 * hidden multiplications, so a token costs as much as
    6 * hidden pairs.

    Args:
        requests: scoring requests.
        hidden: width of the model.
        max_tokens: maximum nodes of a tree of several requests.
    """
    trees: list[TokenTree] = []
    for index in sorted(range(len(requests)), key=lambda index: requests[index].tokens):
        request = requests[index]
        if not trees or not _pays(trees[-1], request, hidden, max_tokens):
            trees.append(TokenTree())
        trees[-1].add(index, request)
    return trees


def _pays(tree: TokenTree, request: ScoringRequest, hidden: int, max_tokens: int) -> bool:
    shared, length = tree.shared(request), len(request.tokens) - 1
    together = len(tree) + length - shared
    return together <= max_tokens and shared * 6 * hidden >= together**2 - len(tree) ** 2 - length**2


def tree_batches(trees: Sequence[TokenTree], batch_tokens: int) -> list[list[list[int]]]:
    """Return batches of rows of trees, each as its index; the first tree of the first row is as long as the batch.

    A row begins with the largest tree that is left and is filled up with the largest ones that fit, so that little is
    padded.

    Args:
        trees: trees of all requests.
        batch_tokens: maximum size of a batch, including padding; a larger tree is a batch of its own.
    """
    order = sorted(range(len(trees)), key=lambda i: (len(trees[i]), -i))
    sizes = [len(trees[index]) for index in order]
    batches: list[list[list[int]]] = []
    while order:
        size = sizes[-1]
        batch: list[list[int]] = []
        while order and (not batch or (len(batch) + 1) * size <= batch_tokens):
            row, free = [], size
            while place := bisect_right(sizes, free):
                row.append(order.pop(place - 1))
                free -= sizes.pop(place - 1)
            batch.append(row)
        batches.append(batch)
    return batches
