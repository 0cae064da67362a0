"""Loops of the sketch and the verification, compiled by numba; the tests have the same in plain Python.

Texts have the layout of Arrow: the concatenated UTF-8 bytes of a column, and the offset of each text. Arithmetic is
modulo 2^64 and 2^32. Only functions that need a kernel import this module (see `tasks/core/numba_utils.py`).
"""

from typing import Any

import numpy as np

from tasks.core.numba_utils import compiled, decode, fmix64
from tasks.dedup.unicode_tables import INVISIBLE, KNOWN, SINGLE, SPACE, WORD

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, 2^64 / golden ratio
HIGH = np.uint32(0xFFFFFFFF)
U33, U8 = np.uint64(33), np.uint64(8)


@compiled
def fmix32(number: Any) -> Any:
    """MurmurHash3's 32-bit finaliser."""
    number = np.uint32(number ^ (number >> np.uint32(16)))
    number = np.uint32(number * np.uint32(0x85EBCA6B))
    number = np.uint32(number ^ (number >> np.uint32(13)))
    number = np.uint32(number * np.uint32(0xC2B2AE35))
    return np.uint32(number ^ (number >> np.uint32(16)))


@compiled
def folded_sizes(data: Any, offsets: Any, kinds: Any, starts: Any) -> Any:
    """Bytes of each folded text before its spaces are joined.

    -1: the table lacks one of the characters; -2: and one of them is invisible.
    """
    sizes = np.empty(len(offsets) - 1, dtype=np.int64)
    for text in range(len(sizes)):
        position, end, size = offsets[text], offsets[text + 1], 0
        known, visible = True, True
        while position < end and (known or visible):
            if data[position] < 0x80:
                position += 1
                size += 1
                continue
            code, width = decode(data, position)
            visible = visible and not kinds[code] & INVISIBLE
            if not kinds[code] & KNOWN:
                known = False
            elif known:
                size += starts[code + 1] - starts[code]
            position += width
        sizes[text] = size if known else -1 if visible else -2
    return sizes


@compiled
def put(out: Any, size: Any, byte: Any, space: Any) -> Any:
    """Append a byte, after a space if there is to be one; return the new size."""
    if space:
        out[size] = 32
        size += 1
    out[size] = byte
    return size + 1


@compiled
def fold(data: Any, offsets: Any, folded: Any, kinds: Any, starts: Any, forms: Any, capacity: Any) -> Any:
    """Fold texts and collapse their white space: `" ".join(normalise(text).split())`.

    Texts that are `folded` [texts] already only have their spaces joined. `kinds`, `starts` and `forms` are those of
    `Tables`, `capacity` is an upper bound of the bytes of the result: UTF-8 of the folded texts, and the start of each
    text in it [texts + 1].
    """
    out = np.empty(capacity, dtype=np.uint8)
    ends = np.empty(len(offsets), dtype=np.int64)
    ends[0] = 0
    size = 0
    for text in range(len(offsets) - 1):
        position, end, begin = offsets[text], offsets[text + 1], size
        space = False  # there was white space since the last byte written
        while position < end:
            byte = data[position]
            if byte < 0x80:
                position += 1
                if kinds[byte] & SPACE:
                    space = True
                    continue
                if 65 <= byte <= 90:
                    byte = np.uint8(byte + 32)
                size, space = put(out, size, byte, space and size > begin), False
                continue
            code, width = decode(data, position)
            if kinds[code] & SPACE:
                space = True
            elif folded[text]:
                for step in range(width):
                    size, space = put(out, size, data[position + step], space and size > begin), False
            else:
                for at in range(starts[code], starts[code + 1]):
                    if forms[at] == 32:
                        space = True
                        continue
                    size, space = put(out, size, forms[at], space and size > begin), False
            position += width
        ends[text + 1] = size
    return out[:size], ends


