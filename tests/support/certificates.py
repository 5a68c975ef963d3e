"""A certificate authority and a server's certificate, for tests of TLS."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    ca: Path
    cert: Path
    key: Path


def make_certificates(folder: Path, address: str = "127.0.0.1") -> Certificates:
    """PEM files in `folder`; the server's certificate is for `address`."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
    name = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    made = Certificates(ca=folder / "ca.pem", cert=folder / "cert.pem", key=folder / "key.pem")
    ca = _signed("a test's CA", ca_key, ca_key, x509.BasicConstraints(ca=True, path_length=None))
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.cert.write_bytes(_signed("server", key, ca_key, name).public_bytes(serialization.Encoding.PEM))
    plain, form = serialization.NoEncryption(), serialization.PrivateFormat.TraditionalOpenSSL
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return made


def _signed(
    name: str, key: rsa.RSAPrivateKey, by: rsa.RSAPrivateKey, extension: x509.ExtensionType
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        subject_name=_named(name),
        issuer_name=_named("a test's CA"),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=2),
    )
    return builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints)).sign(
        by, hashes.SHA256()
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
