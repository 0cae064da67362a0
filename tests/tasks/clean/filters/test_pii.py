"""Masking of personal data: matches, non-matches, and linear time on long texts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.clean.filters.pii import PiiSettings, is_public, mask

BOTH = PiiSettings(emails=True, public_ips=True)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to jane.doe+list@mail.example.co.uk.", "Write to email@example.com."),
        ("<a@b.org>, 'c_d@e-f.net'", "<email@example.com>, 'firstname.lastname@example.org'"),
        ("see...tom@there.org", "see...email@example.com"),
        ("mailto:tom@there.org?subject=x", "mailto:email@example.com?subject=x"),
        ("https://tom@there.org/x", "https://email@example.com/x"),
        ("a @ b, user@localhost, @handle, a@b..c, x@1.2", None),
        ("a" * 65 + "@there.org", None),
        ("a" * 64 + "@there.org", "email@example.com"),
        ("at 8.8.8.8, 1.1.1.1 and 8.8.4.4:53.", "at 22.214.171.124, 126.96.36.199 and 188.8.131.52:53."),
        ("10.0.0.1 127.0.0.1 192.168.1.1 169.254.169.254 224.0.0.1x 100.64.0.1", None),
        ("1.2.3 1.2.3.4.5 256.1.1.1 version 01.2.3.4567", None),
    ],
)  # fmt: skip
def test_personal_data_is_masked(text: str, masked: str | None) -> None:
    expected = text if masked is None else masked
    left, facts = mask(text, BOTH)
    assert left == expected
    assert bool(facts) == (masked is not None)
    assert mask(text, PiiSettings()) == (text, {})


def test_each_kind_can_be_switched_off() -> None:
    text = "tom@there.org 8.8.8.8"
    assert mask(text, PiiSettings(emails=True)) == ("email@example.com 8.8.8.8", {"masked": 1})
    assert mask(text, PiiSettings(public_ips=True)) == ("tom@there.org 22.214.171.124", {"masked": 1})


@given(st.text(st.sampled_from("a.b@-1 é"), max_size=60))
def test_only_addresses_change(text: str) -> None:
    left, facts = mask(text, PiiSettings(emails=True, email_placeholders=("X",)))
    assert left.count("X") == facts.get("masked", 0)
    assert (left == text) == (not facts)


@pytest.mark.parametrize("unit", ["a", "a-", "a.", "a@", "1.", "@a.", "a@a."])
def test_a_long_text_takes_linear_time(unit: str) -> None:
    started = time.process_time()
    mask(unit * 200_000, BOTH)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("address", "public"), [("8.8.8.8", True), ("192.0.2.1", False), ("999.1.1.1", False)])
def test_public_ip_addresses_are_recognised(address: str, public: bool) -> None:
    assert is_public(address) == public
