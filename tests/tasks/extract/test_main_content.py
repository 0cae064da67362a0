"""The engine `structure`: what it keeps and drops of a page, hostile pages, and its fit to the gold pages."""

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml.html import document_fromstring

from benchmarks.extract import as_page
from benchmarks.extract_engines import texts_of
from benchmarks.gold_pages import fit, gold_pages, shingle_f1
from benchmarks.reference_pages import fit_by_family, reference_pages
from tasks.extract import attribute_names, attribute_rules
from tasks.extract.attribute_rules import AttributeRules, words
from tasks.extract.main_content import parse, structured_text

WORDS = "The quick brown fox jumps over the lazy dog and runs along the river until the night falls. "
PARAGRAPH = f"<p>{WORDS * 3}</p>"


def text_of(html: str, tables: bool = True) -> str:
    tree = parse(html)
    return "" if tree is None else structured_text(tree, tables)


def article(inside: str) -> str:
    """An article with a site's usual surroundings."""
    return (
        "<html><body><header class='site-header'>The Daily Site <a href='/'>Home</a></header>"
        "<nav><a href='/a'>News</a></nav>"
        f"<div class='article-body'>{PARAGRAPH}{inside}{PARAGRAPH}</div>"
        "<div class='sidebar'><a href='/x'>Most read today</a></div>"
        "<footer>Copyright 2026 The Daily Site</footer></body></html>"
    )


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
    assert text_of(f"<html><body><article>{PARAGRAPH * 3}{more}</article></body></html>").endswith("falls.")


def test_tables_can_be_left_out() -> None:
    page = article("<table><tr><td>1</td><td>2</td></tr></table>")
    assert "1 | 2" in text_of(page) and "1 | 2" not in text_of(page, tables=False)


