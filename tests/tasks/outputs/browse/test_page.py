"""The labelling page and the data browser below it in a real browser, on a cleaned and deduplicated corpus."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.quality.documents import sample_documents
from gpt2train.quality.label_server import LabelServer
from gpt2train.quality.session import Session
from gpt2train.quality.votes import VoteFile
from gpt2train.store.manifest import Folder, need_manifest
from tasks.dedup.step import DedupSettings, dedup
from tasks.outputs.browse.server import browse_routes
from tests.chromium import chromium, until
from tests.gpt2train.quality.labelled_texts import cleaned, planted
from tests.tasks.corpus import Inline

HOSTILE = "<script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\"> "

pytestmark = pytest.mark.slow


@pytest.fixture
def server(open_data: Path, tmp_path: Path) -> Iterator[LabelServer]:
    """A session on good texts, of which the last repeats the first, and on texts too short for the rules."""
    texts = [text for text, is_good in planted(open_data, 10) if is_good]
    texts = [HOSTILE + texts[0], *texts[1:], "A few words\nmore", HOSTILE + texts[0] + " An addition."]
    output = cleaned(tmp_path / "out", texts)
    root = Folder(output)
    with Inline(workers=1) as runner:
        dedup(root, need_manifest(root / "clean"), DedupSettings(), runner)
    session = Session(*sample_documents(output), VoteFile(tmp_path / "votes.jsonl"), tmp_path / "model")
    found = LabelServer(session, browse=browse_routes(root))
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_a_key_leads_from_a_document_to_its_way_and_its_duplicates(server: LabelServer, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        def all_of(selector: str) -> list[Any]:
            return list(browser.find_elements(By.CSS_SELECTOR, selector))

        def text(selector: str) -> str:
            script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText).join('\\n')"
            return str(browser.execute_script(script, selector))  # in one step: the page may replace its elements

        def search(query: str) -> None:
            all_of("#query")[0].clear()
            all_of("#query")[0].send_keys(query + Keys.ENTER)

        browser.get(server.url)
        until(lambda: text("article.active .text"), "a document")
        shown, url = text("article.active .text"), text("article.active .url")
        assert len([one for one in all_of(".way") if one.is_displayed()]) == 2
        browser.find_element(By.TAG_NAME, "body").send_keys("w")
        until(lambda: len(browser.window_handles) == 2, "the window of the browser")
        browser.switch_to.window(next(one for one in browser.window_handles if one != browser.current_window_handle))
        until(lambda: text("#way li"), "the way of the document")
        assert text("#url") == url and f"{server.token}/browse/" in browser.current_url
        assert text("#way li b").split() == ["documents", "clean", "dedup"]
        until(lambda: text("#text")[:200] == shown[:200], "the text")

        search("http://a.example/0")
        until(lambda: text("#url") == "http://a.example/0", "the document with a duplicate")
        until(lambda: "http://a.example/11" in text("#duplicates"), "its duplicate")
        assert text("#text").startswith("<script>")
        next(one for one in all_of("#duplicates button") if one.text == "difference").click()
        until(lambda: all_of("#text ins, #text del"), "the difference")
        assert "An addition." in text("#text ins") + text("#text del")

        search("few words")
        until(lambda: "rejected" in text("#way li"), "the document that the cleaning rejected")
        assert "a.example" in text("#counts") and "clean" in text("#steps")
        assert browser.title != "bad" and browser.get_log("browser") == []
