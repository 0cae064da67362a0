"""Demo site: reproducible pages, extraction, the faulty URLs of its list, and the end of its server."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from html import unescape
from pathlib import Path

import ftfy
import pytest

from flows.demo import demo_site, site_index
from flows.demo.pages import PageNotFoundError, add_mojibake, render_page
from flows.demo.render import blocks, module_article, topic_article
from flows.demo.site_index import BAD_URLS, DUPLICATE_URLS, JOURNAL, LIBRARY, MIRROR, PACKAGES, REFERENCE
from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.blacklist.step import URLS, BlacklistSettings, blacklist
from tasks.core.runner import Runner
from tasks.core.shards import read_rows, write_rows
from tasks.core.step import Step
from tasks.core.url_lists import find_url_lists
from tasks.download.ledger import ledgers_of
from tasks.download.step import DownloadSettings, download
from tasks.extract.main_content import parse, structured_text
from tests.processes import MAX_END_SECONDS, wait_for

SAMPLE = (
    (LIBRARY, "/argparse.html"),
    (LIBRARY, "/tempfile.html"),
    (PACKAGES, "/numpy.linalg._linalg.html"),
    (PACKAGES, "/fsspec.asyn.html"),
    (LIBRARY, "/asyncio.html"),
    (REFERENCE, "/topics/with.html"),
    (MIRROR, f"/{site_index.mirrored_modules()[0]}.html"),
    (JOURNAL, "/reading-notes.html"),
    (JOURNAL, "/typeset/cmd.html"),
)
RENDER = """
import hashlib, json, sys
from flows.demo.pages import render_page
print(json.dumps([hashlib.sha256(render_page(*address)).hexdigest() for address in json.loads(sys.argv[1])]))
"""


def words(html: str) -> list[str]:
    return re.findall(r"\w+", unescape(re.sub(r"<[^>]+>", " ", html)))


def render(addresses: list[tuple[str, str]], **environment: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", RENDER, json.dumps(addresses)]
    env = os.environ | {"PYTHONHASHSEED": "0"} | environment
    return list(json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout))


def test_the_list_is_made_without_importing_the_listed_modules() -> None:
    code = "import sys; from flows.demo.site_index import url_list as u; print(u()); assert 'numpy' not in sys.modules"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert listed.strip() == site_index.url_list().strip()
    urls = listed.split("\n")
    good = [url for url in urls if re.match(rf"http://({LIBRARY}|{PACKAGES}|{REFERENCE})/", url)]
    assert len(set(good)) >= 400
    assert not re.search(r"127\.0\.0\.1|localhost", listed)
    assert set(BAD_URLS) | set(DUPLICATE_URLS) <= set(urls)


def test_pages_do_not_depend_on_order_or_environment() -> None:
    straight = render(list(SAMPLE), SECRET="hunter2")
    backwards = render(list(reversed(SAMPLE)), HOME="/nowhere", TZ="Asia/Tokyo")
    assert straight == backwards[::-1]


@pytest.mark.parametrize(("host", "path"), SAMPLE)
def test_a_page_contains_nothing_of_this_machine(host: str, path: str) -> None:
    text = render_page(host, path).decode()
    assert not re.search(r" at 0x[0-9a-f]{6}", text)
    for place in (sys.prefix, sys.base_prefix, str(Path.home()), str(Path.cwd())):
        assert len(place) < 5 or place not in text  # "/" and "/usr" are no secret


def test_a_mirrored_page_is_byte_identical_and_an_unlisted_one_is_not_served() -> None:
    path = f"/{site_index.mirrored_modules()[1]}.html"
    assert render_page(MIRROR, path) == render_page(LIBRARY, path)
    modules = ((LIBRARY, "/antigravity.html"), (LIBRARY, "/numpy.html"), (PACKAGES, "/os.html"))
    for host, path in (*modules, ("x.test", "/")):
        with pytest.raises(PageNotFoundError):
            render_page(host, path)


@pytest.mark.parametrize(
    ("host", "path"), [(LIBRARY, "/argparse"), (LIBRARY, "/difflib"), (REFERENCE, "/topics/class")]
)
def test_the_text_survives_extraction_and_the_navigation_does_not(host: str, path: str) -> None:
    article = (module_article if host == LIBRARY else topic_article)(path.rpartition("/")[2])
    tree, expected = parse(render_page(host, f"{path}.html")), words(article)
    assert tree is not None
    found = words(structured_text(tree))
    assert 0.9 * len(expected) <= len(found) <= 1.02 * len(expected)


def test_docstrings_become_headings_paragraphs_lists_and_examples() -> None:
    lines = ["Summary of", "the thing.", "", "Parameters", "----------", "x : int", "    How many <of them>.", ""]
    lines += ["- one", "- two", "  goes on", "", "For example::", "", "    a = 1", "", "    b = 2", "", "End.", ""]
    assert list(blocks("\n".join([*lines, ">>> f(1)", "2"]), 2)) == [
        "<p>Summary of the thing.</p>",
        "<h2>Parameters</h2>",
        "<p>x : int</p>",
        "<p>How many &lt;of them&gt;.</p>",
        "<ul><li>one</li></ul>",
        "<ul><li>two goes on</li></ul>",
        "<p>For example::</p>",
        "<pre>a = 1\n\nb = 2</pre>",
        "<p>End.</p>",
        "<pre>&gt;&gt;&gt; f(1)\n2</pre>",
    ]


@pytest.mark.parametrize("name", site_index.MOJIBAKE)
def test_mojibake_can_be_repaired(name: str) -> None:
    article = module_article(name)
    damaged = add_mojibake(article)
    assert "â€" in damaged
    repaired = ftfy.fix_text(damaged)
    assert "â€" not in repaired
    assert len(words(repaired)) == pytest.approx(len(words(article)), rel=0.02)


@pytest.mark.parametrize("language", site_index.LANGUAGES)
def test_essays_are_long_enough_for_language_detection(language: str) -> None:
    tree = parse(render_page(JOURNAL, f"/essays/{language}.html"))
    assert tree is not None and len(structured_text(tree).split()) >= 150


def few(root: Folder, urls: Manifest) -> Manifest:
    """The journal's pages and one of each other host, as a finished blacklist step."""
    rows = [row for record in urls.outputs for row in read_rows(root / urls.folder, record.name)]
    wanted = [row for row in rows if JOURNAL in row["url"]]
    for host in (REFERENCE, LIBRARY, MIRROR):
        wanted.append(next(row for row in rows if row["url"].startswith(f"http://{host}/")))
    step = Step(root, "few", version=1, parameters={}, inputs={"blacklist": urls})
    return step.commit(Outcome(outputs=(write_rows(step.folder, "part-00000.parquet", wanted, URLS),)))