@compiled
def units_of(data: Any, begin: Any, end: Any, words: Any, limit: Any, kinds: Any, out: Any) -> Any:
    r"""Hash the words or characters of one text, which begins and ends at these bytes; return their number.

    A word is a run of letters, digits and vowel signs, or a single letter of a script without spaces between words. At
    most `limit` characters are read. `kinds` are those of `Tables`; `out`, uint64, gets the hash of each unit.
    """
    count, position, characters = 0, begin, 0
    if not words:
        while position < end and characters < limit:
            code, width = decode(data, position)
            out[count] = fmix64(np.uint64(code) + MULTIPLIER)
            count += 1
            position += width
            characters += 1
        return count
    total, piece, length = np.uint64(0), np.uint64(0), np.uint64(0)
    while position < end and characters < limit:
        code, width = decode(data, position)
        characters += 1
        if kinds[code] & (WORD | SINGLE) == WORD:
            for step in range(width):  # eight bytes at a time
                piece = piece << U8 | np.uint64(data[position + step])
                length += np.uint64(1)
                if not length & np.uint64(7):
                    total = (total ^ piece) * MULTIPLIER
                    total ^= total >> U33
                    piece = np.uint64(0)
            position += width
            continue
        if length:
            out[count] = fmix64((total ^ piece) * MULTIPLIER + length)
            count += 1
            total, piece, length = np.uint64(0), np.uint64(0), np.uint64(0)
        if kinds[code] & SINGLE:
            for step in range(width):
                piece = piece << U8 | np.uint64(data[position + step])
            out[count] = fmix64(piece * MULTIPLIER + np.uint64(width))
            count += 1
            piece = np.uint64(0)
        position += width
    if length:
        out[count] = fmix64((total ^ piece) * MULTIPLIER + length)
        count += 1
    return count


@compiled
def ngram_at(units: Any, position: Any, ngram: Any) -> Any:
    """Hash of the n-gram that begins at a unit: a polynomial of the hashes of the units, finished with fmix64."""
    total = units[position]
    for step in range(1, ngram):
        total = total * MULTIPLIER + units[position + step]
    return fmix64(total)


@compiled
def sign(hashes: Any, begin: Any, end: Any, a: Any, b: Any, signature: Any) -> None:
    """Update a signature with 32-bit shingle hashes: four at a time, 3 ns each for 128 permutations (17 ns singly)."""
    position = begin
    while position + 4 <= end:
        one, two = fmix32(hashes[position]), fmix32(hashes[position + 1])
        three, four = fmix32(hashes[position + 2]), fmix32(hashes[position + 3])
        for row in range(len(a)):
            left = min(np.uint32(a[row] * one + b[row]), np.uint32(a[row] * two + b[row]))
            right = min(np.uint32(a[row] * three + b[row]), np.uint32(a[row] * four + b[row]))
            signature[row] = min(signature[row], min(left, right))
        position += 4
    while position < end:
        one = fmix32(hashes[position])
        for row in range(len(a)):
            signature[row] = min(signature[row], np.uint32(a[row] * one + b[row]))
        position += 1


@compiled
def sign_texts(data: Any, offsets: Any, words: Any, ngram: Any, limit: Any, kinds: Any, a: Any, b: Any) -> Any:
    """Signatures [texts, permutations], all ones below `ngram` units, and number of units of each text [texts]."""
    signatures = np.full((len(offsets) - 1, len(a)), HIGH, dtype=np.uint32)
    counts = np.empty(len(offsets) - 1, dtype=np.int64)
    longest = 0
    for text in range(len(counts)):
        longest = max(longest, offsets[text + 1] - offsets[text])
    units = np.empty(longest, dtype=np.uint64)
    shingles = np.empty(longest, dtype=np.uint32)
    for text in range(len(counts)):
        count = units_of(data, offsets[text], offsets[text + 1], words, limit, kinds, units)
        counts[text] = count
        for position in range(count - ngram + 1):
            shingles[position] = np.uint32(ngram_at(units, position, ngram))
        sign(shingles, 0, count - ngram + 1, a, b, signatures[text])
    return signatures, counts


@compiled
def band_hashes(signatures: Any, bands: Any, rows: Any) -> Any:
    """64-bit hash [bands, documents] of the `rows` values of each band."""
    hashes = np.empty((bands, len(signatures)), dtype=np.uint64)
    for text in range(len(signatures)):
        for band in range(bands):
            total = np.uint64(0)
            for row in range(band * rows, (band + 1) * rows):
                total = fmix64(total * MULTIPLIER + np.uint64(signatures[text, row]))
            hashes[band, text] = total
    return hashes


@compiled
def shingle_texts(data: Any, offsets: Any, words: Any, ngram: Any, kinds: Any) -> Any:
    """Concatenated shingle hashes of the texts, including repeated ones, and the start of each text [texts + 1]."""
    shingles = np.empty(len(data), dtype=np.uint64)
    starts = np.empty(len(offsets), dtype=np.int64)
    starts[0] = 0
    longest = 0
    for text in range(len(offsets) - 1):
        longest = max(longest, offsets[text + 1] - offsets[text])
    units = np.empty(longest, dtype=np.uint64)
    size = 0
    for text in range(len(offsets) - 1):
        count = units_of(data, offsets[text], offsets[text + 1], words, longest, kinds, units)
        for position in range(count - ngram + 1):
            shingles[size] = ngram_at(units, position, ngram)
            size += 1
        starts[text + 1] = size
    return shingles[:size], starts


