"""Rules on tags and attributes: which elements are boilerplate, and which are likely to hold the main content.

The verdict on an element depends on its tag and a few attributes alone, and a page repeats these: each distinct set is
classified once and cached.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from lxml.html import HtmlElement

from tasks.extract.attribute_names import (
    BOILERPLATE,
    COMMENT_PARTS,
    COMMENTS,
    COMPONENTS,
    CONSENT,
    CONTAINERS,
    DIALOG,
    DROPPED_TAGS,
    FORUM_PARTS,
    HIDDEN,
    HIDES,
    INGREDIENTS,
    LEVEL_PARTS,
    LEVELS,
    MARK_LINKS,
    MARKED_TAGS,
    NAMED_TAGS,
    NAVIGATION,
    NOTES,
    OTHER_ROLES,
    PANEL,
    POSTS,
    READER_COMMENTS,
    RECIPE,
    RECIPE_PARTS,
    SECTION,
    SITE_PROSE,
    TOC,
    TOC_PARTS,
    UNSEEN,
    WORDS,
)
from tasks.extract.formulas import WRAPPERS
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM

MAX_CACHED = 50_000  # distinct sets of attributes, and values; one site has some hundred
MAX_RECIPE_LINKED, MAX_INGREDIENTS_LINKED = 0.5, 0.95  # of the characters of a recipe, and of its list of ingredients
MAX_KEY = 300  # characters of attributes; longer ones are classified, but not cached


class Verdict(NamedTuple):
    """Classification of an element by its tag and attributes."""

    drop: bool = False  # boilerplate whatever it holds
    marked: bool = False  # boilerplate by its class; not dropped if it holds most of the page
    unseen: bool = False  # sign of editing or text that no reader sees, by its class; no words of a sentence or of code
    may_be_text: bool = False  # boilerplate by its class, unless it holds code or whole sentences alone
    hidden: bool = False  # not displayed at first, or a part with another role than text
    closed: bool = False  # hidden by its state alone, so that a control may open it
    consent: bool = False  # request for consent, dropped however long it is
    dialog: bool = False  # boilerplate that a page shows over another one
    comments: bool = False  # section of reader comments
    toc: bool = False  # table of contents
    level: int = -1  # rank as container of the main content, 0 the strongest; -1: no container of it
    main: bool = False  # main part of the page, as the page states it
    formula: bool = False  # holds all forms of one formula
    post: bool = False  # holds the text of one post of a forum
    recipe: float = 0  # largest share of links in a part of a recipe, by its name; 0 for no such part


NEUTRAL = Verdict()
DROP = Verdict(drop=True)
READ = frozenset(
    ["id", "class", "role", "style", "itemprop", "hidden", "aria-hidden", "epub:type"]
)  # attributes that a verdict reads
DIGITS = dict.fromkeys(map(ord, "023456789"), "1")  # digits are alike to all rules, and ids number the parts of a page


class Named(NamedTuple):
    """Verdict of the words of one id or class."""

    words: str
    boilerplate: bool
    unseen: bool
    hides: bool  # not displayed at first, as the attribute `hidden` says it
    comments: bool
    toc: bool


NAMELESS = Named("", boilerplate=False, unseen=False, hides=False, comments=False, toc=False)


class AttributeRules:
    """Cache of verdicts by tag and attributes.

    Args:
        page: type of the page.
        loose: for a page without an article, whose text are components, lists of links, and a site's prose.
    """

    def __init__(self, page: str, *, loose: bool = False) -> None:
        self.page, self.loose = page, loose
        names = {ARTICLE: BOILERPLATE + ("" if loose else COMPONENTS), DOCUMENTATION: NAVIGATION, FORUM: FORUM_PARTS}
        self.boilerplate = re.compile(names[page], re.VERBOSE)
        # A forum names who wrote what it quotes in a `cite`.
        self.comments = COMMENTS if page == ARTICLE else READER_COMMENTS
        self.plain = PLAIN | ({"cite": QUOTED} if page == FORUM else {})
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
            if len(items) == 1 and items[0][0] == "class":  # most elements
                key = (tag, items[0])
            else:
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
            attributes = dict(key[1:])
            found = classify(tag, attributes, self)
            if sum(map(len, attributes.values())) <= MAX_KEY:
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
        comments = any(map(text.__contains__, COMMENT_PARTS)) and self.comments.search(text) is not None
        toc = any(map(text.__contains__, TOC_PARTS)) and TOC.search(text) is not None
        hides = any(self.boilerplate.search(one) for one in HIDES.findall(text)) if "hid" in text else False
        rest = HIDES.sub(" ", text) if hides else text
        boilerplate = self.boilerplate.search(rest) is not None
        return Named(text, boilerplate, boilerplate and UNSEEN.search(rest) is not None, hides, comments, toc)


# Parts of a class that say what an element has or lacks (`has-sidebar`, `field--label-hidden`, `overflow-hidden`), and
# names that page builders give to any part of a text (Divi, SiteOrigin, Webflow, Kadence, AEM), and fields of Drupal.
MODIFIERS = re.compile(
    r"(?:\b|(?<=_))(?:(?:has|with|without|not?|label|allow|enable|disable|hide|hidden|show|overflow|backface|elementor)"
    r"[-_]+[\w-]+|overflow[xy]?hidden|comments?-(?:open|closed)|so-panel\s+widget(?:[ _][\w-]*)*"
    r"|views-(?:field|label)-field-[\w-]+|(?:et_pb|w|kt|cmp)[-_](?:promo|slide|embed|adv|teaser|carousel|tabs)[\w-]*)",
    re.IGNORECASE,
)
# What each of them has; a search for it takes a tenth of the time.
MODIFIED = re.compile(
    "(?:has|with|out|not?|label|able|hide|hidden|show|overflow|backface|elementor|comments?|et|w|kt|cmp|so|field)[-_]"
)
# Topics of a post, in the classes that WordPress gives it (`category-newsletter tag-social`), and that it is a post of
# who began a discussion.
TOPICS = re.compile(r"\b(?:[\w-]+_)?(?:category|cat|tag)-[\w-]+|\btopic-author\b")
SIGNATURE = re.compile(r"[(),\[\]<>=@%*]")  # in the id of a function, as `binarySearch,openArray[T]`
DISPLAYS = frozenset(["block", "flex", "grid", "inline", "inline-block", "inline-flex", "table", "table-cell"])
HASH = re.compile(r"(?:__|--)_?(?=[A-Za-z0-9]{5}\b)[A-Za-z0-9][a-z]*[A-Z0-9]\w*")  # of CSS modules (`Item_root__adF2E`)
HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def words(value: str) -> str:
    """Words of a class or id in lower case, with single spaces (`postBody-main_text`: `post body main text`)."""
    if value.isalnum() and value.islower():
        return value
    if (":" in value or "(" in value or "/" in value) and " " in value:
        value = _without_variants(value)
    if "hentry" in value or "status-publish" in value:
        value = TOPICS.sub(" ", value)
    lower = value.islower()
    if not lower and ("__" in value or "--" in value):
        value = HASH.sub(" ", value)
    if "-" in value or "_" in value:
        text = value if lower else value.lower()
        if MODIFIED.search(text):
            value = MODIFIERS.sub(" ", value)
    if not lower:
        value = HUMPS.sub(" ", value)
    value = value.replace("-", " ").replace("_", " ").replace(":", " ").replace(".", " ")
    # A stylesheet's module names its classes after itself: `Text_text` is no text of a text.
    return " ".join(word for word, _ in itertools.groupby(value.lower().split()))


def _without_variants(value: str) -> str:
    """Class without names for some states (`md:flex`), of a measure (`Mx(20px)`) or of a group (`group/menu`)."""
    names = value.split()
    is_shown = any(name.rpartition(":")[2] in DISPLAYS and ":" in name for name in names)
    shown = [name for name in names if not (is_shown and name == "hidden")]
    return " ".join(name for name in shown if not any(sign in name for sign in ":(/"))


def classify(tag: str, attributes: dict[str, str], rules: AttributeRules) -> Verdict:
    """Verdict on an element with these attributes."""
    found = _classify(tag, attributes, rules)
    if found.drop or found.hidden or tag in WORDS or rules.page != ARTICLE:
        return found
    names = f"{attributes.get('id', '')} {attributes.get('class', '')} {attributes.get('itemprop', '')}"
    if any(map(names.lower().__contains__, RECIPE_PARTS)) and RECIPE.search(names := words(names)):
        return found._replace(recipe=MAX_INGREDIENTS_LINKED if INGREDIENTS.search(names) else MAX_RECIPE_LINKED)
    return found


def _classify(tag: str, attributes: dict[str, str], rules: AttributeRules) -> Verdict:
    if tag in DROPPED_TAGS:
        return DROP
    value = attributes.get("class", "")
    # A search for parts takes a tenth of the time of the expression.
    if ("ath" in value or "katex" in value or "mjx" in value.lower()) and WRAPPERS.search(value):
        return Verdict(formula=True)
    role = attributes.get("role", "").lower()
    identity = rules.named(attributes["id"]) if attributes.get("id") else NAMELESS
    classes = rules.named(attributes["class"]) if attributes.get("class") else NAMELESS
    marks = [one for one in (identity, classes) if one.boilerplate]
    if role in OTHER_ROLES:
        return Verdict(hidden=True, consent=_asks_for_consent(marks))
    if (
        attributes.get("hidden", "until-found").lower() != "until-found"
        or attributes.get("aria-hidden") == "true"
        or HIDDEN.search(attributes.get("style", ""))
        or classes.hides
    ):
        is_panel = role == "tabpanel" or PANEL.search(f"{identity.words} {classes.words}") is not None
        if marks or not is_panel:
            return Verdict(hidden=True, closed=not marks, consent=_asks_for_consent(marks))
    if tag in WORDS or (
        rules.page != ARTICLE
        and (tag in NAMED_TAGS or SECTION.search(classes.words) or SIGNATURE.search(attributes.get("id", "")))
    ):
        identity = NAMELESS  # the name of what the section documents
    if tag == "tr" and rules.page == DOCUMENTATION:
        classes = NAMELESS  # Doxygen's holds the name of the class whose member it lists, as `CoinSearchTree`
    if tag == "td" and classes.words == "gutter":
        return Verdict(hidden=True)  # numbers of the lines of code beside it
    is_forum = rules.page == FORUM
    if (tag == "aside" and not (is_forum and "quote" in classes.words.split())) or role == "complementary":
        names = f"{identity.words} {classes.words} {attributes.get('epub:type', '')}"
        return (
            NEUTRAL
            if NOTES.search(names) or role.startswith("doc-")
            else Verdict(marked=True, may_be_text=not SITE_PROSE.search(names))
        )
    level = _level(tag, role, identity, classes, attributes)
    main = level >= 0 and (tag == "main" or role == "main" or attributes.get("itemprop", "").lower() == "articlebody")
    comments = (tag in CONTAINERS or tag in ("ol", "ul")) and (identity.comments or classes.comments)
    if tag not in MARKED_TAGS:
        return Verdict(level=level, main=main, comments=comments)
    post = is_forum and (
        attributes.get("itemprop") == "text" or any(POSTS.search(one.words) for one in (identity, classes))
    )
    if post:
        return Verdict(level=level, post=True)
    toc = identity.toc or classes.toc
    if not (identity.boilerplate or classes.boilerplate):
        return Verdict(comments=comments, toc=toc, level=level, main=main) if comments or toc or level >= 0 else NEUTRAL
    marks = [one for one in (identity, classes) if one.boilerplate]
    is_site = any(one.unseen or (not rules.loose and SITE_PROSE.search(one.words)) for one in marks)
    return Verdict(
        marked=True,
        unseen=any(one.unseen or (tag == "a" and MARK_LINKS.search(one.words)) for one in marks),
        may_be_text=not is_site,
        consent=_asks_for_consent(marks),
        dialog=any(DIALOG.search(one.words) for one in marks),
        comments=comments,
        toc=toc,
        level=level,
        main=main,
    )


def _asks_for_consent(marks: Sequence[Named]) -> bool:
    return any(CONSENT.search(one.words) for one in marks)


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


QUOTED = Verdict(marked=True)
PLAIN = dict.fromkeys(DROPPED_TAGS, DROP) | {
    "aside": Verdict(marked=True, may_be_text=True),
    "article": Verdict(level=1),
    "main": Verdict(level=4, main=True),
}
