"""Rules on tags and attributes: which elements are boilerplate, and which are likely to hold the main content.

The verdict on an element depends on its tag and a few attributes alone, and a page repeats these: each distinct set is
classified once and cached.
"""

import re
from typing import Any, NamedTuple

from lxml.html import HtmlElement

MAX_CACHED = 50_000  # distinct sets of attributes; one site has some hundred
MAX_KEY = 300  # characters of attributes; longer ones are classified, but not cached

# Tags without text of the page: scripts, controls, media.
DROPPED_TAGS = frozenset(
    [
        "applet",
        "area",
        "audio",
        "base",
        "button",
        "canvas",
        "col",
        "colgroup",
        "datalist",
        "dialog",
        "embed",
        "fencedframe",
        "figcaption",
        "footer",
        "frame",
        "frameset",
        "head",
        "iframe",
        "input",
        "link",
        "map",
        "math",
        "menu",
        "menuitem",
        "meta",
        "meter",
        "nav",
        "noindex",
        "noframes",
        "noscript",
        "object",
        "optgroup",
        "option",
        "output",
        "param",
        "picture",
        "progress",
        "rp",
        "rt",
        "rtc",
        "script",
        "select",
        "source",
        "style",
        "svg",
        "template",
        "textarea",
        "track",
        "use",
        "video",
    ]
)
# Containers that a class can mark as boilerplate.
MARKED_TAGS = frozenset(
    [
        "a",
        "aside",
        "center",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hgroup",
        "label",
        "legend",
        "li",
        "ol",
        "p",
        "section",
        "small",
        "span",
        "strong",
        "summary",
        "table",
        "tbody",
        "td",
        "time",
        "tr",
        "ul",
        "address",
        "cite",
        "i",
        "b",
        "em",
        "font",
    ]
)
CONTAINERS = frozenset(
    ["article", "aside", "center", "div", "fieldset", "form", "main", "section", "table", "tbody", "td"]
)

