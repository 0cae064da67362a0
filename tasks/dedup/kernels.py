"""The loops of the sketch and the verification, compiled by numba; `plain.py` says the same in plain Python.

Texts come as Arrow holds them: the UTF-8 bytes of a whole column in a row, and where each text begins. Arithmetic is
modulo 2^64 and 2^32. Only functions that need a kernel import this module (see `tasks/compiled.py`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.compiled import compiled, decode, fmix64
from tasks.dedup.alphabet import KNOWN, SPACE, WORD

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Signatures = npt.NDArray[np.uint32]

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
def survey(data: Any, offsets: Any, kinds: Any, starts: Any) -> Any:
    """Bytes of each text once folded, before its spaces are joined; -1 where the table does not know it all."""
    sizes = np.empty(len(offsets) - 1, dtype=np.int64)
    for text in range(len(sizes)):
        place, end, size = offsets[text], offsets[text + 1], 0
        while place < end:
            if data[place] < 0x80:
                place += 1
                size += 1
                continue
            code, width = decode(data, place)
            if not kinds[code] & KNOWN:
                size = -1
                break
            size += starts[code + 1] - starts[code]
            place += width
        sizes[text] = size
    return sizes


@compiled
def fold(data: Any, offsets: Any, folded: Any, kinds: Any, starts: Any, forms: Any, room: Any) -> Any:
    """Fold texts and join their white space to single spaces: `" ".join(normalise(text).split())`.

    Args:
        folded: [texts] whether a text is folded already, so that only its spaces are joined.
        room: bytes that suffice for the result.

    Returns:
        bytes, and where each text begins in them [texts + 1].
    """
    out = np.empty(room, dtype=np.uint8)
    ends = np.empty(len(offsets), dtype=np.int64)
    ends[0] = 0
    size = 0
    for text in range(len(offsets) - 1):
        place, end, begin = offsets[text], offsets[text + 1], size
        space = False  # white space was seen since the last byte written
        while place < end:
            byte = data[place]
            if byte < 0x80:
                place += 1
                if kinds[byte] & SPACE:
                    space = True
                    continue
                if space and size > begin:
                    out[size] = 32
                    size += 1
                space = False
                if 65 <= byte <= 90:
                    byte = np.uint8(byte + 32)
                out[size] = byte
                size += 1
                continue
            code, width = decode(data, place)
            if kinds[code] & SPACE:
                space = True
            elif folded[text]:
                if space and size > begin:
                    out[size] = 32
                    size += 1
                space = False
                for step in range(width):
                    out[size] = data[place + step]
                    size += 1
            else:
                for at in range(starts[code], starts[code + 1]):
                    if forms[at] == 32:
                        space = True
                        continue
                    if space and size > begin:
                        out[size] = 32
                        size += 1
                    space = False
                    out[size] = forms[at]
                    size += 1
            place += width
        ends[text + 1] = size
    return out[:size], ends


@compiled
def units_of(data: Any, begin: Any, end: Any, words: Any, limit: Any, kinds: Any, out: Any) -> Any:
    """Hash the words (runs of `\\w`) or characters of one text into `out`; how many there are.

    Args:
        words: words, or else characters.
        limit: characters of the text that are read at most.
    """
    count, place, characters = 0, begin, 0
    if not words:
        while place < end and characters < limit:
            code, width = decode(data, place)
            out[count] = fmix64(np.uint64(code) + MULTIPLIER)
            count += 1
            place += width
            characters += 1
        return count
    total, piece, length = np.uint64(0), np.uint64(0), np.uint64(0)
    while place < end and characters < limit:
        code, width = decode(data, place)
        characters += 1
        if kinds[code] & WORD:
            for step in range(width):  # eight bytes at a time
                piece = piece << U8 | np.uint64(data[place + step])
                length += np.uint64(1)
                if not length & np.uint64(7):
                    total = (total ^ piece) * MULTIPLIER
                    total ^= total >> U33
                    piece = np.uint64(0)
        elif length:
            out[count] = fmix64((total ^ piece) * MULTIPLIER + length)
            count += 1
            total, piece, length = np.uint64(0), np.uint64(0), np.uint64(0)
        place += width
    if length:
        out[count] = fmix64((total ^ piece) * MULTIPLIER + length)
        count += 1
    return count


@compiled
def ngram_at(units: Any, place: Any, ngram: Any) -> Any:
    """Hash of the n-gram that begins at a unit: a polynomial of the units' hashes, finished with fmix64."""
    total = units[place]
    for step in range(1, ngram):
        total = total * MULTIPLIER + units[place + step]
    return fmix64(total)


