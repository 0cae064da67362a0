"""Lines of an article that are no part of its text: title, date, links to other pages, calls to follow or subscribe."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from lxml.html import HtmlElement

from tasks.extract.blocks import LINKS, MIN_RUNNING, SENTENCE_ENDS, Block
from tasks.extract.elements import stated_title

TITLE, RELATED_PAGES, CALLS, LABEL_LINE = "title", "related", "call", "label"  # reasons for which a line is dropped
# The numbers were chosen on the gold pages; each rule raises the F1 of at least three quarters.
MAX_LINE = 100  # characters of a line that may be noise
MAX_PATH = 160  # characters of the path to a page
STEP = re.compile(r" ?[>»›] ?")
LABELLED = re.compile(r"[^:：]*[:：] ?")  # `You are here: `
MAX_HEADING = 60  # characters of a heading of links to other pages
MIN_PARAGRAPH = 100  # characters of a paragraph without links, which no list of other pages has
MAX_RELATED = 0.2  # share of the running text that may follow such a heading
MAX_TEASED = 0.5  # the same with teasers, each directly below the link to its page
MAX_CALLS = 3  # blocks at the end of an article that may be calls
MAX_CALL = 400  # characters of one
MIN_LINKED = 0.1  # of the characters of a call in links
MOSTLY = 0.9  # of the characters of a line in links
MIN_CREDITS = 3  # persons or groups with a part in an article
MAX_DATES = 3  # of one article, before its text
MIN_SAME = 3  # lines that differ in numbers at most

WORDS = re.compile(r"\w+")
YEAR = re.compile(r"\b(?:19|20)\d\d\b")
DATE_WORD = re.compile(
    r"\d+|(?:jan|feb|fév|mar|mär|apr|abr|avr|may|mai|maj|mag|jun|jui|giu|jul|lug|aug|ago|aoû|sep|set|oct|okt|out|ott|nov"
    r"|dec|dez|déc|dic|ene|gen|sty|lut|kwi|cze|lip|sie|wrz|paź|lis|gru|янв|фев|мар|апр|май|мая|июн|июл|авг|сен|окт|ноя"
    r"|дек|mon|tue|wed|thu|fri|sat|sun|die|mit|don|fre|sam|son|lun|mié|mer|gio|jeu|ven|vie|sáb|dom|dim)\w*"
    r"|[ap]m?|m|mo|di|mi|do|fr|sa|so|e[sd]?t|p[sd]?t|gmt|utc|ces?t|uhr|h|min|at|on|um|am|vom|de|of|le|la|del|the|by"
    r"|st|nd|rd|th|updated?|published|posted|first|last|modified|aktualisiert|veröffentlicht|publié|mis|jour|à|publicado"
    r"|actualizado"
)
# Labels of controls and of what stands beside a text. A line is dropped if it is a label and no more, or a label and
# what shows that no sentence follows: links, a date, a picture of which it names the author, the same line many times.
LABELS = re.compile(
    r"share|sharen|tweet|pin(?: it)?|print|e-?mail|follow|like|teilen|drucken|gef[aä]llt(?: mir)?|empfehlen|weiterlesen"
    r"|mehr lesen|read (?:more|also|next)|see also|lire aussi|leggi anche|lee tambi[eé]n|s[ií]guenos|suivez-nous"
    r"|seguici"
    r"|(?:submit|leave|post|add|view|show)(?: a| your| all)? comments?|continue reading|loading|正在加载"
    r"|fotos?|photos?|bild|image|(?:photo )?cr[eé]dits?(?: photos?)?|quelle|(?:photo )?source"
    r"|all rights reserved|alle rechte vorbehalten|tous droits réservés|copyright|©|posted (?:by|on|in)|tags?|tagged"
    r"|filed under|schlagw[oö]rter|themen|topics|categories|kategorien?|(?:first )?published|updated"
    r"|last (?:modified|updated)|related (?:news|stories|articles|posts)|ähnliche beiträge"
    r"|(?:share|print|tweet|e-?mail|follow|like)(?: this| us)?(?: (?:article|story|post|page))?"
    r"(?: (?:on|via|with|by|auf) (?:facebook|twitter|x|linkedin|e-?mail|whatsapp|pinterest|reddit|instagram|telegram))?"
    r"|\d+ min(?:utes?|uten)?(?: read| lesezeit| de lecture| de lectura)?"
    r"|advertisement|anzeige|werbung|publicit[eé]|publicidad|pubblicità|reklama",
    re.IGNORECASE,
)
ADVERTS = re.compile(LABELS.pattern[LABELS.pattern.rindex("advertisement") :], re.IGNORECASE)
LABEL = re.compile(rf"(?:{LABELS.pattern})\b(?!-\w)", re.IGNORECASE)
CREDIT = re.compile(
    r"(?:fotos?|photos?|bild(?:er)?|images?|(?:photo )?cr[eé]dits?(?: photos?)?|quellen?|(?:photo )?sources?|©"
    r"|copyright)\b",
    re.IGNORECASE,
)
SENTENCES = re.compile(r"[.!?…]\s*")
DIGITS = re.compile(r"\d+")
ADDRESS = re.compile(r"(?<!\w)@\w{2}|\w@[\w-]+\.\w|https?://|\bwww\.|\w\.(?:com|org|net)\b", re.IGNORECASE)
# In the last blocks of an article: at the start of a block or in it.
CALL = re.compile(
    r"\b(?:follow|like|find|join) (?:him|her|them|me|us|our|the author)\b.{0,60}\b(?:on|at)\b"
    r"|^(?:follow|subscribe|sign up|download|contact|e-?mail|donate|support|join|register) \b"
    r"|\b(?:can|may) be (?:reached|contacted|followed) (?:at|on|via|by)\b|(?:our|the|free|daily|weekly) newsletter\b"
    r"|^(?:additional )?reporting (?:was contributed )?by\b|^(?:written|edited|translated|compiled) by\b"
    r"|^\(?(?:with (?:reporting|files|inputs) (?:by|from))\b"
    r"|^(?:this|the) (?:article|story|post|piece|column) (?:was|is|has|first|originally)\b"
    r"|^(?:originally|first) published|\ball rights reserved\b|^copyright\b.{0,40}(?:©|\(c\)|\b\d{4}\b)|^©"
    r"|^about the author"
    r"|\b(?:folgen|abonnieren|unterstützen) sie (?:uns|unseren)\b|^(?:folge|abonniere|unterstütze) "
    r"|newsletter (?:abonnieren|anmelden)"
    r"|^(?:síguenos|siga|suscr[ií]bete|descarga|hazte)\b|^(?:suivez|abonnez|retrouvez)-|^(?:seguici|iscriviti)\b"
    r"|^(?:siga-nos|assine|inscreva-se)\b|^(?:volg|abonneer)\b",
    re.IGNORECASE,
)
CREDITS = re.compile(r"\b(?:reporting|writing|editing|compiled|translated|edited|written) by\b", re.IGNORECASE)
# Headings of links to other pages.
RELATED = re.compile(
    r"(?:related|similar|more|other|latest|recent|popular|recommended|trending|sponsored)"
    r" (?:articles?|posts?|stories|news|reading|content|videos?|links|topics|coverage)"
    r"|(?:read|see|watch) (?:also|more|next)|you (?:may|might) also (?:like|enjoy|be interested in)"
    r"|up next|keep reading|most (?:read|popular|viewed|shared)|don['’]?t miss"
    r"|trending(?: now)?|editor['’]?s['’]? (?:picks?|choice|recommendations)|recommended(?: for you)?|what to read next"
    r"|mehr zum thema|(?:das )?könnte (?:sie|dich) auch interessieren|auch interessant"
    r"|lesen sie auch|lies auch|schon gelesen|meistgelesen|meist gelesen|lust auf mehr|passend zum thema"
    r"|(?:ähnliche|verwandte|weitere|neueste|aktuelle|letzte) (?:artikel|beiträge|themen|meldungen|nachrichten)"
    r"|(?:articles|sujets|contenus) (?:similaires|liés|connexes|récents)|(?:à|a) (?:lire|voir) (?:aussi|également)"
    r"|(?:sur|dans) (?:le|la) même (?:sujet|thème|rubrique)|.{0,30}\bsur le (?:même )?sujet"
    r"|(?:articles )?les plus lus"
    r"|(?:noticias|artículos|notas|contenido) relacionad[oa]s?|(?:también )?(?:te|le) puede(?: también)? interesar"
    r"|(?:lea|lee|vea|mira) (?:también|además|más)|(?:lo )?más (?:leíd[oa]s?|vistos?|noticias)|te recomendamos"
    r"|(?:leia|veja|saiba) (?:também|mais)|(?:notícias|matérias|artigos) relacionad[oa]s|(?:as )?mais lidas"
    r"|articoli correlati|(?:leggi|vedi) anche|(?:ti )?potrebbe(?:ro)? interessar(?:e|ti)(?: anche)?"
    r"|lees (?:ook|meer|verder)|gerelateerde (?:artikelen|berichten)|meest gelezen|l[äæe]s (?:också|også|mer|mere)"
    r"|(?:zobacz|czytaj|przeczytaj) (?:też|także|również|więcej)|dowiedz się więcej|powiązane|polecamy"
    r"|похожие (?:статьи|записи|материалы)|(?:читайте|смотрите) также|самые популярные|(?:материалы )?по теме"
    r"|baca juga|artikel terkait|ilgili haberler|関連(?:記事|リンク|ニュース)|相关(?:文章|阅读|新闻|链接)"
    r"|延伸阅读|推荐阅读|精彩推荐|(?:你可能|您可能|猜你)[会也还]?(?:喜欢|感兴趣)|(?:热门|热点)(?:新闻|文章|推荐|排行).{0,4}",
    re.IGNORECASE,
)
# The same with the name of a subject or a place, which may be words of a sentence too.
RELATED_TO = re.compile(
    r"(?:related|similar|more|other|latest|recent|popular|recommended|trending|sponsored)"
    r" (?:articles?|posts?|stories|news|reading|content|from|on|in|videos?|links|topics|coverage)\b.{0,40}"
    r"|(?:read|see|watch) (?:also|more|next)\b.{0,40}|today on\b.{0,30}|most (?:read|popular|viewed|shared)\b.{0,40}"
    r"|mehr (?:zum thema|zu|aus)\b.{0,40}|самые популярные\b.{0,30}",
    re.IGNORECASE,
)


def page_titles(tree: HtmlElement, metas: Sequence[HtmlElement]) -> list[str]:
    """Titles that a page and its meta tags state, in words."""
    stated = [stated_title(tree) or ""]
    stated += [meta.get("content") or "" for meta in metas if meta.get("property") == "og:title"]
    return [f" {' '.join(WORDS.findall(one.lower()))} " for one in stated]


def is_title(block: Block, titles: Sequence[str]) -> bool:
    """Return True for a heading that is a title of the page or a part of one."""
    if block.kind != "h":
        return False
    words = " ".join(WORDS.findall(block.text.lower()))
    return bool(words) and any(f" {words} " in title for title in titles)


def holds_title(blocks: Sequence[Block], titles: Sequence[str]) -> bool:
    """Return True if a heading of blocks is a title of the page, and no link to it."""
    return any(one.kind == "h" and not one.links and is_title(one, titles) for one in blocks)


def drop_lines(blocks: Sequence[Block], titles: Sequence[str], *, are_links: bool = False) -> None:
    """Drop the lines of an article's container that are no part of its text; `are_links`: lists of links are."""
    if not are_links:
        _drop_related(blocks)
    _drop_title([one for one in blocks if not one.dropped], titles)
    _drop_calls([one for one in blocks if not one.dropped])
    _drop_labels(blocks)


