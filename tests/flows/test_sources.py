"""Sources other than URL lists: domains, archives, texts, alone and together; mistakes are found before the start."""

from pathlib import Path

import pytest

from flows.dataprep import dataprep
from flows.settings import DataprepSettings, resolve
from flows.sources import Sources, documents_of
from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder
from tests.tasks.corpus import Inline, rows_of
from tests.tasks.discover.site_files import serve, serve_crawl, urlset
from tests.tasks.web_server import running_site


def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x", "url": "y"}\n')
    (tmp_path / "b.docx").write_text("x")
    (tmp_path / "c.warc").write_text("http://a.example/\n")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for given, said in (
        ({"documents": [f"{tmp_path}/a.jsonl"]}, ["a.jsonl, row 1", "'body', 'url'", "--json-key"]),
        ({"documents": [f"{tmp_path}/none.jsonl"]}, ["none.jsonl", "No such file", "--documents"]),
        ({"documents": [f"{tmp_path}/*.parquet"]}, ["no file matches", "*.parquet", "--documents"]),
        ({"documents": [f"{tmp_path}/b.docx"]}, ["b.docx", ".jsonl", ".parquet", ".html", "rename"]),
        ({"documents": [f"{tmp_path}/empty"]}, ["no file in", "--documents"]),
        ({"warcs": [f"{tmp_path}/c.warc"]}, ["c.warc is not a WARC", "WARC/1.0", "--urls"]),
        ({"domains": ["http://a.example/page"]}, ["is no domain; expected a name as example.org"]),
        ({"warcs": [f"{tmp_path}/*.warc.gz"]}, ["no file matches", "--warcs"]),
        ({"warcs": [f"{tmp_path}/c.warc"], "documents": [f"{tmp_path}/a.jsonl"], "json_key": "body"}, ["c.warc"]),
    ):
        with pytest.raises(UserError) as error:
            dataprep.planned(resolve(DataprepSettings, flags={"output": str(out), **given})).check()
        assert "\n" not in str(error.value) and all(part in str(error.value) for part in said), error.value
    given = {"output": str(out), "documents": [f"{tmp_path}/*.jsonl"], "json_key": "body"}
    dataprep.planned(resolve(DataprepSettings, flags=given)).check()


DOWNLOAD = {"download": {"delay": 0, "allow_private": ["127.0.0.0/8"], "shared_rate_limit_dir": "off"}}
TEXT = "<html><body><article>" + "<p>It was a long way to the river, and nobody spoke on the road.</p>" * 30


@pytest.mark.slow
def test_domains_become_documents(tmp_path: Path) -> None:
    with running_site() as site:
        serve(site, "/sitemap.xml", urlset(["/1", "/2.pdf", "/private", "http://other.example.com/3"]))
        site.robots["wiki.example.org"] = (200, "User-agent: GPTBot\nDisallow: /private\n")
        for path in ("/", "/1", "/private"):
            serve(site, path, TEXT.encode(), "text/html")
        (tmp_path / "domains.txt").write_text("http://wiki.example.org\n")
        flags = {"domains": [f"{tmp_path}/domains.txt"], "connect_to": {"*.example.org": site.address}}
        settings = resolve(DataprepSettings, flags={"output": str(tmp_path / "out"), **flags, **DOWNLOAD})
        plan = dataprep.planned(settings).shown_plan()
        assert "1 domain, by sitemaps, feeds" in plan and "discover" in plan
        root = Folder(tmp_path / "out")
        runner = Inline(1)
        documents, steps = documents_of(root, settings, Sources(settings), runner)
        assert [step.step for step in steps] == ["discover", "blacklist", "download", "extract"]
        found = [(row["url"], row["source"]) for row in rows_of(root, documents)]
        assert found == [("http://wiki.example.org/1", "discover/wiki.example.org")]
        assert steps[1].outcome.reasons == {"forbidden_extension": 1}
        assert steps[2].outcome.reasons == {"robots_ai_agent": 1}
        again, _ = documents_of(root, settings, Sources(settings), runner)
        assert again.identity == documents.identity and {"discover", "download"} <= runner.skipped
        assert "cached" in dataprep.planned(settings).shown_plan()


@pytest.mark.exhaustive
def test_common_crawl_alone_needs_no_download(tmp_path: Path) -> None:
    with running_site() as site:
        urls = [f"http://wiki.example.org/{number}" for number in range(3)]
        serve_crawl(site, {url: TEXT.replace("river", f"river {url}").encode() for url in urls})
        flags = {
            "output": str(tmp_path / "out"),
            "domains": ["wiki.example.org"],
            "connect_to": {"*.example.net": site.address},
            **DOWNLOAD,
            "discover": {
                "methods": ["commoncrawl"],
                "index_server": "http://index.example.net",
                "archive_server": "http://data.example.net",
            },
        }
        settings = resolve(DataprepSettings, flags=flags)
        assert "by commoncrawl" in dataprep.planned(settings).shown_plan()
        root = Folder(tmp_path / "out")
        documents, steps = documents_of(root, settings, Sources(settings), Inline(1))
        assert [step.step for step in steps] == ["discover", "commoncrawl", "extract"]
        found = [(row["url"], row["source"]) for row in rows_of(root, documents)]
        assert found == [(url, "commoncrawl/CC-MAIN-2024-10") for url in urls]
        assert {host for host, _ in site.hits} == {"index.example.net", "data.example.net"}