@compiled
def sign(hashes: Any, begin: Any, end: Any, a: Any, b: Any, signature: Any) -> None:
    """Let 32-bit shingle hashes into a signature: four at a time, 3 ns each for 128 permutations; singly 17 ns."""
    place = begin
    while place + 4 <= end:
        one, two = fmix32(hashes[place]), fmix32(hashes[place + 1])
        three, four = fmix32(hashes[place + 2]), fmix32(hashes[place + 3])
        for row in range(len(a)):
            left = min(np.uint32(a[row] * one + b[row]), np.uint32(a[row] * two + b[row]))
            right = min(np.uint32(a[row] * three + b[row]), np.uint32(a[row] * four + b[row]))
            signature[row] = min(signature[row], min(left, right))
        place += 4
    while place < end:
        one = fmix32(hashes[place])
        for row in range(len(a)):
            signature[row] = min(signature[row], np.uint32(a[row] * one + b[row]))
        place += 1


@compiled
def sign_texts(data: Any, offsets: Any, words: Any, ngram: Any, limit: Any, kinds: Any, a: Any, b: Any) -> Any:
    """Signatures [texts, permutations], and the units of each text [texts]; fewer than `ngram` leave all ones."""
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
        for place in range(count - ngram + 1):
            shingles[place] = np.uint32(ngram_at(units, place, ngram))
        sign(shingles, 0, count - ngram + 1, a, b, signatures[text])
    return signatures, counts


@compiled
def sign_hashes(hashes: Any, starts: Any, a: Any, b: Any) -> Any:
    """Signatures [documents, permutations] of 32-bit shingle hashes in a row; `starts` has the end too."""
    signatures = np.full((len(starts) - 1, len(a)), HIGH, dtype=np.uint32)
    for text in range(len(starts) - 1):
        sign(hashes, starts[text], starts[text + 1], a, b, signatures[text])
    return signatures


@compiled
def band_hashes(signatures: Any, bands: Any, rows: Any) -> Any:
    """[bands, documents] one 64-bit hash for the `rows` values of each band."""
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
    """Shingle hashes of each text in order, repeated ones included, and where each text's begin [texts + 1]."""
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
        for place in range(count - ngram + 1):
            shingles[size] = ngram_at(units, place, ngram)
            size += 1
        starts[text + 1] = size
    return shingles[:size], starts


@compiled
def distinct(shingles: Any, starts: Any) -> Any:
    """Each text's sorted shingles without repetitions, in a row, and where each text's begin."""
    out = np.empty(len(shingles), dtype=np.uint64)
    ends = np.empty(len(starts), dtype=np.int64)
    ends[0] = 0
    size = 0
    for text in range(len(starts) - 1):
        for place in range(starts[text], starts[text + 1]):
            if place == starts[text] or shingles[place] != shingles[place - 1]:
                out[size] = shingles[place]
                size += 1
        ends[text + 1] = size
    return out[:size], ends


@compiled
def common(one: Any, one_starts: Any, other: Any, other_starts: Any, firsts: Any, seconds: Any) -> Any:
    """How many members two sorted sets share, for each pair of places (`firsts` in `one`, `seconds` in `other`)."""
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
def greedy(count: Any, worse: Any, better: Any, jaccard: Any) -> Any:
    """Who is kept in each document's place, and their Jaccard; see `clusters.keepers`.

    Args:
        count: documents, numbered by rank.
        worse: [edges] ascending.
        better: [edges] ascending among edges of the same `worse`.
        jaccard: [edges]
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