def test_each_kind_of_bad_url_gets_its_reject_reason(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    settings = DownloadSettings(delay=0, per_host=8, backoff=0.1, body_deadline=1, allow_private=("127.0.0.0/8",))
    with demo_site() as site, Runner(1) as runner:
        lists = find_url_lists([site.url_list])
        urls = blacklist(root, lists, BlacklistSettings(shard_rows=64), runner)
        pages = download(root, few(root, urls), settings, runner, site.connect_to)
    reasons = {"blacklisted_domain": 4, "forbidden_extension": 4, "malformed": 5, "too_short": 1, "duplicate": 4}
    assert urls.outcome.reasons == reasons and len(urls.outputs) > 5
    ledger = [row for record in ledgers_of(pages.outcome.audit) for row in read_rows(root / "pages", record.name)]
    reasons = {row["url"].removeprefix(f"http://{JOURNAL}/"): row["reason"] for row in ledger if row["reason"]}
    assert reasons == {
        "missing.html": "not_found",
        "loop.html": "redirect_loop",
        "huge.html": "too_large",
        "slow.html": "deadline",
        "private/diary.html": "robots_forbidden",
        "feed": "content_type",
    }
    by_path = {row["url"].removeprefix(f"http://{JOURNAL}/"): row for row in ledger}
    assert by_path["flaky.html"]["attempts"] == 2
    assert by_path["moved.html"]["final_url"] == f"http://{JOURNAL}/about.html"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_server_ends_with_its_context_manager() -> None:
    with demo_site() as site:
        host, port = site.connect_to["*.pydoc.example"].split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("HEAD", "/urls.txt")
        assert connection.getresponse().status == 200
    assert not answers(int(port))


def test_the_server_ends_with_its_parent_even_if_killed() -> None:
    code = """if True:
        import time
        from flows.demo import demo_site
        with demo_site() as site:
            print(site.url_list, flush=True)
            time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        match = re.search(r":(\d+)/", parent.stdout.readline())
        assert match is not None
        port = int(match.group(1))
        assert answers(port)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not answers(port), MAX_END_SECONDS, "the end of the site")


def test_a_server_that_cannot_start_reports_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named flows' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(RunError, match="did not start: no module named flows"), demo_site():
        pass
