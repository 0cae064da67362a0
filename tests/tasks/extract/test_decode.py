"""Decoding of pages, by declarations and as Chromium; and their metadata: title, language, date."""

import dataclasses
from pathlib import Path

import pytest
import webencodings
from hypothesis import given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from benchmarks.extract import as_page
from tasks.core.document import strip_unstorable
from tasks.extract.decode import codec_name, count_undecodable, decode
from tasks.extract.metadata import language_hint, page_title, publication_day, stated_days
from tasks.extract.page import extract_page
from tasks.extract.settings import ExtractOptions
from tests.chromium import chromium
from tests.tasks.extract.made_pages import PARAGRAPH
from tests.tasks.web_server import running_site

ENGLISH = "The clerk’s quiet orchard – “as he called it” – lay beyond the mill. " * 3
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний. "
POLISH = "Zażółć gęślą jaźń. Pójdźże, kiń tę chmurność w głąb flaszy. "
JAPANESE = "髙橋氏と﨑山氏が①番の㈱港町で会う。日本語の文章です。"
WRITTEN = {
    ENGLISH: ("windows-1252", "macintosh", "gb18030"),
    "Où est le garçon naïf ? Là-bas, près du chêne. L'été fut très beau à la forêt. ": ("windows-1252", "iso-8859-15"),
    RUSSIAN: ("windows-1251", "koi8-r", "iso-8859-5", "ibm866", "x-mac-cyrillic", "iso-ir-144"),
    POLISH: ("windows-1250", "iso-8859-2"),
    "Η γρήγορη αλεπού πηδά πάνω από το τεμπέλικο σκυλί. ": ("windows-1253", "iso-8859-7"),
    "Pijamalı hasta yağız şoföre çabucak güvendi. ": ("windows-1254", "iso-8859-9"),
    JAPANESE: ("shift_jis", "x-sjis", "euc-jp", "iso-2022-jp"),
    "北京是中华人民共和国的首都，也是全国的政治中心。　　": ("gbk", "gb2312", "x-gbk", "gb18030"),
    "臺灣的首都是臺北，人口約有二百五十萬人。": ("big5",),
    "한국어 문서입니다. 똠방각하와 펲시콜라도 있습니다. ": ("euc-kr", "ks_c_5601-1987"),
    "สวัสดีชาวโลก ภาษาไทยเป็นภาษาที่มีวรรณยุกต์ ": ("windows-874", "tis-620"),
    "Ĉu vi ŝatas la ĝardenon? Ĵaŭde ni iros tien kun ĉiuj amikoj. ": ("iso-8859-3",),
    "Ši šalis turi daug ežerų, kuriuose gyvena žuvys ir gervės. ": ("windows-1257", "iso-8859-13", "iso-8859-4"),
    "Þetta er íslenska; hún er töluð á Íslandi. Sú þjóð býr þar. ": ("iso-8859-10",),
    "اللغة العربية هي أكثر اللغات تحدثا في العالم، ويتوزع متحدثوها في الوطن العربي. ": ("windows-1256", "iso-8859-6"),
    "השפה העברית היא שפה שמית, והיא מדוברת בישראל. כל בני האדם נולדו בני חורין. ": ("windows-1255", "iso-8859-8-i"),
    "Ḋia ḋuit, a ċara. Tá an ṫeanga seo ḃeo fós in Éirinn. ": ("iso-8859-14",),
    "Toate ființele umane se nasc libere și egale în demnitate. Țara își iubește oamenii. ": ("iso-8859-16",),
    "Усі люди народжуються вільними. Її їжак живе під ґанком у лісі, де є гриби. ": ("koi8-u",),
    "Đâu đó trên con sông trôi êm, chúng tôi đi chơi. Tôi yêu quê hương. ": ("windows-1258",),
}
CASES = [(text, encoding) for text, encodings in WRITTEN.items() for encoding in encodings]
UNDETECTED = (  # no browser detects them, or not from so few words
    *("macintosh", "x-mac-cyrillic", "iso-8859-15", "gb18030", "iso-8859-9", "iso-8859-3", "iso-8859-4"),
    *("iso-8859-14", "iso-8859-16"),
)
STYLE = "<style>" + "a { color: red; }\n" * 600 + "</style>"


def page(text: str, head: str = "") -> str:
    return f"<!DOCTYPE html>\n<html><head>{head}<title>x</title></head><body><p>{text * 4}</p></body></html>"


