"""
An identity provider for tests: keys, discovery document, JWKS and a token endpoint.

In a test's own process it is a value (`OpenIdProvider`). As a process of its own it serves HTTP, or
HTTPS with a certificate:

    python -m tests.harness.openid PORT [CERTIFICATE KEY]

GET /.well-known/openid-configuration, /keys; POST /token signs the claims of its form (`claims`, a
JSON object), POST /rotate replaces the keys, POST /rotate?keep=1 adds one before them.
"""

import json
import secrets
import ssl
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import get_default_algorithms

AUDIENCE: Final = "https://servicebus.azure.net"
Private = Any  # of cryptography's classes for private keys

KINDS: Final = {
    "RS256": lambda: _rsa(2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": Ed25519PrivateKey.generate,
}


@cache  # keys take a tenth of a second each
def _rsa(bits: int) -> Private:
    return rsa.generate_private_key(65537, bits)


@attrs.frozen
class SigningKey:
    """A key of the provider."""

    key_id: str
    algorithm: str
    private: Private

    @classmethod
    def make(cls, key_id: str, algorithm: str = "ES256") -> "SigningKey":
        return cls(key_id, algorithm, KINDS[algorithm]())

    def jwk(self) -> dict[str, Any]:
        """The public half of the key."""
        codec = get_default_algorithms()[self.algorithm]
        public: dict[str, Any] = codec.to_jwk(self.private.public_key(), as_dict=True)
        public.pop("key_ops", None)
        return {**public, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}

    def sign(self, claims: Mapping[str, Any], **headers: Any) -> str:
        """A token with these claims; of the headers, None stands for none."""
        wanted = {"kid": self.key_id, **headers}
        given = {name: value for name, value in wanted.items() if value is not None}
        return jwt.encode(dict(claims), self.private, algorithm=self.algorithm, headers=given)


@attrs.define
class OpenIdProvider:
    """A provider with some keys, of which the first one signs."""

    issuer: str
    keys: list[SigningKey] = attrs.field(factory=lambda: [SigningKey.make("first")])
    _made: int = attrs.field(default=0, init=False)

    def claims(self, now: float, **more: Any) -> dict[str, Any]:
        """The claims of a token for an hour; None takes one away."""
        usual = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "orders-service",
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now) + 3600,
        }
        return {name: value for name, value in {**usual, **more}.items() if value is not None}

    def token(self, now: float, **claims: Any) -> str:
        return self.keys[0].sign(self.claims(now, **claims))

    def rotate(self, *, keep: bool = False) -> None:
        """Sign with a new key from now on; `keep` the others for a while."""
        self._made += 1
        self.keys = [SigningKey.make(f"next-{self._made}"), *(self.keys if keep else [])]

    def jwks(self, more: Sequence[Mapping[str, Any]] = ()) -> bytes:
        return json.dumps({"keys": [*more, *(key.jwk() for key in self.keys)]}).encode()

    def discovery(self) -> bytes:
        document = {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_endpoint": f"{self.issuer}/tenant/oauth2/authorize",
            "token_endpoint": f"{self.issuer}/token",
        }
        return json.dumps(document).encode()


def serve(port: int, tls: Sequence[str]) -> None:
    """Serve until the process is ended."""
    scheme = "https" if tls else "http"
    key = SigningKey.make(secrets.token_hex(4))  # each process has another one
    provider = OpenIdProvider(f"{scheme}://localhost:{port}", [key])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/keys":
                self.answer(200, provider.jwks())
            elif path == "/.well-known/openid-configuration":
                self.answer(200, provider.discovery())
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            if self.path.startswith("/rotate"):
                provider.rotate(keep="keep" in self.path)
                self.answer(200, b"{}")
                return
            claims = json.loads(parse_qs(form)["claims"][0])
            token = provider.keys[0].sign(claims)
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600}
            self.answer(200, json.dumps(answer).encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
