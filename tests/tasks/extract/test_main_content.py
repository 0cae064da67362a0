"""The engine `structure`: what it keeps and drops of a page, hostile pages, and its fit to the gold pages."""

import html
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from benchmarks.extract import as_page, texts_of
from benchmarks.gold_pages import fit, gold_pages, shingle_f1
from tasks.extract import attribute_names, attribute_rules
from tasks.extract.attribute_rules import AttributeRules, words
from tasks.extract.main_content import parse, structured_text
from tasks.extract.page_type import ARTICLE
from tests.tasks.extract.made_pages import PARAGRAPH, WORDS, article, text_of


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("<ul><li><code>open()</code> opens a file</li><li>second</li></ul>", "- open() opens a file\n- second"),
        ("<ul><li>outer<ul><li>inner</li></ul></li><li>next</li></ul>", "- outer\n- inner\n- next"),
        ("<ol><li><a href='/a'>a link</a> and text that follows it here</li></ol>", "- a link and text that follows"),
        ("<pre>def f():\n    return 1\n\n\n</pre>", "\ndef f():\n    return 1\n"),
        ("<pre><span class='linenos'>1</span>  x = 1<br>  y = 2</pre>", "\n  x = 1\n  y = 2\n"),
        ("<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n1 | 2"),
        ("<dl><dt>term</dt><dd>its meaning</dd></dl>", "term\nits meaning"),
        ("<p>one<br>two</p>", "one\ntwo"),
        ("<p>edge <math><mi>h</mi><mo>&lt;</mo><mn>2</mn></math> is left</p>", "edge h<2 is left"),
        ("<p>so <math alttext='x^2'><mi>x</mi></math>, done</p>", "so x^2, done"),
        (
            "<p>so <math><semantics><mi>x</mi><annotation encoding='MathML-Content'>y</annotation>"
            "<annotation encoding='application/x-tex'>x_1</annotation></semantics></math>, done</p>",
            "so x_1, done",
        ),
        ("<p>soft\u00adhyphen &amp; <b>bold</b>face</p>", "softhyphen & boldface"),
        ("<p>Zero\u200bwidth, ภาษา&#8203;<b>ไทย</b>\u200b. ខ្មែរ\u200b\n គឺ</p>", "Zerowidth, ภาษา\u200bไทย. ខ្មែរ គឺ"),
    ],
)
def test_parts_of_a_text_are_kept_as_they_are(inside: str, expected: str) -> None:
    found = text_of(article(inside))
    assert expected in found
    assert found.startswith(WORDS.strip()) and found.count(WORDS.strip()) == 6


@pytest.mark.parametrize(
    "inside",
    [
        "<div class='social-share'>Share this story with your friends</div>",
        "<p style='display: none'>hidden words</p>",
        "<div id='comments'><p>What a story, I never read such a thing before in my life.</p></div>",
        "<script>var x = 'a story'</script><style>p {}</style>",
        "<p>Advertisement</p>",
        "<figure><img src='a'><p>Photo of a fox by the river, taken at night</p></figure>",
    ],
)
def test_boilerplate_is_dropped(inside: str) -> None:
    assert text_of(article(inside)) == f"{(WORDS * 3).strip()}\n{(WORDS * 3).strip()}"


def test_links_to_other_pages_after_the_text_are_dropped() -> None:
    more = "<h3>Related articles</h3><p><a href='/b'>Another story of this site</a></p><p>Its first words.</p>"
    page = f"<html><body><article>{PARAGRAPH * 3}{{}}</article></body></html>"
    assert text_of(page.format(more)).endswith("falls.")
    assert text_of(page.format(more.replace("h3>", "p>"))).endswith("falls.\nIts first words.")


@pytest.mark.parametrize(("between", "number", "is_kept"), [("", 4, False), ("", 12, True), ("<p>{}</p>", 4, True)])
def test_teasers_below_links_are_dropped_up_to_half_of_the_text(between: str, number: int, is_kept: bool) -> None:
    """Text that follows one of them, and is below no link, is that of the page from a fifth of the text on."""
    says = "A story of this site in a sentence that is long enough to be read as text of its own."
    cards = [
        f"<div><div><a href='/{one}'>Story {one} of this site</a></div><div>{one}: {says}</div></div>"
        + between.format(says)
        for one in range(number)
    ]
    read = text_of(
        f"<html><body><article>{PARAGRAPH * 3}<div>More from the Site</div>{''.join(cards)}</article></body></html>"
    )
    assert (says in read) == is_kept and read.startswith("The")


def test_tables_can_be_left_out() -> None:
    page = article("<table><tr><td>1</td><td>2</td></tr></table>")
    assert "1 | 2" in text_of(page) and "1 | 2" not in text_of(page, tables=False)


@pytest.mark.parametrize(
    ("post", "body"),
    [("post", "postbody"), ("bbp-reply-position-2 topic-author post-9 type-reply hentry", "bbp-reply-content")],
    ids=["phpbb", "bbpress"],
)
def test_posts_of_a_forum_are_all_kept(post: str, body: str) -> None:
    posts = "".join(
        f"<div class='{post}'><div class='{body}'><p>Answer {n}: {WORDS}</p></div><div class='signature'>me</div></div>"
        for n in range(4)
    )
    found = text_of(f"<html><body><div class='menu'>Board index</div><div id='posts'>{posts}</div></body></html>")
    assert [line.split(":")[0] for line in found.splitlines()] == [f"Answer {n}" for n in range(4)]


@pytest.mark.parametrize(
    "inside",
    ["<p>{}</p><p>_______<br>Old pumps never die.</p>", "<pre>{}\n\n--\nOld pumps never die.\n</pre>"],
    ids=["underscores", "dashes"],
)
def test_signatures_inside_a_post_are_dropped(inside: str) -> None:
    posts = "".join(f"<div class='postbody'>{inside.format(WORDS + str(n))}</div>" for n in range(3))
    assert text_of(f"<html><body>{posts}</body></html>").split() == f"{WORDS}0 {WORDS}1 {WORDS}2".split()


def test_the_title_and_the_date_of_a_page_are_no_part_of_an_article() -> None:
    head = "<h1>A fox by the river</h1><p>19 November 2019, 12:04 pm</p>"
    body = f"<article>{head}{PARAGRAPH * 3}<h2>In 2019</h2>{PARAGRAPH}</article>"
    found = text_of(f"<html><head><title>A fox by the river | The Daily Site</title></head><body>{body}</body></html>")
    assert found.splitlines() == [(WORDS * 3).strip()] * 3 + ["In 2019", (WORDS * 3).strip()]


