"""Secured clusters: whoever may read reads; who may not is told why; no secret is shown anywhere."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation
from kit.broker.handle import payloads, read
from kit.broker.secured import SCRAM_PASSWORD, Secured
from kit.inside import Extents, Letter

from dali_feed.errors import ConfigError, DaliFeedError, SourceDeniedError
from dali_feed.external_sources import KafkaTopic, Producer, Secret, Topics
from dali_feed.testing import publish

TOPIC = "guarded"


@pytest.fixture(scope="module")
def secured(needs_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker behind TLS with a topic that only alice may read."""
    with Secured(tmp_path_factory.mktemp("certificates")) as running:
        running.create(TOPIC)
        publish(running.servers, TOPIC, [(b"a", 1), (b"b", 2), (b"c", 3)])
        running.allow(TOPIC, AclOperation.READ)
        yield running


def _scram(broker: Secured, **more: object) -> dict[str, Any]:
    return {
        **broker.tls,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": SCRAM_PASSWORD,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def _token(_: str) -> tuple[str, float]:
    """A token of alice's, unsigned: the test broker takes those."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 3600})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, ""]), now + 3600.0


def _reads(servers: str, config: dict[str, Any]) -> None:
    source = KafkaTopic(TOPIC, servers, config=config, timeout=10)
    deadline = time.monotonic() + 20  # a right reaches the broker a moment after it was given
    while True:
        try:
            assert len(source.snapshot()) == 3
            break
        except SourceDeniedError:
            if time.monotonic() > deadline:
                raise
    assert payloads(read(source, Extents.one(0, 0, 3))) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_with_a_password_reads(secured: Secured, mechanism: str) -> None:
    """TLS and SCRAM."""
    _reads(secured.users_servers, _scram(secured, sasl_mechanism=mechanism))


def test_a_user_with_a_token_reads(secured: Secured) -> None:
    """TLS and OAUTHBEARER, the token from a function of the user's."""
    config = {**secured.tls, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": _token}
    _reads(secured.users_servers, config)


def test_a_client_with_a_certificate_reads(secured: Secured) -> None:
    """TLS on both sides."""
    own = str(secured.folder / "alice.pem")
    config = {**secured.tls, "security.protocol": "SSL", "ssl.certificate.location": own, "ssl.key.location": own}
    _reads(secured.mutual_servers, config)


def test_a_password_from_the_environment_and_from_a_file(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read when a client is made, so one that was changed counts; a source that is pickled holds none."""
    monkeypatch.setenv("DALI_FEED_TEST_PASSWORD", SCRAM_PASSWORD)
    (tmp_path / "password").write_text(SCRAM_PASSWORD + "\n")
    for where in (Secret(env="DALI_FEED_TEST_PASSWORD"), Secret(file=tmp_path / "password")):
        config = _scram(secured, sasl_password=where)
        _reads(secured.users_servers, config)
        assert SCRAM_PASSWORD.encode() not in pickle.dumps(config)
    (tmp_path / "password").write_text("another")
    with pytest.raises(SourceDeniedError, match="credentials"):
        _reads_once(secured.users_servers, config)


def _reads_once(servers: str, config: dict[str, Any]) -> None:
    KafkaTopic(TOPIC, servers, config=config, timeout=10).snapshot()


def test_whoever_may_not_read_is_told_why(secured: Secured) -> None:
    """A wrong password, host name or authority, an expired certificate, none where one is wanted, no TLS, no right."""
    tls = {**secured.tls, "security.protocol": "SSL"}
    stranger, alice = (str(secured.folder / f"{name}.pem") for name in ("stranger", "alice"))
    no_authority = {k: v for k, v in _scram(secured).items() if k != "ssl.ca.location"}
    localhost = secured.users_servers.replace("127.0.0.1", "localhost")
    cases: list[tuple[str, dict[str, Any], str]] = [
        (secured.users_servers, _scram(secured, sasl_password="wrong"), "must accept the credentials"),
        (secured.users_servers, _scram(secured, sasl_username="bob"), "must accept the credentials"),
        (secured.users_servers, _scram(secured, sasl_mechanism="PLAIN"), "supported mechanisms: SCRAM"),
        (localhost, _scram(secured), r"not valid for 'localhost'; use an address that it names"),
        (secured.users_servers, no_authority, r"ssl\.ca\.location"),
        (secured.expired_servers, tls, "certificate has expired; renew it"),
        (secured.mutual_servers, tls, r"needs a certificate of the client; give ssl\.certificate\.location"),
        (
            secured.mutual_servers,
            {**tls, "ssl.certificate.location": stranger, "ssl.key.location": stranger},
            "check its dates, and that the broker trusts its authority",
        ),
        (secured.users_servers, {}, r"uses TLS; set security\.protocol"),
    ]
    for servers, config, told in cases:
        with pytest.raises(SourceDeniedError, match=told):
            _reads_once(servers, config)
    secured.create("closed")
    good = {**tls, "ssl.certificate.location": alice, "ssl.key.location": alice}
    with pytest.raises(SourceDeniedError, match="rights Describe and Read on the topic"):
        KafkaTopic("closed", secured.mutual_servers, config=good, timeout=10).snapshot()


def test_no_secret_is_shown(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a repr, an error with its traceback, a state, nor in what librdkafka logs at its most talkative."""
    caplog.set_level(logging.DEBUG, "dali_feed")
    wrong, token = "pass-of-alice-0451", "token-of-alice-7781"
    monkeypatch.setenv("DALI_FEED_TEST_PASSWORD", wrong)
    shown: list[str] = []

    def tried(config: dict[str, Any], servers: str = secured.users_servers) -> None:
        objects = (
            KafkaTopic(TOPIC, servers, config=config, timeout=3),
            Topics(servers, config=config, timeout=3),
            Producer(TOPIC, servers, config=config, timeout=3),
        )
        shown.extend(repr(each) for each in objects)
        letter = Letter(
            where="t[0]@0", source="t", partition=0, position=0, sample=0, stage="decode", reason="bad", payload=b"x"
        )
        for ask in (
            objects[0].snapshot,
            lambda: objects[1].describe(TOPIC),
            lambda: objects[2].writer().write([letter]),
        ):
            try:
                ask()
            except DaliFeedError as error:
                shown.extend(traceback.format_exception(error))
            else:
                pytest.fail("it was let in")

    tried(_scram(secured, sasl_password=wrong, debug="all"))
    tried(_scram(secured, sasl_password=Secret(env="DALI_FEED_TEST_PASSWORD")))
    tried(_scram(secured, ssl_key_pem=wrong, ssl_key_password=wrong))
    broken = {"sasl.oauthbearer.config": f"principal=alice badly={token}", "sasl.mechanism": "OAUTHBEARER"}
    tried({**secured.tls, "security.protocol": "SASL_SSL", **broken, "enable.sasl.oauthbearer.unsecure.jwt": True})
    good = KafkaTopic(TOPIC, secured.users_servers, config=_scram(secured, debug="all"), timeout=10)
    shown.append(json.dumps(good.snapshot().pin))
    everything = "\n".join([*shown, caplog.text])
    assert "SASL" in caplog.text
    for secret in (wrong, token, SCRAM_PASSWORD):
        assert secret not in everything


def test_secrets_that_are_not_there(tmp_path: Path) -> None:
    """A variable that is not set, a file that is missing: ConfigErrors that name the option and the place."""
    none = (Secret(env="DALI_FEED_NO_SUCH"), "DALI_FEED_NO_SUCH"), (Secret(file=tmp_path / "no"), "No such file")
    for value, told in none:
        with pytest.raises(ConfigError, match=rf"sasl\.password in config=.*{told}"):
            KafkaTopic("t", "h:1", config={"sasl.password": value}).snapshot()
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location in config= must name a file"):
        KafkaTopic("t", "h:1", config={"ssl.ca.location": str(tmp_path / "no.pem")}).snapshot()
