"""The pages of `gpt2train data browse`, over HTTP on loopback and in a real browser, below the labelling page too."""

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import fsspec
import numpy as np
import pytest

from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.data.samples import Samples
from gpt2train.errors import UserError
from gpt2train.quality.documents import sample_documents
from gpt2train.quality.session import Session
from gpt2train.quality.votes import VoteFile
from gpt2train.serve.local_page import LocalPageServer
from gpt2train.store.manifest import Folder, Outcome, need_manifest
from gpt2train.store.output import FinishedStep
from gpt2train.store.removal import PENDING, RemovalCheck
from tasks.clean.step import CleanSettings, clean
from tasks.core.step import Step
from tasks.dedup.step import DedupSettings, dedup
from tasks.extract.command import explain
from tasks.extract.step import ExtractSettings, extract
from tasks.outputs.browse.page_account import accounted_step
from tasks.outputs.browse.samples import Runs
from tasks.outputs.browse.server import MAX_WORDS, browse_routes, difference, label_routes
from tasks.outputs.forget.command import forget
from tests.chromium import chromium, until
from tests.gpt2train.quality.labelled_texts import cleaned, planted
from tests.gpt2train.quality.test_label import Client as PageClient
from tests.gpt2train.quality.test_label import served
from tests.tasks.corpus import Inline, extracted, pieces_of_novels, rows_of
from tests.tasks.extract.made_pages import article
from tests.tasks.extract.test_step import download
from tests.tasks.extract.test_step import page as extract_page
from tests.tasks.sources.text_files import read, write

if TYPE_CHECKING:
    from tests.trained_run import TrainedRun

HOSTILE = "</div><script>document.title='bad'</script><img src=x onerror=alert(1)> \ud7ff"
SCRIPT = "<script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\"> "


class Client:
    def __init__(self, page: PageClient) -> None:
        self.page = page

    def __call__(self, name: str, headers: dict[str, str] | None = None, **query: Any) -> tuple[int, Any]:
        return self.page(f"{name}?{urlencode(query)}", headers=headers)[:2]

    def ok(self, name: str, **query: Any) -> Any:
        status, answer = self(name, **query)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="module")
