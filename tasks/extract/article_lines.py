"""Lines of an article that are no part of its text: title, date, links to other pages, calls to follow or subscribe."""

import re
from collections.abc import Sequence

from lxml.html import HtmlElement

from tasks.extract.blocks import MIN_RUNNING, Block

# The numbers were chosen on the gold pages; each rule raises the F1 of at least three quarters.
MAX_LINE = 100  # characters of a line that may be noise
MAX_HEADING = 60  # characters of a heading of links to other pages
MIN_PARAGRAPH = 100  # characters of a paragraph without links, which no list of other pages has
MAX_RELATED = 0.2  # share of the running text that may follow such a heading
MAX_CALLS = 3  # blocks at the end of an article that may be calls
MAX_CALL = 400  # characters of one

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
# At the start of a block or in it.
CALL = re.compile(
    r"\b(?:follow|like|find|join) (?:him|her|them|me|us|our|the author)\b.{0,60}\b(?:on|at)\b"
    r"|^(?:follow|subscribe|sign up|download|contact|e-?mail|donate|support|join|register) \b"
    r"|\b(?:can|may) be (?:reached|contacted|followed) (?:at|on|via|by)\b|(?:our|the|free|daily|weekly) newsletter\b"
    r"|^(?:additional )?reporting (?:was contributed )?by\b|^(?:written|edited|translated|compiled) by\b"
    r"|^\(?(?:with (?:reporting|files|inputs) (?:by|from))\b"
    r"|^(?:this|the) (?:article|story|post|piece|column) (?:was|is|has|first|originally)\b"
    r"|^(?:originally|first) published|\ball rights reserved\b|^copyright\b|^©|^about the author"
    r"|\b(?:folgen|abonnieren|unterstützen) sie (?:uns|unseren)\b|^(?:folge|abonniere|unterstütze) "
    r"|newsletter (?:abonnieren|anmelden)"
    r"|^(?:síguenos|siga|suscr[ií]bete|descarga|hazte)\b|^(?:suivez|abonnez|retrouvez)-|^(?:seguici|iscriviti)\b"
    r"|^(?:siga-nos|assine|inscreva-se)\b|^(?:volg|abonneer)\b",
    re.IGNORECASE,
)
# Headings of links to other pages.
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
    r"|baca juga|artikel terkait|ilgili haberler|関連(?:記事|リンク|ニュース)|相关(?:文章|阅读|新闻|链接)"
    r"|延伸阅读|推荐阅读",
    re.IGNORECASE,
)


def page_titles(tree: HtmlElement) -> list[str]:
    """Titles that a page states, in words."""
    stated = [tree.findtext(".//title") or ""]
    stated += [meta.get("content") or "" for meta in tree.iter("meta") if meta.get("property") == "og:title"]
    return [f" {' '.join(WORDS.findall(one.lower()))} " for one in stated]


def is_title(block: Block, titles: Sequence[str]) -> bool:
    """Return True for a heading that is a title of the page or a part of one."""
    if block.kind != "h":
        return False
    words = " ".join(WORDS.findall(block.text.lower()))
    return bool(words) and any(f" {words} " in title for title in titles)


def clean_article(blocks: list[Block], titles: Sequence[str]) -> list[Block]:
    """Blocks of an article without the lines that are no part of its text."""
    text = _without_calls(_without_title(_without_related(blocks), titles))
    return [one for one in text if not _is_noise(one)]


def _without_title(blocks: list[Block], titles: Sequence[str]) -> list[Block]:
    """Blocks without the title and the date before the text; both have a column of their own."""
    first = next((number for number, one in enumerate(blocks) if one.running > MIN_RUNNING), len(blocks))
    return [one for one in blocks[:first] if not (is_title(one, titles) or is_date(one))] + blocks[first:]


def is_date(block: Block) -> bool:
    """Return True for a line that is a date, with or without a time."""
    if block.size > MAX_HEADING or not YEAR.search(block.text):
        return False
    return all(map(DATE_WORD.fullmatch, WORDS.findall(block.text.lower())))


def _without_related(blocks: list[Block]) -> list[Block]:
    """Blocks before a heading of links to other pages, if little text and no paragraph follows it."""
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
    """Blocks without the last ones that name the author, or ask to follow or subscribe."""
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
    if NOISE.fullmatch(words) or (len(words) <= MAX_HEADING and RELATED.fullmatch(words)):
        return True
    return not any(map(str.isalnum, block.text))


def _words(block: Block) -> str:
    """Text of a block without the characters around its words."""
    return block.text.strip("-–—•*|> \t[](){}:.!?…【】«»")