def encoded(html: str, encoding: str) -> bytes:
    """Bytes as an editor of that time wrote them; signs of Windows beyond EUC and ISO-2022-JP by their rows."""
    if encoding not in ("euc-jp", "iso-2022-jp"):
        return html.encode(
            {"macintosh": "mac_roman", "x-mac-cyrillic": "mac_cyrillic"}.get(encoding, codec_name(encoding))
        )
    out, wide = bytearray(), False
    for sign in html:
        pair = sign.encode("cp932")
        if wide != (len(pair) == 2) and encoding == "iso-2022-jp":
            out += b"\x1b$B" if len(pair) == 2 else b"\x1b(B"
        wide = len(pair) == 2
        if wide:
            row = (pair[0] - (0xC1 if pair[0] > 0x9F else 0x81)) * 2 + (pair[1] > 0x9E)
            cell = pair[1] - 0x9F if pair[1] > 0x9E else pair[1] - 0x40 - (pair[1] > 0x7E)
            if row >= 114:  # IBM's own rows; on the web EUC has the copies that NEC selected
                row, cell = {"髙": (91, 90), "﨑": (91, 60)}.get(sign, (row, cell))
            out += bytes(value + (0xA1 if encoding == "euc-jp" else 0x21) for value in (row, cell))
        else:
            out += pair
    return bytes(out + (b"\x1b(B" if wide and encoding == "iso-2022-jp" else b""))


def declarations(text: str, encoding: str) -> list[tuple[str, str | None]]:
    """Pages that declare their encoding, each with the charset of the server."""
    return [
        (page(text), encoding),
        (page(text, f'<meta charset="{encoding}">'), None),
        (page(text, f"<META HTTP-EQUIV=content-type CONTENT='text/html; charset={encoding.upper()}'>"), None),
        (page(text, f"{STYLE}<meta charset={encoding}>"), "x-nothing"),
        (page(text, f'<meta charset="nonsense"><meta charset="{encoding}">'), None),
        (f'<?xml version="1.0" encoding="{encoding}"?>\n{page(text)}', None),
        (
            page(
                text, f'<!-- <meta charset="koi8-u"> --><meta name=a content="charset=big5"><meta charset={encoding}>'
            ),
            None,
        ),
    ]


@pytest.mark.parametrize(("text", "encoding"), CASES)
def test_a_page_reads_the_same_however_its_encoding_is_declared(text: str, encoding: str) -> None:
    """Also where it is declared late or wrongly, or beside an unknown label."""
    declared = declarations(text, encoding)
    if encoding not in UNDETECTED:
        declared += [(page(text), None), (page(text, "<!-- <meta charset=utf-16> -->"), None)]
        if encoding != "iso-2022-jp":
            declared += [(page(text, "<meta charset=utf-8>"), None), (page(text), "utf-8")]
    for html, charset in declared:
        found, name = decode(encoded(html, encoding), charset)
        assert found == html, (html[:200], charset)
        assert name == encoding or not encoding.startswith("koi8"), (html[:200], charset)


def test_each_encoding_of_the_standard_is_among_the_cases() -> None:
    written = {webencodings.lookup(encoding).name for _, encoding in CASES}
    others = {"utf-8", "utf-16le", "utf-16be", "iso-8859-8", "x-user-defined", "replacement"}
    assert {webencodings.lookup(label).name for label in webencodings.LABELS} - others == written


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.parametrize("charset", [None, "iso-8859-1", "windows-1251", "shift_jis", "x-unknown"])
def test_utf_8_is_read_whatever_is_declared(text: str, charset: str | None) -> None:
    """One byte that is damaged costs one character."""
    html = page(text, f'<meta charset="{charset}">')
    assert decode(html.encode(), charset) == (html, "utf-8")
    assert decode(html[:-20].encode() + b"\xc3", charset)[0] == html[:-20] + "�"
    at = html.encode().index(text.encode()[:20])
    broken = html.encode()[:at] + b"\xff" + html.encode()[at:]
    assert decode(broken, charset)[0] == html.replace(text[:20], "�" + text[:20], 1)


@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, JAPANESE])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig", "utf-32"])
def test_wide_encodings_are_known_by_mark_header_or_their_nul_bytes(text: str, encoding: str) -> None:
    html = page(text, '<meta charset="utf-16">')
    for charset in (None, encoding, "windows-1252"):
        assert decode(html.encode(encoding), charset)[0] == html
    assert decode(html.encode(), None)[0] == html  # a tag in ASCII cannot announce UTF-16
    if encoding in ("utf-16-le", "utf-16-be"):
        assert decode(html.encode(), encoding)[0] == html


def test_encodings_that_browsers_no_longer_read() -> None:
    text = page("北京是首都")
    assert decode(text.encode("hz"), "hz-gb-2312")[0] == text
    assert decode(page("한국어").encode("iso2022_kr"), "iso-2022-kr")[0] == page("한국어")
    assert decode(page("gr\u00fcn").encode("cp850"), "cp850")[0] == page("gr\u00fcn")


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


SHOWN = "return [document.characterSet, document.querySelector('p').textContent]"
MIN_EQUAL = 0.99