def _drop_title(blocks: Sequence[Block], titles: Sequence[str]) -> None:
    """Drop the title and the date before the text, which have columns of their own, and the path to the page.

    Many dates are those of what the page lists.
    """
    first = next((number for number, one in enumerate(blocks) if one.running > MIN_RUNNING), len(blocks))
    dates = {one.text for one in blocks[:first] if is_date(one)}
    for one in blocks[:first]:
        if is_title(one, titles) or (one.text in dates and len(dates) <= MAX_DATES):
            one.dropped = TITLE
        elif _is_path(one):
            one.dropped = LINKS


def _is_path(block: Block) -> bool:
    """Return True for links to the sections of a page, `You are here: Home > News > Town`, and no sentence with one."""
    first, *inner = STEP.split(block.text)[:-1] or [""]
    linked = len(LABELLED.sub("", first)) + sum(map(len, inner))
    is_line = block.kind in ("", "p", "td") and block.size <= MAX_PATH and not block.text.endswith(SENTENCE_ENDS)
    return is_line and 0 < linked * block.size // len(block.text) <= block.links


def is_date(block: Block) -> bool:
    """Return True for a line that is a date, with or without a time."""
    return block.size <= MAX_HEADING and is_date_text(block.text)


def is_date_text(text: str) -> bool:
    """Return True for words of dates and times alone, a year among them."""
    return YEAR.search(text) is not None and all(map(DATE_WORD.fullmatch, WORDS.findall(text.lower())))


