"""The account of a page: all of its visible text, kept or dropped by a rule; and the command that shows it."""

import ast
import gzip
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml.etree import XPath

from benchmarks.gold_pages import documentation_pages, gold_pages
from gpt2train.cli import app
from gpt2train.errors import UserError
from tasks.download import fetch
from tasks.download.settings import DownloadSettings
from tasks.extract import account as account_module
from tasks.extract.account import RULES, account, characters_by_rule
from tasks.extract.decode import decode
from tasks.extract.elements import shown_text
from tasks.extract.main_content import parse
from tests.tasks.extract.made_pages import PARAGRAPH, article, text_of
from tests.tasks.web_server import running_site

PARTS = (
    "<p>See <span class='tooltip'>this</span>.</p><span class='author'>A. Fox</span><br><button>Copy <b>it</b></button>"
    "<div hidden><p>A dialog.</p></div><aside>Aside</aside><figure>Photo</figure><p>Share</p><pre>x"
    "<i class=lineno>1</i></pre><h2>River<a href='#r'>¶</a></h2>"
    + PARAGRAPH
    + "<h3>Related articles</h3><p><a href='/b'>Another</a></p>"
)


# Plain twin of `shown_text`.
SHOWN = XPath(
    "descendant-or-self::text()[not(ancestor::script or ancestor::style or ancestor::template or ancestor::noscript)]"
)
MARKUP = ("<div>", "</div>", "<b>", "</b>", "<template>", "</template>", "<noscript>", "</noscript>", "<p>", "a", " b ")
MARKUP += ("<script>c</script>", "<style>d</style>", "<!-- e -->", "<?f g>", "<br>")


@given(st.lists(st.sampled_from(MARKUP), max_size=25))
def test_the_shown_text_is_that_outside_of_scripts_and_templates(pieces: list[str]) -> None:
    tree = parse("<html><body>x" + "".join(pieces))
    for element in () if tree is None else tree.iter("*"):
        assert shown_text(element) == " ".join(SHOWN(element))


def letters(texts: list[str]) -> Counter[str]:
    return Counter(character for text in texts for character in text if character.isalnum())


def check_account(html: str) -> None:
    tree = parse(html)
    assert tree is not None
    body = tree.find("body")
    shown = SHOWN(tree if body is None else body)
    text, parts = account(tree)
    assert text.strip() == text_of(html).strip()  # an account changes nothing
    assert "\n".join(part.text for part in parts if not part.rule) == text
    assert letters([part.text for part in parts]) == letters(shown)
    assert {part.rule for part in parts} <= {"", *RULES}


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "forum_pages").glob("*.html")), ids=lambda path: path.stem
)
def test_all_text_of_a_forum_is_kept_or_dropped_by_a_rule(path: Path) -> None:
    check_account(path.read_text())


def test_all_text_of_an_article_is_kept_or_dropped_by_a_rule() -> None:
    check_account(article(PARTS))
    _, parts = account(parse(article(PARTS)))
    found = {part.rule: part.text for part in parts}
    assert {"class", "figure", "hidden", "label", "links", "permalink", "tag"} <= found.keys()
    assert characters_by_rule(parts)["figure"] == len("Photo")


@pytest.mark.exhaustive
def test_all_text_of_real_pages_is_kept_or_dropped_by_a_rule(real_data: Path) -> None:
    bodies = [page.body for page in gold_pages(real_data)]
    bodies += [body for _, body in documentation_pages(real_data)][::5]
    for body in bodies:
        html = decode(body)[0]
        if "<math" not in html:  # of whose forms one is read
            check_account(html)


def test_each_reason_in_the_code_is_described() -> None:
    folder = Path(account_module.__file__).parent
    values = [
        node.value
        for name in ("blocks", "main_content", "article_lines", "forum_lines")
        for node in ast.parse((folder / f"{name}.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    ]
    constants = [one for value in values for one in value.elts if isinstance(one, ast.Constant)]
    reasons = {one.value for one in constants if isinstance(one.value, str)}
    assert reasons == set(RULES)


def test_explain_shows_each_part_and_its_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text(article(PARTS.replace("See", "<b>&lt;script&gt;</b>")))
    app(["data", "explain", str(page), "--output", str(tmp_path / "out")], result_action="return_value")
    shown = capsys.readouterr().out
    assert "\nkept       River\n" in shown and "\nlabel      Share\n" in shown
    assert "kept" in shown.splitlines()[-2] or "characters of text" in shown
    document = (tmp_path / "out" / "explain.html").read_text()
    assert "<small>class span.author</small>" in document and "<b>" not in document and "&lt;script&gt;" in document
    with pytest.raises(UserError, match="No such file or directory; give an HTML file"):
        app(["data", "explain", str(tmp_path / "none")], result_action="return_value")
    packed = gzip.compress(page.read_bytes())
    for name, data in (("a.html.gz", packed), ("cut.html.gz", packed[:-9]), ("zip.html", b"PK\3\4")):
        (tmp_path / name).write_bytes(data)
    app(["data", "explain", str(tmp_path / "a.html.gz")], result_action="return_value")
    assert "\nkept       River\n" in capsys.readouterr().out
    for name, said in (("cut.html.gz", "ended before"), ("zip.html", "its bytes are those of application/zip")):
        with pytest.raises(UserError, match=rf"{name} cannot be read: .*{said}.*; give an HTML file"):
            app(["data", "explain", str(tmp_path / name)], result_action="return_value")


def test_explain_fetches_a_page_as_the_download_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = DownloadSettings(allow_private=("127.0.0.0/8",), delay=0)
    with running_site() as site:
        original = fetch.Fetcher
        monkeypatch.setattr(fetch, "Fetcher", lambda *_: original(settings, {"*.test": site.address}))
        page = article(f"{PARTS}<p>Gr\xfc\xdfe</p>").replace("<html>", "<html><meta charset=windows-1252>")
        site.handlers["/page"] = lambda h: h.answer(page.encode("cp1252"))
        site.handlers["/moved"] = lambda h: h.redirect("/page")
        site.robots["closed.test"] = (200, "User-agent: *\nDisallow: /")
        for path in ("page", "moved"):
            app(["data", "explain", f"http://a.test/{path}"], result_action="return_value")
            shown = capsys.readouterr().out
            assert "\nkept       River\n" in shown and f"http://a.test/{path}: cp1252, " in shown
        for address, reason in (("closed.test/page", "robots_forbidden"), ("a.test/gone", "not_found")):
            with pytest.raises(UserError, match=f"{address} cannot be fetched: {reason}.*; save it as a file"):
                app(["data", "explain", f"http://{address}"], result_action="return_value")
