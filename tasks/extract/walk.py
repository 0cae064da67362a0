"""One walk over the tree of a page: each paragraph, heading, list item, table row and code block once.

A class that marks boilerplate is a statement on a container: an inline element of it is dropped only as a line.
"""

import itertools
import sys
from collections import defaultdict
from functools import cached_property

from lxml.html import HtmlElement

from gpt2train.data.text_units import without_invisible
from tasks.extract.attribute_names import CONTAINERS, DROPPED_TAGS, OWN_LINES
from tasks.extract.attribute_rules import NEUTRAL, AttributeRules, Verdict
from tasks.extract.blocks import (
    ASKED,
    BLOCK_TAGS,
    CODE,
    COMMENT,
    FIGURE,
    FORM,
    HIDDEN,
    KEPT,
    LINKS,
    LISTS,
    MARKED,
    MIN_LONG,
    MIN_LONG_PROSE,
    PERMALINK,
    SENTENCE_ENDS,
    TABLE,
    TAG,
    TOC,
    Block,
    Contents,
    is_contents,
    is_described,
    is_guidance,
    is_long,
    is_mostly_code,
    is_prose,
    is_recipe,
    is_sentence,
    letters,
)
from tasks.extract.candidates import Candidates
from tasks.extract.code_text import SCRIPTS, code_text, is_code
from tasks.extract.doubts import Doubt, has_letters, unsupported
from tasks.extract.elements import (
    CELLS,
    PICTURES,
    QUESTIONS,
    annotated_verses,
    asks_for_person,
    described,
    holds_block,
    holds_input,
    holds_main,
    is_attribution,
    is_caption_of_lines,
    is_heading,
    is_layout,
    is_link_to_page,
    is_mostly_links,
    is_of_column,
    is_of_series,
    is_picture,
    is_plain,
    is_question,
    is_short,
    is_slug,
    is_text,
    kind_of,
    leads_elsewhere,
    may_be_page,
    own_site,
    quotation_marks,
    shown_parts,
    shown_text,
)
from tasks.extract.formulas import formula_text, image_text, only_formula, script_marks, script_text, wrapped_text
from tasks.extract.opened import Opened
from tasks.extract.page_type import ARTICLE, DOCUMENTATION, FORUM

TITLE = "headertitle"  # class of titles in Doxygen, which has elements of its own for them
SUBTITLES = ("sub-title", "subTitle")  # of Javadoc: module and package, above the name of the class
# Containers whose share of links is tested when they end.
WEIGHED = frozenset(["div", "section", "ul", "ol", "dl", "p", "table", "header", "form", "figure", "article", "center"])
FORMULAS = {"math": formula_text, "mjx-container": wrapped_text}
CONTROLS = ("button", "output")
DROPPED_BLOCKS = frozenset(["dialog", "figcaption", "footer", "menu", "nav"])
PERMALINKS = frozenset("#¶§🔗")  # signs that link to the heading beside them
MAX_DROPPED = 400  # characters of running text of a container that is dropped without a look at the whole page
MIN_ARTICLE = 250  # characters of running text on which comments may be
MAX_AFTER = 20  # elements after a commented part of a text, among which the next part is
MAX_CARD = 500  # characters of a card, an announcement under a link without text
CARDS = frozenset(["div", "li", "article", "section"])
MAX_FRAMES = 5 * 2048  # of the walk: five an inline element that is marked, on at most 2,048 levels (libxml2)
MOST_OF_PAGE = 0.8  # of its text in a form that is the page
MAX_FORM = 500  # characters of a form that is no text; some sites are one form