def test_posts_of_a_forum_are_all_kept() -> None:
    posts = "".join(
        f"<div class='post'><div class='postbody'><p>Answer {n}: {WORDS}</p></div><div class='signature'>me</div></div>"
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


def test_calls_at_the_end_of_an_article_are_dropped() -> None:
    calls = "<p>Additional reporting by A. Fox.</p><p>Follow us on the net for more stories of this kind.</p>"
    assert text_of(f"<html><body><article>{PARAGRAPH * 3}{calls}</article></body></html>").endswith("night falls.")


def test_cards_under_an_empty_link_are_dropped() -> None:
    card = f"<div class='card'><a href='/b'></a><h3>Another story</h3><p>{WORDS}</p></div>"
    page = "<html><body><article>{}</article></body></html>"
    assert text_of(page.format(PARAGRAPH * 4 + card * 4)) == text_of(page.format(PARAGRAPH * 4))
    assert "Another story" in text_of(page.format(PARAGRAPH * 4 + card))  # one alone is part of the text


def test_containers_that_announce_other_pages_are_not_the_main_content() -> None:
    posts = f"<div class='content'><h3><a href='/b'>Another story</a></h3>{PARAGRAPH}</div>" * 3
    assert text_of(f"<html><body><div id='main'>{PARAGRAPH * 4}</div>{posts}</body></html>").count(WORDS.strip()) == 12


def test_code_in_lines_keeps_its_indentation() -> None:
    assert "\nif x:\n    y()\n" in text_of(article("<div><code>if x:<br>&nbsp;&nbsp;&nbsp;&nbsp;y()</code></div>"))


@pytest.mark.parametrize("end", ["", "\n"])
def test_code_of_doxygen_keeps_its_lines_and_the_title_is_kept(end: str) -> None:
    lines = ["int f() {", "&#160; <a href='#x'>return</a> 1;", "", "}"]
    code = "".join(
        f"<div class='line'><span class='lineno'>{n}</span>{line}</div>{end}" for n, line in enumerate(lines)
    )
    title = "<div class='header'><div class='headertitle'><div class='title'>File A</div></div></div>"
    page = f"{title}<div class='contents'>{PARAGRAPH}<div class='fragment'>{code}</div></div>"
    found = text_of(f"<html><head><meta name='generator' content='Doxygen 1.9'></head><body>{page}</body></html>")
    assert found.splitlines() == ["File A", (WORDS * 3).strip(), "int f() {", "  return 1;", "", "}"]


@pytest.mark.parametrize(
    "mark",
    [
        "<meta name='generator' content='ExDoc v0.34'>",
        "<meta name='generator' content='GTK-Doc V1.33.1 (XML mode)'>",
        "<div id='module-header'></div>",
        "<div class='REFBODY'></div>",
        "<nav><ul class='book-summary'></ul></nav>",
    ],
)
def test_documentation_is_known_by_its_generator(mark: str) -> None:
    notes = f"<div class='meta'><p>{WORDS}</p></div>"  # a class that marks boilerplate in an article
    kept = [text_of(f"<html><body>{mark_}<div>{PARAGRAPH}{notes}</div></body></html>") for mark_ in (mark, "")]
    assert [found.count(WORDS.strip()) for found in kept] == [4, 3]


def documentation(inside: str) -> str:
    return f"<html><head><meta name='generator' content='makeinfo'></head><body><h1>Files</h1>{inside}</body></html>"


def test_code_in_tables_of_scribble_keeps_its_indentation() -> None:
    """A row a line, tables within cells, and spaces that do not break."""
    line = "<tr><td>{}<span class='hspace'>{}</span>(a)</td></tr>"
    rows = line.format("(f", "") + line.format("", "&nbsp;&nbsp;") + "<tr><td>&nbsp;</td></tr>"
    inner = f"<table class='RktBlk'>{rows}</table>"
    code = f"<table class='RktBlk'><tr><td>{inner}</td></tr>{line.format('&gt;', '')}</table>"
    page = documentation(f"{PARAGRAPH}<table class='RktBlk'><tr><td>{code}</td></tr></table><p>Then <b>more</b>.</p>")
    assert "\n(f(a)\n  (a)\n\n>(a)\nThen more." in text_of(page.replace("</p><p>", "</p>\n<p>"))
    verbatim = code.replace("RktBlk", "SVerbatim")
    assert "\n(f(a)\n  (a)\n\n>(a)\nend" in text_of(documentation(f"{PARAGRAPH}{verbatim}<p>end</p>"))


def test_module_and_package_of_a_class_are_kept() -> None:
    names = "".join(f"<div class='sub-title'>{name}&nbsp;<a href='x'>base</a></div>" for name in ("Module", "Package"))
    body = f"<nav>Overview</nav><main><div class='header'>{names}<h1>Class A</h1></div>{PARAGRAPH}</main>"
    page = f"<html><body class='class-declaration-page'>{body}</body></html>"
    assert text_of(page).startswith("Module base\nPackage base\nClass A\nThe quick")
    assert text_of(page.replace("sub-title", "subTitle")).startswith("Module base\nPackage base\nClass A\nThe quick")


@pytest.mark.parametrize("name", ["comment", "comment cmt", "fullcommenttop"])
def test_the_comments_of_code_are_documentation(name: str) -> None:
    """Those of readers are none, and articles have no others."""
    comment = f"<div id='comment' class='{name}'>{PARAGRAPH.replace('fox', 'wolf')}</div>"
    assert "wolf" in text_of(documentation(PARAGRAPH + comment))
    assert "wolf" not in text_of(article(comment.replace("fullcommenttop", "comment")))
    readers = comment.replace("'comment'", "'comments'").replace(f"'{name}'", "'disqus_thread'")
    assert "wolf" not in text_of(documentation(PARAGRAPH + readers))


@pytest.mark.parametrize(
    "links",
    [
        "<p>Next: <a href='a'>Reading</a>, Previous: <a href='b'>Paths</a>, Up: <a href='c'>Files</a> [Contents]</p>",
        "<div>Previous: <a href='b'>Paths</a>, Up: <a href='c'>Files</a></div>",
        "<p>Next: <a href='a'>Reading</a> [<a href='d'>Contents</a>][<a href='e'>Index</a>]</p>",
        "<a class='previous_page' href='a'>previous</a><a class='next_page' href='b'>next</a>",
        "<div class='navsetbottom'><span>top</span> <a href='x'>contents</a> prev up</div>",
        "<div class='chlinkprevnextbot'>[<a href='x'>Top of Book</a>] [<a href='y'>Previous Chapter</a>]</div>",
        "<div class='versionbox'><span class='version'>8.7</span></div>",
        "<label class='ocn'><a href='#618'>618</a></label>",
        "<a class='link-seesrc' href='x'>Source</a>",
    ],
)
def test_links_beside_a_page_of_documentation_are_dropped(links: str) -> None:
    shown = text_of(documentation(f"{links}{PARAGRAPH}<p>Next: the end, Up: the sky.</p>{links}"))
    assert shown.splitlines()[1:] == [(WORDS * 3).strip(), "Next: the end, Up: the sky."]


def test_names_of_what_is_documented_and_titles_are_no_navigation() -> None:
    """The id of a function with its arguments, and the class of a container of the title."""
    for mark in ("id='binarySearch,openArray[T],K'", "id='menu(int)'", "class='page-header'", "class='page-title'"):
        assert "\nwolf" in text_of(documentation(f"{PARAGRAPH}<div {mark}><p>wolf</p></div>{PARAGRAPH}"))
    assert "wolf" not in text_of(documentation(f"{PARAGRAPH}<div id='menu'><p>wolf</p></div>{PARAGRAPH}"))


def test_a_summary_before_its_text_is_left_out() -> None:
    first = "Tests two objects for equality."
    page = documentation(
        f"<p>{first}</p><p>{first} {WORDS}</p><p>{first}</p><ul><li>one</li><li>one</li></ul>{PARAGRAPH}"
    )
    assert text_of(page).count(first) == 2
    assert "- one\n- one" in text_of(page)
    assert text_of("<html><head><meta name='generator' content='makeinfo'></head><body></body></html>") == ""


def test_an_article_in_json_ld_is_the_text_of_a_page_without_markup() -> None:
    body = json.dumps(
        {"@graph": [{"@type": "NewsArticle", "articleBody": f"{WORDS * 4}\n\n<p>A &lt; B</p><p>end</p>"}]}
    )
    page = "<html><head><script type='application/ld+json'>{}</script></head><body><p>{}</p></body></html>"
    assert text_of(page.format(body, "Please enable JavaScript.")) == f"{(WORDS * 4).strip()}\nA < B\nend"
    assert text_of(page.format(body, WORDS * 4)) == (WORDS * 4).strip()  # the markup has a text
    assert text_of(page.format(body[:-1], "Please")) == "Please"
    paid = body.replace('"articleBody"', '"isAccessibleForFree": "False", "articleBody"')
    assert text_of(page.format(paid, "Subscribe.")) == "Subscribe."
    assert text_of(page.format("[" * 100_000, "Please")) == "Please"


def test_the_header_of_documentation_is_dropped() -> None:
    page = (
        f"<html><body><p>Help of A</p><p><a href='/'>A</a></p><h1>Open a file</h1>{'<pre>x = 1</pre>' * 12}{PARAGRAPH}"
    )
    assert text_of(page.replace("<p>Help of A</p>", "<div>Help of A</div>")).startswith("Open a file")
    text = page.partition("</a></p>")[2]
    versions = "".join(f"<li><a href='/{number}.x/'>{number}.x of this manual</a></li>" for number in range(9))
    menu = f"<body><header><h1>Manual 9.1</h1><ul><li>9.1</li>{versions}</ul></header>"
    assert text_of(menu + text).startswith("Open a file")
    title = "<body><header><h1>Files</h1><p>By <a href='/x'>X</a>, with all that a reader wants to know.</p></header>"
    assert text_of(title + text).startswith("Files\nBy X, with")


def test_signs_that_link_to_a_heading_are_dropped() -> None:
    heads = "".join(f"<h2>Open<a class='mark' href='#open'>{sign}</a></h2><p>{WORDS}</p>" for sign in "#¶§")
    found = text_of(article(f"{heads}<p>See <a href='/c'>#</a> for more.</p>{PARAGRAPH}"))
    assert found.count("Open\n") == 3 and "See # for more." in found


@pytest.mark.parametrize("tag", ["tt", "div", "ul><li", "pre><b"])
def test_the_text_in_tags_that_are_never_closed_is_kept(tag: str) -> None:
    """Manuals have pages of several hundred levels; libxml2 drops what is below 256 unless asked not to."""
    page = article("".join(f"<{tag}>word{number}\n" for number in range(900)))
    before = sys.getrecursionlimit()
    assert re.findall(r"word\d+", text_of(page)) == [f"word{number}" for number in range(900)]
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(
    "html",
    [
        "<html><body>" + "<div>" * 100_000 + WORDS,
        "<html><body><ul>" + "<li><span>" * 20_000 + WORDS,
        f"<html><body><p class='{'ad ' * 200_000}'>{WORDS}",
        "<html><body>" + f"<div class='article-body'>{PARAGRAPH}</div>" * 2000,
        "<html><body><pre>" + "<b>" * 20_000 + WORDS,
        "<html><body>" + "<h2>Related articles</h2>" * 10_000 + PARAGRAPH,
        "<p>a\0b\ud800c</p>",
        "",
        "<",
    ],
    ids=[
        "deep",
        "deep list",
        "long attribute",
        "containers",
        "deep code",
        "headings",
        "characters",
        "empty",
        "bracket",
    ],
)
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


@pytest.mark.exhaustive
def test_it_fits_documentation(real_data: Path) -> None:
    pages = reference_pages(real_data)
    assert len(pages) >= 60
    by_family = fit_by_family(pages, texts_of("structure", [as_page("http://a.test/", page.body) for page in pages]))
    assert min(by_family.values()) > 0.9, by_family


def test_a_verdict_depends_on_the_attributes_that_it_reads_alone() -> None:
    rules = AttributeRules()
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
    assert code_lines(expected) <= set(found.splitlines())
    assert not SURROUNDINGS.search(found)


def code_lines(text: str) -> set[str]:
    """Indented lines of a text, as code has them."""
    return {line for line in text.splitlines() if line.startswith("  ")}


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
        value = attribute_rules.MODIFIERS.sub(" ", value)
        value = re.sub(r"[\s_\-:.]+|(?<=[a-z])(?=[A-Z])", " ", value).strip().lower()
    return value


@given(st.lists(st.sampled_from(["has", "No", "label", "side", "barNav", "-", "_", " ", ":", ".", "1", "É", "with-"])))
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
