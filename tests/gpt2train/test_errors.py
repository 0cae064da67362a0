"""Redaction of secrets in addresses, in any spelling."""

import traceback
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2train.errors import RunError, UserError, redact, redact_error, redact_values, redacted_traceback

# No white space: an address ends there. Every secret begins with a letter, as `1234/…` after a colon is a port.
CHARACTERS = st.sampled_from("abzABZ059-._~!$&'()*+,;=:@/%\"\\[]{}|^`äß")
SECRETS = st.text(CHARACTERS, max_size=12).map(lambda text: f"Xk{text}qZ")
HOSTS = st.sampled_from(["host.example", "127.0.0.1:8080", "[::1]:9000", "bucket", "localhost"])
SCHEMES = st.sampled_from(["http", "https", "s3", "S3A", "gs", "ftp", "simplecache::https", "zip://*.txt::https"])
AROUND = st.sampled_from(
    ["{}", "cannot read {}: no such file", "'{}'", '"{}", "b"', "({})", "x {} y", "url={};", "<{}>"]
)


@given(SCHEMES, st.sampled_from(["://", ":/", ":///"]), SECRETS, SECRETS, HOSTS, AROUND, st.booleans())
@settings(max_examples=400, deadline=None)
def test_user_names_and_passwords_are_removed(
    scheme: str, slashes: str, user: str, password: str, host: str, around: str, named: bool
) -> None:
    # Without a password the name is the secret, as a token is; it cannot hold a slash.
    user = user.replace("/", "").replace(":", "").replace("@", "")
    address = f"{scheme}{slashes}{user}:{password}@{host}/folder/list.txt" if named else ""
    address = address or f"{scheme}{slashes}{password.replace('/', '')}@{host}/folder/list.txt"
    said = redact(around.format(address))
    assert password not in said and (user not in said or not named)
    # A chain of addresses, or a question mark in a password: more may be taken out.
    whole = around.format(f"{scheme}{slashes}…@{host}/folder/list.txt")
    assert said == whole or "::" in scheme or "?" in address or "#" in address


@given(SCHEMES, HOSTS, st.lists(st.tuples(st.sampled_from(["X-Amz-Signature", "sig", "token"]), SECRETS)), AROUND)
@settings(max_examples=400, deadline=None)
def test_queries_are_removed(scheme: str, host: str, pairs: list[tuple[str, str]], around: str) -> None:
    for sign in "?#":
        query = sign + "&".join(f"{name}={secret}" for name, secret in pairs) if pairs else ""
        said = redact(around.format(f"{scheme}://{host}/list.txt{query}"))
        assert not [secret for _, secret in pairs if secret in said]
        # An @ in the query may be the one before the host: more may be taken out.
        assert f"://{host}/list.txt" in said or "::" in scheme or "@" in query


@given(SECRETS, st.sampled_from(["{}", "bucket name 'k:{}'", "user {} refused", "401, message='{}'"]))
@settings(max_examples=300, deadline=None)
def test_secrets_repeated_by_a_library_are_removed(secret: str, around: str) -> None:
    for form in (secret, quote(secret, safe="")):
        for address in (f"https://k:{form}@host/list.txt", f"https://host/a?X-Amz-Signature={quote(secret, safe='')}"):
            for repeated in (secret, quote(secret, safe="")):
                assert repeated not in redact(around.format(repeated), address)


def test_text_without_a_secret_is_unchanged() -> None:
    for text in ("s3://bucket/part-*.txt", "https://host:8080/a/b.txt", "me@x.org", "a/b@c", "C:/x y@z", "12:30, 3@4"):
        assert redact(text) == text
    assert redact("see https://me:pw@h.org/a?sig=1&k=2 and s3://b/c") == "see https://…@h.org/a?… and s3://b/c"
    assert redact("https://host:80/@name/x") == "https://host:80/@name/x"
    assert redact("('https://h/a?sig=1', 2)") == "('https://h/a?…', 2)"


def test_values_and_errors_are_redacted() -> None:
    value = {"urls": ["https://u:pw@h/l?sig=x"], "n": 3, "https://u:pw@h": None}
    assert redact_values(value) == {"urls": ["https://…@h/l?…"], "n": 3, "https://…@h": None}
    for error in (
        ValueError("bad https://u:pw@h"),
        FileNotFoundError(2, "No such file", "https://u:pw@h"),
        KeyError("https://u:pw@h"),
    ):
        assert "pw" not in str(redact_error(error)) and type(redact_error(error)) is type(error)

    class Odd(ConnectionError):
        def __str__(self) -> str:
            return "at https://u:pw@h"

    assert str(redact_error(Odd())) == "Odd: at https://…@h" and isinstance(redact_error(Odd()), RunError)


def test_a_traceback_shows_no_secret_from_its_causes() -> None:
    with pytest.raises(UserError) as caught:
        try:
            raise ValueError("https://u:pw@h/l?sig=x")
        except ValueError as error:
            raise UserError("cannot read it") from error
    assert "pw@" in "".join(traceback.format_exception(caught.value))
    assert "pw@" not in redacted_traceback(caught.value) and "sig=x" not in redacted_traceback(caught.value)