class Walk:
    """One pass over the elements of a page.

    Args:
        rules: rules by tag and attributes.
        page: type of the page.
        tables: keep the text of tables.
        account: note also what is not read.

    Attributes:
        blocks: all blocks, in order.
        cards: announcements under a link without text, by their tag and class.
        commented: block after the container of both a text and its comments; 0 if there is none.
        doubtful: containers that are dropped for a reason unless the whole page speaks against it, inner ones first.
        marked: containers of a name that marks boilerplate, by their tag and class, with the reason to drop them.
        posts: first and last block of each post of a forum, inner containers before outer ones.
        candidates: containers that may hold the main content, inner ones first.
        asides: asides that are text.
        boxes: containers of several blocks with most of the running text up to their ends, inner ones first.
        linked: containers that were dropped for their links, by their tag.
        recipes: parts of recipes with a list, no part inside another.
        sources: lists of links in an order, or to other sites, which are text if they stand in one.
        size, links, running: characters of the blocks that are not dropped.
        left_out: for an account, place among the blocks, text, reason and element of what makes no block; else None.
        dialogs: marked containers whose name is that of a dialog.
        dialog: first and last block of the one that has the page's title and a text, over another page.
        causes: for an account, first and last block, reason and element of the containers that were dropped.
    """

    def __init__(
        self, tree: HtmlElement, rules: AttributeRules, page: str, tables: bool = True, account: bool = False
    ) -> None:
        self.rules, self.page, self.tables = rules, page, tables
        self.blocks: list[Block] = []
        self.posts: list[tuple[int, int]] = []
        self.candidates = Candidates()
        self.asides: list[Contents] = []
        self.linked: list[tuple[str, Contents]] = []
        self.recipes: list[Contents] = []
        self.sources: list[Contents] = []
        self.boxes: list[Contents] = []
        self.size = self.links = self.running = self.overlays = 0
        self.dialogs: set[Contents] = set()
        self.dialog: tuple[int, int] | None = None
        self.level = sys.maxsize
        self.commented = 0
        self._commented = 0  # characters of running text before comments whose container has not ended
        self._pieces: list[str] = []  # of the block that is being read
        self._linked = self._in_links = 0  # letters of links in them; depth of links
        self._marker = ""  # of the list item that begins
        self._doubts: list[Doubt] = []  # pieces that are words of a sentence, or nothing
        self._in_doubt = self._pictured = False
        self._opened = Opened(tree, rules)
        self._article: int | None = None  # characters of running text before the first comments
        self._mains = 0  # main parts, as the page states them, that were read
        self.left_out: list[tuple[int, str, str, str]] | None = [] if account else None
        self.causes: list[tuple[int, int, str, str]] = []
        self.headings: list[Contents] = []  # those whose class marks boilerplate, and questions
        self.cards: defaultdict[tuple[str, str | None], list[Contents]] = defaultdict(list)
        self.doubtful: list[tuple[Contents, str]] = []
        self.marked: defaultdict[tuple[str, str], list[tuple[Contents, str]]] = defaultdict(list)

    def read(self, element: HtmlElement, kind: str) -> None:
        """Read the text and the children of an element, but not its tail."""
        # Written out for text before and after each child: a page has 500 elements, and a call for each piece takes
        # a tenth of the time of the walk.
        pieces = self._pieces
        if text := element.text:
            if self._in_links:
                self._linked += letters(text)
            if pieces or not text.isspace():  # white space at the start of a block is none of its text
                pieces.append(text)
        for child in element:
            tag = child.tag
            if tag not in DROPPED_TAGS:
                if isinstance(tag, str):
                    self._element(child, tag, kind)
            else:
                self._read_sometimes(child, tag, kind)
            if text := child.tail:
                if self._in_links:
                    self._linked += letters(text)
                if pieces or not text.isspace():
                    pieces.append(text)

    def flush(self, kind: str) -> None:
        """End the current block."""
        links, self._linked = self._linked, 0
        if not self._pieces:
            return
        if self._doubts:
            for one in unsupported(self._pieces, self._doubts):
                text = "".join(self._pieces[one.start : one.end])
                self._leave_out(one.element, TAG if one.is_control else MARKED, text)
                del self._pieces[one.start : one.end]
                links -= one.links
            self._doubts.clear()
        text = "".join(self._pieces)
        self._pieces.clear()
        if not text.isascii():
            text = without_invisible(text)
        if text := " ".join(text.split()).removesuffix(" |"):
            if kind == "h" and self.page == FORUM:  # posts are the items of a list in some templates
                self._marker = ""
            self._add(Block(self._marker + text, kind, links))
            self._marker = ""

    def _element(self, element: HtmlElement, tag: str, kind: str) -> None:
        if tag in BLOCK_TAGS:
            verdict = self.rules.verdict(element, tag)
            if tag == "aside" and self.page == DOCUMENTATION and is_plain(element):
                verdict = NEUTRAL  # a sidebar of docutils, which stands in the text
            if verdict.drop or (tag == "table" and not self.tables):
                self.flush(kind)
                self._leave_out(element, TAG if verdict.drop else TABLE)
            elif verdict.formula or (verdict.hidden and only_formula(element) is not None):
                self.flush(kind)
                self._pieces.append(wrapped_text(element))
                self.flush(kind)
            else:
                self._container(element, tag, verdict, kind)
            return
        if tag == "br":
            self.flush(kind)
        elif tag in FORMULAS:
            self._pieces.append(FORMULAS[tag](element))
        elif element.text or len(element):
            self._inline(element, tag, kind)
        elif tag == "img":
            self._note_picture()
            self._pieces += filter(None, [image_text(element)])
        elif tag == "a" and element.get("href"):
            self.overlays += 1

    def _inline(self, element: HtmlElement, tag: str, kind: str) -> None:
        if tag == "a" and element.text in PERMALINKS and (element.get("href") or "").startswith("#"):
            self._leave_out(element, PERMALINK)
            return
        verdict = self.rules.verdict(element, tag)
        if verdict.post or (tag == "code" and element.find("br") is not None):
            self._container(element, tag, verdict, kind)
        elif verdict is NEUTRAL or not (verdict.drop or verdict.marked or verdict.hidden or verdict.formula):
            if tag in SCRIPTS or tag == "q":
                marks = quotation_marks if tag == "q" else script_marks
                before, after = marks(element, "".join(self._pieces[-2:]))
                self._pieces += filter(None, [before])
                self.read(element, kind)
                self._pieces += filter(None, [after])
            else:
                is_link = tag == "a" and is_link_to_page(element) and element.getparent() not in self._verses
                # A space, not a new block: a doubt notes the pieces of one block.
                space = [" "] if OWN_LINES.search(element.get("style") or "") else []
                self._pieces += space
                self._in_links += is_link
                self.read(element, kind)
                self._in_links -= is_link
                self._pieces += space
        elif verdict.formula:
            self._pieces.append(wrapped_text(element))
        elif verdict.drop:
            self._leave_out(element, TAG)
        else:
            self._marked_words(element, verdict, kind)

    def _marked_words(self, element: HtmlElement, verdict: Verdict, kind: str) -> None:
        """Read an inline element that is hidden, or whose class marks boilerplate, if it is text all the same."""
        if verdict.hidden and (formula := only_formula(element)) is not None:
            self._pieces.append(formula_text(formula))
        elif holds_block(element):
            self._container(element, element.tag, verdict, kind)
        elif element.tag == "a" and "aria-expanded" in element.attrib and is_question(element):
            self._question(element, kind)
        elif verdict.hidden and self._opened.is_seen(element, verdict):
            self._doubtful_words(element, kind, is_control=False)
        elif verdict.hidden and not self._opened.is_opened(element, verdict):
            self._leave_out(element, HIDDEN)
        elif verdict.unseen or (is_attribution(element) and not has_letters(self._pieces)):
            self._leave_out(element, MARKED)
        else:
            if verdict.hidden and element.getprevious() is not None:  # words of another alternative stand before it
                self._pieces.append(" ")
            self._doubtful_words(element, kind, is_control=False)

    def _read_sometimes(self, element: HtmlElement, tag: str, kind: str) -> None:
        """Read a formula in a script, or a control that is a heading or a word of a sentence, but no other element."""
        if tag == "script" and element.get("type"):
            self._pieces += filter(None, [script_text(element)])
        elif tag not in CONTROLS:
            if parts := shown_parts(element, tag):
                for part, own in parts:
                    self._container(part, own, self.rules.verdict(part, own), kind)
                return
            if tag in DROPPED_BLOCKS:
                self.flush(kind)
                if tag == "figcaption" and is_caption_of_lines(element):
                    self.read(element, "p")
                    self.flush("p")
                    return
                self._forget_heading(element)
                if may_be_page(element, tag):
                    self._read_apart(element)
                    return
            self._leave_out(element, TAG)
            if tag in PICTURES:
                self._note_picture()
        elif tag == "button" and (kind == "h" or is_question(element)):
            self._question(element, kind)
        else:
            self._doubtful_words(element, kind, is_control=True)

    def _question(self, control: HtmlElement, kind: str) -> None:
        """Read a control that opens a part of the text, as the heading of it."""
        own = kind if kind == "h" or control.getparent().tag in QUESTIONS else "h"
        if own != kind:
            self.flush(kind)
        self.read(control, own)
        if own != kind:
            self.flush(own)

    def _read_apart(self, element: HtmlElement) -> None:
        """Read an element of a dropped tag, in case that the page has hardly another text."""
        start = len(self.blocks)
        self.read(element, "")
        self.flush("")
        held = Contents(start, len(self.blocks), 0, 0, 0, 0)
        self.drop(held, TAG)
        if self.left_out is not None:
            self.causes.append((held.start, held.end, TAG, described(element)))

    def _doubtful_words(self, element: HtmlElement, kind: str, *, is_control: bool) -> None:
        """Read an inline element that is dropped unless it is a part of a sentence."""
        if self._in_doubt:
            self.read(element, kind)
        elif holds_block(element, line_breaks=True):
            if not is_control and has_letters((*self._pieces, element.tail or "")):
                self.read(element, kind)
            else:
                self._leave_out(element, TAG if is_control else MARKED)
        else:
            start, linked = len(self._pieces), self._linked
            self._in_doubt = True
            self._in_links += element.tag == "a"
            self.read(element, kind)
            self._in_links -= element.tag == "a"
            self._in_doubt = False
            self._doubts.append(Doubt(start, len(self._pieces), self._linked - linked, element, is_control))

    def _supported(self, element: HtmlElement, verdict: Verdict) -> Verdict:
        """Verdict on a container without the marks that the page contradicts."""
        is_id = verdict.marked and element.get("id") and not self.rules.named(element.get("class", "")).boilerplate
        if is_id and (is_of_series(element) or (verdict.may_be_text and is_slug(element))):  # a name
            verdict = verdict._replace(marked=False)
        is_shown = element.tag == "p" and self._opened.is_seen(element, verdict) and is_text(element)
        if verdict.marked and element.tag == "td" and is_of_column(element):
            verdict = verdict._replace(may_be_text=True)
        if verdict.hidden and (is_shown or self._opened.is_opened(element, verdict)):
            verdict = verdict._replace(hidden=False)
        return verdict

    def _leave_out(self, element: HtmlElement, reason: str, text: str | None = None) -> None:
        """Note an element that is not read, or the text of it that is not."""
        if self.left_out is not None and (text := " ".join((shown_text(element) if text is None else text).split())):
            self.left_out.append((len(self.blocks), text, reason, described(element)))

    def _container(self, element: HtmlElement, tag: str, verdict: Verdict, kind: str) -> None:
        if tag not in CELLS:
            self.flush(kind)
        elif self._pieces and not "".join(self._pieces[-3:]).isspace():
            self._pieces.append(" | ")
        if verdict.marked or verdict.hidden:
            verdict = self._supported(element, verdict)
        if (verdict.marked or verdict.hidden or verdict.comments) and self._is_skipped(element, verdict):
            self._forget_heading(element)
            self._leave_out(element, COMMENT if verdict.comments else HIDDEN if verdict.hidden else MARKED)
            return
        start, size, links, running, overlays = len(self.blocks), self.size, self.links, self.running, self.overlays
        mains = self._mains
        name = element.get("class")
        if tag in CODE or tag == "code" or (name and is_code(element, tag, name)):
            if text := code_text(element, self.rules, self._leave_out):
                self._add(Block(text, "pre", 0))
        else:
            is_title = name == TITLE or (name in SUBTITLES and self.page == DOCUMENTATION)
            own = "h" if is_title else "" if tag in CELLS and is_layout(element) else kind_of(tag, kind)
            if tag == "li":
                self._marker = "- "
            self.read(element, own)
            if tag not in CELLS or len(self.blocks) > start:
                self.flush(own)
            if tag == "li":
                self._marker = ""
        if len(self.blocks) > start:
            held = Contents(
                start,
                len(self.blocks),
                self.size - size,
                self.links - links,
                self.running - running,
                self._mains - mains,
            )
            is_article = self.page == ARTICLE and not self.rules.loose
            is_card = tag in CARDS and is_article and held.size < MAX_CARD and not held.links
            if is_card and self.overlays > overlays:
                self.cards[tag, element.get("class")].append(held)
            self.overlays = overlays if tag in CARDS else self.overlays
            if verdict.post:
                self.posts.append((start, len(self.blocks)))
            self._note_comments(element, tag, held)
            self._weigh(element, tag, verdict, held)

    def _forget_heading(self, element: HtmlElement) -> None:
        """Note that the heading right before an element is that of its text, which is left out."""
        if self.headings and self.headings[-1].end == len(self.blocks) and shown_text(element).strip():
            self.headings.pop()

    @cached_property
    def _site(self) -> str:
        return own_site(self._opened.tree)

    @cached_property
    def _verses(self) -> frozenset[HtmlElement]:
        return annotated_verses(self._opened.tree)

    @cached_property
    def _shown(self) -> int:
        """Characters of the text of the page."""
        return len(shown_text(self._opened.tree))

    def _is_page(self, form: HtmlElement) -> bool:
        """Return True for a form around most of a page, as those of some servers are."""
        return len(shown_text(form)) > MOST_OF_PAGE * self._shown

    def _is_skipped(self, element: HtmlElement, verdict: Verdict) -> bool:
        """Return True for a container that is dropped whatever it holds, and so is not read: a sixth of the time."""
        if verdict.level == 0 or verdict.toc:
            return False
        if verdict.comments and self.page == ARTICLE:
            self._commented = self.running
            self._article = self.undoubted(0, len(self.blocks)) if self._article is None else self._article
            is_below = self._article >= MIN_ARTICLE
            return is_below and not holds_main(element) and next(element.iter("h1", "h2"), None) is None
        if not (verdict.hidden or verdict.marked) or verdict.recipe:
            return False
        if verdict.marked and verdict.may_be_text and is_heading(element):
            return False
        if verdict.consent and next(element.iter("h1", "article"), None) is None and not holds_main(element):
            return True
        # A twelfth of all elements are in asides, some of which are not closed before the text.
        if not is_short(element, MAX_DROPPED) and (element.tag != "aside" or is_text(element)):
            return False
        may_be_text = verdict.may_be_text and (
            element.tag == "p"
            or (element.tag in LISTS and element.text_content().rstrip().endswith(SENTENCE_ENDS))
            or is_plain(element)
        )
        is_code = element.find(".//pre") is not None
        may_hold_main = verdict.marked and element.tag in CONTAINERS
        return (verdict.hidden or not (may_be_text or is_code)) and not (may_hold_main and holds_main(element))

    def undoubted(self, start: int, end: int) -> int:
        """Characters of running text of some blocks, without those in containers that may be dropped."""
        left = sum(one.running for one in self.blocks[start:end] if not one.dropped)
        for held, _ in reversed(self.doubtful):
            if start <= held.start and held.end <= end:  # outer ones come first, inner ones do not count again
                left -= sum(one.running for one in self.blocks[held.start : held.end] if not one.dropped)
                end = held.start
        return left

    def _weigh(self, element: HtmlElement, tag: str, verdict: Verdict, held: Contents) -> None:
        """Weigh a container when it ends, by its marks and its share of links."""
        is_list = verdict.recipe > 0 and is_recipe(self.blocks[held.start : held.end], verdict.recipe)
        if is_list and not verdict.comments:
            while self.recipes and self.recipes[-1].start >= held.start:  # an inner part is one of the outer
                self.recipes.pop()
            self.recipes.append(held)
            self.keep(held, LINKS)
            reason = KEPT
        elif held.size:
            reason = self._reason(element, tag, verdict, held)
        else:
            return
        if verdict.marked and held.running and reason in (KEPT, MARKED) and (name := element.get("class")):
            self.marked[tag, name].append((held, reason))
        if verdict.main:
            self._mains += 1
        if reason and self.left_out is not None:
            self.causes.append((held.start, held.end, reason, described(element)))
        if reason in (LINKS, MARKED):
            self._note_dropped(element, tag, verdict, held, reason)
        strong = verdict.level == 0 and reason in (KEPT, MARKED)
        is_all = reason in (FORM, MARKED, TOC) and held.size == self.size  # of the text so far
        if reason not in (KEPT, ASKED) and (held.running > MAX_DROPPED or strong or is_all or reason == COMMENT):
            self.doubtful.append((held, reason))
            if verdict.dialog:
                self.dialogs.add(held)
        elif reason:
            self.drop(held, reason)
        if not reason:
            self._note(tag, held)
        if (verdict.level >= 0 or self.candidates.levels) and (strong or not (reason or verdict.marked)):
            self.candidates.add(element, tag, verdict.level, held)

    def _note_comments(self, element: HtmlElement, tag: str, held: Contents) -> None:
        """Note a container that ends, if it is the smallest one with text and comments below it."""
        if self._commented > self.running - held.running:
            # Sections of one text follow each other, with comments below each; there may be 30,000.
            after = itertools.islice(element.itersiblings(tag), MAX_AFTER)
            is_section = any(one.get("class") == element.get("class") for one in after)
            self.commented, self._commented = 0 if is_section else held.end, 0

    def _note_dropped(self, element: HtmlElement, tag: str, verdict: Verdict, held: Contents, reason: str) -> None:
        """Note a container that is dropped, if it may be taken back when all is read."""
        if reason == LINKS:
            self.linked.append((tag, held))
            if tag == "ol" or (tag in ("ul", "table") and leads_elsewhere(element, self._site)):
                self.sources.append(held)
        elif verdict.may_be_text and not verdict.unseen and is_heading(element):
            self.headings.append(held)

    def _note(self, tag: str, held: Contents) -> None:
        """Note a container that is kept, if it may be looked up when all is read."""
        if tag == "aside":
            self.asides.append(held)
        if self.page == ARTICLE and held.end > held.start + 1 and 2 * held.running > self.running:
            self.boxes.append(held)

    def _reason(self, element: HtmlElement, tag: str, verdict: Verdict, held: Contents) -> str:
        """Reason to drop a container."""
        if verdict.comments and self.page != FORUM:
            self._commented = self.running - held.running
            return COMMENT
        if verdict.hidden:
            return HIDDEN
        if verdict.marked and not held.mains:
            return self._reason_of_mark(element, tag, verdict, self.blocks[held.start : held.end])
        if verdict.toc and is_contents(self.blocks[held.start : held.end]):
            return TOC
        weighed = tag in WEIGHED if self.page == ARTICLE else tag == "header" or (tag in LISTS and self.page == FORUM)
        if (
            weighed
            and not self.rules.loose
            and is_mostly_links(tag, held, self.blocks)
            and not (tag in ("div", "p") and element.getparent().tag in ("li", "dd"))
        ):
            return LINKS
        if tag == "form" and asks_for_person(element, held.size) and not self._is_page(element):
            return ASKED
        blocks = self.blocks[held.start : held.end] if tag in ("form", "figure") else []
        is_form = tag == "form" and held.size < MAX_FORM and holds_input(element) and not is_guidance(blocks)
        is_figure = tag == "figure" and held.running <= MAX_DROPPED and is_picture(element, held)
        if (is_form or is_figure) and all(one.kind != "pre" for one in blocks):
            return FORM if is_form else FIGURE
        return KEPT

    def _reason_of_mark(self, element: HtmlElement, tag: str, verdict: Verdict, blocks: list[Block]) -> str:
        """Reason to drop a container whose name marks boilerplate: code and whole sentences are text all the same."""
        if is_long(blocks, MIN_LONG if verdict.may_be_text else MIN_LONG_PROSE) and not verdict.unseen:
            return KEPT if element.find(".//article") is None else MARKED  # one is a page of its own
        is_text = is_prose(blocks) and is_plain(element)
        is_text = is_text or (tag == "p" and is_sentence(blocks)) or (tag in LISTS and is_described(blocks))
        return KEPT if (is_text and verdict.may_be_text) or is_mostly_code(blocks) else MARKED

    def _note_picture(self) -> None:
        self._pictured = True
        if self.blocks:
            self.blocks[-1].pictured = True

    def _add(self, block: Block) -> None:
        block.pictured, self._pictured = self._pictured, False
        self.blocks.append(block)
        self.size += block.size
        self.links += block.links
        self.running += block.running

    def keep(self, held: Contents, reason: str) -> None:
        """Take back the blocks of a container that were dropped for a reason."""
        for block in self.blocks[held.start : held.end]:
            if block.dropped == reason:
                block.dropped = KEPT
                self.size += block.size
                self.links += block.links
                self.running += block.running

    def drop(self, held: Contents, reason: str) -> None:
        """Drop the blocks of a container that are not dropped yet."""
        for block in self.blocks[held.start : held.end]:
            if not block.dropped:
                block.dropped = reason
                self.size -= block.size
                self.links -= block.links
                self.running -= block.running


def page_blocks(
    tree: HtmlElement, rules: AttributeRules, page: str, tables: bool = True, account: bool = False
) -> Walk:
    """Read the blocks and the candidates of a page; `page` is its type. `settle` is to be called."""
    walk = Walk(tree, rules, page, tables, account)
    body = tree.find("body") if tree.tag == "html" else tree
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + MAX_FRAMES)
    try:
        walk.read(tree if body is None else body, "")
    finally:
        sys.setrecursionlimit(limit)
    walk.flush("")
    return walk