def _drop_related(blocks: Sequence[Block]) -> None:
    """Drop a heading of links to other pages and what follows it, if that has links, little text and no paragraph.

    A heading that the page has several times, for example for each function of a manual, is of its text; so are the
    last sentences without a link, after a line that is no heading.
    """
    headings = Counter(one.text for one in blocks if one.kind == "h")
    after, teased, links, total, end = 0, 0, 0, sum(one.running for one in blocks if not one.dropped), len(blocks)
    for number in range(len(blocks) - 1, 0, -1):
        one = blocks[number]
        if one.dropped:
            links += one.links
            continue
        after += one.running
        teased += one.running if 0 < blocks[number - 1].size == blocks[number - 1].links else 0  # below a link
        if (
            after > MAX_TEASED * total
            or after - teased > MAX_RELATED * total
            or (one.kind == "p" and one.size > MIN_PARAGRAPH and not one.links)
        ):
            break
        may_head = one.size <= MAX_HEADING and one.kind not in ("pre", "td", "li") and headings[one.text] < 2
        if links and may_head and _is_related(_words(one)):
            end = number
        links += one.links
    is_line = end < len(blocks) and blocks[end].kind == "p"  # below a heading are teasers
    last = itertools.takewhile(
        lambda one: is_line and one.kind == "p" and not one.links and one.text.endswith(SENTENCE_ENDS),
        reversed(blocks[end:]),
    )
    for one in blocks[end : len(blocks) - len(list(last))]:
        one.dropped = one.dropped or RELATED_PAGES


