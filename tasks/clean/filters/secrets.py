"""Spans of secrets: private keys, API keys, access tokens, passwords in URLs.

The keys of most services are found by the rules of detect-secrets (the fork that is kept, bc-detect-secrets). Its rules
by entropy and by variable names are not used: on documentation they take hashes and examples for keys. The services
that it lacks are added by the prefixes that they publish, and so are AWS, whose keys it misses beside a letter of a
script without spaces. Two of its rules, for JSON web tokens and Artifactory, take
quadratic time on a hostile text, and are left out; there is one for the tokens here.
"""

import functools
import re
from collections.abc import Iterator

from tasks.clean.filters.identifiers import Span

# A block with a key in it, whole or cut off; `...` in place of the key is documentation. The repetitions are
# possessive, so that a text takes linear time.
PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:\s*+(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset):[^\n]*+)*+"
    r"(?:\s*+[A-Za-z0-9+/=]{20,}+)++(?:\s*+[A-Za-z0-9+/=]++(?=\s*+(?:-----END|\Z)))?+(?:\s*+=[A-Za-z0-9+/]{4}+(?=\s*+-----END))?+"
    r"(?:\s*+-----END [A-Z0-9 ]*+-----)?+"
)
PREFIXES = (
    r"AIza[\w-]{35}",  # Google
    r"sk-(?:proj-|svcacct-|admin-)?[\w-]{20,160}T3BlbkFJ[\w-]{20,160}",  # OpenAI
    r"sk-ant-[a-z]{3,8}\d\d-[\w-]{80,120}",  # Anthropic
    r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    r"glpat-[\w-]{20,64}",  # GitLab
    r"hf_[A-Za-z]{34}",  # Hugging Face
    r"pypi-AgE[\w-]{50,250}",
    r"(?<!\w)(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}(?!\w)",  # AWS
    r"(?<![\w-])eyJ[\w-]++\.eyJ[\w-]++\.[\w-]*+",  # JSON web token: header and payload are JSON
)
MORE = re.compile("|".join(PREFIXES), re.ASCII)
# 40 characters of base64 after words that name them. Those of detect-secrets may neither begin nor end with `/` or `+`.
AWS_SECRET = re.compile(
    r"aws.{0,20}?(?:key|token|pass|pwd?).{0,20}?(?<![A-Z0-9/+])([A-Z0-9/+]{40})(?![A-Z0-9/+])",
    re.ASCII | re.IGNORECASE,
)
SERVICES = (
    "basic_auth.BasicAuthDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "mailchimp.MailchimpDetector",
    "npm.NpmDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "twilio.TwilioKeyDetector",
)
PREFIX_GROUP = ("github_token.GitHubTokenDetector",)  # its group is the prefix of the key, not the key


def secrets(text: str) -> Iterator[Span]:
    """Spans of private keys with their armour, and of keys and passwords of services."""
    for found in PRIVATE_KEY.finditer(text):
        yield found.span()
    for pattern, group in _patterns():
        for found in pattern.finditer(text):
            start, end = found.span(group if group and found[group] else 0)
            # A key inside a longer word is part of a hash or of a path.
            if end > start and not _is_ascii_word(text[start - 1 : start]) and not _is_ascii_word(text[end : end + 1]):
                yield start, end


def _is_ascii_word(character: str) -> bool:
    """Return True for a letter or digit that a key may have; one of a script without spaces may stand beside it."""
    return character.isascii() and character.isalnum()


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], int], ...]:
    """Patterns of the services, and the group that holds the secret (0: the whole match)."""
    import importlib

    found: list[tuple[re.Pattern[str], int]] = [(MORE, 0), (AWS_SECRET, 1)]
    for name in SERVICES:
        module, _, detector = name.partition(".")
        rules = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), detector).denylist
        found += [(rule, 0 if name in PREFIX_GROUP else min(rule.groups, 1)) for rule in rules]
    return tuple(found)
