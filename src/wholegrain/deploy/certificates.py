"""Certificates and keys for a federation: an authority of its own, a server certificate, and a key for every silo."""

import base64
import hashlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wholegrain.errors import SpecError

VALID = timedelta(days=825)
AUTHORITY_VALID = timedelta(days=3650)


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """Signs the server's certificates; its key is needed to renew one, and best kept on a machine of its own."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def new(name: str) -> "Authority":
        """A self-signed authority for one federation."""
        key = ec.generate_private_key(ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(subject, subject, key.public_key(), AUTHORITY_VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        return Authority(key, builder.sign(key, hashes.SHA384()))

    @staticmethod
    def load(certificate: bytes, key: bytes) -> "Authority":
        """The authority of an earlier day."""
        private = serialization.load_pem_private_key(key, None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind")
        found = x509.load_pem_x509_certificate(certificate)
        if found.public_key() != private.public_key():
            raise ValueError("the authority's key and certificate do not belong together")
        return Authority(private, found)

    @property
    def private(self) -> bytes:
        """The authority's key."""
        return _private(self.key)

    @property
    def pem(self) -> bytes:
        """The authority's certificate, which every silo needs."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, hosts: tuple[str, ...], valid: timedelta = VALID) -> Identity:
        """A certificate for a server that is reached under these names or addresses."""
        key = ec.generate_private_key(ec.SECP384R1())
        # A common name has 64 letters at most; who is meant stands in the alternative names.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        builder = _builder(subject, self.certificate.subject, key.public_key(), valid)
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        signed = builder.sign(self.key, hashes.SHA384())
        return Identity(signed.public_bytes(serialization.Encoding.PEM), _private(key))


def silo_key() -> ec.EllipticCurvePrivateKey:
    """A silo's new key, of the kind that Flower wants: ECDSA over P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def private_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A silo's key in OpenSSH's form."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def public_line(key: ec.EllipticCurvePrivateKey) -> str:
    """The public half of a silo's key, as one line."""
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def load_private_key(text: bytes, where: str) -> ec.EllipticCurvePrivateKey:
    """A silo's key as `federation join` writes it."""
    try:
        key = serialization.load_ssh_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SpecError(f"'{where}' is no private key in OpenSSH's form without a passphrase.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise SpecError(f"The key '{where}' is not of the kind ECDSA P-384.")
    return key


def load_public_key(line: str, where: str) -> ec.EllipticCurvePublicKey:
    """The public half, as one line."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SpecError(f"The public key of {where} cannot be read.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise SpecError(f"The public key of {where} is not of the kind ECDSA P-384.")
    return key


def fingerprint(public: str) -> str:
    """A public key in short, as `ssh-keygen -l` prints it: what two operators compare over the telephone."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def hosts_of(certificate: bytes) -> tuple[str, ...]:
    """The names and addresses that a server's certificate is for."""
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + valid)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