def _is_related(words: str) -> bool:
    return RELATED.fullmatch(words) is not None or RELATED_TO.fullmatch(words) is not None


def _drop_calls(blocks: Sequence[Block]) -> None:
    """Drop the last blocks that name the author, or ask to follow or subscribe, and the links after them."""
    is_after = False
    for one in blocks[max(len(blocks) - MAX_CALLS, 1) :]:
        is_after = one.kind != "pre" and one.size <= MAX_CALL and (_is_call(one) or (is_after and one.links > 0))
        if is_after:
            one.dropped = CALLS


def _is_call(block: Block) -> bool:
    """Return True for a call with an address, a link that is a good part of it, a date, or a second call in it."""
    calls = CALL.findall(block.text)
    if not calls:
        return False
    has_link = MIN_LINKED * block.size <= block.links or ADDRESS.search(block.text) is not None
    return has_link or len(calls) > 1 or is_date(block) or len(CREDITS.findall(block.text)) >= MIN_CREDITS


def _drop_labels(blocks: Sequence[Block]) -> None:
    """Drop the lines that are a label; of a list only all items of it, and no heading of a text."""
    shown = [one for one in blocks if not one.dropped or one.dropped == LINKS]
    lines: Counter[str] = Counter()
    labels = [not one.dropped and _is_label(one, shown, number, lines) for number, one in enumerate(shown)]
    if not any(labels):
        return
    start = 0
    for is_item, group in itertools.groupby(shown, key=lambda one: one.kind == "li" and not one.dropped):
        end = start + len(list(group))
        if is_item and not all(labels[start:end]):
            labels[start:end] = [not any(map(str.isalnum, one.text)) for one in shown[start:end]]
        start = end
    for number, one in enumerate(shown):
        if labels[number] and not _is_heading_of(one, shown[number + 1 : number + 2]):
            one.dropped = LABEL_LINE


