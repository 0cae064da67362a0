"""Changes of a page's markup that do not change what a reader sees, each a function of the tree or of the source.

A text must be the same to the character after each. The classes are those of real pages: `CLASSES`, by which they mark
words of a sentence and parts around a text, and `REAL_CLASSES`, the 2,000 that most of 600 pages have.
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from lxml.etree import SubElement, tostring
from lxml.html import HtmlElement, document_fromstring, fragment_fromstring

from tasks.extract.attribute_names import MARK_LINKS
from tasks.extract.main_content import PARSER
from tasks.extract.page_type import DOCUMENTATION, FORUM, TEMPLATES
from tests.tasks.extract.markups import FORMULAS, HIGHLIGHTERS, TEX

# Names of classes by which real pages mark words of a sentence, and parts around a text.
_CLASSES = """
meta-org meta-per meta-loc tooltip popup author byline caption options print noprint hide-on-mobile promo overlay
embed embedded-link btn-link button buttons tag tags tag-link label badge credit credits timestamp date time share
social social-link follow related rating widget widgets modal-link newsletter-link subscribe signup login-link sponsor
sponsored ad ads adsense advert copyright footer-note footnav navbox nav-link menu-item breadcrumb sidebar-link skip
search expand collapse more read-more next prev pager feedback donate donation reply comment-link rss tools toolbar
actions controls attachment viewport slider carousel slideshow banner teaser masthead colophon disclaimer cookie-link
gdpr consent taglist permalink-text printer user-info user-name factbox infobox hidden-xs widget-title author-name
"""
CLASSES = _CLASSES.split()
_HIDING = re.compile(
    "hid(?:e|den)|invisible|sr-only|screen-?reader|mw-(?:editsection|jump)|headerlink|lineno|skip-(?:link|nav)"
)
_TEMPLATES = TEMPLATES[DOCUMENTATION] | TEMPLATES[FORUM]  # their classes decide the type of the page
_NAMES = (Path(__file__).parent / "class_names.txt").read_text().split()
REAL_CLASSES = [name for name in _NAMES if not (_HIDING.search(name.lower()) or name in _TEMPLATES)]
# Names of boilerplate that is prose: of the site, its authors and readers.
SITE = re.compile(
    "newsletter|subscri|sign-?up|login|sponsor|(?:^|[-_])ads?(?:$|[-_])|dfp|adsense|advert|copyright|foot|cookie|gdpr"
    "|author|related|recommend|widget|shar(?:e|ing)|social|popular|recent|latest|rss|sidebar|donat|repl(?:y|ies)|respond"
    "|comment|infobox|factbox|popup|masthead|colophon|overlay|modal|consent|permalink|powered|shariff",
    re.IGNORECASE,
)
PROSE_CLASSES = [name for name in sorted({*CLASSES, *REAL_CLASSES}) if not SITE.search(name)]
Change = Callable[[HtmlElement, random.Random], None]
SKIPPED = ("pre", "textarea", "title", "script", "style", "code", "a", "button", "noscript", "option", "select", "math")


def copy(page: str) -> HtmlElement:
    return document_fromstring(page.encode(), parser=PARSER)


def source(tree: HtmlElement, method: str = "html") -> str:
    return str(tostring(tree, encoding="unicode", method=method))


def texts(tree: HtmlElement, least: int = 40) -> Iterator[HtmlElement]:
    """Elements whose own first text is the text of a sentence, outside of code and links."""
    body = tree.find("body")
    for element in () if body is None else body.iter("p", "li", "td", "dd", "blockquote"):
        outside = not any(outer.tag in SKIPPED for outer in element.iterancestors())
        if outside and element.text and len(element.text.split()) > 4 and len(element.text) >= least:
            yield element


def wrap_word(element: HtmlElement, tag: str, **attributes: str) -> None:
    """Wrap the third word of an element's own text."""
    found = re.match(r"(\s*\S+\s+\S+\s+)(\S+)(.*)", element.text or "", re.DOTALL)
    assert found is not None
    before, word, after = found.groups()
    inner = element.makeelement(tag, attributes)
    element.text, inner.text, inner.tail = before, word, after
    element.insert(0, inner)


def begun_with(page: str, words: list[str]) -> tuple[str, Callable[[str], str]]:
    """Return a page whose sentences begin with words that no rule knows, and a function that puts `words` there.

    Both are as long: rules compare the length of a line.
    """
    tree = copy(page)
    marks = {}
    for number, element in enumerate(texts(tree)):
        word = words[number % len(words)]
        marks[mark := f"Q{number:x}".ljust(len(word), "q")] = word
        element.text = re.sub(r"\S+", mark, element.text, count=1)
    return source(tree), lambda text: re.sub("Q[0-9a-f]+q*", lambda mark: marks.get(mark[0], mark[0]), text)


