"""Main text of a page by its structure: the blocks of the container that holds most of the running text.

The page is read once (`blocks`); its type (`page_type`) decides which classes mark boilerplate (`attribute_rules`) and
how the container is chosen. Lists keep their markers, tables a row a line, code its lines and indentation.
"""

import re
from collections.abc import Sequence

from lxml.etree import ElementDefaultClassLookup, ParserError
from lxml.html import HtmlElement, HTMLParser, document_fromstring

from tasks.extract.attribute_rules import BOILERPLATE, FORUM_PARTS, NAVIGATION, AttributeRules
from tasks.extract.blocks import HIDDEN, KEPT, MARKED, MIN_RUNNING, TOC, Block, Walk, page_blocks
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM, page_type

PARSER = HTMLParser(collect_ids=False, encoding="utf-8", remove_comments=True, remove_pis=True)
PARSER.set_element_class_lookup(ElementDefaultClassLookup(element=HtmlElement))  # lxml.html's is a function in Python
CONTROLS = bytes(code for code in range(32) if chr(code) not in "\t\n\f\r")  # libxml2 ends a text at some of them

RULES = {
    ARTICLE: AttributeRules(BOILERPLATE),
    DOCUMENTATION: AttributeRules(NAVIGATION),
    FORUM: AttributeRules(FORUM_PARTS),
}
# The numbers below were chosen on three quarters of the gold pages; benchmarks/extract_engines.py has the others too.
LEVELS = 5  # of candidates, see `attribute_rules.LEVELS`
MIN_TEXT = 250  # characters of running text of a main content
MIN_SHARE = 0.4  # of the page's running text in it
MIN_PART = 0.2  # running text of a further part of it, relative to the largest part
MOST = 0.9  # share of the running text in the main content of documentation and forums
LEAD_BLOCKS = 6  # blocks before the main content that may introduce it
MAX_TEASER = 5  # blocks of an announcement of another page
MIN_LEAD = 150  # characters of an introduction; shorter ones are standfirsts
MAX_LINE = 100  # characters of a line that may be noise
MAX_HEADING = 60  # characters of a heading of links to other pages
MIN_PARAGRAPH = 100  # characters of a paragraph without links, which no list of other pages has
MAX_RELATED = 0.2  # share of the running text that may follow such a heading

