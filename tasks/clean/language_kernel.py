"""Prediction of fastText's language model (Joulin et al. 2016), compiled by numba: a text to its most probable labels.

Same n-grams, same order of sums and the same float32 arithmetic as fastText, so that the probabilities are its own; the
tests hold both equal. fastText takes 35 µs for 110 characters: it builds a string for every n-gram and looks it up
in a chained hash map. Here the hash grows with the n-gram, and its row stands in an array. Only functions that need the
kernel import this module (see `tasks/core/numba_utils.py`).
"""

import math
from typing import Any

import numpy as np

from tasks.core.numba_utils import compiled

DIMENSIONS = 16
BUCKETS = np.uint32(2_000_000)  # of the hashes of n-grams
MIN_CHARACTERS, MAX_CHARACTERS = 2, 4  # of an n-gram
TOP = 10  # labels that are returned; the others have less than a tenth together
END_ROW = 0  # of the word </s>, which ends each line
LABEL = np.frombuffer(b"__label__", dtype=np.uint8)  # a word that begins so is none
FNV_BASIS, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
LEFT, RIGHT = np.uint8(ord("<")), np.uint8(ord(">"))  # stand around each word
EPSILON = 1e-5  # fastText adds it to a probability before the logarithm
MIN_SCORE = np.float32(math.log(EPSILON))  # of labels that are returned


@compiled
def hashed(value: Any, byte: Any) -> Any:
    """Return FNV-1a's hash with one byte more; fastText takes bytes as signed numbers."""
    return np.uint32((value ^ np.uint32(np.int8(byte))) * FNV_PRIME)


@compiled
def is_space(byte: Any) -> Any:
    """Return True for a byte that separates words: ASCII white space as in Python, and NUL."""
    return byte <= 32 and (byte == 32 or 9 <= byte <= 13 or byte >= 28 or byte == 0)


@compiled
def find_word(data: Any, start: Any, end: Any, slots: Any, letters: Any, offsets: Any) -> Any:
    """Row of a word of the model, or -1."""
    value = FNV_BASIS
    for at in range(start, end):
        value = hashed(value, data[at])
    slot = np.int64(value) & (len(slots) - 1)
    while slots[slot] >= 0:
        row = np.int64(slots[slot])
        first = offsets[row]
        if offsets[row + 1] - first == end - start:
            at = 0
            while at < end - start and letters[first + at] == data[start + at]:
                at += 1
            if at == end - start:
                return row
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@compiled
def add_ngrams(data: Any, start: Any, end: Any, hidden: Any, vectors: Any, rows: Any) -> Any:
    """Add the vectors of the n-grams of `<word>`, which stands from start to end; return their number."""
    count = 0
    for first in range(start, end):
        if data[first] & 0xC0 == 0x80:
            continue
        value, at, characters = FNV_BASIS, first, 0
        while at < end and characters < MAX_CHARACTERS:
            value = hashed(value, data[at])
            at += 1
            while at < end and data[at] & 0xC0 == 0x80:
                value = hashed(value, data[at])
                at += 1
            characters += 1
            if characters >= MIN_CHARACTERS:
                row = np.int64(rows[value % BUCKETS])
                if row:
                    for n in range(DIMENSIONS):
                        hidden[n] += vectors[row, n]
                    count += 1
    return count


@compiled
def embed(data: Any, hidden: Any, vectors: Any, rows: Any, slots: Any, letters: Any, offsets: Any) -> Any:
    """Write the mean of the vectors of a line's words and n-grams to `hidden`."""
    word = np.empty(len(data) + 2, dtype=np.uint8)
    hidden[:] = 0
    count, at, is_ended = 0, 0, False
    while at < len(data) and not is_ended:
        if is_space(data[at]):
            at += 1
            continue
        start = at
        while at < len(data) and not is_space(data[at]):
            word[at - start + 1] = data[at]
            at += 1
        size = at - start
        row = find_word(data, start, at, slots, letters, offsets)
        if row < 0 and size >= len(LABEL):
            same = 0
            while same < len(LABEL) and data[start + same] == LABEL[same]:
                same += 1
            if same == len(LABEL):
                continue
        if row >= 0:
            for n in range(DIMENSIONS):
                hidden[n] += vectors[row, n]
            count += 1
        if row == END_ROW:
            is_ended = True
        else:
            word[0], word[size + 1] = LEFT, RIGHT
            count += add_ngrams(word, 0, size + 2, hidden, vectors, rows)
    if not is_ended:
        for n in range(DIMENSIONS):
            hidden[n] += vectors[END_ROW, n]
        count += 1
    factor = np.float32(1.0 / count)
    for n in range(DIMENSIONS):
        hidden[n] *= factor


