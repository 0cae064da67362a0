"""Token trees: inputs of several scoring requests, with the tokens of common prefixes once; does not import torch.

The choices of a question follow the same context. A tree holds the context once and each choice as a branch; a token
attends to its ancestors, so its hidden state is the one it has in its own sequence.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpt2train.evaluate.scoring_request import ScoringRequest

ROOT = -1  # parent of a first token
ROW_LENGTHS = (1, 1.125, 1.25, 1.5, 1.75, 2, 2.5, 3)  # lengths of rows that are tried, in sizes of the largest tree
BATCH_COST = 64  # tokens that take as long as a batch itself


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


def tree_batches(trees: Sequence[TokenTree], hidden: int, batch_tokens: int) -> list[list[list[int]]]:
    """Return batches of rows of trees, each as its index.

    A row takes the largest trees that fit, until none does. The length of the rows and their number are those with the
    least work for each node: padding is computed as other tokens are, long rows have more pairs in the attention, and
    each batch costs something itself.

    Args:
        trees: trees of all requests.
        hidden: width of the model.
        batch_tokens: maximum size of a batch, including padding; a larger tree is a batch of its own.
    """
    order = sorted(range(len(trees)), key=lambda i: (len(trees[i]), -i))
    sizes = [len(trees[index]) for index in order]
    batches: list[list[list[int]]] = []
    while order:
        places = _cheapest_batch(sizes, hidden, batch_tokens)
        batches.append([[order[place] for place in row] for row in places])
        taken = {place for row in places for place in row}
        order = [index for place, index in enumerate(order) if place not in taken]
        sizes = [size for place, size in enumerate(sizes) if place not in taken]
    return batches


def _cheapest_batch(sizes: Sequence[int], hidden: int, batch_tokens: int) -> list[list[int]]:
    """Return rows of places in the ascending sizes, the largest one among them."""
    best, least = [[len(sizes) - 1]], math.inf
    for length in sorted({int(sizes[-1] * factor) for factor in ROW_LENGTHS}):
        if length > max(batch_tokens, sizes[-1]):
            break
        rows = _fill_rows(sizes, length, max(1, batch_tokens // length))
        widest = used = 0
        for count, row in enumerate(rows, 1):
            filled = sum(sizes[place] for place in row)
            widest, used = max(widest, filled), used + filled
            cost = (count * widest * (1 + widest / (6 * hidden)) + BATCH_COST) / used
            if cost < least:
                best, least = rows[:count], cost
    return best


def _fill_rows(sizes: Sequence[int], length: int, count: int) -> list[list[int]]:
    """Fill up to `count` rows of a length, each with the largest trees that are left and fit."""
    left, places = list(sizes), list(range(len(sizes)))
    rows: list[list[int]] = []
    while left and len(rows) < count:
        row, free = [], length
        while place := bisect_right(left, free):
            row.append(places.pop(place - 1))
            free -= left.pop(place - 1)
        rows.append(row)
    return rows
