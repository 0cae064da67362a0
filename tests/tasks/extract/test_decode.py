"""Decoding of pages: byte order marks, headers, meta tags, detection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.core.document import strip_unstorable
from tasks.extract.decode import codec_name, count_undecodable, decode


@pytest.mark.parametrize(
    ("text", "encoding", "charset", "meta"),
    [
        ("naïve café — “quoted”", "utf-8", None, None),
        ("naïve café — “quoted”", "utf-8", "iso-8859-1", None),  # a server's wrong default
        ("naïve café — “quoted”", "cp1252", "iso-8859-1", None),  # as browsers read Latin-1
        ("naïve café — “quoted”", "cp1252", None, "windows-1252"),
        ("naïve café — “quoted”", "utf-8-sig", "cp1252", None),
        ("naïve café — “quoted”", "utf-16", "cp1252", None),
        ("naïve café — “quoted”", "utf-16-le", "utf-16le", None),
        ("Ελληνικά κείμενα", "iso8859_7", None, "ISO-8859-7"),
        ("Русский текст", "koi8_r", "KOI8-R", "utf-8"),
        ("日本語の文章", "iso2022_jp", "iso-2022-jp", None),
        ("日本語の文章", "shift_jis", None, "shift_jis"),
        ("한국어 문서입니다", "euc_kr", "euc-kr", None),
    ],
)
def test_encodings_are_recognised(text: str, encoding: str, charset: str | None, meta: str | None) -> None:
    tag = f'<meta charset="{meta}">' if meta else ""
    assert decode(f"{tag}<p>{text}</p>".encode(encoding), charset)[0] == f"{tag}<p>{text}</p>"


def test_an_undeclared_encoding_is_detected() -> None:
    text = "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 20
    assert decode(text.encode("cp1251"))[0] == text


@pytest.mark.parametrize(
    "label", [None, "", "none", "x-unknown", "base64", "rot13", "zip", "idna", "undefined", "a\0b"]
)
def test_labels_of_no_text_encoding_are_ignored(label: str | None) -> None:
    assert codec_name(label) is None


@given(st.binary(max_size=300), st.none() | st.text(max_size=20) | st.sampled_from(["utf-16", "utf-7", "gbk", "hz"]))
def test_decoding_never_fails(body: bytes, charset: str | None) -> None:
    text, encoding = decode(body, charset)
    assert isinstance(text, str)
    assert encoding


@given(st.text(st.characters()) | st.text(st.sampled_from("a\0\ud800\udfff\U0001f600")))
def test_storable_text_can_be_stored(text: str) -> None:
    kept = strip_unstorable(text)
    kept.encode()
    assert "\0" not in kept
    assert strip_unstorable(kept) == kept


@given(st.text(max_size=50) | st.text(st.sampled_from("\0\t\n\r\x1b\x7f\x85a�é\ud800"), max_size=50))
def test_undecodable_characters_are_counted(text: str) -> None:
    controls = {*map(chr, range(9)), *map(chr, range(14, 32)), "\x7f", "�"}
    assert count_undecodable(text) == sum(character in controls for character in text)