# In these patterns, `\b` of a class is the start or end of a word between separators: see `words`.
HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
BOILERPLATE = re.compile(
    r"""
    \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|side|mobile|sticky)?(?:nav|navi|navbar|navbox|navigation|menu|
        menus|submenu|topnav)
    | \w*(?:breadcrumb|bread\ crumb|sidebar|side\ bar|cookie|newsletter|outbrain|taboola|criteo|sociable|
        disclaimer|subscri(?:be|ption)|signup|sign\ up|login|byline|timestamp|pagination|
        advert|sponsor|promo|popup|banner|teaser|copyright|colophon|masthead|caption|permalink|headerlink|
        backlink|tooltip|noprint|taglist)\w*
    | (?:site|page|global|main|top|blog)\ (?:header|head|footer|foot)
    | pageheader | pagefooter | siteheader | sitefooter | topbar | toolbar | statusbar
    | foot | footer\w* | \w+footer | footnav | docnav | navheader
    | (?:social|share|shares|sharing|sharebar|shariff|sharedaddy|addthis\w*|addtoany\w*|addtocart)\w*
    | related\w* | recommend\w*
    | (?:most|more)\ (?:popular|read|viewed|recent|shared|stories|on|from|in|news|articles)
    | popular\ (?:posts|articles|stories) | recent\ (?:posts|comments|articles) | latest\ (?:news|posts|articles)
    | read\ (?:more|next|also) | also\ (?:read|like) | up\ next | next\ (?:up|post|article)
    | prev(?:ious)?\ (?:post|next)
    | post\ (?:meta|nav|navigation|info|tags|footer|date|author) | entry\ (?:meta|footer|utility|info|tags|date)
    | article\ (?:meta|info|infos|tags|footer|tools|date|actions|related) | meta | metadata | postmeta | postmetadata
    | author\w* | (?:posted|written)\ (?:on|by|in) | rating\w* | widget\w* | tags | tag\ (?:list|links|cloud)
    | tagcloud
    | ad | ads | adv | adsense\w* | adbox | adunit | adsbygoogle | google\ ad\w*
    | ad\ (?:slot|unit|container|wrapper|\d+)
    | dfp\w* | viral | syndication | embed | embedded | consent | gdpr | modal | overlay | slideshow | carousel
    | slider
    | user\ (?:info|profile) | message\ container | factbox | infobox\ (?:ad|promo) | skip\ (?:link|nav|to)\w*
    | skiplink
    | search\ ?(?:box|form|bar|wrapper)? | searchformwrapper | hidden | hide | invisible | nodisplay | sr\ only
    | screen\ reader\ text | visually\ ?hidden | a11y\ only | print\ only | printfooter | catlinks | editsection
    | mw\ editsection | mw\ jump\w*
    | jump\ to\ nav | linenos? | lineno | linenumbers? | line\ numbers? | gutter | rouge\ gutter | copy\ button
    | copybtn | clipboard
    | language\ (?:switcher|list|selector|picker) | lang\ (?:switcher|list|selector|toggle|picker) | toplang
    | bottomlang
    | report\ ?bug | feedback\w* | donat(?:e|ion)\w* | prevnext | prev\ next | pager | paging | buttons? | btn
    | rss | print | printer | tools | actions | controls | akismet | nocomments | comments?\ (?:title|form|respond)
    | respond | reply | replies\ link | nav\ (?:header|footer|table|panel|links?) | book\ navigation | subpages
    | contentsub | sitesub
    | powered\ by | credits? | store\ link | expand | options | attachment | viewport
    )\b
    """,
    re.VERBOSE,
)
# The same for documentation and forums, whose classes name parts of the text (`sidebar`, `meta`, `caption`, `author`).
NAVIGATION = re.compile(
    r"""
    \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|mobile)?(?:nav|navi|navbar|navigation|menu|submenu|topnav)
    | cookie\ ?(?:banner|notice|consent|bar|popup|law|policy)\w*
    | \w*(?:breadcrumb|bread\ crumb|newsletter|headerlink|backlink|permalink|skip\ link|copybtn|searchform)\w*
    | (?:site|page|global|main|top|blog)\ (?:header|head|footer|foot|title)
    | pageheader | pagefooter | siteheader | sitefooter | topbar | toolbar | footer | navheader | navfooter
    | docnav | footnav
    | nav\ (?:header|footer|table|panel|list|links?) | book\ navigation | prev\ next | prevnext | pager
    | pagination | paging
    | search\ ?(?:box|bar)? | hidden | sr\ only | visually\ ?hidden | screen\ reader\ text | printfooter | catlinks
    | editsection | mw\ editsection | mw\ jump\w* | subpages | content\ ?sub | site\ ?sub | t\ navbar
    | linenos? | lineno | linenumbers? | line\ numbers? | gutter | copy\ button | clipboard | viewcode\ back
    | language\ (?:switcher|list|selector|picker) | lang\ (?:switcher|list|selector|toggle|picker) | toplang
    | bottomlang
    | report\ ?bug | edit\ (?:page|this\ page|on\ github) | sphinxsidebar\w*
    | sidebar\ (?:nav\w*|wrapper|container|menu|tree|toc)
    | share | sharing | social\ (?:buttons|links|share) | ads? | advert\w*
    )\b
    """,
    re.VERBOSE,
)
# Words of parts of a forum around its posts.
FORUM_PARTS = re.compile(
    NAVIGATION.pattern
    + r"""
    | \b(?:
      signature | avatar | post\ ?profile | user\ ?(?:info|profile|details|card|pic)\w*
    | post\ (?:buttons|controls|actions|menu)
    | sponsor\w* | similar\ topics | suggested\ topics | related\ (?:topics|questions) | quick\ ?reply
    | topic\ actions
    | vote\ ?(?:box|count|cell|button)\w* | votes | likes? | reactions? | userbar | forum\ ?(?:jump|nav)\w*
    )\b
    """,
    re.VERBOSE,
)
TOC = re.compile(
    r"\b(?:toc|table\ of\ contents|tableofcontents|minitoc|quickview|contents\ (?:list|topic)|toctree\ wrapper"
    r"|on\ this\ page)\b"
)
COMMENTS = re.compile(
    r"^(?:comments?|commentlist|commentary\ list|comol|disqus\w*|dsq|respond|user\ comments|reader\ comments)\b"
    r"|\b(?:comments?\ (?:list|area|section|wrapper|container|content|block|body|page|box|thread)|commentlist"
    r"|comments|disqus\ thread|(?:article|post|reader|user|facebook|fb)\ comments?)\b"
)
NOTES = re.compile(  # an aside of these is a part of the text
    r"\b(?:admonition|note|notes|warning|caution|important|tip|hint|footnote|footnotes|topic|callout|seealso|example)\b"
)

# Likely main content, the strongest first.
LEVELS = (
    re.compile(
        r"\b(?:post|article|story|entry|news|page|text|blog|single|body|art)\ ?"
        r"(?:body|text|content|entry|copy|bodytext)\b"
        r"|\barticle\ (?:content|body)\ \w+|\bpost\ inner\ wrapper\b|\bbody\ ?text\b|\bfulltext\b"
        r"|\barticle\ container\b"
    ),
    re.compile(
        r"^(?:article|story|entry|post|text|cell|postarea)$|\b(?:theme|section)\ content\b|\bsingle\ post\b"
        r"|\bmain\ column\b|\bfield\ body\b|\bcolumn\ text\b"
    ),
    re.compile(
        r"\b(?:content|maincontent|main\ content|contentmain|content\ ?main|content\ body|contentbody|bodycontent"
        r"|mw\ content\ text|page\ content)\b|^content"
    ),
    re.compile(r"^main|\bmain\b|^primary\b"),
)
OTHER_ROLES = frozenset(
    ["navigation", "banner", "contentinfo", "search", "complementary", "menu", "menubar", "dialog", "alert"]
)


