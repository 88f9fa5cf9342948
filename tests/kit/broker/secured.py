"""Apache Kafka behind TLS: certificates made on the spot; users by SCRAM, by tokens and by certificates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Self

import trustme
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from kit.broker.real import RealBroker, free_ports

SCRAM_PASSWORD = "scram-pass-7261"
_SCRAM = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
_OF_TLS = """\
ssl.keystore.type=PEM
ssl.keystore.location={good}
ssl.truststore.type=PEM
ssl.truststore.location={root}
listener.name.mutual.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^.*CN=([a-z]+).*$/$1/
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={expired}
listener.name.users.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.users.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.users.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.users.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
"""


class Secured(RealBroker):
    """A broker with listeners for users, for clients with certificates, and one whose own certificate has expired.

    `folder` holds root.pem, the authority that it trusts, and alice.pem, bob.pem and stranger.pem, a key and a
    certificate each; the stranger's is of another authority.
    """

    def __init__(self, folder: Path) -> None:
        users, mutual, expired = free_ports(3)
        self.folder = folder
        self.users_servers, self.mutual_servers = f"127.0.0.1:{users}", f"127.0.0.1:{mutual}"
        self.expired_servers = f"127.0.0.1:{expired}"
        self.tls = {"ssl.ca.location": str(folder / "root.pem")}
        self._certify()
        super().__init__(
            brief=True,
            listeners={"USERS": (users, "SASL_SSL"), "MUTUAL": (mutual, "SSL"), "EXPIRED": (expired, "SSL")},
            more=_OF_TLS.format(root=folder / "root.pem", good=folder / "good.pem", expired=folder / "expired.pem"),
        )

    def start(self) -> Self:
        """Start it, and let alice have a password."""
        super().start()
        for each in _SCRAM:  # of one user a request takes one
            made = UserScramCredentialUpsertion("alice", ScramCredentialInfo(each, 4096), SCRAM_PASSWORD.encode())
            self.admin.alter_user_scram_credentials([made])["alice"].result(60)
        return self

    def _certify(self) -> None:
        root, past = trustme.CA(), dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        root.cert_pem.write_to_path(self.folder / "root.pem")
        certificates = {
            "good": root.issue_cert("127.0.0.1"),
            "expired": root.issue_cert("127.0.0.1", not_after=past),
            "alice": root.issue_cert("alice@example.org", common_name="alice"),
            "stranger": trustme.CA().issue_cert("mallory@example.org", common_name="mallory"),
        }
        for name, each in certificates.items():
            key = load_pem_private_key(each.private_key_pem.bytes(), None)
            plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the form that Java reads
            chain = b"".join(blob.bytes() for blob in each.cert_chain_pems)
            (self.folder / f"{name}.pem").write_bytes(plain + chain)
