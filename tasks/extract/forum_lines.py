"""Lines of forums and mailing lists that are no part of a post: attributions, counters, headers, links to posts."""

import re
from collections.abc import Sequence

from tasks.extract.article_lines import is_date
from tasks.extract.blocks import SENTENCE_ENDS, Block

SIGNATURE, POST_LINE = "signature", "post"  # reasons for which a line is dropped
MAX_NAME = 3  # words of an attribution without a date or a link: a name, and `wrote:`
MAX_LINE = 160  # characters of a line that may be noise
DASHES = "--"  # on a line of its own before the signature of a mail; white space at its end is removed

# Lines that templates put into a post, and those around the posts, for pages on which no post is found.
INSIDE = (
    r"(?:code|quote)(?:[: ]+(?:select all|expand|copy))?|select all|click to expand|view post|reply with quote"
    r"|originally posted by .{1,80}|quote from: .{1,100}|(?:this post was )?last (?:edited|modified) (?:by|on|:).{1,99}"
)
AROUND = (
    r"|(?:reply|post reply|new reply|reply to thread|new topic|print(?: view)?)|add a comment|\d+ comments?|sorted by"
    r"|(?:posted|started) by .{1,80}|by .{1,60}».{1,60}"
    r"|(?:posts?|messages?|threads?|topics?|joined|join date|registered|location|reputation|reaction score|karma|likes)"
    r"(?:: ?.{1,40})?|page \d+ of \d+|\d+ (?:posts?|replies|likes?)\b.{0,40}|#?[\d,. ]+"
    r"|(?:go )?(?:up|down) ?pages.{0,20}|(?:«|previous|next) ?(?:previous |next )?(?:topic|thread|message|oldest)\b"
    r".{0,100}"
    r"|users? browsing this .{0,100}|who is online|similar (?:threads|topics)|related topics|posting permissions"
    r"|you (?:may not|must|cannot) (?:log in|post|reply|edit|register)\b.{0,80}|jump to"
    r"|(?:from|to|cc|date|subject|sent|message-id|in-reply-to|reply-to|organi[sz]ation|newsgroups|references) ?:"
    r".{1,150}|follow-ups|references"
    r"|received on .{1,80}|this (?:archive|message) was (?:generated|archived|sent)\b.{0,120}"
    r"|more information about .{1,120}|(?:contemporary )?messages sorted\b.{0,120}"
    r"|(?:date|thread) (?:prev|next|index)\b.*"
)
NOISE_INSIDE, NOISE_AROUND = re.compile(INSIDE, re.IGNORECASE), re.compile(INSIDE + AROUND, re.IGNORECASE)
ATTRIBUTION = re.compile(r".{1,80} (?:wrote|said|schrieb|a écrit|escribió|ha scritto) ?:", re.IGNORECASE)


def without_signature(post: Sequence[Block]) -> Sequence[Block]:
    """Blocks of a post before a line of underscores, by which some forums set the signature off."""
    return post[: next((number for number, one in enumerate(post) if one.text.strip("- _") == "" != one.text), None)]


def drop_post_lines(blocks: Sequence[Block], *, are_posts: bool) -> None:
    """Drop the lines that are no part of a post, and the signatures of mails.

    Args:
        blocks: blocks of a page.
        are_posts: they are those of posts alone, in which fewer lines are taken for noise.
    """
    for one in blocks:
        if one.kind == "pre":
            lines = one.text.split("\n")
            if DASHES in lines[1:]:
                end = lines.index(DASHES, 1)
                one.text, one.cut = "\n".join(lines[:end]).rstrip(), "\n".join(lines[end:])
        elif one.kind != "h" and _is_noise(one, are_posts=are_posts):
            one.dropped = POST_LINE


def _is_noise(block: Block, *, are_posts: bool) -> bool:
    """Return True for a line of a template around a post; a sentence without a link or a number is none."""
    if block.size > MAX_LINE:
        return False
    words = block.text.strip("-–—•*|> \t[](){}:.!?…«»")
    is_sign = block.links > 0 or any(map(str.isdigit, block.text))
    if ATTRIBUTION.fullmatch(block.text):
        return is_sign or len(block.text.split()) <= MAX_NAME
    if (NOISE_INSIDE if are_posts else NOISE_AROUND).fullmatch(words):
        return is_sign or not block.text.endswith(SENTENCE_ENDS)
    return not are_posts and is_date(block)
