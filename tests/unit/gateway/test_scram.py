"""The server's side of SASL: the examples of the RFCs, and clients that do not know the password."""

from __future__ import annotations

import base64
from random import Random

import pytest

from share_spark.gateway.access import EVERYTHING
from share_spark.gateway.scram import ExchangeError, PlainExchange, Said, ScramExchange, ScramKeys
from share_spark.gateway.users import User, Users
from share_spark.kafka.sasl_exchange import SCRAM_HASHES, scram
from tests.unit.kafka.test_sasl_exchange import FINAL, FIRST, NONCE, VERDICT

CLIENT_FIRST = f"n,,n=user,r={NONCE}"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = ScramKeys.of("SCRAM-SHA-256", b"pencil", salt=SALT, iterations=4096)
HARD = "p,ä=ss wörd½"


def rfc_exchange() -> ScramExchange:
    return ScramExchange("SCRAM-SHA-256", lambda *_: KEYS, SERVER_NONCE)


@pytest.fixture(scope="module")
def users() -> Users:
    return Users.none().with_user("me, myself = I", User.of(HARD.encode(), EVERYTHING))


def test_scram_as_in_the_rfc() -> None:
    exchange = rfc_exchange()
    assert exchange.answer(CLIENT_FIRST.encode()) == Said(FIRST.encode())
    assert exchange.answer(FINAL.encode()) == Said(VERDICT.encode(), "user")


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
def test_our_client_and_our_server_understand_each_other(users: Users, mechanism: str) -> None:
    server = ScramExchange(mechanism, users.keys_of, "nonce")
    client = scram(mechanism, "me, myself = I", HARD, NONCE)
    first = server.answer(next(client))
    last = server.answer(client.send(first.answer))
    assert (first.user, last.user) == (None, "me, myself = I")
    with pytest.raises(StopIteration):
        client.send(last.answer)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,r=abc,n=user",
        b"n,a=other,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=a\0b",
        FINAL.encode(),
    ],
)
def test_a_first_message_that_is_none_is_refused(said: bytes) -> None:
    with pytest.raises(ExchangeError):
        rfc_exchange().answer(said)


@pytest.mark.parametrize(
    "final",
    [
        "",
        "c=biws",
        FINAL.replace("biws", "eSws"),
        FINAL.replace("rOprNGfw", "rOprNGfx"),
        FINAL.replace(SERVER_NONCE, ""),
        FINAL.replace("p=dHz", "p=eHz"),
        FINAL.replace("p=dHzb", "p="),
        FINAL.partition(",p=")[0],
        FINAL.partition("p=")[0] + "p=",
        FINAL.partition("p=")[0] + "p=!!!!",
        FINAL.partition("p=")[0] + "p=YQ==",
        FINAL.replace(",p=", ",x=1,p="),
    ],
)
def test_a_proof_that_is_none_is_refused_without_a_word(final: str) -> None:
    exchange = rfc_exchange()
    exchange.answer(CLIENT_FIRST.encode())
    with pytest.raises(ExchangeError) as fault:
        exchange.answer(final.encode())
    assert str(fault.value) == ""


def test_any_other_bytes_are_refused() -> None:
    """Of the last two, base64 does not read all bits."""
    random = Random(1)
    for _ in range(2_000):
        exchange = rfc_exchange()
        first = bytearray(CLIENT_FIRST.encode())
        for _ in range(random.randrange(3)):
            first[random.randrange(len(first))] = random.randrange(256)
        try:
            exchange.answer(bytes(first))
            final = bytearray(FINAL.encode())
            final[random.randrange(len(final) - 2)] ^= 1 << random.randrange(8)
            exchange.answer(bytes(final))
        except ExchangeError:
            continue
        raise AssertionError("somebody has logged in")


def test_plain(users: Users) -> None:
    exchange = PlainExchange(users.keys_of)
    name, password = b"me, myself = I", HARD.encode()
    assert exchange.answer(b"\0" + name + b"\0" + password) == Said(b"", name.decode())
    assert exchange.answer(name + b"\0" + name + b"\0" + password).user == name.decode()
    wrong = [b"", b"\0", b"\0\xff\0x", b"\0\0", b"\0nobody\0" + password, b"\0" + name + b"\0" + password + b"!"]
    wrong += [b"other\0" + name + b"\0" + password, b"\0" + name + b"\0" + password + b"\0"]
    for said in wrong:
        with pytest.raises(ExchangeError):
            exchange.answer(said)


def test_nobody_is_told_who_is_there(users: Users) -> None:
    """Neither by the salt, which is the same each time, nor by the number of iterations."""
    known, unknown = "me, myself = I", "nobody"
    for mechanism in SCRAM_HASHES:
        real, decoy = users.keys_of(known, mechanism), users.keys_of(unknown, mechanism)
        assert (len(real.salt), real.iterations) == (len(decoy.salt), decoy.iterations)
        assert decoy == users.keys_of(unknown, mechanism)
        assert decoy.salt != users.keys_of("nobody else", mechanism).salt
        server = ScramExchange(mechanism, users.keys_of, "nonce")
        client = scram(mechanism, unknown, "any", NONCE)
        proof = client.send(server.answer(next(client)).answer)
        with pytest.raises(ExchangeError):
            server.answer(proof)
    salts = {users.keys_of(name, mechanism).salt for mechanism in SCRAM_HASHES for name in (known, unknown)}
    assert len(salts) == 2


def test_nothing_shows_a_key(users: Users) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", users.keys_of, "nonce")
    shown = f"{users!r} {users} {exchange!r} {KEYS!r}"
    for keys in users.by_name["me, myself = I"].keys.values():
        for key in (keys.salt, keys.stored_key, keys.server_key, users.decoy):
            assert repr(key)[2:-1] not in shown