@pytest.mark.parametrize("line", ["<li>{}</li>", "<tr><td>{}<td>Room 5</tr>", "<h4>{}</h4><p>Room 5</p>", "<p>{}</p>"])
def test_the_dates_of_what_a_page_lists_are_its_text(line: str) -> None:
    for count in (4, 30):
        days = [f"May {day + 1}, 2026 - 9:00 AM" for day in range(count)]
        tag = {"<l": "ul", "<t": "table"}.get(line[:2], "div")
        rows = "".join(line.format(f"<b>{day}</b>") for day in days)
        found = text_of(f"<body><main><h1>Meetings</h1><{tag}>{rows}</{tag}></main></body>")
        assert all(day in found for day in days)


def test_rows_beside_an_introduction_are_the_text_of_a_page_that_states_no_article() -> None:
    rows = "".join(f"<tr><td>{n}/4/26<td>25-{n}<td><a href='/{n}'>Fox v. Dog {n}</a></tr>" for n in range(60))
    page = f"<body><nav><a href='/'>Home</a></nav><main><article>{PARAGRAPH}</article>{{}}</main></body>"
    assert "25-59 | Fox v. Dog 59" in text_of(page.format(f"<table>{rows}</table>"))
    menu = "".join(f"<tr><td><a href='/{n}'>Town {n}</a><td><a href='/b{n}'>Boat {n}</a></tr>" for n in range(9))
    assert "Boat" not in text_of(page.format(f"<table>{menu}</table>"))


def test_cells_of_a_column_are_text_whatever_its_name_is() -> None:
    """Of Drupal's tables, whose cells are named after all fields in them."""
    cell = f"<td class='views-field views-field-author'><b>Fox v. Dog {{0}}</b><br>{WORDS * 5}<br>Judge {{0}}</td>"
    rows = "".join(f"<tr><td>{n}</td>{cell.format(n)}</tr>" for n in range(5))
    found = text_of(f"<body><main><h1>Cases</h1><table>{rows}</table></main></body>")
    assert all(f"Fox v. Dog {n}" in found and f"Judge {n}" in found for n in range(5))
    side = text_of(f"<body><table><tr>{cell.format(0)}<td>{PARAGRAPH * 5}</td></tr></table></body>")
    assert "Fox v." not in side


def test_a_list_with_terms_that_are_links_is_kept_with_the_words_about_them() -> None:
    term = "<dt>[{0}] <a href='/{0}'>paper:{0}</a> [<a href='/pdf/{0}'>as a file to print and to keep</a>]</dt>"
    names = "<p><a href='/b'>A. Fox</a></p>"
    about = f"<dd><div class='meta'><div>Title {{0}}: {WORDS[:40]}</div>{names}{WORDS}</div></dd>"
    items = "".join((term + about).format(n) for n in range(30))
    found = text_of(f"<body><main><h1>Papers</h1><dl>{items}</dl></main></body>")
    assert all(f"paper:{n}" in found and f"Title {n}:" in found for n in range(30)) and found.count("A. Fox") == 30


def test_lists_of_links_below_lines_of_their_own_are_the_text_that_consists_of_them() -> None:
    lists = "".join(
        f"<p><b>May {day}</b></p><ul>{''.join(f'<li><a href=/{n}>Fox {n} v. Dog</a></li>' for n in range(9))}</ul>"
        for day in range(9)
    )
    head = "<meta property='og:type' content='article'>"
    page = f"<html><head>{head}</head><body><div class='post-content'><p>{WORDS * 4}</p>{{}}</div></body></html>"
    assert text_of(page.format(lists)).count("Fox 8 v. Dog") == 9
    assert "v. Dog" not in text_of(page.format(f"{PARAGRAPH * 10}{lists}"))


def test_calls_at_the_end_of_an_article_are_dropped() -> None:
    calls = "<p>Reporting by <a>A. Fox</a>.</p><p>Follow us on <a href='/net'>the net</a> for more stories.</p>"
    assert text_of(f"<html><body><article>{PARAGRAPH * 3}{calls}</article></body></html>").endswith("night falls.")


@pytest.mark.parametrize("generator", ["", "<meta name='generator' content='Doxygen 1.5'>"])
@pytest.mark.parametrize(
    "line",
    [
        "<a href='a'>Prev</a> | <a href='b'>Up</a> | <a href='c'>Next</a>",
        "<a href='a'>Chapter 1</a><br><a href='b'>Chapter 2</a>",
        "Return to <a href='a'>the table of contents</a>.",
        "Last modified: May 3, 2010 by <a href='mailto:a@b.test'>the author</a>",
        "Generated on Mon May 3 2010 for fox by <a href='d'>doxygen</a> 1.5.6",
        "Copyright © 1999-2010 A. Fox.",
        "<a href='#A'>A</a> | <a href='#B'>B</a> | <a href='#C'>C</a> | <a href='#D'>D</a> | <a href='#E'>E</a>",
    ],
)
def test_lines_of_links_and_rights_at_the_ends_of_a_page_are_no_text(line: str, generator: str) -> None:
    text = f"<h1>Reading</h1>{PARAGRAPH}<p>So {WORDS}</p>"
    page = f"<html><head>{generator}</head><body>{{}}<hr>{line}</body></html>"
    head = line if "<a" in line and "20" not in line else ""
    assert text_of(page.format(f"{head}{text}")).splitlines() == ["Reading", (WORDS * 3).strip(), f"So {WORDS}".strip()]
    for after in (f"<p>{WORDS}It was made in 2010</p>", "<p>He left.</p>"):
        assert len(text_of(page.format(text + after)).splitlines()) == 4
    if "#A" not in line:  # lines after a heading are its text
        assert "The end" in text_of(page.format(f"{text}<h2>The end</h2>"))


def test_lines_of_links_are_the_text_of_a_page_that_has_no_other() -> None:
    lines = "".join(f"<a href='{n}'>Chapter {n}</a><br>" for n in range(9))
    assert text_of(f"<html><body><h1>Contents</h1>{lines}</body></html>").count("Chapter") == 9
    last = "<p>Copyright was not known in 1999, nor was the right to read.</p><p>In 2010 it ended, on May 3, 2010.</p>"
    assert text_of(article(last)).count("10") == text_of(article(last).replace(PARAGRAPH, "")).count("10") == 2


