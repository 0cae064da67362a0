"""Type of a page by what its software states: documentation, forum, or article for all others."""

import re
from collections.abc import Iterator, Sequence

from lxml.etree import XPath
from lxml.html import HtmlElement

from tasks.extract.json_ld import scripts_of

ARTICLE, DOCUMENTATION, FORUM = "article", "documentation", "forum"
GENERATORS = {
    DOCUMENTATION: re.compile(
        r"docbook|sphinx|docutils|javadoc|doxygen|asciidoc|texi2html|makeinfo|texinfo|mkdocs|docusaurus|vuepress|vitepress"
        r"|antora|gitbook|rustdoc|hevea|latex2html|groff|man2html|pod2html|pdoc|yard|rdoc|typedoc|jsdoc|hugo.*book|mediawiki"
        r"|dokuwiki|moinmoin|libreoffice|openoffice|ex_?doc|haddock|scaladoc|dokka|jazzy|docfx|mdbook|docsify|starlight"
        r"|tex4ht|latexml|bookdown|gtk-doc|jupyter.?book|quarto|pydoctor|gi-docgen",
        re.IGNORECASE,
    ),
    FORUM: re.compile(
        r"phpbb|vbulletin|discourse|xenforo|mybb|simple machines|smf|flarum|nodebb|invision|ip\.board|vanilla|punbb"
        r"|fluxbb"
        r"|mailman|hyperkitty|pipermail|mhonarc|hypermail|bbpress|askbot|question2answer|lobsters",
        re.IGNORECASE,
    ),
}
ITEMS = {
    DOCUMENTATION: re.compile(r"schema\.org/(?:TechArticle|APIReference)"),
    FORUM: re.compile(r"schema\.org/(?:DiscussionForumPosting|QAPage)"),
}
TYPES = re.compile(r'"@type"\s*:\s*(\[[^]]{0,999}\]|"[^"]*")')
TYPE_NAME = re.compile(r'"(?:[^"]*[/:#])?(\w+)"')  # also of `https://schema.org/Article` and `schema:Article`
THREADS = ("DiscussionForumPosting", "QAPage")  # types in JSON-LD
# Classes and ids of the templates of documentation generators and forums.
TEMPLATES = {
    DOCUMENTATION: frozenset(
        [
            "titlepage",
            "rst-content",
            "sphinxsidebar",
            "documentwrapper",
            "manpage",
            "mediawiki",
            "mw-body",
            "mw-content-text",
            "javadoc",
            "rustdoc",
            "docblock",  # rustdoc, gi-docgen
            "doxygen",
            "memdoc",
            "md-content",
            "theme-doc-markdown",
            "devsite-article",
            "man-page",
            "texinfo",
            "docnav",
            "DisplayArea",
            "apidoc",
            "apidocs",
            "docs-content",
            "page-content-docs",
            "NavBarCell1Rev",  # Javadoc up to version 6, then to 15 and Groovydoc
            "navBarCell1Rev",
            "toplang",
            "package-header",  # Haddock
            "REFBODY",  # Erlang
            "erlang-logo",
            "SAuthorListBox",  # Scribble
            "SIntrapara",
            "navsettop",
            "chlinktop",  # GAPDoc
            "fullcommenttop",  # Scaladoc
            "memItemLeft",  # Qt, and headers of Doxygen
            "book-summary",  # GitBook, bookdown, mdBook
            "mdbook-help-container",
            "gtkdoc",
            "devhelp",
        ]
        + [f"{of}-{kind}-page" for of in ("class", "package", "module") for kind in ("declaration", "use", "summary")]
        + [f"{of}-{kind}-page" for of in ("class", "package", "module") for kind in ("tree", "index")]
    ),
    FORUM: frozenset(
        [
            "phpbb",
            "postbody",
            "post_message",
            "postlist",
            "postslist",
            "bbWrapper",
            "message-body",
            "topic-body",
            "js-post-body",
            "s-prose",
            "ipsComment",
            "ipsComment_content",
            "commtext",
            "windowbg",
            "postmsg",
            "post_body",
            "topic-post",
            "forumline",
            "viewthread",
            "threadpost",
            "forum-post",
            "timeline-comment",  # issues of GitHub, old and new
            "react-issue-comment",
            "cooked",
            "bbp-reply-content",
            "ItemComment",  # Vanilla
        ]
    ),
}
CLASSES, IDS, ITEM_TYPES = (XPath(f"//*/@{name}", smart_strings=False) for name in ("class", "id", "itemtype"))
# Addresses in the archives of mailing lists by pipermail and MHonArc, whose pages have no classes.
MAIL_LINKS = re.compile(r"/mailman/listinfo/|(?:^|/)(?:maillist|threads?|date)\.html#\d")
MAX_PLAIN = 5  # classes and ids of a page without a template
CODE = ("pre", "code", "kbd", "samp", "tt")
MIN_CODE = 12


