"""Rules on tags and attributes: which elements are boilerplate, and which are likely to hold the main content.

The verdict on an element depends on its tag and a few attributes alone, and a page repeats these: each distinct set is
classified once and cached.
"""

import functools
import re
from typing import Any, NamedTuple

from lxml.html import HtmlElement

MAX_CACHED = 50_000  # distinct sets of attributes, and values; one site has some hundred
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
        "blockquote",
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
      breadcrumb|bread\ crumb|sidebar|side\ bar|cookie|newsletter|outbrain|taboola|criteo|sociable
    | disclaimer|subscri(?:be|ption)|signup|sign\ up|login|byline|timestamp|pagination
    | advert|sponsor|promo|popup|banner|teaser|copyright|colophon|masthead|caption|permalink|headerlink
    | backlink|tooltip|noprint|taglist | \Bfooter\b
    | \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|side|mobile|sticky)?(?:nav|navi|navbar|navbox|navigation|menu|
        menus|submenu|topnav)
    | (?:site|page|global|main|top|blog)\ (?:header|head|footer|foot)
    | pageheader | pagefooter | siteheader | sitefooter | topbar | toolbar | statusbar
    | foot | footer\w* | footnav | docnav | navheader
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
      breadcrumb|bread\ crumb|newsletter|headerlink|backlink|permalink|skip\ link|copybtn|searchform
    | \b(?:
      (?:site|global|page|main|top|bottom|sub|left|right|mobile)?(?:nav|navi|navbar|navigation|menu|submenu|topnav)
    | cookie\ ?(?:banner|notice|consent|bar|popup|law|policy)\w*
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
      signature\w* | avatar | post\ ?profile | user\ ?(?:info|profile|details|card|pic|extras|title)\w*
    | author | post\ ?(?:author|head|foot|date|edit|info|taglist|signature|meta) | poster
    | message\ user(?!\ content) | message\ attribution
    | (?:author|member)\ (?:statistics|info) | crawler\ post\ meta | topic\ category | tags
    | (?:action|button|tool|moderator|status|quick)\ ?(?:bar|buttons|list|controls)
    | (?:topic|thread)\ (?:tools|modes|info)
    | jump\ ?box | online\ list | stat\ block | page\ ?(?:links|section)s? | nav\ ?links | next\ ?links
    | navigate\ section | popup\ ?(?:menu|body|group|ctrl) | top\ ?links | similar\ threads | last\ ?edited
    | bb\ ?code\ ?(?:block\ title|postedby) | expand\ ?link | quote\ controls | struct\ item | share\ buttons
    | comment\ (?:user|date|score|actions) | bottom\ notice | post\ ?(?:menu|form)
    | post\ (?:buttons|controls|actions|menu)
    | sponsor\w* | similar\ topics | suggested\ topics | related\ (?:topics|questions) | quick\ ?reply
    | topic\ actions
    | vote\ ?(?:box|count|cell|button)\w* | votes | likes? | reactions? | userbar | forum\ ?(?:jump|nav)\w*
    )\b
    """,
    re.VERBOSE,
)
# Elements that hold the text of one post, in the templates of forums.
POSTS = re.compile(
    r"^(?:post ?body|post ?message(?: \d+)?|post ?content restore|post ?content|post ?text|post ?msg|bb wrapper"
    r"|message (?:body|content|text)|msg \d+|pid \d+|cooked|comment (?:copy|body|text)|commtext|comm text"
    r"|ips comment content|ips type rich ?text|forum post content|reply content|entry content)\b"
    r"|\b(?:s prose|js post body|post_?body)\b"
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
COMMENT_PARTS = ("comm", "comol", "disqus", "dsq", "respond")  # one of them is in every name that COMMENTS matches
TOC_PARTS = ("toc", "content", "quickview", "this page")
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
        r"^(?:article|story|entry|post|text|cell|postarea)$"
        r"|\b(?:(?:theme|section)\ content|single\ post|main\ column|field\ body|column\ text)\b"
    ),
    re.compile(
        r"\b(?:content|maincontent|main\ content|contentmain|content\ ?main|content\ body|contentbody|bodycontent"
        r"|mw\ content\ text|page\ content)\b|^content"
    ),
    re.compile(r"^main|\bmain\b|^primary\b"),
)
# What each name has that they match; most names of elements have none of these.
LEVEL_PARTS = re.compile("article|body|cell|column|content|copy|entry|inner|main|post|primary|story|text")
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
    post: bool = False
    """Holds the text of one post of a forum."""


NEUTRAL = Verdict()
DROP = Verdict(drop=True)
READ = frozenset(
    ["id", "class", "role", "style", "itemprop", "hidden", "aria-hidden"]
)  # attributes that a verdict reads
DIGITS = dict.fromkeys(map(ord, "023456789"), "1")  # digits are alike to all rules, and ids number the parts of a page


class Named(NamedTuple):
    """What the words of one id or class say."""

    words: str
    boilerplate: bool
    comments: bool
    toc: bool


NAMELESS = Named("", boilerplate=False, comments=False, toc=False)


class AttributeRules:
    """Cache of verdicts by tag and attributes."""

    def __init__(self, boilerplate: re.Pattern[str] = BOILERPLATE) -> None:
        self.boilerplate = boilerplate
        # A forum names who wrote what it quotes in a `cite`.
        self.plain = PLAIN | ({"cite": DROP} if boilerplate is FORUM_PARTS else {})
        self.cache: dict[tuple[Any, ...], Verdict] = {}
        self.names: dict[str, Named] = {}

    def verdict(self, element: HtmlElement, tag: str) -> Verdict:
        """Verdict on an element; `tag` is its tag, which lxml would make again."""
        key: tuple[Any, ...]
        if tag == "a":
            classes = element.get("class")
            if classes is None:
                return NEUTRAL
            key = (tag, ("class", classes))
        elif items := element.items():
            key = (
                tag,
                *[
                    (name, value if name == "class" else value.translate(DIGITS))
                    for name, value in items
                    if name in READ
                ],
            )
        else:
            return self.plain.get(tag, NEUTRAL)
        found = self.cache.get(key)
        if found is None:
            found = classify(tag, dict(key[1:]), self)
            if sum(len(value) for _, value in key[1:]) <= MAX_KEY:
                if len(self.cache) >= MAX_CACHED:
                    self.cache.clear()
                self.cache[key] = found
        return found

    def named(self, value: str) -> Named:
        """Read the words of an id or a class."""
        found = self.names.get(value)
        if found is None:
            found = self._named(words(value))
            if len(value) <= MAX_KEY:
                if len(self.names) >= MAX_CACHED:
                    self.names.clear()
                self.names[value] = found
        return found

    def _named(self, text: str) -> Named:
        # Few names have these parts, and a search for parts takes a tenth of the time of the expression.
        comments = any(map(text.__contains__, COMMENT_PARTS)) and COMMENTS.search(text) is not None
        toc = any(map(text.__contains__, TOC_PARTS)) and TOC.search(text) is not None
        return Named(text, self.boilerplate.search(text) is not None, comments, toc)


# Parts of a class that say what an element has or lacks (`has-sidebar`, `field--label-hidden`).
MODIFIERS = re.compile(
    r"(?:\b|(?<=_))(?:has|with|without|no|label|allow|enable|disable|elementor)[-_]+[\w-]+", re.IGNORECASE
)
# What each of them has; a search for these takes a tenth of the time.
MODIFIED = [
    f"{word}{separator}"
    for word in ("has", "with", "without", "no", "label", "allow", "enable", "disable", "elementor")
    for separator in "-_"
]
HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])")
SEPARATORS = str.maketrans("_-:.", "    ")


def words(value: str) -> str:
    """Words of a class or id in lower case, with single spaces (`postBody-main_text`: `post body main text`)."""
    if value.isalnum() and value.islower():
        return value
    lower = value.islower()
    if "-" in value or "_" in value:
        text = value if lower else value.lower()
        if any(map(text.__contains__, MODIFIED)):
            value = MODIFIERS.sub(" ", value)
    if not lower:
        value = HUMPS.sub(" ", value)
    return " ".join(value.translate(SEPARATORS).split()).lower()


def classify(tag: str, attributes: dict[str, str], rules: AttributeRules) -> Verdict:
    """Verdict on an element with these attributes."""
    if tag in DROPPED_TAGS:
        return DROP
    role = attributes.get("role", "").lower()
    hidden = "hidden" in attributes or attributes.get("aria-hidden") == "true" or role in OTHER_ROLES
    if hidden or HIDDEN.search(attributes.get("style", "")):
        return Verdict(hidden=True)
    identity = rules.named(attributes["id"]) if attributes.get("id") else NAMELESS
    classes = rules.named(attributes["class"]) if attributes.get("class") else NAMELESS
    if rules.boilerplate is not BOILERPLATE and (tag in NAMED_TAGS or SECTION.search(classes.words)):
        identity = NAMELESS  # the name of what the section documents
    is_forum = rules.boilerplate is FORUM_PARTS
    if is_forum and tag == "cite":  # who wrote what is quoted
        return DROP
    if tag == "aside" and not (is_forum and "quote" in classes.words.split()):
        return NEUTRAL if NOTES.search(identity.words) or NOTES.search(classes.words) else DROP
    level = _level(tag, role, identity, classes, attributes)
    if tag not in MARKED_TAGS:
        return Verdict(level=level)
    post = is_forum and (
        attributes.get("itemprop") == "text" or any(POSTS.search(one.words) for one in (identity, classes))
    )
    if post:
        return Verdict(level=level, post=True)
    return Verdict(
        marked=identity.boilerplate or classes.boilerplate,
        comments=(tag in CONTAINERS or tag in ("ol", "ul")) and (identity.comments or classes.comments),
        toc=identity.toc or classes.toc,
        level=level,
    )


def _level(tag: str, role: str, identity: Named, classes: Named, attributes: dict[str, str]) -> int:
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
    found = [level for one in (identity.words, classes.words) if one and (level := _level_of(one)) >= 0]
    return min(found, default=-1)


@functools.lru_cache(MAX_CACHED)
def _level_of(name: str) -> int:
    """Level of a container by the words of its id or class."""
    if not LEVEL_PARTS.search(name):
        return -1
    return next((level for level, found in zip((0, 2, 3, 4), LEVELS, strict=True) if found.search(name)), -1)


PLAIN = dict.fromkeys(DROPPED_TAGS, DROP) | {"aside": DROP, "article": Verdict(level=1), "main": Verdict(level=4)}