def test_a_sentence_about_copyright_is_no_notice_of_it() -> None:
    about = "<p>Copyright is what they <a href='/b'>argued about</a>: {}, said the judge, is none of theirs.</p>"
    notice = "<p>Copyright © 1920 <a href='/b'>The Daily Site</a></p>"
    page = f"<html><body><article>{PARAGRAPH * 3}{{}}</article></body></html>"
    assert "argued about" in text_of(page.format(about.format("the old song")))
    assert "Copyright" not in text_of(page.format(notice)) + text_of(page.format(notice.replace("©", "")))


def test_a_short_part_after_the_text_is_a_part_of_it() -> None:
    """Of TYPO3, where an article is several elements of one class, with pictures between."""
    first, last = PARAGRAPH * 9, f"<p>{WORDS}</p><ul><li><a href='/b'>Falco</a></li></ul>"
    page = f"<html><body><div><h4>News</h4><div class='bodytext'>{first}</div>{{}}</div></body></html>"
    for between, name, is_kept in (
        ("<figure>Photo</figure>", "bodytext", True),
        ("", "teasertext", False),
        (f"<div>{WORDS}</div>", "bodytext", False),
        (f"<div class='bodytext'><p>{WORDS} <a href='/b'>More</a></p></div>", "bodytext", False),
    ):
        found = text_of(page.format(f"{between}<div class='{name}'>{last}</div>"))
        assert found.count(WORDS.strip()) == 27 + is_kept, (between, name)


def test_names_of_a_main_content_around_little_of_it_are_none() -> None:
    """Of stylesheets whose names of a colour are those of a text: a menu has it, and the caption of a picture."""
    line = "<div class='text-copy-primary'>Boats</div>"
    page = f"<html><body>{line}<main><p>{WORDS}</p>{line}<p>{WORDS}</p><p>{WORDS}</p></main></body></html>"
    assert text_of(page).count(WORDS.strip()) == 3


def test_cards_under_an_empty_link_are_dropped() -> None:
    card = f"<div class='card'><a href='/b'></a><h3>Another story</h3><p>{WORDS}</p></div>"
    page = "<html><body><article>{}</article></body></html>"
    assert text_of(page.format(PARAGRAPH * 4 + card * 4)) == text_of(page.format(PARAGRAPH * 4))
    assert "Another story" in text_of(page.format(PARAGRAPH * 4 + card))  # one alone is part of the text
    # They are the text of a page that has hardly another.
    assert "Another story" in text_of(f"<html><body><h1>Boats</h1>{card * 4}</body></html>")


def test_containers_that_announce_other_pages_are_not_the_main_content() -> None:
    posts = f"<div class='content'><h3><a href='/b'>Another story</a></h3>{PARAGRAPH}</div>" * 3
    assert text_of(f"<html><body><div id='main'>{PARAGRAPH * 4}</div>{posts}</body></html>").count(WORDS.strip()) == 12


def test_a_weak_container_is_the_main_content_of_an_article_or_holds_nearly_all_text() -> None:
    page = "<html><head>{}</head><body><{tag}>{}</{end}><div class='x'>{}</div></body></html>"
    stated = "<meta property='og:type' content='article'>"
    changed = "<meta property='article:modified_time' content='2020-01-02'>"
    for tag, head, beside, kept in (
        ("div class='content'", "", PARAGRAPH * 2, 18),
        ("div class='content'", stated, PARAGRAPH * 2, 12),
        ("div class='content'", f"{stated}{changed}", PARAGRAPH * 2, 18),
        ("div class='content'", f"{stated}{changed}{changed.replace('modified', 'published')}", PARAGRAPH * 2, 12),
        ("div class='content'", "", f"<p>{WORDS}</p>", 12),
        ("main", "", PARAGRAPH * 2, 12),
        ("div class='content'", "", f"<div class='content'><h3><a href='/b'>Boats</a></h3>{PARAGRAPH}</div>" * 2, 12),
    ):
        found = text_of(page.format(head, PARAGRAPH * 4, beside, tag=tag, end=tag.split()[0]))
        assert found.count("fox") == kept, (tag, head, beside)


def test_an_article_in_json_ld_is_the_text_of_a_page_without_markup() -> None:
    body = json.dumps(
        {"@graph": [{"@type": "NewsArticle", "articleBody": f"{WORDS * 4}\n\n<p>A &lt; B</p><p>end</p>"}]}
    )
    page = "<html><head><script type='application/ld+json'>{}</script></head><body><p>{}</p></body></html>"
    assert text_of(page.format(body, "Please enable JavaScript.")) == f"{(WORDS * 4).strip()}\nA < B\nend"
    plain = body.replace("<p>A &lt; B</p><p>end</p>", "Tom &amp; Jerry&#39;s")
    assert text_of(page.format(plain, "Please")) == f"{(WORDS * 4).strip()}\nTom & Jerry's"
    assert text_of(page.format(body, WORDS * 4)) == (WORDS * 4).strip()  # the markup has a text
    assert text_of(page.format(body[:-1], "Please")) == "Please"
    paid = body.replace('"articleBody"', '"isAccessibleForFree": "False", "articleBody"')
    assert text_of(page.format(paid, "Subscribe.")) == "Subscribe."
    assert text_of(page.format("[" * 100_000, "Please")) == "Please"


@pytest.mark.parametrize(
    "wrapped",
    [
        *("//<![CDATA[\n{}\n//]]>", "/* <![CDATA[ */ {} /* ]]> */", "<![CDATA[{}]]>", "<!-- {} -->", "<!--\n{}\n//-->"),
        *("{};", "\ufeff{}", "\n// <!--\n[[], {}]", "{}\n{{}}"),
    ],
)
@pytest.mark.parametrize("escape", [str, html.escape])
def test_an_article_in_json_ld_is_read_in_what_templates_wrap_it_in(wrapped: str, escape: Callable[[str], str]) -> None:
    body = escape(json.dumps({"articleBody": WORDS * 4}))
    page = "<html><head><script type='application/ld+json'>{}</script></head><body><div id='app'></div></body></html>"
    assert text_of(page.format(wrapped.format(body))) == (WORDS * 4).strip()


