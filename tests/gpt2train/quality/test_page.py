"""The labelling page in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.quality.documents import Document
from gpt2train.quality.model_file import from_bytes
from gpt2train.quality.session import Session
from gpt2train.quality.votes import VoteFile, read_votes
from gpt2train.serve.local_page import LocalPageServer
from tasks.outputs.browse.server import label_routes
from tests.chromium import chromium, until
from tests.gpt2train.quality.labelled_texts import planted, votes_on
from tests.gpt2train.quality.test_label import served

HOSTILE = "</div><script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\">"

pytestmark = pytest.mark.slow


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path) as driver:
        yield driver


@pytest.fixture
def server(open_data: Path, tmp_path: Path) -> Iterator[LocalPageServer]:
    """A session with 198 votes that a person gave before, and two documents on each side."""
    file = VoteFile(tmp_path / "votes.jsonl")
    for vote in votes_on(planted(open_data, 99)):
        file.add(vote)
    kept = [Document("k1", "http://a.example/k", HOSTILE, None, ""), Document("k2", "", "Kept.", None, "")]
    rejected = [Document(f"r{n}", "", f"Rejected {n}.", "few_words", "3, at least 5 expected") for n in (1, 2)]
    with served(server := LocalPageServer(label_routes(Session(kept, rejected, file, tmp_path / "model")))):
        yield server


def test_keys_vote_and_a_model_is_trained(browser: Any, server: LocalPageServer, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    def text(selector: str) -> str:
        return str(browser.find_element(By.CSS_SELECTOR, selector).text)

    def press(key: str, count: int) -> None:
        browser.find_element(By.TAG_NAME, "body").send_keys(key)
        until(lambda: text("#count") == str(count))

    browser.get(server.url)
    until(lambda: text("#count") == "198")
    assert text("article.active .badge") == "kept" and text("[data-side=kept] .text") == HOSTILE
    assert text("[data-side=rejected] .detail") == "few_words: 3, at least 5 expected"
    train = browser.find_element(By.ID, "train")
    assert not train.is_enabled()
    press("b", 199)
    assert text("[data-side=kept] .text") == "Kept." and text("article.active .badge") == "rejected"
    press("g", 200)
    assert text("[data-side=rejected] .text") == "Rejected 2." and text("article.active .badge") == "kept"
    press("u", 199)
    assert text("[data-side=rejected] .text") == "Rejected 1." and not train.is_enabled()
    press("b", 200)
    assert [vote.vote for vote in read_votes([tmp_path / "votes.jsonl"])[-2:]] == ["bad", "bad"]

    train.click()
    until(lambda: browser.find_element(By.ID, "result").is_displayed())
    model = from_bytes((tmp_path / "model").read_bytes(), "model")
    assert text("#auc").startswith(f"{model.about['auc']:.3f} ± ") and text("#threshold") == f"{model.threshold:.4f}"
    assert text("#use") == f"--clean.filters.quality.model {tmp_path / 'model'}"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curve polyline")) == 2
    field = browser.find_element(By.ID, "precision")
    field.clear()
    field.send_keys("g")  # typed into a field, it is no vote
    assert text("#count") == "200"
    train.click()
    until(lambda: text("#error") != "")
    assert browser.title.startswith("Quality votes") and "NaN" not in browser.page_source
    errors = [entry for entry in browser.get_log("browser") if "400" not in entry["message"]]
    assert errors == []