def cases() -> list[tuple[str, bytes, str | None]]:
    """Encoding, bytes and charset of the server: declared in each way, not at all, and with a damaged byte."""
    found = []
    for text, encoding in CASES:
        pages = declarations(text, encoding)
        pages += [(page(text), None)] if encoding not in UNDETECTED else []
        found += [(encoding, encoded(html, encoding), charset) for html, charset in pages]
        for head, charset in ((f"<meta charset={encoding}>", None), ("", encoding)):
            body = encoded(page(text, head), encoding)
            found.append((encoding, body.replace(b"</p>", b"\xff</p>"), charset))
    return found


@pytest.mark.exhaustive
def test_pages_are_decoded_as_by_chromium(tmp_path: Path) -> None:
    all_cases, different = cases(), []
    with running_site() as site, chromium(tmp_path) as browser:
        for number, (encoding, body, charset) in enumerate(all_cases):
            kind = "text/html" + (f"; charset={charset}" if charset else "")
            site.handlers[f"/{number}"] = lambda h, body=body, kind=kind: h.answer(body, kind)
            browser.get(f"http://{site.address}/{number}")
            name, shown = browser.execute_script(SHOWN)
            text, found = decode(body, charset)
            text = text.partition("<p>")[2].rpartition("</p>")[0]
            if text != shown or codec_name(name) != found:
                different.append((encoding, charset, body[:100], name, found, text[:60], shown[:60]))
    assert len(all_cases) >= 400
    assert len(different) <= (1 - MIN_EQUAL) * len(all_cases), different


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title> A  title\n</title>", "<h1>Heading</h1>", "A title"),
        ("<title></title><meta property='og:title' content='Shared as'>", "", "Shared as"),
        ("", "<h1>Heading <em>in two</em></h1>", "Heading in two"),
        ("", "<p>text</p>", None),
        (f"<title>{'long ' * 200}</title>", "", ("long " * 100).rstrip() + " "),
    ],
)
def test_titles_are_found(head: str, body: str, title: str | None) -> None:
    tree = document_fromstring(f"<html><head>{head}</head><body>{body}</body></html>")
    assert page_title(tree) == title


@pytest.mark.parametrize(
    ("page", "header", "language"),
    [
        ("<html lang='en-US'><body>x", None, "en"),
        ("<html lang='DE'><body>x", "en", "de"),
        ("<html xml:lang='pt_BR'><body>x", None, "pt"),
        ("<html><head><meta http-equiv='Content-Language' content='fr, en'></head><body>x", None, "fr"),
        ("<html><head><meta property='og:locale' content='es_ES'></head><body>x", None, "es"),
        ("<html lang=''><body>x", "ja", "ja"),
        ("<html lang='haw'><body>x", None, "haw"),
        ("<html lang='english'><body>x", None, None),
        ("<html lang='{{ lang }}'><body>x", None, None),
        ("<html><body>x", None, None),
    ],
)
def test_languages_are_found(page: str, header: str | None, language: str | None) -> None:
    assert language_hint(document_fromstring(page), header) == language


LD = """<script type="application/ld+json">{{"@graph": [{{"@type": "Person"}}, {{"@type": ["Thing", "{}"],
"datePublished": "2019-03-04T05:06:07Z"}}]}}</script>{}"""


@pytest.mark.parametrize(
    ("tags", "day"),
    [
        ("<meta property='article:published_time' content='2019-03-04T05:06:07Z'>", "2019-03-04"),
        ("<meta name='DC.date' content='20190304'>", "2019-03-04"),
        ("<time itemprop='datePublished' datetime='2019-03-04'>March</time>", "2019-03-04"),
        ("<meta name='date' content='2018-01-01'><meta itemprop='datePublished' content='2019-03-04'>", "2019-03-04"),
        ("<meta name='date' content='2019-02-30'>", None),
        ("<meta name='date' content='2031-01-01'>", None),  # after the fetch
        ("<meta name='date' content='yesterday'>", None),
        ("<time datetime='2019-03-04'>a day in the story</time>", None),
        (LD.format("NewsArticle", ""), "2019-03-04"),
        (LD.format("WebPage", "<meta name='date' content='2018-01-01'>"), "2018-01-01"),
        (LD.format("Review", ""), None),
    ],
)
def test_dates_are_found(tags: str, day: str | None) -> None:
    stated = stated_days(document_fromstring(f"<html><head>{tags}</head><body>x</body></html>"))
    assert publication_day(stated, "2026-01-01") == day
    assert publication_day(stated[:1], "") == (stated[0] if stated else None)


def test_without_a_fetch_day_the_earliest_stated_day_is_taken() -> None:
    """A file has no day of its fetch, and a stated day may be in the future."""
    tags = "<meta property='article:published_time' content='2031-05-05'><meta name='date' content='2019-03-02'>"
    page = as_page("http://a.test/", f"<html><head>{tags}</head><body>{PARAGRAPH}</body></html>".encode())
    found = extract_page(dataclasses.replace(page, fetched_at=""), ExtractOptions())
    assert found.date == "2019-03-02" and found.by_fetch_day
    assert extract_page(page, ExtractOptions()).date == "2019-03-02"