@pytest.mark.parametrize("codes", [range(1, 32), (0xFFFE, 0xFFFF)])
def test_references_to_characters_that_no_tree_takes_are_read(codes: Sequence[int]) -> None:
    """lxml reads them, but refuses to write them into a tree."""
    found = "".join(f"&#{code};x" for code in codes)
    expected = "x" * len(codes)
    parts = (f"<pre>a<br>{found}</pre>", f"<p>a<br>{found}</p>", f"<ul><li>a</li>{found}</ul>", f"<td>a</td>{found}")
    for inside in (*parts, f"<svg><foreignObject>{found}</foreignObject></svg>"):
        text = re.sub(r"[^a-z]", "", text_of(article(inside)))
        assert text.count(expected) == (0 if "svg" in inside else 1), inside
    body = json.dumps({"@type": "Article", "articleBody": f"<?xml encoding='latin-1'?><p>{WORDS * 4}</p><br>{found}"})
    page = f"<html><head><script type='application/ld+json'>{body}</script></head><body></body></html>"
    assert re.sub(r"[^a-z]", "", text_of(page)).endswith(expected)


@pytest.mark.parametrize("tag", ["tt", "div", "ul><li", "pre><b"])
def test_the_text_in_tags_that_are_never_closed_is_kept(tag: str) -> None:
    """Manuals have pages of several hundred levels; libxml2 drops what is below 256 unless asked not to."""
    page = article("".join(f"<{tag}>word{number}\n" for number in range(900)))
    before = sys.getrecursionlimit()
    assert re.findall(r"word\d+", text_of(page)) == [f"word{number}" for number in range(900)]
    assert sys.getrecursionlimit() == before


HOSTILE = {
    "deep": "<html><body>" + "<div>" * 100_000 + WORDS,
    "deep list": "<html><body><ul>" + "<li><span>" * 20_000 + WORDS,
    "long attribute": f"<html><body><p class='{'ad ' * 200_000}'>{WORDS}",
    "containers": "<html><body>" + f"<div class='article-body'>{PARAGRAPH}</div>" * 2000,
    "deep words": "<html><body>" + "<b class='ad'>" * 3000 + WORDS,
    "links": f"<html><body><article>{PARAGRAPH}" + "<a href='/b'>A page</a><br>" * 30_000,
    "deep code": "<html><body><pre>" + "<b>" * 20_000 + WORDS,
    "headings": "<html><body>" + "<h2>Related articles</h2>" * 10_000 + PARAGRAPH,
    "drawings": "<html><body><svg>" + "<foreignObject>" * 700 + PARAGRAPH,
    "characters": "<p>a\0b\ud800c</p>",
    "empty": "",
    "bracket": "<",
}


@pytest.mark.parametrize("html", HOSTILE.values(), ids=HOSTILE)
def test_hostile_pages_give_no_more_than_they_hold(html: str) -> None:
    assert len(text_of(html)) <= len(html)


TAGS = ["p", "div", "ul", "li", "table", "tr", "td", "pre", "a", "span", "h2", "article", "br", "form"]


@given(
    st.lists(
        st.tuples(st.sampled_from(TAGS), st.sampled_from(["", " class='content'", " hidden"]), st.text(max_size=20))
    )
)
def test_any_markup_gives_words_of_the_page(parts: list[tuple[str, str, str]]) -> None:
    html = "<html><body>" + "".join(f"<{tag}{attribute}>{text}" for tag, attribute, text in parts)
    tree = parse(html)
    if tree is not None:
        known = "".join(tree.text_content().split())
        found = "".join(structured_text(tree).replace("- ", "").replace(" | ", "").split())
        assert len(found) <= len(known) + 2 * len(parts)


@pytest.mark.slow
def test_it_fits_the_gold_pages_as_well_as_trafilatura(real_data: Path) -> None:
    gold = list(gold_pages(real_data))
    pages = [as_page(page.url, page.body) for page in gold]
    fitted = {name: fit(gold, texts_of(name, pages)) for name in ("structure", "trafilatura")}
    for name, value in fitted["trafilatura"].items():
        assert fitted["structure"][name] >= value, (name, fitted)


def test_a_verdict_depends_on_the_attributes_that_it_reads_alone() -> None:
    rules = AttributeRules(ARTICLE)
    elements = [
        document_fromstring(f"<body><div {attributes}>x</div></body>")[0][0]
        for attributes in (
            "id='post-12 sidebar'",
            "id='post-97 sidebar' data-key='1'",
            "data-key='2' id='post-34 sidebar'",
        )
    ]
    assert [rules.verdict(element, "div").marked for element in elements] == [True] * 3
    assert len(rules.cache) == len(rules.names) == 1
    assert not rules.verdict(document_fromstring("<body><div id='post-12'>x</div></body>")[0][0], "div").marked


FORUM_PAGES = sorted((Path(__file__).parent / "forum_pages").glob("*.html"))


@pytest.mark.parametrize("page", FORUM_PAGES, ids=[page.stem for page in FORUM_PAGES])
def test_posts_and_code_of_forums_are_kept_and_their_surroundings_dropped(page: Path) -> None:
    found, expected = text_of(page.read_text()), page.with_suffix(".txt").read_text()
    assert shingle_f1(expected, found) >= 0.9
    code = {line for line in expected.splitlines() if line.startswith("  ")}
    assert code <= set(found.splitlines())
    assert not SURROUNDINGS.search(found)


# Words of the signatures, menus and counters of the pages, none of which a post has.
SURROUNDINGS = re.compile(
    r"old cat|read the rules|Steel is real|rust is too|old frames: see|A weed is|Sent from a|Read the manual page first"
    r"|years of sawdust|hut keeper|Powered by|Reply|Members? List|Joined|Reputation|Login|Board index|Jump to"
    r"|Who is online|Similar|Related topics|Likes|Share|Improve this|Messages sorted|Next message|Next in thread"
    r"|Date Index|Prev by|Log in|Received on|was generated by|More information",
    re.IGNORECASE,
)


