"""Main content of documentation pages, by the templates of their generators."""

from pathlib import Path

import pytest

from benchmarks.extract import as_page, texts_of
from benchmarks.reference_pages import fit_by_family, reference_pages
from tests.tasks.extract.made_pages import PARAGRAPH, WORDS, article, text_of


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
        "<div id='package-header'></div>",
        "<div class='REFBODY'></div>",
        "<div class='docblock'></div>",
        "<nav><ul class='book-summary'></ul></nav>",
    ],
)
def test_documentation_is_known_by_its_generator(mark: str) -> None:
    notes = f"<div class='author'><p>{WORDS}</p></div>"  # a class that marks boilerplate in an article
    kept = [text_of(f"<html><body>{mark_}<div>{PARAGRAPH}{notes}</div></body></html>") for mark_ in (mark, "")]
    assert [found.count(WORDS.strip()) for found in kept] == [4, 3]


@pytest.mark.parametrize(
    "mark",
    [
        "<div class='module-header'>News</div>",
        "<button class='quickview'>View</button>",
        "<header id='navheader'>Shop</header>",
        f"<dl>{'<dt>2011</dt><dd>Posts of that year</dd>' * 30}</dl>",
    ],
)
def test_names_and_lists_of_terms_that_all_sites_have_are_no_signs_of_documentation(mark: str) -> None:
    notes = f"<div class='author'><p>{WORDS}</p></div>"
    assert text_of(f"<html><body>{mark}<div>{PARAGRAPH}{notes}</div></body></html>").count(WORDS.strip()) == 3


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


@pytest.mark.parametrize(
    "part",
    [
        "<aside class='sidebar'><p class='sidebar-title'>Tip</p><p>{}</p></aside>",
        "<table><tr class='memitem:a7 inherit pub_methods_classCoinSearchTree'><td>{}</td></tr></table>",
    ],
)
def test_the_name_of_a_part_of_the_text_is_no_mark(part: str) -> None:
    """Of docutils' sidebars, and of Doxygen's rows, which are named after the class whose members they list."""
    inside = "Declare what the tests and the documentation need in the same way."
    found = text_of(documentation(f"{PARAGRAPH}{part.format(inside)}{PARAGRAPH}"))
    assert inside in found
    links = " ".join(f"<a href='{n}'>Page {n}</a>" for n in range(20))
    assert "Page 1" not in text_of(documentation(f"{PARAGRAPH}<aside class='sidebar'>{links}</aside>"))


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
    """The id of a function with its arguments, that of a section, and the class of a container of the title."""
    sections = [f"class='{name}' id='Search-and-Menu'" for name in ("section", "subsection", "subsubsection")]
    for mark in (
        "id='binarySearch,openArray[T],K'",
        "id='menu(int)'",
        "class='page-header'",
        "class='page-title'",
        *sections,
    ):
        assert "\nwolf" in text_of(documentation(f"{PARAGRAPH}<div {mark}><p>wolf</p></div>{PARAGRAPH}"))
    for tag in ("details", "dl", "span", "em"):
        assert "wolf" in text_of(documentation(f"{PARAGRAPH}<{tag} id='sharing-menu'>wolf</{tag}>{PARAGRAPH}"))
    assert "wolf" not in text_of(documentation(f"{PARAGRAPH}<div id='menu'><p>wolf</p></div>{PARAGRAPH}"))


def test_a_summary_before_its_text_is_left_out() -> None:
    first = "Tests two objects for equality."
    page = documentation(
        f"<p>{first}</p><p>{first} {WORDS}</p><p>{first}</p><ul><li>one</li><li>one</li></ul>{PARAGRAPH}"
    )
    assert text_of(page).count(first) == 2
    assert "- one\n- one" in text_of(page)
    assert text_of("<html><head><meta name='generator' content='makeinfo'></head><body></body></html>") == ""


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


