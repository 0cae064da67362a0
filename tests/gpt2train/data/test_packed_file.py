"""Packed files of several streams, whole, damaged and truncated."""

import bz2
import io
import lzma
import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.packed_file import FaultLast, ZstdFile, unpack

SKIPPABLE = b"\x5e\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
NOISE = random.Random(1).randbytes(400_000)


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


class Pipe(io.BytesIO):
    def seek(self, position: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("seek")


@given(
    st.lists(st.binary(max_size=300) | st.just(b"x" * 300_000), min_size=1, max_size=3),
    st.sampled_from([1000, 70_000, 1 << 20]),
    st.booleans(),
    st.data(),
)
def test_a_truncated_stream_is_an_error_and_a_whole_one_is_not(
    parts: list[bytes], step: int, seekable: bool, data: st.DataObject
) -> None:
    frames = [*map(zstd, parts), SKIPPABLE]
    whole = b"".join(frames)

    def drain(content: bytes, into: list[bytes]) -> bytes:
        stream = ZstdFile((io.BytesIO if seekable else Pipe)(content))
        while more := stream.read(step):
            into.append(more)
        return b"".join(into)

    assert drain(whole, []) == b"".join(parts)
    cut = data.draw(st.integers(1, len(whole) - 1))
    ends = [sum(map(len, frames[:number])) for number in range(len(frames))]
    found: list[bytes] = []
    if cut in ends:
        assert drain(whole[:cut], found) == b"".join(parts[: ends.index(cut)])
        return
    with pytest.raises(OSError, match=r"\w"):
        drain(whole[:cut], found)
    complete = b"".join(parts[: sum(end <= cut for end in ends) - 1])
    assert b"".join(parts).startswith(b"".join(found))
    assert not seekable or b"".join(found).startswith(complete)


@pytest.mark.parametrize("step", [999, 1 << 20])
def test_all_bytes_before_a_fault_are_read(step: int) -> None:
    packed = zstd(NOISE)
    for broken in (packed[:-1], packed[:150_000], packed + b"no frame", packed[:200_000] + bytes(100)):
        stream, found = ZstdFile(io.BytesIO(broken)), b""
        for _ in range(2):  # the fault stays
            with pytest.raises(OSError, match=r"\w"):
                while more := stream.read(step):
                    found += more
        assert NOISE.startswith(found) or broken.endswith(bytes(100))
        assert len(found) > min(len(broken), len(NOISE)) - 200


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_no_stream_is_lost(suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """Padding between streams and after them; a later stream that is damaged or truncated; what is no stream."""
    one, two, pad = pack(b"one"), pack(b"two"), bytes(8)

    def read(content: bytes) -> bytes:
        return io.BufferedReader(FaultLast(unpack(io.BytesIO(content), suffix))).read()

    assert read(one + two) == read(one + pad + two + pad) == read(one + bytes(1 << 20) + two) == b"onetwo"
    for broken in (b"?" + two[1:], two[:4] + b"?" + two[5:], two[:-5], two[:3], b"no stream"):
        for rest in (broken, broken + one):
            stream = io.BufferedReader(FaultLast(unpack(io.BytesIO(one + rest), suffix)))
            assert stream.read1().startswith(b"one"), broken
            with pytest.raises((OSError, EOFError, lzma.LZMAError)):
                while stream.read1():
                    pass