def plain_words(value: str) -> str:
    """Words of a class by expressions alone, as `attribute_rules.words` has them faster."""
    if not (value.isalnum() and value.islower()):
        names = value.split(" ")
        if len(names) > 1:
            is_shown = any(re.search(r":(?:block|flex)$", name) for name in names)
            names = [name for name in names if not (re.search("[:(/]", name) or (is_shown and name == "hidden"))]
            value = " ".join(names)
        value = re.sub(r"(?:___?|---?)(?=\w{5}\b)[A-Za-z0-9][a-z]*[A-Z0-9][A-Za-z0-9]*(?!\w)", " ", value)
        value = attribute_rules.MODIFIERS.sub(" ", value)
        value = re.sub(r"[\s_\-:.]+|(?<=[a-z])(?=[A-Z])", " ", value).strip().lower()
    return re.sub(r"(?<!\S)(\S+)(?: \1(?!\S))+", r"\1", value)


NAMES = ["has", "No", "label", "side", "barNav", *"-_ :.1É", "with-", "hidden", ":flex", "x(", "__adF2E"]


@given(st.lists(st.sampled_from(NAMES)))
def test_words_of_classes_are_those_of_the_plain_expressions(parts: list[str]) -> None:
    assert words("".join(parts)) == plain_words("".join(parts))


@given(st.data())
def test_names_without_the_parts_are_matched_by_no_rule(data: st.DataObject) -> None:
    gates = (
        (attribute_names.COMMENT_PARTS, [attribute_names.COMMENTS]),
        (attribute_names.TOC_PARTS, [attribute_names.TOC]),
        (attribute_names.LEVEL_PARTS.pattern.split("|"), attribute_names.LEVELS),
    )
    for parts, rules in gates:
        name = data.draw(st.one_of(st.from_regex(rule) for rule in rules))
        assert any(part in name for part in parts), name


def test_the_page_in_a_dialog_over_another_one_is_the_text() -> None:
    """By the title of the page in it; without that the dialog is dropped."""
    stream = "".join(f"<div class='item'><h3><a href='/{n}'>Story {n}</a></h3>{PARAGRAPH}</div>" for n in range(5))
    shown = f"<div class='modal'><h1>The wolf</h1><article>{PARAGRAPH.replace('fox', 'wolf') * 2}</article></div>"
    page = f"<html><head><title>The wolf - Site</title></head><body><div id='main'>{stream}</div>{shown}</body></html>"
    assert text_of(page) == "\n".join([f"{WORDS * 3}".strip().replace("fox", "wolf")] * 2)
    assert "wolf" not in text_of(page.replace("<title>The wolf", "<title>Stories"))


LINE = f"<p>{WORDS.replace('fox', 'wolf') * 2}</p>"  # of a part that may be dropped


@pytest.mark.parametrize(
    "part",
    [
        "<nav><a href='/'>Home</a>{0}{0}{0}</nav>",  # it is not closed before the text
        "<article><h1>Film</h1><p>Press play.</p><footer><p>Transcript:</p>{0}{0}{0}</footer></article>",
        "<article><h1>Slides</h1><p>{1}</p>"
        + "<figure><h2>One</h2><figcaption>{0}</figcaption></figure>" * 6
        + "</article>",
    ],
)
def test_a_part_that_is_no_text_by_its_tag_is_read_if_the_page_has_no_other(part: str) -> None:
    """Beside an article the same parts are its captions, the site's pages, and what its publisher says of it."""
    inside = part.format(LINE, WORDS)
    assert text_of(f"<html><body>{inside}</body></html>").count("wolf") == 2 * inside.count(LINE)
    assert "wolf" not in text_of(f"<html><body><main>{PARAGRAPH * 6}</main>{inside}</body></html>")
    links = part.format("<a href='/a'>All that the wolf did in the woods of Denmark</a> " * 4, "")
    assert "wolf" not in text_of(f"<html><body><p>{WORDS}</p>{links}</body></html>")


@pytest.mark.parametrize(
    "names", [["text text-1", "text-2 text", "text x text-3", "text text-4"], ["lead", "x", "post-body"]]
)
def test_an_article_is_more_than_a_part_of_it_with_a_strong_name(names: list[str]) -> None:
    """Of parts that are numbered some have the name of a main content by chance, and so have boxes in a text."""
    parts = "".join(f"<div class='{name}'>{LINE}</div>" for name in names)
    assert text_of(f"<html><body><article><h1>A</h1>{parts}</article></body></html>").count("wolf") == 2 * len(names)


def test_text_between_an_introduction_and_the_container_of_the_body_is_kept() -> None:
    short = "<p>All of them run along the river, and only a few of them ever come back to where they were.</p>"
    page = f"<html><body><h1>A</h1>{PARAGRAPH}{short}<div class='article-body'>{LINE * 4}</div></body></html>"
    assert short[3:-4] in text_of(page)


def test_an_aside_that_says_again_what_a_paragraph_says_is_left_out() -> None:
    quote = f"<aside class='pull'><p>“{WORDS.strip()}”</p></aside>"
    assert text_of(article(quote + LINE)).count("quick brown fox") == 6
    assert text_of(article(quote.replace("fox", "hare") + LINE)).count("hare") == 1


def test_a_text_that_a_page_holds_again_is_read_once() -> None:
    """For another screen, or as a transcript in other paragraphs; what lists and sections have in common is in each."""
    said = [f"The fox number {number} runs along the river to the old mill." for number in range(24)]
    text = "".join(f"<p>{' '.join(said[start : start + 4])}</p>" for start in range(0, 24, 4))
    again = "".join(f"<p>{' '.join(said[start : start + 3])}</p>" for start in range(0, 24, 3))
    page = "<html><body><main><h1>A</h1>{}</main></body></html>"
    alone = text_of(page.format(text))
    for copy in (text, again, f"<dl><dt>A</dt><dd>{again}</dd></dl>"):
        assert text_of(page.format(f"<div class='wide'>{text}</div><div class='narrow'>{copy}</div>")) == alone
    for first in ("", f"<p>{WORDS}</p>", f"<p>{WORDS}</p><h3>Rules</h3>"):
        rules = "<h3>Rules</h3>" if first.endswith("</h3>") else ""
        sections = f"<h2>Day</h2>{rules}{text}<h2>Night</h2>{first}{text}"
        assert text_of(page.format(sections)).count(said[0]) == 2
    refrain = f"<p>{' '.join(said[:4])}</p>"
    assert text_of(page.format(text + refrain)).count(said[0]) == 2
    items = "<ul>" + "".join(f"<li>{one}</li>" for one in said) + "</ul>"
    assert text_of(page.format(f"<h2>Day</h2>{items}<h2>Night</h2>{items}")).count(said[0]) == 2