def wrapped_in(tag: str, names: list[str] = CLASSES) -> Change:
    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in texts(tree):
            wrap_word(element, tag, **{"class": chance.choice(names)})

    return change


def words_not_read_aloud(tree: HtmlElement, chance: random.Random) -> None:
    for element in texts(tree):
        if element.text.split()[2].isalnum():
            wrap_word(element, "span", **{"aria-hidden": "true"})


def named_paragraphs(tree: HtmlElement, chance: random.Random) -> None:
    """Give a class to each paragraph of whole sentences, with links of some words at most."""
    for element in texts(tree, least=100):
        text = " ".join(element.text_content().split())
        linked = sum(len(link.text_content()) for link in element.iter("a", "button", "img", "input"))
        if (
            element.tag == "p"
            and not element.get("class")
            and text.endswith((".", "!", "?"))
            and 5 * linked < len(text)
        ):
            element.set("class", chance.choice(PROSE_CLASSES))


def named_headings(attribute: str, names: list[str]) -> Change:
    """Give a class or an id to each heading right above a paragraph."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in tree.iter("h2", "h3", "h4"):
            after = element.getnext()
            is_title = element.getparent().tag in ("header", "a")
            if after is not None and after.tag == "p" and after.text and not is_title and not element.get(attribute):
                element.set(attribute, chance.choice(names))

    return change


def divs_for_paragraphs(tree: HtmlElement, chance: random.Random) -> None:
    for element in list(texts(tree, least=100)):
        if element.tag == "p" and not element.attrib:
            element.tag = "div"


def paragraphs_by_line_breaks(tree: HtmlElement, chance: random.Random) -> None:
    """Make one paragraph of two beside each other, with two line breaks between."""
    for element in [one for one in texts(tree) if one.tag == "p" and not one.attrib]:
        after = element.getnext()
        if after is None or after.tag != "p" or after.attrib or not after.text or (element.tail or "").strip():
            continue
        first, second = element.makeelement("br"), element.makeelement("br")
        second.tail = after.text
        element.extend([first, second, *after])
        element.tail = after.tail
        after.getparent().remove(after)


def highlighted_by(name: str) -> Change:
    """Write the code of each `pre` that has no markup of its own as a highlighter does."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in [one for one in tree.iter("pre") if not len(one) and (one.text or "").strip()]:
            lines = element.text.expandtabs(4).replace("\xa0", " ").strip("\r\n").splitlines()
            new = fragment_fromstring(HIGHLIGHTERS[name](lines))
            new.tail, element.tail = element.tail, None
            element.getparent().replace(element, new)

    return change


def with_formula(markup: str) -> Change:
    """Put a formula after the third word of each paragraph."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in [one for one in texts(tree) if one.tag == "p"]:
            wrap_word(element, "span")
            element[0].append(fragment_fromstring(f"<span> {markup}</span>"))

    return change


def each_word_in_a_span(tree: HtmlElement, chance: random.Random) -> None:
    for element in texts(tree):
        words = re.split(r"(\s+)", element.text)
        element.text = None
        for number, word in enumerate(reversed(words)):
            inner = element.makeelement("span", {"class": chance.choice(CLASSES)} if number % 4 else {})
            inner.text = word
            element.insert(0, inner)


def inserted(markup: str, *, within: bool = False) -> Change:
    """Insert markup without text for a reader after blocks, or after the third word of them."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in [one for one in texts(tree) if one.tag == "p"]:
            new = fragment_fromstring(markup)
            if within:
                wrap_word(element, "span")
                inner = element[0]
                inner.append(new)
            else:
                new.tail, element.tail = element.tail, None
                element.addnext(new)

    return change


