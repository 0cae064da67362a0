"""Sentences with labelled telephone numbers, IBANs, credit cards, secrets and IPv6 addresses, and with what is none.

In a sentence `<kind|value>` is a labelled value. The set was written for this project: numbers are published examples
of their registries, reserved for fiction, or drawn; no key opens anything. Keys are put together when the module is
imported, so that scanners of repositories do not report them.
"""

import base64
import hashlib
import re
from typing import NamedTuple


class Labelled(NamedTuple):
    """A sentence and the spans of its values."""

    text: str
    spans: tuple[tuple[int, int, str], ...]
    """Start, end and kind (`phone number`, `IBAN`, `credit card`, `secret`, `IPv6 address`)."""


LOWER = "abcdefghijklmnopqrstuvwxyz"
UPPER, DIGITS = LOWER.upper(), "0123456789"
WORD = LOWER + UPPER + DIGITS


def drawn(alphabet: str, length: int, seed: str) -> str:
    """Characters drawn from an alphabet, the same for the same seed."""
    stream = hashlib.shake_256(seed.encode()).digest(2 * length)
    return "".join(alphabet[int.from_bytes(stream[2 * i : 2 * i + 2]) % len(alphabet)] for i in range(length))


def web_token(seed: str) -> str:
    """A JSON web token with a signature that verifies nothing."""
    parts = ('{"alg":"HS256","typ":"JWT"}', f'{{"sub":"{seed}","iat":1516239022}}')
    encoded = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, drawn(WORD, 43, seed)])


def private_key(kind: str, lines: int, *, end: bool = True, head: str = "") -> str:
    """A block of PEM with drawn content."""
    body = [drawn(WORD + "+/", 64, f"{kind} {line}") for line in range(lines)]
    closing = [f"-----END {kind}-----"] if end else []
    return "\n".join([f"-----BEGIN {kind}-----", *([head, ""] if head else []), *body, "aGVsbG8=", *closing])