@compiled
def log(probability: Any) -> Any:
    """Logarithm of a float32, as fastText computes it."""
    return np.float32(math.log(np.float64(probability) + EPSILON))


@compiled
def top_labels(hidden: Any, nodes: Any, children: Any, scores: Any, found: Any) -> Any:
    """Write the most probable labels of the Huffman tree and their log-probabilities; return their number.

    Args:
        hidden: [DIMENSIONS] vector of the line.
        nodes: [DIMENSIONS, labels - 1] weights of the inner nodes.
        children: [labels - 1, 2] left and right child of an inner node; a label is below `labels`.
        scores: [TOP + 1] is written, descending.
        found: [TOP + 1] is written: labels.
    """
    labels = nodes.shape[1] + 1
    products = np.zeros(labels - 1, dtype=np.float32)  # of all nodes at once: 4 µs in place of 5
    for n in range(DIMENSIONS):
        for inner in range(labels - 1):
            products[inner] += nodes[n, inner] * hidden[n]
    stack_node = np.empty(labels, dtype=np.int64)
    stack_score = np.empty(labels, dtype=np.float32)
    stack_node[0], stack_score[0] = 2 * labels - 2, np.float32(0)
    height, count = 1, 0
    while height:
        height -= 1
        node, score = stack_node[height], stack_score[height]
        if score < MIN_SCORE or (count == TOP and score < scores[TOP - 1]):
            continue
        if node < labels:
            at = count
            while at > 0 and scores[at - 1] < score:
                scores[at], found[at] = scores[at - 1], found[at - 1]
                at -= 1
            scores[at], found[at] = score, node
            count = min(count + 1, TOP)
            continue
        inner = node - labels
        right = np.float32(1.0 / np.float64(np.float32(1) + math.exp(-products[inner])))
        left = np.float32(1.0 - np.float64(right))
        stack_node[height], stack_score[height] = children[inner, 1], score + log(right)
        stack_node[height + 1], stack_score[height + 1] = children[inner, 0], score + log(left)
        height += 2
    return count


@compiled
def rank(data: Any, vectors: Any, rows: Any, slots: Any, letters: Any, offsets: Any, nodes: Any, children: Any) -> Any:
    """Labels of a line and their probabilities, descending."""
    hidden = np.empty(DIMENSIONS, dtype=np.float32)
    scores, found = np.empty(TOP + 1, dtype=np.float32), np.empty(TOP + 1, dtype=np.int64)
    embed(data, hidden, vectors, rows, slots, letters, offsets)
    count = top_labels(hidden, nodes, children, scores, found)
    for n in range(count):
        scores[n] = math.exp(scores[n])
    return found[:count], scores[:count]


@compiled
def certain(
    data: Any, is_kept: Any, vectors: Any, rows: Any, slots: Any, letters: Any, offsets: Any, nodes: Any, children: Any
) -> Any:
    """First label of a line, first kept one (or -1), and the probability of the kept ones of the ten first together."""
    found, probabilities = rank(data, vectors, rows, slots, letters, offsets, nodes, children)
    kept, share = -1, 0.0
    for n in range(len(found)):
        if is_kept[found[n]]:
            # Python's round(probability, 4): the product of 24 and 10 bits is exact
            share += np.rint(min(np.float64(probabilities[n]), 1.0) * 1e4) / 1e4
            if kept < 0:
                kept = found[n]
    return found[0], kept, share