WORDS = re.compile(r"\w+")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
MONTHS = frozenset(
    "jan feb fév mar mär apr abr avr may mai maj mag jun jui giu jul lug aug ago aoû sep set oct okt out ott nov dec dez déc dic"
    " ene gen sty lut kwi cze lip sie wrz paź lis gru янв фев мар апр май мая июн июл авг сен окт ноя дек"
    " mon tue wed thu fri sat sun mo di mi do fr sa so lun mar mié mer gio jeu ven vie sáb dom dim sam".split()
)
DATE_WORDS = frozenset(
    "am pm a m p et est edt pst pdt pt gmt utc cet cest uhr h min at on um am vom de of le la del the by st nd rd th updated"
    " update published posted first last modified aktualisiert veröffentlicht publié mis jour à publicado actualizado".split()
)
NOISE = re.compile(
    r"(?:\d+ min(?:utes?|uten)? |share|sharen|tweet|pin|print|e-?mail|follow|like|teilen|drucken|gef[aä]llt|empfehlen"
    r"|weiterlesen|mehr lesen|lesen sie|read (?:more|also|next)|see also|lire aussi|leggi anche|lee tambi[eé]n"
    r"|s[ií]guenos|follow us|suivez|seguici|(?:submit|leave|post|add|view|show)(?: a| your| all)? comments?"
    r"|continue reading|loading|正在加载|advertisement|anzeige|werbung|publicit[eé]|publicidad|pubblicità|reklama"
    r"|foto|photo|bild|image|cr[eé]dits? photos?|fotos|photos|quelle|source|all rights reserved"
    r"|alle rechte vorbehalten|tous droits|copyright|©|posted (?:by|on|in)|tags?|tagged|filed under|schlagw[oö]rter"
    r"|themen|topics|categories|kategorien?|published|last (?:modified|updated)"
    r"|related (?:news|stories|articles|posts)|ähnliche beiträge)\b.{0,80}",
    re.IGNORECASE,
)
CALL = re.compile(
    r"\b(?:follow|like|find|join) (?:him|her|them|me|us|our|the author)\b.{0,60}\b(?:on|at|@)"
    r"|^(?:follow|subscribe|sign up|download|contact|e-?mail|donate|support|join|register) \b"
    r"|\b(?:can|may) be (?:reached|contacted|followed) (?:at|on|via|by)\b|(?:our|the|free|daily|weekly) newsletter\b"
    r"|^(?:additional )?reporting (?:was contributed )?by\b|^(?:written|edited|translated|compiled) by\b"
    r"|^\(?(?:with (?:reporting|files|inputs) (?:by|from))\b|^(?:this|the) (?:article|story|post|piece|column) (?:was|is|has|first|originally)"
    r"|^(?:originally|first) published|\ball rights reserved\b|^copyright\b|^©|^about the author"
    r"|\b(?:folgen|abonnieren|unterstützen) sie (?:uns|unseren)\b|^(?:folge|abonniere|unterstütze) |newsletter (?:abonnieren|anmelden)"
    r"|^(?:síguenos|siga|suscr[ií]bete|descarga|hazte)\b|^(?:suivez|abonnez|retrouvez)-|^(?:seguici|iscriviti)\b"
    r"|^(?:siga-nos|assine|inscreva-se)\b|^(?:volg|abonneer)\b",
    re.IGNORECASE,
)
MAX_CALLS = 3  # blocks at the end of an article
MAX_CALL = 400  # characters
RELATED = re.compile(
    r"(?:related|similar|more|other|latest|recent|popular|recommended|trending|sponsored)"
    r" (?:articles?|posts?|stories|news|reading|content|from|on|in|videos?|links|topics|coverage)\b.{0,40}"
    r"|(?:read|see|watch) (?:also|more|next)\b.{0,40}|you (?:may|might) also (?:like|enjoy|be interested in)"
    r"|today on\b.{0,30}|up next|keep reading|most (?:read|popular|viewed|shared)\b.{0,40}|don['’]?t miss"
    r"|trending(?: now)?|editor['’]?s['’]? (?:picks?|choice|recommendations)|recommended(?: for you)?|what to read next"
    r"|mehr (?:zum thema|zu|aus)\b.{0,40}|(?:das )?könnte (?:sie|dich) auch interessieren|auch interessant"
    r"|lesen sie auch|lies auch|schon gelesen|meistgelesen|meist gelesen|lust auf mehr|passend zum thema"
    r"|(?:ähnliche|verwandte|weitere|neueste|aktuelle|letzte) (?:artikel|beiträge|themen|meldungen|nachrichten)"
    r"|(?:articles|sujets|contenus) (?:similaires|liés|connexes|récents)|(?:à|a) (?:lire|voir) (?:aussi|également)"
    r"|(?:sur|dans) (?:le|la) même (?:sujet|thème|rubrique)|.{0,30}\bsur le (?:même )?sujet|(?:articles )?les plus lus"
    r"|(?:noticias|artículos|notas|contenido) relacionad[oa]s?|(?:también )?(?:te|le) puede(?: también)? interesar"
    r"|(?:lea|lee|vea|mira) (?:también|además|más)|(?:lo )?más (?:leíd[oa]s?|vistos?|noticias)|te recomendamos"
    r"|(?:leia|veja|saiba) (?:também|mais)|(?:notícias|matérias|artigos) relacionad[oa]s|(?:as )?mais lidas"
    r"|articoli correlati|(?:leggi|vedi) anche|(?:ti )?potrebbe(?:ro)? interessar(?:e|ti)(?: anche)?"
    r"|lees (?:ook|meer|verder)|gerelateerde (?:artikelen|berichten)|meest gelezen|l[äæe]s (?:också|også|mer|mere)"
    r"|(?:zobacz|czytaj|przeczytaj) (?:też|także|również|więcej)|dowiedz się więcej|powiązane|polecamy"
    r"|похожие (?:статьи|записи|материалы)|(?:читайте|смотрите) также|самые популярные\b.{0,30}|(?:материалы )?по теме"
    r"|baca juga|artikel terkait|ilgili haberler|関連(?:記事|リンク|ニュース)|相关(?:文章|阅读|新闻|链接)|延伸阅读|推荐阅读",
    re.IGNORECASE,
)