def output(open_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, cleaned and deduplicated: 0000 has an altered copy 0008, 0009 is too short, 0007 is hostile."""
    root = tmp_path_factory.mktemp("out")
    folder = Folder(root)
    texts = pieces_of_novels(open_data, 7)
    texts += [HOSTILE + texts[1][::-1], texts[0] + " Alteration.", "Short."]
    urls = (f"http://{'ab'[n % 2]}.example/{n}" for n in range(len(texts)))
    rows = [{"id": f"{n:08d}", "url": url, "text": text} for n, (url, text) in enumerate(zip(urls, texts, strict=True))]
    made = extracted(folder, rows[::2], rows[1::2])
    with Inline(workers=1) as runner:
        settings = CleanSettings.model_validate({"language": {"keep": ["any"]}, "min_tokens": 5})
        dedup(folder, clean(folder, made, settings, runner), DedupSettings(), runner)
    return root


@contextlib.contextmanager
def client_of(server: LocalPageServer) -> Iterator[Client]:
    with served(server) as page:
        yield Client(page)


@pytest.fixture(scope="module")
def client(output: Path) -> Iterator[Client]:
    with client_of(LocalPageServer(browse_routes(Folder(output)))) as client:
        yield client


def results(found: Any) -> dict[str, str]:
    return {stage["step"]: stage["result"] for stage in found["stages"]}


def test_a_document_is_found_by_id_url_and_text(client: Client, open_data: Path) -> None:
    phrase = pieces_of_novels(open_data, 7)[3][100:140].strip()
    for query, kind in (("00000003", "id"), ("b.example/3", "url"), (phrase, "text")):
        found = client.ok("search", query=query, kind="text" if kind == "text" else "auto")
        assert (found["kind"], [hit["id"] for hit in found["hits"]]) == (kind, ["00000003"])
    assert client.ok("search", query="no such words anywhere", kind="text")["hits"] == []
    for query in ("", "x" * 501):
        status, answer = client("search", query=query)
        assert status == 400 and "give 1 to 500 characters" in answer["error"]
    assert client("search", query="a", kind="great")[0] == client("search", query="a", start="x")[0] == 400


@pytest.mark.parametrize("page", ["browse", "label"])
def test_an_open_page_shows_nothing_while_and_after_pages_are_removed(page: str, output: Path, tmp_path: Path) -> None:
    shutil.copytree(output, root := tmp_path / "out")
    votes = VoteFile(tmp_path / "votes")
    if page == "browse":
        server, name = LocalPageServer(browse_routes(Folder(root))), "counts"
    else:
        check = RemovalCheck([root / "clean"])
        session = Session(*sample_documents(root), votes, tmp_path / "model")
        server, name = LocalPageServer(label_routes(session, check)), "state"
    with client_of(server) as client:
        client.ok(name)
        (root / PENDING).write_text("{}")
        status, answer = client(name)
        assert status == 400 and "a removal of pages was interrupted" in answer["error"]
        (root / PENDING).unlink()
        client.ok(name)
        forget(("http://a.example/0",), output=str(root), yes=True)
        status, answer = client(name)
        assert status == 400 and "pages were removed since this server opened it" in answer["error"]


def test_an_open_page_says_that_the_output_was_removed(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output, root := tmp_path / "out")
    with client_of(LocalPageServer(browse_routes(Folder(root)))) as client:
        shutil.rmtree(root)
        status, answer = client("counts")
        assert status == 400 and "cannot be read; run the data flow again to restore it" in answer["error"]
        root.write_text("a file in its place")
        status, answer = client("search?query=a")
        assert status == 400 and str(root) in answer["error"]


def test_documents_of_every_source_are_found(tmp_path: Path) -> None:
    extracted(Folder(tmp_path), [{"id": "0" * 32, "url": "http://a.example/p", "text": "A page of words."}])
    (row,) = rows_of(Folder(tmp_path), read(tmp_path, write(tmp_path / "notes.jsonl", {"text": "A note of words."})))
    search = browse_routes(Folder(tmp_path)).get["search"]
    for query, found in (
        *[("a.example", {"0" * 32}), ("notes.jsonl", {row["id"]}), ("of words", {"0" * 32, row["id"]})],
        *[("00000000", {"0" * 32}), (row["id"][:8], {row["id"]})],
    ):
        assert {hit["id"] for hit in search({"query": query})["hits"]} == found


def test_a_host_is_found_in_each_form_of_a_url(tmp_path: Path) -> None:
    """As the counts by host name it: without a port, a user and a password, in lower case."""
    folder = Folder(tmp_path)
    urls = ["http://a.example", "HTTP://me:x@A.Example/1", "http://a.example?q", "http://aaexample/"]
    urls += ["http://a.example:80/", "http://b/?//a.example/"]
    extracted(folder, [{"id": f"{n:08d}", "url": url, "text": "t"} for n, url in enumerate(urls)])
    routes = browse_routes(folder).get
    counted = dict(routes["counts"]({"by": "host"})["rows"])
    assert counted == {"a.example": 4, "aaexample": 1, "b": 1}
    for host, count in counted.items():
        hits = routes["search"]({"query": host, "kind": "host"})["hits"]
        assert len(hits) == count, (host, hits)


def test_the_way_says_which_step_kept_or_rejected_a_document_and_why(client: Client) -> None:
    found = client.ok("document", id="00000003")
    assert found["url"] == "http://b.example/3" and found == client.ok("document", url="http://b.example/3")
    assert results(found) == {"documents": "kept", "clean": "kept", "dedup": "kept"}
    assert found["stages"][0]["file"] == "part-00001.parquet" and found["stages"][0]["row"] == 1
    short = client.ok("document", id="00000009")
    assert results(short) == {"documents": "kept", "clean": "rejected", "dedup": "not reached"}
    assert short["stages"][1]["reason"] == "too_short" and "by clean" in short["stages"][2]["detail"]
    status, answer = client("document", id="ffffffff")
    assert status == 400 and "no step of this output has a document ffffffff" in answer["error"]


def test_near_duplicates_and_their_difference(client: Client) -> None:
    ids = "00000000", "00000008"
    ways = [client.ok("document", id=identity) for identity in ids]
    assert sorted(results(way)["dedup"] for way in ways) == ["kept", "rejected"]
    assert [way["duplicates"][0]["id"] for way in ways] == [ids[1], ids[0]]
    dropped = next(way for way in ways if results(way)["dedup"] == "rejected")
    assert dropped["duplicates"][0]["is_keeper"] and dropped["stages"][-1]["reason"] == "near_duplicate"
    pieces = client.ok("difference", id=ids[0], other=ids[1])["pieces"]
    assert [(kind, text.strip()) for kind, text in pieces if kind != "same"] == [("added", "Alteration.")]


def test_counts_by_host_and_language(client: Client) -> None:
    hosts = client.ok("counts", by="host")
    assert hosts["steps"] == ["documents", "clean", "dedup"]
    assert [row[:3] for row in hosts["rows"]] == [["a.example", 5, 5], ["b.example", 5, 4]]
    languages = client.ok("counts", by="language")
    assert sum(row[1] for row in languages["rows"]) == 9
    overview = {row["step"]: row["reasons"] for row in client.ok("overview")["steps"]}
    assert overview["clean"] == {"too_short": 1}


def test_hostile_text_is_data_and_only_who_has_the_token_sees_it(client: Client) -> None:
    assert HOSTILE in client.ok("text", id="00000007", step="documents")["text"]
    script = client("base.js")[1] + client("script.js")[1]
    assert b"innerHTML" not in script and b"insertAdjacent" not in script and b"document.write" not in script
    page = client("")[1]
    assert page.count(b"<script") == page.count(b"<script src=") and b"http" not in page
    assert client("overview", headers={"Host": "evil.example"})[0] == 404
    assert {client(name)[0] for name in ("../../way.py", "__init__.py", "other/", "other/base.css")} == {404}


def test_what_is_unknown_is_said_to_be_unknown(output: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no finished step with documents; give the output of a data flow"):
        LocalPageServer(browse_routes(Folder(tmp_path)))
    for name in ("clean", "dedup"):
        (tmp_path / name).symlink_to(output / name)
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "_manifest.json").write_bytes((output / "documents" / "_manifest.json").read_bytes())
    server = LocalPageServer(browse_routes(Folder(tmp_path)))  # the files of one step are gone
    found = server.pages[""].get["document"]({"id": "00000003"})
    assert results(found) == {"documents": "unknown", "clean": "kept", "dedup": "kept"}
    assert "cannot be read" in found["stages"][0]["detail"]
    server.listener.close()


def test_a_difference_has_both_texts() -> None:
    a, b = "One two three,\nfour.", "One 2 three,  four. Five"
    pieces = difference(a, b)["pieces"]
    assert isinstance(pieces, list)
    assert "".join(text for kind, text in pieces if kind != "added") == a
    assert "".join(text for kind, text in pieces if kind != "removed") == b
    assert difference("a " * MAX_WORDS, "a")["cut"]
    chinese = [("same", "话说"), ("removed", "天下"), ("added", "国家"), ("same", "大势")]
    assert difference("话说天下大势", "话说国家大势")["pieces"] == chinese


def test_the_samples_of_a_document_are_all_of_the_first_epoch_that_hold_a_token_of_it(
    trained_run: "TrainedRun", tmp_path: Path
) -> None:
    root = Folder(trained_run.root)
    made = Step(Folder(tmp_path), "tokenize", version=1, parameters={}, inputs={}).commit(Outcome())
    step = FinishedStep(root / "tokens", made)
    samples = Samples(
        root.path("tokens/train/tokens"), 64, 1 << 16, read_run_config(trained_run.run / CONFIG_FILE).seed
    )
    offsets, _ = samples.locate(range(samples.per_epoch))
    bounds = samples.dataset.bounds()[:12].tolist()
    for start, end in itertools.pairwise(bounds):
        held = np.flatnonzero(((offsets >= start) & (offsets < end)).any(axis=1)).tolist()
        [found] = Runs(root).samples(step, "train", start, end)
        assert found == {"run": "runs/small", "context": 64, "count": len(held), "samples": held[:20]} and held


def test_the_account_of_a_page_is_that_of_data_explain(tmp_path: Path) -> None:
    """Also of a page without a document; not where the pages are gone, or another engine has read them."""
    bodies = {"kept": article("<div class='sidebar'>&lt;script>bad&lt;/script></div>"), "none": "<html><nav>Home</nav>"}
    root = Folder(tmp_path)
    pages = download(root, [extract_page(body.encode(), f"http://a.example/{name}") for name, body in bodies.items()])
    with Inline(workers=1) as runner:
        made = extract(root, pages, ExtractSettings(prefilter=False, detect_soft_404=False), runner)
    server = LocalPageServer(browse_routes(root))
    with client_of(server) as client:
        for url, rule in (("http://a.example/kept", "class"), ("http://a.example/none", "tag")):
            [stage] = [one for one in client.ok("document", url=url)["stages"] if one["step"] == "documents"]
            assert stage["explained"]
            found = client.ok("account", url=url, id=client.ok("document", url=url)["id"])
            assert f"<small>{rule} " in found["html"] and "<script" not in found["html"]
            document = tmp_path / "page.html"
            document.write_text(bodies[url.rpartition("/")[2]])
            explain(str(document), output=tmp_path / "explained.html")
            assert found["html"] in (tmp_path / "explained.html").read_text()
        assert client("account", url="http://a.example/other")[0] == 400
        (root / pages.folder).remove(*(record.name for record in pages.outputs))
        assert "is no longer there" in client("account", url="http://a.example/none")[1]["error"]
    other = Step(Folder(tmp_path / "other"), "extract", version=1, parameters={"engine": "trafilatura"}, inputs={})
    other.commit(made.outcome)
    assert accounted_step([FinishedStep(other.folder, other.commit(made.outcome))]) is None


def test_an_output_behind_a_url_is_read(output: Path, client: Client) -> None:
    url = f"memory://browse-{output.name}"
    fsspec.filesystem("memory").put(f"{output}/", url, recursive=True)
    server = LocalPageServer(browse_routes(Folder(url)))
    found = server.pages[""].get["document"]({"id": "00000008"})
    server.listener.close()
    assert found == client.ok("document", id="00000008")


@pytest.fixture
def server(open_data: Path, tmp_path: Path) -> Iterator[LocalPageServer]:
    """The labelling page on good texts, of which the last repeats the first, and on texts too short for the rules."""
    texts = [text for text, is_good in planted(open_data, 10) if is_good]
    texts = [SCRIPT + texts[0], *texts[1:], "A few words\nmore", SCRIPT + texts[0] + " An addition."]
    output = cleaned(tmp_path / "out", texts)
    root = Folder(output)
    with Inline(workers=1) as runner:
        dedup(root, need_manifest(root / "clean"), DedupSettings(), runner)
    session = Session(*sample_documents(output), VoteFile(tmp_path / "votes.jsonl"), tmp_path / "model")
    with client_of(found := LocalPageServer(label_routes(session), below={"browse": browse_routes(root)})):
        yield found


@pytest.mark.slow
def test_a_key_leads_from_a_document_to_its_way_and_its_duplicates(server: LocalPageServer, tmp_path: Path) -> None:
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
        until(lambda: text("#text").startswith("<script>"), "its text")
        next(one for one in all_of("#duplicates button") if one.text == "difference").click()
        until(lambda: all_of("#text ins, #text del"), "the difference")
        assert "An addition." in text("#text ins") + text("#text del")

        search("few words")
        until(lambda: "rejected" in text("#way li"), "the document that the cleaning rejected")
        assert "a.example" in text("#counts") and "clean" in text("#steps")
        assert browser.title != "bad" and browser.get_log("browser") == []