def enclosed(tag: str, attributes: dict[str, str], part: str = "p") -> Change:
    """Enclose each third paragraph in an element."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in [one for one in texts(tree) if one.tag == part][::3]:
            outer = element.makeelement(tag, attributes)
            outer.tail, element.tail = element.tail, None
            element.getparent().replace(element, outer)
            outer.append(element)

    return change


def with_inner(tag: str, attributes: dict[str, str], *around: str, every: int = 1) -> Change:
    """Put all that is in an element, as in the body, into a new one in it."""

    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in list(tree.iter(*around))[::every]:
            inner = element.makeelement(tag, attributes)
            inner.text, element.text = element.text, None
            inner.extend(list(element))
            element.append(inner)

    return change


def in_form(tree: HtmlElement, chance: random.Random) -> None:
    with_inner("form", {"action": "/page.aspx", "method": "post"}, "body")(tree, chance)
    with_inner("div", {}, "body")(tree, chance)
    for form in list(tree.iter("form"))[:1]:
        for number in range(60):
            form.append(form.makeelement("input", {"type": ("text", "email", "password")[number % 3]}))


def in_table(tree: HtmlElement, chance: random.Random) -> None:
    with_inner("td", {}, "body")(tree, chance)
    body = tree.find("body")
    SubElement(SubElement(body, "table", width="100%"), "tr").append(body[0])


def rewritten(write: Callable[[str, random.Random], str]) -> Change:
    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in texts(tree):
            element.text = write(element.text, chance)

    return change


def renamed(old: str, new: str) -> Change:
    def change(tree: HtmlElement, chance: random.Random) -> None:
        for element in [one for one in tree.iter(old) if not one.attrib]:
            element.tag = new

    return change


def reversed_attributes(tree: HtmlElement, chance: random.Random) -> None:
    for element in tree.iter():
        pairs = element.items()
        element.attrib.clear()
        for name, value in reversed(pairs):
            element.set(name, value)


def word_breaks(tree: HtmlElement, chance: random.Random) -> None:
    for element in texts(tree):
        wrap_word(element, "wbr")
        inner = element[0]
        inner.tail, inner.text = f"{inner.text}{inner.tail}", None


def neutral_classes(tree: HtmlElement, chance: random.Random) -> None:
    for element in tree.iter("p", "b", "em", "h2", "h3"):
        if not element.get("class"):
            element.set("class", chance.choice(["x1", "mb-4 text-lg", "css-1abc", "wp-block-paragraph", "sc-bdVaJa"]))


def data_attributes(tree: HtmlElement, chance: random.Random) -> None:
    for element in tree.iter():
        if isinstance(element.tag, str):
            element.set("data-v-1", "advert")


TREES: dict[str, Change] = {
    "serialised": lambda tree, chance: None,
    "reversed attributes": reversed_attributes,
    "one more div": with_inner("div", {"data-app": "1"}, "body"),
    "another language": lambda tree, _: tree.set("lang", "cy"),
    "headings as buttons": with_inner(
        "button", {"type": "button", "class": "accordion-button collapsed"}, "h2", "h3", "h4"
    ),
    "soft hyphens": rewritten(lambda text, _: re.sub(r"(?<=[a-z]{3})(?=[a-z]{3})", "\u00ad", text, count=3)),
    "hard spaces": rewritten(lambda text, _: text.replace(" ", "\u00a0")),
    "new lines": rewritten(lambda text, chance: re.sub(r" ", lambda _: chance.choice([" ", "\n", "\t ", "   "]), text)),
    "word breaks": word_breaks,
    "neutral classes": neutral_classes,
    "data attributes": data_attributes,
    "each word in a span": each_word_in_a_span,
    "script between": inserted("<script>var advert = '<p>text</p>';</script>"),
    "style between": inserted("<style>p { color: red }</style>"),
    "template between": inserted("<template><p>Not yet.</p></template>"),
    "empty div between": inserted("<div class='ad-slot'></div>"),
    "empty link between": inserted("<a name='here'></a>"),
    "input between": inserted("<input type='hidden' value='x'>"),
    "script within": inserted("<script>var advert = 1;</script>", within=True),
    "empty span within": inserted("<span class='ad'></span>", within=True),
    "hidden within": inserted("<span class='sr-only'>(opens in a new tab)</span>", within=True),
    "icon within": inserted("<i class='icon icon-share'></i>", within=True),
    "image within": inserted("<img src='dot.gif' alt=''>", within=True),
    "paragraph in div": enclosed("div", {}),
    "paragraph in section": enclosed("section", {}),
    "paragraph in open dialog": enclosed("dialog", {"open": ""}),
    "paragraph in noindex": enclosed("noindex", {}),
    "paragraph in open details": enclosed("details", {"open": ""}),
    "paragraph in tab": enclosed("div", {"role": "tabpanel", "hidden": ""}),
    "paragraph in tab pane": enclosed("div", {"class": "tab-pane fade", "style": "display:none"}),
    "paragraph in accordion": enclosed("div", {"class": "accordion-collapse collapse"}),
    "paragraph in alert": enclosed("div", {"class": "alert alert-info", "role": "alert"}),
    "paragraph in custom element": enclosed("x-paragraph", {}),
    "paragraph in a form of its own": enclosed("form", {"action": "/x"}),
    "paragraph in post of WordPress": enclosed("div", {"class": "post hentry category-newsletter tag-social"}),
    "page in form": with_inner("form", {"action": "/page.aspx", "method": "post"}, "body"),
    "page in form with fields": in_form,
    "page in table": in_table,
    **{
        f"page in {name}": with_inner("div", {"class": name}, "body")
        for name in ("comments-open", "comments", "nav-open", "newsletter-template", "content-sidebar-wrap", "toc")
    },
    "items in divs": with_inner("div", {}, "li", every=2),
    "word not read aloud": words_not_read_aloud,
    "b for strong": renamed("strong", "b"),
    "i for em": renamed("em", "i"),
    "section for div": renamed("div", "section"),
    "div for p": divs_for_paragraphs,
    "paragraphs by line breaks": paragraphs_by_line_breaks,
    "paragraphs of real classes": named_paragraphs,
    "headings of real classes": named_headings("class", [name for name in PROSE_CLASSES if "caption" not in name]),
    "headings with ids": named_headings("id", [f"{name}-and-the-river" for name in CLASSES]),
    **{f"code by {name}": highlighted_by(name) for name in HIGHLIGHTERS},
    **{f"word of a real class in {tag}": wrapped_in(tag, REAL_CLASSES) for tag in ("span", "b", "em", "cite")},
    "word of a real class in a": wrapped_in("a", [name for name in REAL_CLASSES if not MARK_LINKS.search(name)]),
    **{
        f"word in {tag}": wrapped_in(tag)
        for tag in ("span", "b", "em", "i", "cite", "small", "label", "strong", "font", "time", "abbr", "mark", "u")
    },
}


def unclosed_div(tag: str) -> Callable[[str, random.Random], str]:
    """Put a button, navigation or header with a `div` that is not closed before the page."""
    return lambda page, chance: re.sub(
        r"(<body[^>]*>)", rf"\1<{tag}><div><a href='/'><img src='logo.png' alt=''></a></{tag}>", page, count=1
    )


def sent_late(page: str, chance: random.Random) -> str:
    """Send the body at the end, as React does."""
    late = r'<template id="B:0"></template><div hidden id="S:0">\2</div><script>$RC("B:0","S:0")</script>'
    return re.sub(r"(<body[^>]*>)(.*)(?=</body>)", rf"\1{late}", page, count=1, flags=re.DOTALL)


SOURCES: dict[str, Callable[[str, random.Random], str]] = {
    "numeric entities": lambda page, _: page.encode("ascii", "xmlcharrefreplace").decode(),
    "upper-case tags": lambda page, _: re.sub(r"</?[a-z][a-z0-9]*(?=[\s>])", lambda tag: tag[0].upper(), page),
    "comments": lambda page, _: re.sub(r"</(p|div|li|ul|h2)>", r"</\1><!-- end of advert <p> -->", page),
    "comments within": lambda page, _: re.sub(r"(?<=<p>\w)", "<!-- react-text: 12 -->", page),
    "optional end tags": lambda page, _: re.sub(
        r"</(?:li|dd|dt|tr|td)>(?=\s*<(?:li|dd|dt|tr|td|/ul|/ol|/dl|/tr|/table|/tbody)\b)", "", page
    ),
    "no doctype": lambda page, _: re.sub(r"(?i)^\s*<!doctype[^>]*>", "", page),
    "XHTML": lambda page, _: (
        '<?xml version="1.0" encoding="utf-8"?>\n' + page.replace("<br>", "<br />").replace("<hr>", "<hr />")
    ),
    "slashes of start tags": lambda page, _: re.sub(r"<((?:html|head|body)\b[^<>]*)>", r"<\1 />", page),
    "byte order mark": lambda page, _: "\ufeff" + page,
    "CRLF": lambda page, _: page.replace("\n", "\r\n"),
    "letters as entities": lambda page, _: re.sub(
        r"(?<=<p>)([A-Z])(?=[a-z])", lambda letter: f"&#x{ord(letter[1]):x};", page
    ),
    "sent late": sent_late,
    **{f"unclosed div in {tag}": unclosed_div(tag) for tag in ("button", "nav", "header", "aside", "footer")},
}
NAMES = [*TREES, *SOURCES]
# Changes that add a formula, which is the same text in each form.
FORMS = {name: with_formula(markup) for name, markup in {"as text": TEX, **FORMULAS}.items()}


def transformed(page: str, name: str, seed: int = 0) -> str:
    """Return a page after a change; the page must be `serialised`."""
    chance = random.Random(f"{seed} {name}")
    if name in SOURCES:
        return SOURCES[name](page, chance)
    tree = copy(page)
    (TREES.get(name) or FORMS[name])(tree, chance)
    return source(tree)
