"""Masking of personal data and secrets: matches, non-matches, and linear time on long texts."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.errors import UserError
from gpt2train.settings import build
from tasks.clean.filters.filter_chain import FilterSettings, filter_packages
from tasks.clean.filters.pii import PiiSettings, is_public, mask

BOTH = PiiSettings(emails=True, public_ips=True)


MASKED = {
    "Write to jane.doe+list@mail.example.co.uk.": "Write to email@example.com.",
    "<a@b.org>, 'c_d@e-f.net'": "<email@example.com>, 'firstname.lastname@example.org'",
    "see...tom@there.org": "see...email@example.com",
    "mailto:tom@there.org?subject=x": "mailto:email@example.com?subject=x",
    "https://tom@there.org/x": "https://email@example.com/x",
    "info@m\u00fcller.de, j\u00e1n.nov\u00e1k@a.example": "email@example.com, firstname.lastname@example.org",
    "\u043f\u043e\u0447\u0442\u0430@\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444": "email@example.com",
    "\u90ae\u7bb1tom\uff20there.org\u3002": "\u90ae\u7bb1email@example.com\u3002",
    "jane\u2011doe@a\u2011b.example": "email@example.com",
    "a" * 64 + "@there.org": "email@example.com",
    "\uff18.\uff18.\uff18.\uff18": "22.214.171.124",
    "at 8.8.8.8, 1.1.1.1 and 8.8.4.4:53.": "at 22.214.171.124, 126.96.36.199 and 188.8.131.52:53.",
    "2001:4860:4860::8888, [2A00:1450:4001:82b::200e]:443 and 2620:fe:0:0:0:0:0:fe/64: up.":
        "2001:db8::1, [2001:db8::2]:443 and 2001:db8::1/64: up.",
    "ip6:2001:4860:4000::/36; host:2a03:2880::face: gone": "ip6:2001:db8::1/36; host:2001:db8::2: gone",
    "\u5730\u57402606:4700:4700::1111\u3002": "\u5730\u57402001:db8::1\u3002",
    "::ffff:8.8.8.8": "::ffff:22.214.171.124",
}  # fmt: skip
KEPT = [
    "a @ b, user@localhost, @handle, a@b..c, x@1.2",
    "a" * 65 + "@there.org",
    "10.0.0.1 127.0.0.1 192.168.1.1 169.254.169.254 224.0.0.1x 100.64.0.1",
    "1.2.3 1.2.3.4.5 256.1.1.1 version 01.2.3.4567 v4.4.2.1 (V8.8.8.8)",
    "Version 4.4.1.2, release 9.8.7.6; Section 1.2.3.4, chapter 5.6.7.8, §\u00a02.3.4.5",
    "::1 :: fe80::1%eth0 fd00::12 ff02::fb fc00:1:2:3:4:5:6:7 2001:db8::5 3fff::1 2001:2::1",
    "12:34:56, 2024:01:02 12:34:56, 23:59:59:24 2001:12:31, 2019::2020, 2000::, 3000:2000:1000",
    "00:1B:44:11:3A:B7 20:1b:44:11:3a:b7 201b:4411:3ab7 a::b std::vector Foo::2abc::d 2abc::d::fo a::3d",
    "2d20:3d4f:2d20:3d4f:2d20:3d4f:2d20 x2001:4860::1 2001:4860::1x 2001:4860::12345 2001:1::2::3",
    "sha256:2fd4e1c67a2d28fced849ee1bb76e7391b93eb12 00002010: 2001 4860 0x2001:0x4860 2001:4860::1:abcg",
]


def test_personal_data_are_masked() -> None:
    for text, masked in {**MASKED, **dict(zip(KEPT, KEPT, strict=True))}.items():
        left, facts = mask(text, BOTH)
        assert (left, bool(facts)) == (masked, text in MASKED), text
        assert mask(text, PiiSettings()) == (text, {})
        if "::" in left:  # placeholders of IPv6 are private themselves
            assert mask(left, BOTH)[0] == left or "22.214" in left


def test_each_kind_can_be_switched_off() -> None:
    text = "tom@there.org 8.8.8.8"
    assert mask(text, PiiSettings(emails=True)) == ("email@example.com 8.8.8.8", {"masked": 1, "masked_emails": 1})
    left = "tom@there.org 22.214.171.124"
    assert mask(text, PiiSettings(public_ips=True)) == (left, {"masked": 1, "masked_ip_addresses": 1})
    assert [is_public(address) for address in ("8.8.8.8", "192.0.2.1", "999.1.1.1")] == [True, False, False]


@given(st.text(st.sampled_from("a.b@-1 é"), max_size=60))
def test_only_addresses_change(text: str) -> None:
    left, facts = mask(text, PiiSettings(emails=True, email_placeholders=("X",)))
    assert left.count("X") == facts.get("masked", 0)
    assert (left == text) == (not facts)


def private(**wanted: object) -> PiiSettings:
    for module in ("detect_secrets", "phonenumbers", "stdnum"):
        pytest.importorskip(module, reason="needs the extra privacy")
    return build(PiiSettings, wanted)


ALL = dict.fromkeys(("emails", "public_ips", "phone_numbers", "ibans", "credit_cards", "secrets"), True)


@pytest.mark.parametrize("kind", ["phone number", "IBAN", "credit card", "secret", "IPv6 address"])
def test_labelled_values_are_found_and_nothing_else(kind: str) -> None:
    private(**ALL)
    from benchmarks.personal_data import agreement

    labelled, found, wrong = agreement(kind)
    assert labelled >= 9 and found == labelled and wrong == 0


def test_kinds_are_masked_by_name_and_counted() -> None:
    text = (
        "Call +1 202-555-0143 or +44 20 7946 0958, mail tom@there.org, pay to DE89 3704 0044 0532 0130 00 or by "
        "4111 1111 1111 1111; https://me:hunter22@there.org/x at 8.8.8.8"
    )
    left, facts = mask(text, private(**ALL))
    assert left == (
        "Call [phone number] or [phone number], mail email@example.com, pay to [IBAN] or by [credit card]; "
        "https://me:[secret]@there.org/x at 22.214.171.124"
    )
    once = ("secrets", "ibans", "credit_cards", "emails", "ip_addresses")
    assert facts == {"masked": 7, "masked_phone_numbers": 2, **{f"masked_{kind}": 1 for kind in once}}
    assert mask(left, private(**(ALL | {"emails": False, "public_ips": False}))) == (left, {})
    assert mask("1-800-555-0199", private(phone_numbers=True, phone_regions=()))[0] == "1-800-555-0199"
    assert mask("4111111111111111", private(credit_cards=True, placeholder="<{kind}>"))[0] == "<credit card>"


@pytest.mark.parametrize("space", [" ", "\u00a0", "\u202f", "\u3000"])
def test_values_are_found_with_the_spaces_of_pages(space: str) -> None:
    """Web pages hold the groups of a number together by spaces at which no line breaks."""
    settings = private(phone_numbers=True, ibans=True, credit_cards=True)
    given = ("DE89 3704 0044 0532 0130 00", "4111 1111 1111 1111", "+49 30 901820")
    first, second, third = (value.replace(" ", space) for value in given)
    found = mask(f"caf\u00e9{space}{first}, {second}; {third}.", settings)
    assert found.text == f"caf\u00e9{space}[IBAN], [credit card]; [phone number]."
    assert mask("\u96fb\u8a71\uff0b\uff14\uff19 30 901820\u3002", settings).text == "\u96fb\u8a71[phone number]\u3002"


def test_the_end_of_a_key_is_where_ascii_ends() -> None:
    """Letters of other scripts are no part of a key, and no word that a key would continue."""
    settings = private(secrets=True)
    for key, rest in (
        ("AKIA" + "Q7RT2MZX4KPL9WVB", ""),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", ""),
        ("glpat-" + "a1B2c3D4e5F6g7H8i9J0", "\u662f\u4e00\u4e2a\u4ee4\u724c"),
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "\u3002\u00e9"),
    ):
        assert mask(f"\u5bc6\u94a5{key}{rest}", settings).text == f"\u5bc6\u94a5[secret]{rest}", key
        assert mask(f"x{key}", settings).facts == {}, key


@pytest.mark.parametrize("ends", ["aZ", "/+", "+a", "b/"])
def test_a_secret_key_of_aws_may_begin_and_end_with_any_character(ends: str) -> None:
    key, settings = f"{ends[0]}{'a1B/' * 9}c2{ends[1]}", private(secrets=True)
    for text in ('aws_secret_access_key = "{}"', "aws \u5bc6\u94a5 key {}\u3002", "AWS token\u662f{}\u7684"):
        assert mask(text.format(key), settings).text == text.format("[secret]")
    assert mask(f"aws key {key}1", settings).facts == {}


IBANS = ("de89 3704 0044 0532 0130 00", "Fr14 2004 1010 0505 0001 3m02 606", "be68 5390 0754 7034")


def test_an_iban_may_have_small_letters_and_other_separators() -> None:
    """Words in small letters that resemble one stay."""
    settings = private(ibans=True)
    for separator in ("", " ", "-", ".", "\t", "\u2011", "\u2013"):
        for written in (*IBANS, *map(str.upper, IBANS)):
            for after in (", from", " from", ".From", "\u96fb"):
                if separator != after[0]:
                    text = f"an {written.replace(' ', separator)}{after} now."
                    assert mask(text, settings).text == f"an [IBAN]{after} now.", text
    for text in (
        "be68.5390.0754.7034.0001 is a version",
        "be68-5390-0754-7034-0001 and x-be68-5390-0754-7034 are serial numbers",
        "ps95 palestine and 12 345 more line of words follow it",  # the sum of the check digits is right
        "be68 53900754 7034 has no groups of four",
        "de89 3704-0044 0532 0130 00 has two separators",
    ):
        assert mask(text, settings).facts == {}, text


def test_the_groups_of_a_card_may_have_any_single_separator_and_a_row_of_a_table_is_none() -> None:
    settings = private(credit_cards=True)
    for separator in ("\t", ".", "/", "_", "\u00b7", "\u2013", "\u2212", "\u2009"):
        for groups in ("4111 1111 1111 1111", "3782 822463 10005"):
            text = f"card: {groups.replace(' ', separator)} (Jane)"
            assert mask(text, settings).text == "card: [credit card] (Jane)"
        mixed = f"4111{separator}1111 1111{separator}1111"
        assert bool(mask(mixed, settings).facts) == (separator == "\u2009")
    for row in ("4111\t1111\t1111\t1111\t2000", "1980\t4111\t1111\t1111\t1111", "4111.1111.1111.1111.5"):
        assert mask(f"numbers\n{row}\n", settings).facts == {}
    assert mask("4111\n1111\n1111\n1111", settings).facts == {}
    assert mask("4111\t1111\t1111\t1111\t12/27\t123", settings).facts["masked"] == 1


def test_a_fingerprint_depends_on_the_masks_that_are_on() -> None:
    assert PiiSettings().model_dump().keys() == {"emails", "public_ips", "email_placeholders", "ip_placeholders"}
    assert "ibans" in private(ibans=True).model_dump()
    chosen = FilterSettings(pii=private(phone_numbers=True, secrets=True))
    assert filter_packages(chosen) == ["bc-detect-secrets", "phonenumbers"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"phone_numbers": True, "phone_regions": ["ZZ"]}, "no telephone numbers of region 'ZZ'"),
        ({"secrets": True}, 'a rule of bc-detect-secrets needs the extra "privacy": pip install'),
    ],
)
def test_wrong_masks_are_one_line(wanted: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private()
    if "secrets" in wanted:
        monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        build(PiiSettings, wanted)
    assert "\n" not in str(caught.value)


KEY = "-----BEGIN PRIVATE KEY-----"
UNITS = ["a", "a-", "\u00e4\uff20", "a.", "a@", "1.", "@a.", "a@a.", "2001:", "2::", "2001:4860::1"]
UNITS_OF_ALL = [
    *("1 ", "1234567890123456 ", "4111\t", "DE89 ", "de89-", "be68 5390 ", "eyJ", "eyJa.", "sk-", "://a:"),
    *(KEY, f"{KEY}\n{20 * 'A'}", "aws key "),
]


@pytest.mark.parametrize(
    ("unit", "length"), [*((unit, 200_000) for unit in UNITS), *((unit, 30_000) for unit in UNITS_OF_ALL)]
)
def test_a_long_hostile_text_takes_linear_time(unit: str, length: int) -> None:
    settings = BOTH if unit in UNITS else private(**ALL)
    text = unit * (length if unit in UNITS else length // len(unit))
    started = time.process_time()
    mask(text, settings)
    assert time.process_time() - started < 5