ABOUT = f"<div class='col'><h3>About us</h3><ul><li>{WORDS * 2}</li></ul></div>"


@pytest.mark.parametrize("comments", ["<p>What a story!</p>", "", f"<p>{WORDS.replace('fox', 'cat')}</p>"])
def test_an_article_ends_with_the_container_of_its_comments(comments: str) -> None:
    box = f"<div class='comments'><h4>Add a comment</h4>{comments}</div>"
    page = "<html><body><h1>A</h1><div class='wide'>{}</div>{}</body></html>"
    text = text_of(page.format(PARAGRAPH * 3 + box, ABOUT))
    assert text.count("fox") == 9 and "About" not in text and "cat" not in text
    # Between the paragraphs, below one of several sections, above most of the text, and without comments.
    for inside, after, least in (
        (PARAGRAPH * 3 + box + PARAGRAPH, "", 12),
        (PARAGRAPH * 3 + box, f"<div class='wide'>{PARAGRAPH}</div>", 12),
        (PARAGRAPH + box, f"<div class='body'>{PARAGRAPH * 3}</div>", 12),
        (PARAGRAPH * 3, ABOUT, 11),
    ):
        assert text_of(page.format(inside, after)).count("fox") == least


def test_a_caption_for_each_size_of_a_screen_is_kept_once() -> None:
    caption = "The fox that was seen last week at the river crosses the old bridge, which is to be closed in May."
    captions = "".join(f"<div class='caption-{size}'>{caption}</div>" for size in ("full", "short", "remote"))
    assert text_of(article(captions + LINE)).count(caption) == 1
    assert text_of(article(f"<div class='caption'><p>{caption}</p><p>{caption}</p></div>" + LINE)).count(caption) == 2


def test_code_is_text_though_its_container_is_named_after_a_button() -> None:
    assert "make all" in text_of(article("<div class='snippet-clipboard-content'><pre>make all</pre></div>"))
    assert "Copy" not in text_of(article("<div class='clipboard'>Copy</div>"))


def test_the_hash_that_a_bundler_adds_to_a_name_is_no_word_of_it() -> None:
    page = article(f"{PARAGRAPH}<details class='Item_root__{{}}'><p>{WORDS}</p><img></details>")
    assert text_of(page.format("adF2E")).count("fox") == text_of(page.format("kqF2E")).count("fox")
    assert text_of(page.format("advert")).count("fox") < text_of(page.format("adF2E")).count("fox")


@pytest.mark.parametrize("name", ["timeline-comment", "react-issue-comment"])
def test_the_comments_of_an_issue_are_its_text(name: str) -> None:
    thread = "".join(f"<div class='{name}'><div class='comment-body'>{PARAGRAPH}</div></div>" for _ in range(3))
    assert text_of(f"<html><body><h1>Crash</h1><div id='comments'>{thread}</div></body></html>").count("fox") == 9


@pytest.mark.parametrize(
    "name", ["wprm-recipe-the-cookie-rookie", "recipe-sidebar", "ingredients-widget", "zutaten", "x"]
)
def test_the_list_of_a_recipe_is_a_part_of_the_text(name: str) -> None:
    """By its name or microdata, whatever else the name says; lists of other recipes are links."""
    prop = " itemprop='recipeIngredient'" if name == "x" else ""
    items = "".join(f"<li>{n} g flour</li>" for n in (100, 200, 300))
    card = f"<div class='{name}'{prop}><ul>{items}</ul></div>"
    assert "- 200 g flour" in text_of(article(card))
    beside = article("").replace("<div class='sidebar'>", f"{card}<div class='sidebar'>")
    assert "- 200 g flour" in text_of(beside) and "Most read" not in text_of(beside)
    linked = card.replace("flour", "<a href='/f'>wheat and other grains of the north</a>")
    assert ("wheat" in text_of(article(linked))) == (name not in ("wprm-recipe-the-cookie-rookie", "recipe-sidebar"))
    others = "<li><a href='/r'>Bread with seeds</a></li>" * 4
    assert "seeds" not in text_of(article(f"<ul class='related-recipes'>{others}</ul>"))
    said = f"<article class='recipe-comments'><h2>Comments</h2>{f'<div><i>Anna</i><p>{WORDS}</p></div>' * 9}</article>"
    parts = f"<article>{PARAGRAPH}</article><article class='{name}'{prop}><ul>{items}</ul></article>{said}"
    found = text_of(f"<html><body><main>{parts}</main></body></html>")
    assert "fox" in found and "- 200 g flour" in found and "Anna" not in found


def test_the_text_of_a_page_without_an_article_are_its_components_and_links() -> None:
    """Unless the page says that it has one, or has a text beside which they are few."""
    names = ("teaser", "carousel-item", "product-widget", "search-result", "promo")
    cards = "".join(
        f"<div class='{name}'><h3><a href='/{number}'>Boat {name} {number}</a></h3><p>For {number} men.</p></div>"
        for name in names
        for number in range(12)
    )
    links = "".join(f"<li><a href='/town/{number}'>Town {number}</a></li>" for number in range(20))
    consent = f"<div id='onetrust-consent-sdk'><h2>Your privacy</h2><p>{WORDS * 20}</p></div>"
    page = f"<html><head>{{}}</head><body><main><h1>Boats</h1>{{}}{cards}<ul>{links}</ul></main>{consent}</body></html>"
    found = text_of(page.format("", "<p>All boats of the river, with their towns.</p>"))
    assert all(f"Boat {name} 7" in found for name in names) and "Town 19" in found and "privacy" not in found
    assert (
        text_of(page.format("<meta property='og:type' content='article'>", PARAGRAPH)) == f"Boats\n{WORDS * 3}".strip()
    )
    assert "Boat " not in text_of(page.format("", PARAGRAPH * 20))


def test_sentences_that_are_links_are_the_text_of_a_catalogue() -> None:
    cards = "".join(f"<a href='/{n}'><h3>Boat {n}</h3><p>A boat of ours, with {n} sails.</p></a>" for n in range(20))
    page = f"<html><head>{{}}</head><body><article><h1>Boats</h1>{PARAGRAPH}<div>{cards}</div></article></body></html>"
    assert "with 7 sails" in text_of(page.format(""))
    assert "sails" not in text_of(page.format("<meta property='og:type' content='article'>"))
    assert "sails" not in text_of(page.format("").replace(PARAGRAPH, PARAGRAPH * 4))


