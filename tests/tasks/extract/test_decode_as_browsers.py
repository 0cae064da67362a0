"""Pages decoded as by Chromium: the text that it shows, and its name for the encoding."""

from pathlib import Path

import pytest

from tasks.extract.decode import codec_name, decode
from tests.chromium import chromium
from tests.tasks.extract.test_decode import CASES, UNDETECTED, declarations, encoded, page
from tests.tasks.web_server import running_site

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