@compiled
def distinct(shingles: Any, starts: Any) -> Any:
    """Concatenated sorted shingles of each text without repetitions, and the start of each text [texts + 1]."""
    out = np.empty(len(shingles), dtype=np.uint64)
    ends = np.empty(len(starts), dtype=np.int64)
    ends[0] = 0
    size = 0
    for text in range(len(starts) - 1):
        for position in range(starts[text], starts[text + 1]):
            if position == starts[text] or shingles[position] != shingles[position - 1]:
                out[size] = shingles[position]
                size += 1
        ends[text + 1] = size
    return out[:size], ends


@compiled
def common(one: Any, one_starts: Any, other: Any, other_starts: Any, firsts: Any, seconds: Any) -> Any:
    """Number of common members of sorted sets, for each pair of indices (`firsts` in `one`, `seconds` in `other`)."""
    counts = np.empty(len(firsts), dtype=np.int64)
    for pair in range(len(firsts)):
        i, i_end = one_starts[firsts[pair]], one_starts[firsts[pair] + 1]
        j, j_end = other_starts[seconds[pair]], other_starts[seconds[pair] + 1]
        count = 0
        while i < i_end and j < j_end:
            left, right = one[i], other[j]
            count += left == right
            i += left <= right
            j += right <= left
        counts[pair] = count
    return counts


@compiled
def uncovered(grams: Any, starts: Any, sets: Any, set_starts: Any, firsts: Any, seconds: Any, ngram: Any) -> Any:
    """Share of the words of texts [pairs] that are in no n-gram of a set; 1 for a text without an n-gram.

    `grams` are those of the texts in their order, `starts` [texts + 1] the start of each text, and the end; `sets` and
    `set_starts` [sets + 1] are sorted sets in the same form. `firsts` [pairs] are indices of texts, `seconds` of sets.
    """
    shares = np.ones(len(firsts), dtype=np.float64)
    for pair in range(len(firsts)):
        begin, end = starts[firsts[pair]], starts[firsts[pair] + 1]
        low, high = set_starts[seconds[pair]], set_starts[seconds[pair] + 1]
        if begin == end:
            continue
        members = sets[low:high]
        covered = reached = 0  # words before `reached` are counted
        for position in range(begin, end):
            at = np.searchsorted(members, grams[position])
            if at < len(members) and members[at] == grams[position]:
                first = position - begin
                covered += first + ngram - max(first, reached)
                reached = first + ngram
        words = end - begin + ngram - 1
        shares[pair] = (words - covered) / words
    return shares


@compiled
def greedy(count: Any, worse: Any, better: Any, jaccard: Any) -> Any:
    """Policy `greedy` of `clusters.choose_survivors`.

    Args:
        count: number of documents; they are numbered by rank.
        worse: [edges] worse-ranked document, ascending.
        better: [edges] better-ranked document, ascending among edges of the same `worse`.
        jaccard: [edges] similarity.

    Returns:
        Document kept instead of each document [count], and their similarity [count].
    """
    kept = np.arange(count)
    similarity = np.ones(count, dtype=np.float64)
    edge = 0
    for node in range(count):
        chosen, best = node, -1.0
        while edge < len(worse) and worse[edge] == node:
            if kept[better[edge]] == better[edge] and jaccard[edge] > best:
                chosen, best = better[edge], jaccard[edge]
            edge += 1
        if chosen != node:
            kept[node], similarity[node] = chosen, best
    return kept, similarity


@compiled
def root_of(parent: Any, node: Any) -> Any:
    """Root of the tree of a node; the path to it is shortened."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def unite(parent: Any, one: Any, other: Any) -> None:
    """Join the trees of the two ends of each edge; the smaller root becomes the parent of the other."""
    for edge in range(len(one)):
        first, second = root_of(parent, one[edge]), root_of(parent, other[edge])
        parent[max(first, second)] = min(first, second)


@compiled
def roots(parent: Any, nodes: Any) -> Any:
    """Root of the tree of each node: the smallest member of its component."""
    found = np.empty(len(nodes), dtype=np.int64)
    for index in range(len(nodes)):
        found[index] = root_of(parent, nodes[index])
    return found