def test_a_short_text_in_a_container_of_any_name_is_kept_without_lines_and_links_beside_it() -> None:
    links = "".join(f"<li><a href='/town/{number}'>Town {number} of the river</a></li>" for number in range(45))
    page = f"<body><div><div>Boats of the river</div><ul>{links}</ul></div><div>{PARAGRAPH * 3}</div><div>Radio</div>"
    assert text_of(page) == "\n".join([(WORDS * 3).strip()] * 3)
    for beside in (
        "<p>Row on.</p>",
        "<ul><li>Row on.</li></ul>",
        "<pre>row on</pre>",
        "<table><tr><td>row<td>on</table>",
    ):
        found = text_of(page.replace("Radio", beside)), text_of(page.replace("Boats of the river", beside))
        assert all(re.search("row on|row . on", one, re.IGNORECASE) for one in found), beside


def test_a_day_between_a_heading_and_a_text_is_that_of_an_article_among_many_links() -> None:
    links = "".join(f"<li><a href='/town/{number}'>Town {number} of the river</a></li>" for number in range(145))
    page = f"<body><div><ul>{links}</ul></div><div><h1>Boats</h1>{{}}</div><div>Radio</div>"
    text = f"<div>{PARAGRAPH * 3}</div>"
    for day in ("2018年06月13日 13:40", "The Boat, 2018-6-3", "2018/06/03"):
        assert "Town" not in text_of(page.format(f"<div>{day}</div>{text}")), day
        for without in (f"<h2>{day}</h2>{text}", f"{text}<div>{day}</div>", f"<p>{day} {WORDS}</p>{text}"):
            assert "Town 144" in text_of(page.format(without)), without[:40]
    assert "Town 144" in text_of(page.format(f"<div>2018 boats</div>{text}"))


@pytest.mark.parametrize(
    "page",
    [
        "<body><div><p>{0}</p><p>{0}</p></div><div><a href='/'>{1}</a></div></body>",
        f"<body><article>{PARAGRAPH * 3}<p class='newsletter'>{{0}}</p><p><a href='/'>{{1}}</a> {{0}}</p></article>",
        f"<body><article>{PARAGRAPH * 3}<div class='teaser'><img src='a'><p>{{0}}</p><p>{{0}}</p></div></article>",
        "<body>{0}<div><div class='card'><a href='/a'>{1}</a> {0}</div><div class='card'>{0}</div></div></body>",
        f"<body><article>{PARAGRAPH * 3}<aside><h3>{{1}}</h3><p>{{0}}</p></aside>{PARAGRAPH}</article>",
        f"<body><article>{PARAGRAPH * 3}<form><p>{{0}}</p><p>{{0}}</p><p>{{0}}</p><input></form></article>",
        f"<body><article>{PARAGRAPH * 3}<footer><p>{{0}} <a href='/'>{{1}}</a></p></footer></article>",
        f"<body><article>{PARAGRAPH * 3}<div class='comments'><p>{{0}}</p><p>{{0}}</p></div></article>",
        f"<body><article>{PARAGRAPH * 3}<figure><img src='a'><figcaption>{{0}}</figcaption></figure></article>",
        f"<body><article>{PARAGRAPH * 3}<p>{{0}} <a href='/'>{{0}}</a></p><h2>{{1}}</h2></article>",
        "<body><header><h1>{1}</h1><p>{0}</p></header><main><p>{0}</p></main><footer><p>{0}</p></footer></body>",
    ],
)
def test_a_page_in_chinese_is_read_as_one_in_english_of_its_length(page: str) -> None:
    for times in range(1, 50):
        english, chinese = (
            text_of(page.format(f"{words * times}{end}.", words * min(times, 4)))
            for words, end in (("the fox runs to town ", "on "), ("狐狸跑进城里去", "吧"))
        )
        kept = [line.count("fox") for line in english.split("\n")]
        assert [line.count("狐") + line.count("fox") for line in chinese.split("\n")] == kept, times


def test_titles_of_other_pages_are_mostly_links_in_japanese_too() -> None:
    item = "<li><a href='/'>圧力抑制室損傷の号機、特殊な方法で密封</a> （4月17日 20:58）</li>"
    assert "損傷" not in text_of(article(f"{PARAGRAPH}<ul>{item * 9}</ul>"))


def test_the_path_to_a_page_is_no_line_of_its_text() -> None:
    path = "<a href='/'>首页</a> > <a href='/b'>Boats</a> > Lake"
    line = f"{WORDS}Then <a href='/b'>File</a> > Save."
    page = f"<body><article><p>You are here: {path}</p><p>{line}</p><p>Go to {path}</p>{PARAGRAPH * 3}</article>"
    lines = text_of(page).split("\n")
    assert lines[:2] == [text_of(f"<p>{line}</p>"), "Go to 首页 > Boats > Lake"]
    for first in (
        "Open the <a href='/b'>Settings</a> > Network of all",
        "Open the <a href='/b'>lake</a> > <a href='/c'>boat</a>, row.",
    ):
        assert text_of(page.replace(f"You are here: {path}", first)).startswith("Open ")


def test_the_parts_that_react_sends_late_are_read_where_they_are_shown() -> None:
    first, second, third = (PARAGRAPH.replace("fox", name) for name in ("cat", "wolf", "owl"))
    page = (
        f"<main><template id='B:0'></template>{first}<template id='P:1a'></template></main>{{}}"
        f"<div hidden id='S:1a'>{third}</div><div hidden id='S:0'>{second}</div><div hidden id='S:7'>{PARAGRAPH}</div>"
    )
    text = text_of(article(page.format("")))
    assert re.findall("wolf|cat|owl|fox", text) == ["fox"] * 3 + ["wolf"] * 3 + ["cat"] * 3 + ["owl"] * 3 + ["fox"] * 3
    within = "<div hidden id='S:9'><template id='B:9'></template></div>"  # a place in its own part
    assert text_of(article(page.format(within))) == text


def test_a_question_before_a_hidden_text_opens_it() -> None:
    answer = WORDS.strip()
    for hidden in ("class='mt-2 hidden'", "style='visibility:hidden'", "hidden", "class='MuiCollapse-hidden'"):
        for question in ("<button type='button'>Which boat</button>", "<div>Which boat?</div>"):
            assert answer in text_of(article(f"<section>{question}<div {hidden}><p>{answer} Ends.</p></div></section>"))
        if "Collapse" not in hidden:
            assert "Ends" not in text_of(article(f"<div>The boat</div><div {hidden}><p>{answer} Ends.</p></div>"))


