"""Spans of numbers that identify a person or an account: telephone numbers, IBANs, credit cards.

The rules of countries and issuers are those of kept libraries: phonenumbers (Google's libphonenumber) and python-stdnum
(registry of IBANs, Luhn's digit). This module adds the rules that separate such a number from others in a text.
"""

import functools
import re
import string
from collections.abc import Iterator, Sequence

Span = tuple[int, int]

# A candidate does not continue a number, a decimal fraction or an identifier.
BEFORE, AFTER = r"(?<![A-Za-z0-9_.,/-])", r"(?![A-Za-z0-9_/-]|[.,]\d)"
CARD = re.compile(
    rf"{BEFORE}(?:\d{{13,19}}|\d{{4}}([ -])\d{{4}}\1\d{{4}}\1\d{{4}}|\d{{4}}([ -])\d{{6}}\2\d{{4,5}}){AFTER}"
    # Separators of columns, versions and paths: one more number after the same separator makes it another thing.
    r"|(?<![A-Za-z0-9_.,/-])(?<!\d[\t·–−])\d{4}(?:([\t./_·–−])\d{4}\3\d{4}\3\d{4}|([\t./_·–−])\d{6}\4\d{4,5})"
    rf"{AFTER}(?![\t·–−]\d++(?!/))"
)
# First digits and lengths of the issuers (ISO/IEC 7812): Visa, Mastercard, American Express, Discover, JCB, Diners
# Club, UnionPay. Without them every tenth number of 16 digits would pass Luhn's test.
ISSUER = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|3(?:0[0-5]|[68]\d)\d{11}|62\d{14,17}"
)
IBAN = re.compile(rf"{BEFORE}[A-Z]{{2}}\d{{2}}(?: ?[A-Z0-9]){{11,30}}")
# With small letters, or with another separator, only in one piece or in groups of four: the form of some countries is
# met by any words of prose.
GROUPED_IBAN = re.compile(
    rf"{BEFORE}[A-Za-z]{{2}}\d{{2}}(?:[A-Za-z0-9]{{11,30}}"
    rf"|([ \t.–-])[A-Za-z0-9]{{4}}(?:\1[A-Za-z0-9]{{4}}){{1,6}}(?:\1[A-Za-z0-9]{{1,3}})?){AFTER}"
)
ALNUM = frozenset(string.ascii_letters + string.digits)
PHONE = re.compile(r"[+(]?\d[\d\s().–/-]{5,}\d")  # where a telephone number may be: seven characters or more
SEPARATED = re.compile(r"\d[\s().–-]+\d|\)\d")
# Characters that pages have in place of a space, a hyphen or ASCII, each as one character, so that spans stay the same.
_SPACES, _HYPHENS = "\u00a0\u2007\u2009\u200a\u202f\u3000", "\u2010\u2011\u2012"
_PLAIN = dict.fromkeys(map(ord, _SPACES), " ") | dict.fromkeys(map(ord, _HYPHENS), "-")
_PLAIN |= {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full width
MANY = 100_000  # candidates of a text that libphonenumber tests at most


def in_plain_characters(text: str) -> str:
    """Return a text of the same length with ordinary spaces and hyphens, and without letters of full width."""
    return text if text.isascii() else text.translate(_PLAIN)


def credit_cards(text: str) -> Iterator[Span]:
    """Spans of numbers with the first digits and the length of an issuer, and Luhn's check digit."""
    from stdnum import luhn

    for found in CARD.finditer(text):
        digits = re.sub(r"\D", "", found[0])
        if ISSUER.fullmatch(digits) and luhn.is_valid(digits):
            yield found.span()


def ibans(text: str) -> Iterator[Span]:
    """Spans of international bank account numbers with the form of their country and valid check digits."""
    from stdnum import iban

    for pattern in (IBAN, GROUPED_IBAN):
        for found in pattern.finditer(text):
            separator = (found[1] or " ") if pattern.groups else " "
            # A word after the number may look like its end.
            for end in range(found.end(), found.start() + 14, -1):
                number = text[found.start() : end].replace(separator, "")
                ends = text[end : end + 1] not in ALNUM and (text[end : end + 1] != separator or separator == " ")
                if ends and iban.is_valid(number, check_country=False):
                    yield found.start(), end
                    break


def phone_numbers(text: str, regions: Sequence[str]) -> Iterator[Span]:
    """Spans of valid telephone numbers: `+` and a country code anywhere, and national forms of the regions.

    A national number must have its digits in groups, as people write them: ten digits in a row are more often an
    amount, a fraction or a process number.
    """
    if not PHONE.search(text):
        return
    from phonenumbers import Leniency, PhoneNumberMatcher

    covered: set[int] = set()
    for region in regions or (None,):
        for found in PhoneNumberMatcher(text, region, leniency=Leniency.STRICT_GROUPING, max_tries=MANY):
            if found.start in covered or not _is_written_out(text, found.start, found.raw_string):
                continue
            covered.add(found.start)
            yield found.start, found.end


def _is_written_out(text: str, start: int, number: str) -> bool:
    """True for an international number and for a national one in groups that are not those of an IP address."""
    if number.startswith("+"):
        return True
    dotted = re.fullmatch(r"(?:\d{1,3}\.){3}\d{1,3}", number)
    return bool(SEPARATED.search(number)) and not dotted and not re.search(r"[\w.,-]$", text[max(0, start - 1) : start])


@functools.cache
def phone_regions() -> frozenset[str]:
    """Two-letter codes of all regions with rules for telephone numbers."""
    from phonenumbers import SUPPORTED_REGIONS

    return frozenset(SUPPORTED_REGIONS)