ARTICLE_TYPE = r"(?:(?!Tech)\w*Article|BlogPosting|LiveBlogPosting|Recipe|Re(?:port|view)\w*)"
IS_PRODUCT = XPath("boolean(//body[contains(@class, 'single-product')])")  # of a shop in WordPress
HOLDS_BODY = XPath("boolean(//*[@itemprop = 'articleBody'])")
ARTICLE_ITEM = re.compile(rf"schema\.org/{ARTICLE_TYPE}")


def states_article(tree: HtmlElement) -> bool:
    """Return True if a page says that it is an article: to social networks, or by schema.org.

    WordPress calls each page an article, and gives those of a site the day of their last change alone.
    """
    stated = {
        (one.get("property") or one.get("name") or "").lower(): one.get("content") or "" for one in tree.iter("meta")
    }
    is_of_site = "article:modified_time" in stated and not IS_PRODUCT(tree)
    if any(name.startswith("article:published") for name in stated):
        return True
    if stated.get("og:type", "").lower() == "article" and not is_of_site:
        return True
    is_typed = any(re.fullmatch(ARTICLE_TYPE, name) for name in _stated(tree))
    return is_typed or HOLDS_BODY(tree) or any(map(ARTICLE_ITEM.search, ITEM_TYPES(tree)))


def page_type(tree: HtmlElement, metas: Sequence[HtmlElement]) -> str:
    """Type of a page with these meta tags: `documentation`, `forum`, or `article`."""
    for meta in metas:
        if (meta.get("name") or "").lower() == "generator":
            for kind, pattern in GENERATORS.items():
                if pattern.search(meta.get("content") or ""):
                    return kind
    if stated := _stated_type(tree):
        return stated
    values = [*CLASSES(tree), *IDS(tree)]
    names = set(" ".join(set(values)).split())
    if not names.isdisjoint(TEMPLATES[DOCUMENTATION]):
        return DOCUMENTATION
    if (found := names & TEMPLATES[FORUM]) and sum(not found.isdisjoint(value.split()) for value in values) > 1:
        return FORUM
    if len(names) < MAX_PLAIN and any(MAIL_LINKS.search(link.get("href") or "") for link in tree.iter("a")):
        return FORUM
    code = sum(1 for _ in zip(range(MIN_CODE), tree.iter(*CODE), strict=False))
    return DOCUMENTATION if code == MIN_CODE and not states_article(tree) else ARTICLE


def _stated_type(tree: HtmlElement) -> str | None:
    """Type that a page states by schema.org, in attributes or in JSON-LD."""
    for value in set(ITEM_TYPES(tree)):
        for kind, pattern in ITEMS.items():
            if pattern.search(value):
                return kind
    return FORUM if any(name in THREADS for name in _stated(tree)) else None


def _stated(tree: HtmlElement) -> Iterator[str]:
    """Yield the names of the types in the JSON-LD of a page."""
    for script in scripts_of(tree):
        yield from (name for found in TYPES.findall(script) for name in TYPE_NAME.findall(found))