NAMED_TAGS = frozenset(
    ["a", "code", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "li", "p", "section", "span", "td", "tr"]
)
SECTION = re.compile(r"\b(?:section|sect\d|chapter|appendix|refentry|refsect\d|method|function|member|detail)\b")


class Verdict(NamedTuple):
    """Classification of an element by its tag and attributes."""

    drop: bool = False
    """Boilerplate whatever it holds."""
    marked: bool = False
    """Boilerplate by its class; not dropped if it holds most of the page."""
    hidden: bool = False
    """Not displayed, or a part with another role than text."""
    comments: bool = False
    """Section of reader comments."""
    toc: bool = False
    """Table of contents."""
    level: int = -1
    """Rank as container of the main content, 0 the strongest; -1: no container of it."""


NEUTRAL = Verdict()
DROP = Verdict(drop=True)


class AttributeRules:
    """Cache of verdicts by tag and attributes."""

    def __init__(self, boilerplate: re.Pattern[str] = BOILERPLATE) -> None:
        self.boilerplate = boilerplate
        self.cache: dict[tuple[Any, ...], Verdict] = {}

    def verdict(self, element: HtmlElement) -> Verdict:
        """Verdict on an element."""
        items = element.items()
        tag = element.tag
        if not items:
            return _plain(tag)
        key = (tag, *items)
        if tag == "a":
            return NEUTRAL if "class" not in element.attrib else self._cached((tag, ("class", element.get("class"))))
        return self._cached(key)

    def _cached(self, key: tuple[Any, ...]) -> Verdict:
        found = self.cache.get(key)
        if found is None:
            found = classify(key[0], dict(key[1:]), self.boilerplate)
            if sum(len(value) for _, value in key[1:]) <= MAX_KEY:
                if len(self.cache) >= MAX_CACHED:
                    self.cache.clear()
                self.cache[key] = found
        return found


def _plain(tag: str) -> Verdict:
    return PLAIN.get(tag, NEUTRAL)


# Parts of a class that say what an element has or lacks (`has-sidebar`, `field--label-hidden`).
MODIFIERS = re.compile(
    r"(?:\b|(?<=_))(?:has|with|without|no|label|allow|enable|disable|elementor)[-_]+[\w-]+", re.IGNORECASE
)
SEPARATORS = re.compile(r"[\s_\-:.]+|(?<=[a-z])(?=[A-Z])")


def words(value: str) -> str:
    """Words of a class or id in lower case, with single spaces (`postBody-main_text`: `post body main text`)."""
    return SEPARATORS.sub(" ", MODIFIERS.sub(" ", value)).strip().lower()


def classify(tag: str, attributes: dict[str, str], boilerplate: re.Pattern[str] = BOILERPLATE) -> Verdict:
    """Verdict on an element with these attributes."""
    role = attributes.get("role", "").lower()
    if tag in DROPPED_TAGS:
        return DROP
    hidden = "hidden" in attributes or attributes.get("aria-hidden") == "true" or role in OTHER_ROLES
    if hidden or HIDDEN.search(attributes.get("style", "")):
        return Verdict(hidden=True)
    identity, classes = words(attributes.get("id", "")), words(attributes.get("class", ""))
    if boilerplate is not BOILERPLATE and (tag in NAMED_TAGS or SECTION.search(classes)):
        identity = ""  # the name of what the section documents
    both = f"{identity} | {classes}" if identity else classes
    level = _level(tag, role, identity, classes, attributes)
    if tag == "aside":
        return NEUTRAL if NOTES.search(both) else DROP
    if tag not in MARKED_TAGS:
        return Verdict(level=level)
    comments = bool(tag in CONTAINERS or tag in ("ol", "ul")) and any(
        COMMENTS.search(one) for one in (identity, classes)
    )
    marked = bool(boilerplate.search(both))
    return Verdict(marked=marked, comments=comments, toc=bool(TOC.search(both)), level=level)


def _level(tag: str, role: str, identity: str, classes: str, attributes: dict[str, str]) -> int:
    if tag in ("main", "body"):
        return 4 if tag == "main" else -1
    if tag == "article":
        return 1
    if tag not in ("div", "section", "td"):
        return -1
    if attributes.get("itemprop", "").lower() == "articlebody":
        return 0
    if role in ("main", "article"):
        return 4 if role == "main" else 2
    for level, pattern in zip((0, 2, 3, 4), LEVELS, strict=True):
        if pattern.search(identity) or pattern.search(classes):
            return level
    return -1


PLAIN = dict.fromkeys(DROPPED_TAGS, DROP) | {"aside": DROP, "article": Verdict(level=1), "main": Verdict(level=4)}
