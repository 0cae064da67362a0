"""Detection of pages without content that were sent with status 200: soft 404s, parked domains, placeholders.

All rules require a short text and an explicit title, heading or phrase: none of them matches any of the 3,679 test
pages, which all have content. Lines are compared as lower-case words (`Oops! Can't find it` is `oops can t find it`).
"""

import re
from itertools import islice
from typing import NamedTuple

from lxml.html import HtmlElement

from tasks.core.url_lists import host_of

MAX_CHARACTERS = 1500  # a page with this many characters of main text has content, whatever its title
MAX_PARKED_CHARACTERS = 700  # phrases of parked domains are searched in shorter texts only; longer ones may quote them
MAX_LINE = 200  # characters of a title or heading that are tested
SEGMENT = re.compile(r"\s+[-–—|·•»:]+\s+|[|»:]\s*")  # "Page not found | Example"
NOT_WORDS = re.compile(r"[\W_]+")

THING = "(?:page|file|url|document|resource|article|content|item|post|product|topic|entry|site)"
GONE = (
    "(?:not found|not available|unavailable|missing|gone|no longer (?:available|exists?|here)|removed|deleted|"
    "(?:cannot|can t|could not|couldn t) be (?:found|displayed)|(?:does not|doesn t|did not|didn t) exist)"
)
# Titles of missing pages: a whole title, a part of it between dashes, or a whole heading.
MISSING = (
    "(?:http |error |status |oops )*"
    f"(?:404|410)(?: error| http| status| oops| sorry| the| {THING})*(?: {GONE})?(?: \\d+)?",
    f"(?:oops |sorry |error |the |this |that |your |requested )*{THING}(?: you(?: \\w+){{1,6}})?"
    f"(?: is| was| has| has been)? {GONE}",
    f"(?:we |sorry |oops )*(?:can t|cannot|could not|couldn t) (?:seem to )?find (?:that|this|the|your) {THING}"
    ".{0,40}",
    "not found",
    "nothing found",
    "(?:die |diese )?seite (?:wurde )?(?:leider )?nicht gefunden",
    "(?:la |cette )?page (?:est )?(?:introuvable|non trouvée|inexistante)",
    "página (?:no encontrada|não encontrada|no existe|não existe)",
    "pagina (?:non trovata|niet gevonden)",
    "sidan (?:kunde inte hittas|hittades inte)",
    "nie znaleziono strony|strona nie (?:została znaleziona|istnieje)",
    "страница не (?:найдена|существует)",
    "(?:お探しの)?ページが見つかりません(?:でした)?",
    "页面不存在|找不到(?:该)?页面|页面未找到|頁面不存在|找不到網頁",
)
# Phrases in the title, a heading or the short text of a parked domain.
PARKED = (
    r"(?:this|the) (?:web ?)?(?:domain|site)(?: name)?(?: \S+ \S+)? (?:is|may be) (?:currently |now )?"
    "(?:for sale|parked|available for (?:sale|purchase))",
    "(?:buy|purchase|own|lease|inquire about|enquire about) this domain",
    "domain(?: name)? (?:is|may be) for sale",
    r"(?:this|the) domain(?: name)?(?: \S+ \S+)? (?:has expired|expired on|has (?:recently )?been registered|"
    "was recently registered|is pending renewal)",
    "(?:web ?)?(?:page|site|domain) is parked|parked (?:free|page|domain|courtesy of|by)",
    "future home of something",
    "diese domain (?:steht zum verkauf|ist (?:zu verkaufen|geparkt))",
    r"(?:ce|le) (?:nom de )?domaine (?:\S+ \S+ )?est (?:à vendre|en vente)",
    "este dom[ií]nio está (?:en venta|à venda)",
    "questo dominio è in vendita",
    "домен (?:продаётся|продается|припаркован)",
)
# Titles of the default page of a new or closed server.
PLACEHOLDER = (
    "welcome to (?:nginx|openresty|caddy).{0,30}",
    "(?:apache2?|nginx|centos|rocky|red hat|fedora|ubuntu|debian).{0,50} (?:default|test) page.{0,30}",
    "(?:test|default) page for .{0,60}",
    "iis(?: ?(?:7|8|10))?(?: windows(?: server)?)?",
    "it works",
    "(?:this )?(?:account|site|website)(?: has been| is)?(?: currently| temporarily)? suspended.{0,40}",
    "(?:default|domain default)(?: \\w+){0,3} page",
    "(?:website |site |page )?(?:is )?(?:coming soon|under construction)",
)
# Hosts from which parked pages load their content by script or frame; a mere link to one proves nothing.
PARKING_HOSTS = """
above.com afternic.com bodis.com cashparking.com dan.com domainmarket.com domainnamesales.com hugedomains.com
namebright.com parkingcrew.net parklogic.com sedo.com sedoparking.com skenzo.com smartname.com undeveloped.com
uniregistry.com voodoo.com
"""
_HOSTS = frozenset(PARKING_HOSTS.split())
_MISSING, _PARKED, _PLACEHOLDER = (re.compile("|".join(one)) for one in (MISSING, PARKED, PLACEHOLDER))


class Marks(NamedTuple):
    """Input of the rules beside the text; read before the extraction, which changes the tree."""

    title: str
    headings: tuple[str, ...]  # the first two headings
    sources: tuple[str, ...]  # addresses of scripts and frames


def page_marks(tree: HtmlElement, title: str | None) -> Marks:
    """Title, first headings, and addresses of scripts and frames of a page."""
    headings = (" ".join(element.text_content()[:MAX_LINE].split()) for element in islice(tree.iter("h1", "h2"), 2))
    sources = (element.get("src") for element in tree.iter("script", "frame", "iframe"))
    return Marks(title or "", tuple(filter(None, headings)), tuple(filter(None, sources)))


def detect_soft_404(marks: Marks, text: str) -> tuple[str, str] | None:
    """Detect a page without content by its marks and its main text.

    Returns:
        Reason `soft_404`, `parked` (parked domain) or `placeholder` (default page of a server), and detail; None for
        content.
    """
    if len(text) >= MAX_CHARACTERS:
        return None
    size = f"{len(text):,} characters of text"
    named = [marks.title[:MAX_LINE], *marks.headings]
    for line in named:
        if any(_MISSING.fullmatch(_words(part)) for part in (line, *SEGMENT.split(line))):
            return "soft_404", f"the page calls itself {line!r} in {size}"
    for line in (*named, text if len(text) < MAX_PARKED_CHARACTERS else ""):
        if found := _PARKED.search(_words(line)):
            return "parked", f"{found.group()!r} in {size}"
    for host in map(host_of, marks.sources):
        if host and ".".join(host.split(".")[-2:]) in _HOSTS:
            return "parked", f"shows what {host} sends, in {size}"
    for line in named:
        if _PLACEHOLDER.fullmatch(_words(line)):
            return "placeholder", f"the page calls itself {line!r} in {size}"
    return None


def _words(line: str) -> str:
    return NOT_WORDS.sub(" ", line.lower()).strip()