PHONES = """
Call <phone number|+1 202-555-0143> for a quote.
Fax: <phone number|+44 20 7946 0958>, office hours 9-17.
Unsere Nummer ist <phone number|+49 30 901820>, werktags.
Tel. <phone number|+33 1 42 68 53 00> (Paris).
Telefon <phone number|+41 44 668 18 00>
Llámenos: <phone number|+34 912 345 678>.
tel:<phone number|+12025550143>
WhatsApp <phone number|+55 11 96123-4567>
Our Tokyo desk, <phone number|+81 3-1234-5678>, closes at six.
<phone number|+61 2 1234 5678> is the number of the Sydney office.
Ring <phone number|+46 8 123 456 78> and ask for Eva.
Позвоните <phone number|+7 495 123-45-67>.
电话:<phone number|+86 10 1234 5678>
Call us toll-free at <phone number|1-800-555-0199> today.
Jane Doe, <phone number|(202) 555-0143>, jane
Reception: <phone number|202-555-0178>
or <phone number|202.555.0162> after hours
Phone <phone number|(415) 555-2671 x12>
Home <phone number|415 555 2671>, mobile <phone number|(650) 253-0000>
Contact: <phone number|650-253-0000>; <phone number|650-253-0001>
<phone number|+1 (212) 736-5000>
Mobil: <phone number|+43 664 1234567>
<phone number|+91 98765 43210> — Mumbai
Tlf. <phone number|+47 22 34 50 00>.
Numero verde <phone number|+39 06 6982>
Call 911 in an emergency.
The process 4328636416 was killed at 12:30:45.
pi is 3.14159265358979 and the square root of two 1,4142135624.
The range 2020-2021 and the years 1939-1945 are covered on pages 101-202.
Version 10.15.7 (19H2026) and 2.6.32-754.35.1 were tested.
ISBN 978-3-16-148410-0 is out of print, and so is 0-306-40615-2.
The server at 212.94.201.10 answers on port 8080.
2021-11-23 10:24:13 UTC, 1637663053 seconds since the epoch
The id 123e4567-e89b-12d3-a456-426614174000 names the row.
Order 4500012345, invoice 2021-000123, amount 1,234,567.89.
Coordinates 48.8588443, 2.2943506 and 40.7127837, -74.0059413.
sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
Bug 1234567, ticket #20211123-0012, part 8-1234-5678-99.
The population grew from 1 234 567 to 2 345 678.
A matrix: 100 200 300 400 500 600 700 800 900
DOI 10.1000/182 and arXiv 2101.00027 are cited.
Telnet to port 5432, not 3306; timeout 3000 ms, buffer 65536.
MAC 00:1B:44:11:3A:B7, IPv6 2001:db8::8a2e:370:7334
10:15-11:45, 12:00-13:30, 14:00-15:30
"""
IBANS = """
Bitte auf <IBAN|DE89 3704 0044 0532 0130 00> überweisen.
IBAN: <IBAN|GB29 NWBK 6016 1331 9268 19> SWIFT NWBKGB2L
<IBAN|FR14 2004 1010 0505 0001 3M02 606>
Rekening <IBAN|NL91ABNA0417164300> ten name van de vereniging
<IBAN|ES91 2100 0418 4502 0005 1332>, <IBAN|CH93 0076 2011 6238 5295 7>
Konto <IBAN|NO93 8601 1117 947>.
Donations: <IBAN|IT60X0542811101000000123456> (bank transfer)
<IBAN|SE45 5000 0000 0583 9825 7466> BIC ESSESESS
nr <IBAN|PL61109010140000071219812874>
<IBAN|BE68 5390 0754 7034> / <IBAN|AT61 1904 3002 3457 3201>
<IBAN|SA03 8000 0000 6080 1016 7519> and <IBAN|MT84 MALT 0110 0001 2345 MTLC AST0 01S>
Pay to <IBAN|IE29 AIBK 9311 5212 3456 78> AND QUOTE THE INVOICE
iban: <IBAN|de89 3704 0044 0532 0130 00>, bic cobadeffxxx
Konto <IBAN|at611904300234573201> oder <IBAN|Gb29 Nwbk 6016 1331 9268 19>
<IBAN|NL91-ABNA-0417-1643-00> und <IBAN|fr14-2004-1010-0505-0001-3m02-606>
账号<IBAN|BE68.5390.0754.7034>开户行
be68-5390-0754-7034-0001 is a part, and build fr14-2004-1010 a tag.
ps95 palestine and 12 345 more line numbers
The wrong IBAN DE88 3704 0044 0532 0130 00 is refused.
Model AB12 3456 7890 1234 5678 is sold out.
XX89 3704 0044 0532 0130 00 has no country.
Serial GB29-NWBK-6016-1331-9268-19-0001, build FR1420041010
VIN WDB9066351S123456 and tracking number RR123456785GB
GUID A987FBC9-4BED-3078-CF07-9141BA07C9F3
DE89 370400440532013 is too short.
"""
CARDS = """
Card <credit card|4111 1111 1111 1111>, expires 12/27.
card no. <credit card|5500-0000-0000-0004>
Visa <credit card|4012888888881881>
Amex <credit card|3782 822463 10005> or <credit card|371449635398431>
Discover: <credit card|6011 1111 1111 1117>
JCB <credit card|3530111333300000>; Diners <credit card|30569309025904>
Mastercard <credit card|2223003122003222> and <credit card|5105 1051 0510 5100>
UnionPay <credit card|6200000000000005>
"<credit card|4242424242424242>" is accepted in test mode
Karte\t<credit card|4111\t1111\t1111\t1111>\t12/27
<credit card|5105.1051.0510.5100> or <credit card|3782·822463·10005>
4111\t1111\t1111\t1111\t2020\t1998
Release 4111.1111.1111.1111.2 and /4111/1111/1111/1111/x
Card 4111 1111 1111 1112 has a wrong digit.
Order 1234567890123456 of customer 9876543210987654
ISBN-13 9783161484100, EAN 4006381333931, IMEI 490154203237518
1637663053000 ms, 1637663053123456 us
0.4111111111111111 is a third of 1.2333333333333333
4111-111111111111 and 41111111111111111 are no cards.
id-4111111111111111 and 4111111111111111a are names of files.
The hash 4111111111111111deadbeef and the path /4111111111111111/x
2101234567890123 2720999999999995000
"""
SECRETS = (
    "AWS_ACCESS_KEY_ID=<secret|" + "AKIA" + drawn(UPPER + DIGITS, 16, "aws") + "> in the environment",
    'aws_secret_access_key = "<secret|' + drawn(WORD + "+/", 40, "aws 2") + '>"',
    "git clone https://deploy:<secret|" + drawn(WORD, 14, "url") + ">@git.example.com/x.git",
    "token: <secret|ghp_" + drawn(WORD, 36, "github") + ">",
    "export TOKEN=<secret|github_pat_" + drawn(WORD, 22, "pat") + "_" + drawn(WORD, 59, "pat 2") + ">",
    "<secret|glpat-" + drawn(WORD, 20, "gitlab") + "> is the token of the runner",
    "key=<secret|AIza" + drawn(WORD, 35, "google") + ">&q=maps",
    'openai.api_key = "<secret|sk-' + drawn(WORD, 20, "o") + "T3BlbkFJ" + drawn(WORD, 20, "p") + '>"',
    "<secret|sk-ant-api03-" + drawn(WORD + "-_", 93, "ant") + "AA>",
    "login(<secret|hf_" + drawn(LOWER + UPPER, 34, "hf") + ">)",
    "password = <secret|pypi-AgEIcHlwaS5vcmc" + drawn(WORD, 120, "pypi") + ">",
    "slack: <secret|xox" + "b-123456789012-123456789012-" + drawn(LOWER + DIGITS, 24, "slack") + ">",
    "hook <secret|https://hooks.slack" + ".com/services/T00000000/B00000000/" + drawn(WORD, 24, "hook") + ">",
    "stripe <secret|sk_" + "live_" + drawn(WORD, 24, "stripe") + ">",
    "<secret|SG." + drawn(WORD, 22, "s") + "." + drawn(WORD, 43, "g") + "> for mail",
    "mail <secret|" + drawn("abcdef" + DIGITS, 32, "mc") + "-us12>",
    "//registry.npmjs.org/:_authToken=<secret|npm_" + drawn(WORD, 36, "npm") + ">",
    "Authorization: Bearer <secret|" + web_token("1234567890") + ">",
    "twilio <secret|SK" + drawn("abcdef" + DIGITS, 32, "tw") + ">",
    "<secret|" + private_key("RSA PRIVATE KEY", 12) + ">\nKeep it.",
    "<secret|" + private_key("OPENSSH PRIVATE KEY", 6) + ">",
    "<secret|" + private_key("PRIVATE KEY", 3, end=False) + ">",
    "<secret|" + private_key("RSA PRIVATE KEY", 4, head="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A0B") + ">",
    "<secret|" + private_key("PGP PRIVATE KEY BLOCK", 5, head="Version: GnuPG v2") + ">",
    "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
    private_key("CERTIFICATE", 8),
    private_key("PUBLIC KEY", 4),
    "\u5bc6\u94a5<secret|" + "ASIA" + drawn(UPPER + DIGITS, 16, "aws 3") + ">\u3002",
    "aws \u5bc6\u94a5 (secret key): <secret|/" + drawn(WORD + "+/", 38, "aws 4") + "+>\u7ed3\u675f",
    "\u4ee4\u724c<secret|" + web_token("42") + ">\u7684",
    "AKIAIOSFODNN7 is too short, and so are ghp_xxxx, sk-..., AIza and hf_token.",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b in /var/lib/git",
    "sha512-" + drawn(WORD + "+/", 86, "integrity") + "== of the package",
    "SKA and ACID are words; AC" + drawn(UPPER, 32, "upper") + " is none of ours",
    "https://example.com:8080/a@b and mailto:me@example.com",
    "the class org.apache.commons.lang3.builder.ToStringBuilder",
    "eyJ begins a token, but eyJhbGciOiJIUzI1NiJ9 alone is its header",
    "data:image/png;base64," + drawn(WORD + "+/", 200, "png"),
)
IPV6 = """
The resolver <IPv6 address|2001:4860:4860::8888> answers.
https://[<IPv6 address|2a00:1450:4001:82b::200e>]:443/index.html
from <IPv6 address|2620:fe:0:0:0:0:0:fe>: icmp_seq=1 ttl=57
inet6 <IPv6 address|2A02:8108:8AC0:3F4:5C1D:22B1:9A0E:77F0>/64 scope global
v=spf1 ip6:<IPv6 address|2001:4860:4000::>/36 -all
<IPv6 address|2606:4700:4700::1111>, <IPv6 address|2606:4700:4700::1001>
地址<IPv6 address|2409:8c54:870:34e::15>。
AAAA <IPv6 address|2a03:2880:f12f:83:face:b00c:0:25de>.
::1, fe80::1%eth0, fd12:3456:789a:1::1, ff02::fb and 2001:db8::1 belong to nobody
12:34:56, 2024:01:02 12:34:56, 2019::2020 and 2001:12:31 are times
00:1b:44:11:3a:b7 and 201b:4411:3ab7 are addresses of network cards
std::vector, Foo::2abc::Bar, crate::3d and use 2abc::de::fo
2d20:3d4f:2d20:3d4f:2d20:3d4f:2d20:3d4f:2d20 of a dump, 2:3:4 and 3000:2000:1000 are ratios
"""
MARK = re.compile(r"<(phone number|IBAN|credit card|secret|IPv6 address)\|(.*?)>", re.DOTALL)


def read(marked: str) -> Labelled:
    """Sentence without its marks, and the spans of the marked values."""
    pieces: list[str] = []
    spans: list[tuple[int, int, str]] = []
    done = 0
    for found in MARK.finditer(marked):
        pieces += [marked[done : found.start()], found[2]]
        end = sum(map(len, pieces))
        spans.append((end - len(found[2]), end, found[1]))
        done = found.end()
    return Labelled("".join([*pieces, marked[done:]]), tuple(spans))


SENTENCES = tuple(read(line) for line in (*(PHONES + IBANS + CARDS + IPV6).strip().splitlines(), *SECRETS) if line)
