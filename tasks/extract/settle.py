"""Containers that are marked as boilerplate, weighed against the whole page when it has been read."""

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter

from tasks.extract.article_lines import holds_title
from tasks.extract.blocks import (
    COMMENT,
    FIGURE,
    FORM,
    HIDDEN,
    KEPT,
    LINKS,
    MARKED,
    REPEATED,
    TOC,
    Block,
    Contents,
    is_prose,
)
from tasks.extract.elements import is_mostly_links
from tasks.extract.walk import MAX_DROPPED, MIN_ARTICLE, Walk

MAX_DROPPED_SHARE = 0.5  # of the page's running text, in a container that is dropped
MAX_LEVELS = 8  # of containers of comments in each other
MIN_CARDS = 3  # cards with the same class; fewer may be the text of a short article


def settle(walk: Walk, titles: Sequence[str]) -> None:
    """Drop the large marked containers, except those that hold most of the page's text, or its title and a text."""
    for alike in walk.cards.values():
        for held in alike if len(alike) >= MIN_CARDS else ():
            walk.drop(held, LINKS)
    _settle_names(walk)
    _settle_comments(walk, [held for held, reason in walk.doubtful if reason == COMMENT], titles)
    for reason in (HIDDEN, MARKED, FORM, FIGURE, TOC, LINKS):
        weigh = attrgetter("running" if walk.running else "size")
        total = weigh(walk)
        for held, found in walk.doubtful:
            if found == reason:
                blocks = [one for one in walk.blocks[held.start : held.end] if not one.dropped]
                live = sum(map(weigh, blocks))
                if live >= MAX_DROPPED_SHARE * total and (reason != HIDDEN or _may_be_text(walk, held, blocks)):
                    continue
                if reason != MARKED or live <= MAX_DROPPED or not holds_title(blocks, titles):
                    walk.drop(held, reason)
                elif held in walk.dialogs:
                    walk.dialog = (held.start, held.end)


def _may_be_text(walk: Walk, held: Contents, blocks: Sequence[Block]) -> bool:
    """Return True for hidden blocks that a script shows: there is little else, or they are sentences of their own.

    Sites that were broken into hold up to 200,000 characters of words for search engines, and some pages all of their
    text once more, to be copied.
    """
    beside = [one for one in (*walk.blocks[: held.start], *walk.blocks[held.end :]) if not one.dropped]
    said = {one.text for one in beside}
    prose = sum(one.running for one in blocks if is_prose([one]) and one.text not in said)
    return sum(one.running for one in beside) < MIN_ARTICLE or 2 * prose > sum(one.running for one in blocks)


def _settle_names(walk: Walk) -> None:
    """Keep all containers of a name if most of what they hold is text: it is that of the text, not of boilerplate."""
    taken: set[Contents] = set()
    for found in walk.marked.values():
        dropped = [held for held, reason in found if reason]
        if 2 * sum(held.running for held in dropped) < sum(held.running for held, _ in found):
            taken.update(dropped)
            for held in dropped:
                walk.keep(held, MARKED)
    walk.doubtful = [one for one in walk.doubtful if one[0] not in taken]
    weigh_again(walk, [held.start for held in taken])
    _drop_repeated(walk)


def weigh_again(walk: Walk, taken: Collection[int]) -> None:
    """Keep the containers that were dropped for their links, and are not mostly links with the blocks taken back."""
    if not taken or not walk.linked:
        return
    live = [one if one.dropped in (KEPT, LINKS) else None for one in walk.blocks]
    sizes = list(itertools.accumulate((one.size if one else 0 for one in live), initial=0))
    links = list(itertools.accumulate((one.links if one else 0 for one in live), initial=0))
    places, start = sorted(taken), len(walk.blocks)
    for tag, held in reversed(walk.linked):  # outer ones first
        if held.start < start and bisect_left(places, held.start) < bisect_left(places, held.end):
            size, linked = sizes[held.end] - sizes[held.start], links[held.end] - links[held.start]
            if not is_mostly_links(tag, held._replace(size=size, links=linked), walk.blocks):
                walk.keep(held, LINKS)
                start = held.start


def _drop_repeated(walk: Walk) -> None:
    """Drop the captions beside an article that say again what another caption says, for another size of a screen."""
    named = [held for (_, name), found in walk.marked.items() if "caption" in name.lower() for held, _ in found]
    numbers = {number for held in named for number in range(held.start, held.end)}
    said = Counter(walk.blocks[number].text for number in numbers if not walk.blocks[number].dropped)
    for held in sorted(named, key=attrgetter("start"), reverse=True):
        is_beside = walk.running - sum(one.running for one in walk.blocks[held.start : held.end]) >= MIN_ARTICLE
        own = Counter(one.text for one in walk.blocks[held.start : held.end] if not one.dropped)
        if own and is_beside and all(said[text] > count for text, count in own.items()):
            walk.drop(held, REPEATED)
            said -= own


def _settle_comments(walk: Walk, found: Sequence[Contents], titles: Sequence[str]) -> None:
    """Drop the containers of comments, unless they hold most of the text, and no article is before.

    Comments follow the text on which they are; those of a guest book, and the answers to a question, are the page.
    Those inside the containers of a page are judged by what is before them in these.
    """
    weigh = attrgetter("running" if walk.running else "size")
    start = 0
    for _ in range(MAX_LEVELS if found else 0):
        outer: list[Contents] = []
        inner: list[Contents] = []
        for held in sorted(found, key=lambda held: (held.start, -held.end)):
            (inner if outer and held.end <= outer[-1].end else outer).append(held)
        live = [one for held in outer for one in walk.blocks[held.start : held.end] if not one.dropped]
        before = walk.undoubted(start, outer[0].start)
        is_page = before < MIN_ARTICLE or holds_title(live, titles)
        if not is_page or sum(map(weigh, live)) < MAX_DROPPED_SHARE * weigh(walk):
            for held in outer:
                walk.drop(held, COMMENT)
            return
        if not inner:
            return
        start, found = outer[0].start, inner
