"""Lines of forums and mailing lists that are no part of a post: attributions, counters, headers, links to posts."""

import re
from collections.abc import Sequence

from tasks.extract.article_lines import is_date
from tasks.extract.blocks import Block

MAX_LINE = 160  # characters of a line that may be noise
SIGNATURE = "--"  # on a line of its own before the signature of a mail; white space at its end is removed

NOISE = re.compile(
    r"(?:code|quote)(?:[: ]+(?:select all|expand|copy))?|select all|click to expand|add a comment|\d+ comments?"
    r"|(?:reply|reply with quote|post reply|new reply|reply to thread|new topic|print(?: view)?)|view post|sorted by"
    r"|(?:by )?.{1,40} (?:wrote|said|schrieb|a écrit|escribió|ha scritto)"
    r"|originally posted by .{1,80}|quote from:? .{1,100}|(?:this post was )?last (?:edited|modified)\b.{1,100}"
    r"|(?:by|posted by|started by) .{1,60}(?:[»,]| on ).{1,60}"
    r"|(?:posts?|messages?|threads?|topics?|joined|join date|registered|location|reputation|reaction score|karma|likes)"
    r"(?:: ?.{1,40})?|page \d+ of \d+|\d+ (?:posts?|replies|likes?)\b.{0,40}|#?[\d,. ]+"
    r"|(?:go )?(?:up|down) ?pages.{0,20}|(?:«|previous|next) ?(?:previous |next )?(?:topic|thread|message|oldest)\b"
    r".{0,100}"
    r"|users? browsing this .{0,100}|who is online|similar (?:threads|topics)|related topics|posting permissions"
    r"|you (?:may not|must|cannot) (?:log in|post|reply|edit|register)\b.{0,80}|(?:jump|return) to\b.{0,60}"
    r"|(?:from|to|cc|date|subject|sent|message-id|in-reply-to|reply-to|organi[sz]ation|newsgroups|references) ?:"
    r".{1,150}|follow-ups|references"
    r"|.{0,60}\b[\w.+-]+ (?:at|@|\(at\)) [\w-]+(?:\.[\w-]+)+"
    r"|received on .{1,80}|this (?:archive|message) was (?:generated|archived|sent)\b.{0,120}"
    r"|more information about .{1,120}|(?:contemporary )?messages sorted\b.{0,120}"
    r"|(?:date|thread) (?:prev|next|index)\b.*",
    re.IGNORECASE,
)


def without_signature(post: Sequence[Block]) -> Sequence[Block]:
    """Blocks of a post before a line of underscores, by which some forums set the signature off."""
    return post[: next((number for number, one in enumerate(post) if one.text.strip("- _") == "" != one.text), None)]


def clean_posts(blocks: Sequence[Block]) -> list[Block]:
    """Blocks of posts without the lines that are no part of them, and without the signatures of mails."""
    kept = []
    for one in blocks:
        if one.kind == "pre":
            lines = one.text.split("\n")
            if SIGNATURE in lines[1:]:
                text = "\n".join(lines[: lines.index(SIGNATURE, 1)]).rstrip()
                kept.append(Block(text, "pre", one.links))
            else:
                kept.append(one)
        elif one.kind == "h" or not _is_noise(one):
            kept.append(one)
    return kept


def _is_noise(block: Block) -> bool:
    if block.size > MAX_LINE:
        return False
    return is_date(block) or NOISE.fullmatch(block.text.strip("-–—•*|> \t[](){}:.!?…«»")) is not None