@pytest.mark.exhaustive
def test_it_fits_documentation(real_data: Path) -> None:
    pages = reference_pages(real_data)
    assert len(pages) >= 60
    by_family = fit_by_family(pages, texts_of("structure", [as_page("http://a.test/", page.body) for page in pages]))
    assert min(by_family.values()) > 0.9, by_family


def test_a_list_at_the_end_and_entries_that_begin_alike_are_no_repetitions() -> None:
    """Of Javadoc: its serialized form ends with headings, and names in its index begin with shorter ones."""
    generator = "<meta name='generator' content='javadoc/17'>"
    items = "".join(f"<li><h3>Class org.Kit{n} implements Serializable</h3></li>" for n in range(5))
    entries = (
        "<p>isGeometry() - Method in class adql.Extract</p><p>isGeometry() - Method in class adql.ExtractCoord</p>"
    )
    found = text_of(
        f"<html><head>{generator}</head><body><div>{PARAGRAPH}{entries}<ul>{items}</ul></div></body></html>"
    )
    assert found.count("isGeometry") == 2 and found.count("Serializable") == 5
    assert "Contact" not in text_of(f"<html><head>{generator}</head><body>{PARAGRAPH}<h2>Contact</h2></body></html>")


def test_tables_of_linked_names_are_text_of_groovydoc() -> None:
    rows = "".join(
        f"<tr><td><a href='{n}.html'>CompositeMetricSetOfMany{n}</a></td><td>A set.</td></tr>" for n in "abcd"
    )
    bar = "<div class='topNav'><ul><li class='navBarCell1Rev'>Package</li></ul></div>"
    assert text_of(f"<html><body>{bar}<h1>Package</h1><table>{rows}</table></body></html>").count("A set.") == 4


def test_items_of_a_list_are_no_summaries_of_the_next_ones() -> None:
    items = ("UTF-16 string of a name", "UTF-16 string of a name-list", "org.jblas.Decompose", "org.jblas.Decompose.LU")
    for form in ("<ul>{}</ul>", "<table>{}</table>"):
        row = "<li>{}</li>" if "ul" in form else "<tr><td><p>{}</p></td></tr>"
        found = text_of(documentation(PARAGRAPH + form.format("".join(row.format(one) for one in items)) + PARAGRAPH))
        assert [line.removeprefix("- ") for line in found.splitlines()][2:-1] == list(items)


def test_a_list_without_links_is_no_table_of_contents() -> None:
    """Of Texinfo, whose lists without bullets have the class `toc`."""
    rules = "<li>reqs = required-formal-argument*</li><li>rest = #!rest rest-formal-argument | empty</li>"
    links = "<li><a href='#a'>Required arguments</a></li><li><a href='#b'>The rest of them</a></li>"
    for tag, name in (("ul", "toc"), ("div", "toc"), ("ul", "quickview")):
        page = documentation(f"{PARAGRAPH}<{tag} class='{name}'>{{}}</{tag}>{PARAGRAPH}")
        assert "\n- reqs = required-formal-argument*\n- rest = #!" in text_of(page.format(rules))
        assert "arguments" not in text_of(page.format(links))
        assert "arguments" not in text_of(page.format(f"<p>Contents</p>{links}"))


@pytest.mark.parametrize("landmark", ["div role='main'", "main", "div itemprop='articleBody'"])
def test_a_container_of_the_main_landmark_is_no_navigation(landmark: str) -> None:
    """Of Read the Docs' theme: `wy-nav-content` holds the text of a page."""
    inside = f"<{landmark}><h1>serve</h1><p>Serves the files of a folder.</p></{landmark.split()[0]}>"
    for around in ("<div class='wy-nav-content'>{}</div>", "<section id='menu'><div>{}</div></section>"):
        page = f"<html><body><div class='rst-content'>{around.format(inside)}</div></body></html>"
        assert text_of(page) == "serve\nServes the files of a folder."