def parse(html: str) -> HtmlElement | None:
    """Parse a page; None if there is nothing in it."""
    try:
        return document_fromstring(html.encode("utf-8", "replace").translate(None, CONTROLS), parser=PARSER)
    except ParserError:
        return None


def structured_text(tree: HtmlElement, tables: bool = True) -> str:
    """Main text of a page, a block a line; "" if it has none."""
    kind = page_type(tree)
    walk = page_blocks(tree, RULES[kind], kind, tables)
    if kind == ARTICLE:
        titles = _titles(tree)
        start, end = _best_container(walk, titles)
        text = _without_related(_article(walk.blocks[start:end]))
        text = _without_calls(_without_title(text, titles))
        kept = [*_lead(walk.blocks[:start]), *(one for one in text if not _is_noise(one))]
    else:
        start, end = _smallest_container(walk)
        kept = [*_title(walk.blocks[:start]), *_with_contents(walk.blocks[start:end])]
    while kept and kept[-1].kind == "h":  # a heading without text
        kept.pop()
    return "\n".join(one.text for one in kept)


def _titles(tree: HtmlElement) -> list[str]:
    """Titles that a page states, in words."""
    stated = [tree.findtext(".//title") or ""]
    stated += [meta.get("content") or "" for meta in tree.iter("meta") if meta.get("property") == "og:title"]
    return [f" {' '.join(WORDS.findall(one.lower()))} " for one in stated]


def _is_title(block: Block, titles: Sequence[str]) -> bool:
    """Return True for a heading that is a title of the page or a part of one."""
    if block.kind != "h":
        return False
    words = " ".join(WORDS.findall(block.text.lower()))
    return bool(words) and any(f" {words} " in title for title in titles)


def _is_date(block: Block) -> bool:
    """Return True for a line that is a date, with or without a time."""
    if block.size > MAX_HEADING or not YEAR.search(block.text):
        return False
    words = WORDS.findall(block.text.lower())
    return all(word.isdigit() or word[:3] in MONTHS or word in DATE_WORDS for word in words)


def _without_title(blocks: list[Block], titles: Sequence[str]) -> list[Block]:
    """Blocks of an article without the title and the date before its text."""
    first = next((number for number, one in enumerate(blocks) if one.running > MIN_RUNNING), len(blocks))
    kept = [one for one in blocks[:first] if not (_is_title(one, titles) or _is_date(one))]
    return kept + blocks[first:]


def _running(blocks: Sequence[Block]) -> int:
    """Characters of running text of blocks that are not dropped."""
    return sum(one.running for one in blocks if not one.dropped)


def _best_container(walk: Walk, titles: Sequence[str]) -> tuple[int, int]:
    """First and last block of an article's main content: the strongest kind of container that holds enough text."""
    for level in range(LEVELS):
        found = [
            (_running(walk.blocks[one.start : one.end]), one)
            for one in walk.candidates
            if one.level == level and not _is_teaser(walk.blocks[one.start : one.end], titles)
        ]
        if not found:
            continue
        size, best = max(found, key=lambda pair: pair[0])
        # A text may be divided into several containers of one kind.
        alike = [
            one
            for own, one in found
            if own >= MIN_PART * size and (level == 0 or (one.tag, one.name) == (best.tag, best.name))
        ]
        start, end = min(one.start for one in alike), max(one.end for one in alike)
        joint = _running(walk.blocks[start:end])
        if len(alike) == 1 or joint <= 1.1 * size:
            start, end, joint = best.start, best.end, size
        if joint >= MIN_TEXT and joint >= MIN_SHARE * walk.running:
            return start, end
    return 0, len(walk.blocks)