def test_lists_of_links_to_other_sites_are_text_where_they_stand_in_one() -> None:
    own = "".join(f"<a href='https://news.example/{number}'>{number}</a>" for number in range(20))
    links = (
        "<ul>"
        + "".join(f"<li><a href='https://{{0}}/{number}'>Boat {number}</a></li>" for number in range(3))
        + "</ul>"
    )
    page = article(f"{{}}{PARAGRAPH}").replace("</nav>", f"{own}</nav>")
    assert "- Boat 2" in text_of(page.format(links.format("boats.example")))
    assert "Boat" not in text_of(page.format(links.format("www.news.example")))
    assert "Boat 2" in text_of(page.format(links.format("news.example").replace("ul>", "ol>")))
    rows = links.replace("ul>", "table>").replace("<li>", "<tr><td>").replace("li>", "td>")
    assert "Boat 2" in text_of(page.format(rows.format("boats.example")))
    assert "Boat" not in text_of(page.format(rows.format("www.news.example")))
    assert "Boat" not in text_of(page.format("").replace("</div>", links.format("boats.example") + "</div>", 1))


def test_a_page_that_states_a_discussion_is_read_with_its_comments() -> None:
    posts = "".join(f"<div class='comment'><div class='comment_text'>{PARAGRAPH}</div></div>" for _ in range(4))
    body = f"<h1>Boats</h1>{PARAGRAPH}<section class='comments'>{posts}</section>"
    page = f"<html><head><title>Boats</title>{{}}</head><body>{body}</body></html>"
    for kind in ('"DiscussionForumPosting"', '"https://schema.org/QAPage"', '["WebPage", "schema:QAPage"]'):
        stated = f'<script type="Application/ld+json">{{"@type": {kind}}}</script>'
        assert text_of(page.format(stated)).count("fox") == 15
    asked = "<div itemscope itemtype='https://schema.org/Question'></div>"  # of a list of questions and answers
    for other in ("", asked, f"<div itemscope itemtype='https://schema.org/FAQPage'>{asked}</div>"):
        assert text_of(page.format("").replace("<h1>", f"{other}<h1>")).count("fox") == 3


def test_a_container_with_the_title_and_a_text_is_a_part_of_the_page_whatever_its_name_is() -> None:
    title = "<title>Boats of the river - Site</title>"
    for name, is_dialog in (("hero-banner", False), ("page-widget", False), ("modal", True)):
        shown = f"<h1>Boats of the river</h1><article><p>{WORDS.replace('fox', 'wolf') * 5}</p></article>"
        head = f"<section class='{name}'>{shown}</section>"
        text = text_of(f"<html><head>{title}</head><body>{head}<main>{PARAGRAPH * 9}</main></body></html>")
        assert "wolf" in text and ("fox" in text) is not is_dialog


def test_a_recipe_is_no_documentation_though_its_facts_are_a_list_of_terms() -> None:
    facts = "<dl>" + "<dt>Fat</dt><dd>1 g</dd>" * 12 + "</dl>"
    stated = '<script type="application/ld+json">[{"@type": ["WebPage", "http://schema.org/Recipe"]}]</script>'
    parts = f"<aside class='recipe-ingredients'><ul>{'<li>Flour</li>' * 5}</ul></aside>"
    assert (
        text_of(f"<html><head>{stated}</head><body>{PARAGRAPH}{parts}{PARAGRAPH}{facts}</body></html>").count("Flour")
        == 5
    )


def test_a_form_that_asks_who_a_reader_is_is_no_text_however_long_it_is() -> None:
    asked = "".join(f"<label>{name}</label><input type={name} value=''>" for name in ("text", "email", "password"))
    sign_up = f"<form>{asked}<p>{WORDS.replace('fox', 'wolf') * 5}</p></form>"
    page = f"<html><body><div><h1>A boat</h1><p>{WORDS * 3}</p></div>{{}}</body></html>"
    assert text_of(page.format(sign_up)) == text_of(page.format(""))
    whole = f"<form>{asked}<h1>A boat</h1>{PARAGRAPH * 2}</form>"  # of a page that is one form
    questions = "<form>" + f"<p>{WORDS}</p><input type='radio'>" * 6 + f"{asked}</form>"
    for text in (whole, questions):
        assert text_of(f"<html><body>{text}</body></html>").count("fox") > 5


def test_a_hidden_request_for_consent_is_no_text_of_a_page_with_little_else() -> None:
    ask = f"<p>{WORDS.replace('fox', 'cookie') * 6}</p>"
    page = f"<html><body><div><p>{WORDS}</p></div>{{}}</body></html>"
    for hidden in ("aria-hidden='true'", "style='display:none'", "role='dialog'"):
        assert "cookie" in text_of(page.format(f"<div class='text' {hidden}>{ask}</div>"))
        assert "cookie" not in text_of(page.format(f"<div class='cookie-consent' {hidden}>{ask}</div>"))


def test_a_page_that_goes_on_with_other_articles_is_its_own_article() -> None:
    def part(name: str, day: int, times: int) -> str:
        said = f"<p>{WORDS.replace('fox', name) * 4}</p>" * times
        head = f"<h2>The {name}</h2><p>2 May 202{day}</p>"
        return f"<article class='story'>{head}<div class='entry-text'>{said}</div></article>"

    page = "<html><head><title>The fox - News</title></head><body><main>{}</main></body></html>"
    for times in (1, 2, 6):
        text = text_of(page.format(part("fox", 1, 2) + part("wolf", 2, times)))
        assert "wolf" not in text and text.count("fox") == 8
    undated = part("fox", 1, 2) + part("wolf", 2, 2).replace("2 May 2022", "")  # a part of this one
    assert text_of(page.format(undated)).count("quick brown wolf") == 8


def test_a_container_that_is_named_as_that_of_an_editor_is_no_code() -> None:
    for name in ("cm-content", "fragment"):
        page = f"<html><body><div class='{name}'><nav>Home</nav>{PARAGRAPH}<p>so\nlong</p></div></body></html>"
        assert text_of(page) == f"{(WORDS * 3).strip()}\nso long"