def _is_heading_of(block: Block, after: Sequence[Block]) -> bool:
    """Return True for a heading of one everyday word, as `Topics`, with a text after it."""
    if block.kind != "h" or not after or after[0].dropped or after[0].kind == "h" or after[0].links:
        return False
    words = _words(block)
    return words.isalpha() and not (ADVERTS.fullmatch(words) or _is_related(words))


def _is_label(block: Block, shown: Sequence[Block], number: int, lines: Counter[str]) -> bool:
    """Return True for a short line that asks to share, names a photographer, or the like.

    Args:
        block: the line.
        shown: all blocks of the container.
        number: place of the line in them.
        lines: counts of the short lines without their digits; filled when it is needed.
    """
    if block.size > MAX_LINE or block.kind in ("pre", "td"):
        return False
    words = _words(block)
    found = LABEL.match(words)
    if (found and LABELS.fullmatch(words)) or (RELATED.fullmatch(words) and block.kind != "li"):
        return True
    is_sentence = block.text.endswith(SENTENCE_ENDS)
    if not is_sentence and len(words) <= MAX_HEADING and RELATED_TO.fullmatch(words):
        after = shown[number + 1 : number + 2]
        return not after or after[0].links > 0 or not after[0].running or 2 * block.links > block.size
    if found is None:
        return not any(map(str.isalnum, block.text))
    rest = words[found.end() :]
    named = rest.lstrip(" :：-–|,()")
    if is_date_text(named):
        return True
    if block.links >= MOSTLY * block.size or (rest.lstrip()[:1] in (":", "：") and block.links >= len(named)):
        return True
    if " " in found.group() and 2 * block.links >= block.size:
        return True
    if is_sentence:
        parts = [part for part in SENTENCES.split(words) if part]
        return len(parts) > 1 and all(map(LABEL.match, parts))
    is_credit = CREDIT.match(words) and (rest.lstrip()[:1] in tuple(":：(–-/|") or block.text[0] == "(")
    if is_credit and (block.pictured or _is_last(shown[number:])):
        return True
    if not lines:
        lines.update(DIGITS.sub("0", one.text) for one in shown if one.size <= MAX_LINE)
    return lines[DIGITS.sub("0", block.text)] >= MIN_SAME


def _is_last(blocks: Sequence[Block]) -> bool:
    return not any(one.running > MIN_RUNNING and not one.dropped for one in blocks)


def _words(block: Block) -> str:
    """Text of a block without the characters around its words."""
    return block.text.strip("-–—•*|> \t[](){}:.!?…【】«»")