def _is_teaser(blocks: Sequence[Block], titles: Sequence[str]) -> bool:
    """Return True for a short container whose heading is a link to another page."""
    if len(blocks) > MAX_TEASER:
        return False
    first = next((one for one in blocks if one.kind == "h"), None)
    return first is not None and 2 * first.links > first.size and not _is_title(first, titles)


def _smallest_container(walk: Walk) -> tuple[int, int]:
    """First and last block of the smallest container that holds nearly all running text."""
    fitting = [one for one in walk.candidates if _running(walk.blocks[one.start : one.end]) >= MOST * walk.running]
    best = min(fitting, key=lambda one: one.end - one.start, default=None)
    return (best.start, best.end) if best else (0, len(walk.blocks))


def _lead(before: Sequence[Block]) -> list[Block]:
    """Introduction of an article, which is often outside the container of its body."""
    near = before[-LEAD_BLOCKS:]
    return [one for one in near if not one.dropped and one.kind in "ph" and one.size >= MIN_LEAD and not one.links]


def _title(before: Sequence[Block]) -> list[Block]:
    """Heading and summary of a page, if they are right before its text."""
    near = [one for one in before if not one.dropped][-LEAD_BLOCKS:]
    first = next((number for number, one in enumerate(near) if one.kind == "h"), len(near))
    return [one for one in near[first:] if one.kind in ("h", "p")]


def _article(blocks: Sequence[Block]) -> list[Block]:
    """Blocks of an article that are not dropped; also the marked ones if they hold most of the text."""
    kept = [one for one in blocks if not one.dropped]
    for reasons in ((MARKED,), (MARKED, HIDDEN)):
        if sum(one.running for one in blocks if one.dropped == reasons[-1]) > 2 * sum(one.running for one in kept):
            kept = [one for one in blocks if one.dropped in (KEPT, *reasons)]
            break
    return kept


def _with_contents(blocks: Sequence[Block]) -> list[Block]:
    """Blocks that are not dropped; of a page that is mostly a table of contents, also this."""
    kept = [one for one in blocks if not one.dropped]
    if sum(one.size for one in blocks if one.dropped == TOC) > sum(one.size for one in kept):
        kept = [one for one in blocks if one.dropped in (KEPT, TOC)]
    return kept


def _without_related(blocks: list[Block]) -> list[Block]:
    """Blocks before a heading of links to other pages, if little text follows it."""
    after, total, end = 0, sum(one.running for one in blocks), len(blocks)
    for number in range(len(blocks) - 1, 0, -1):
        one = blocks[number]
        after += one.running
        if after > MAX_RELATED * total or (one.kind == "p" and one.size > MIN_PARAGRAPH and not one.links):
            break
        if one.size <= MAX_HEADING and one.kind not in ("pre", "td") and RELATED.fullmatch(_words(one)):
            end = number
    return blocks[:end]


def _without_calls(blocks: list[Block]) -> list[Block]:
    """Blocks without the last ones that tell of the author, or ask to follow or subscribe."""
    end = len(blocks)
    for number in range(len(blocks) - 1, max(len(blocks) - 1 - MAX_CALLS, 0), -1):
        one = blocks[number]
        if one.size <= MAX_CALL and one.kind != "pre" and CALL.search(one.text):
            end = number
    return blocks[:end]


def _is_noise(block: Block) -> bool:
    """Return True for a short line that asks to share, names a photographer, or the like."""
    if block.size > MAX_LINE or block.kind in ("pre", "td"):
        return False
    words = _words(block)
    return bool(NOISE.fullmatch(words) or len(words) <= MAX_HEADING and RELATED.fullmatch(words)) or not any(
        map(str.isalnum, block.text)
    )


def _words(block: Block) -> str:
    """Text of a block without the characters around its words."""
    return block.text.strip("-–—•*|> \t[](){}:.!?…【】«»")
