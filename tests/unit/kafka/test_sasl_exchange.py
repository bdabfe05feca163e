"""SASL: the examples of the RFCs, and answers of somebody who does not know the password."""

from __future__ import annotations

import pytest

from share_spark.kafka.sasl_exchange import SaslExchange, plain, scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERDICT = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""RFC 7677, section 3: user, pencil."""


def spoken(exchange: SaslExchange, *answers: str) -> list[str]:
    """What the client says."""
    said = [next(exchange).decode()]
    for answer in answers:
        try:
            said.append(exchange.send(answer.encode()).decode())
        except StopIteration:
            said.append("the end")
    return said


def test_plain() -> None:
    assert spoken(plain("tim", "tanstaaftanstaaf"), "") == ["\0tim\0tanstaaftanstaaf", "the end"]


def test_scram_as_in_the_rfc() -> None:
    exchange = scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert spoken(exchange, FIRST, VERDICT) == [f"n,,n=user,r={NONCE}", FINAL, "the end"]


def test_a_name_may_have_any_letter() -> None:
    assert spoken(scram("SCRAM-SHA-512", "a=b,c", "x", NONCE)) == [f"n,,n=a=3Db=2Cc,r={NONCE}"]


def test_a_password_is_taken_as_it_is() -> None:
    """As Kafka takes it; RFC 5802 would have the first one made into the second (SASLprep)."""
    half, three_characters = (spoken(scram("SCRAM-SHA-256", "user", one, NONCE), FIRST) for one in ("½", "1⁄2"))
    assert half[1] != three_characters[1]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([FIRST.replace("rOpr", "rOpq")], "answers somebody else"),
        ([f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"], "answers somebody else"),
        ([""], "answers somebody else"),
        ([FIRST.replace("i=4096", "i=4095")], "4095 iterations are outside 4096 to 1000000"),
        ([FIRST.replace("i=4096", "i=999999999")], "999999999 iterations are outside"),
        ([FIRST.replace("i=4096", "i=-1")], "does not say how many iterations"),
        ([FIRST.replace("s=W22Z", "s=!")], "the broker's answer has no s"),
        ([FIRST, VERDICT.replace("v=6", "v=7")], "the broker does not know the password"),
        ([FIRST, "v="], "the broker does not know the password"),
        ([FIRST, ""], "the broker's answer has no v"),
        ([FIRST, "e=other-error"], "SCRAM: other-error"),
    ],
)
def test_an_answer_that_is_not_right_ends_it(answers: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as fault:
        spoken(scram("SCRAM-SHA-256", "user", "pencil", NONCE), *answers)
    assert "pencil" not in str(fault.value)
