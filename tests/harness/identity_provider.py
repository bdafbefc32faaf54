"""
An identity provider as Entra ID is one, and an endpoint for managed identities, as one process.

    python -m tests.harness.identity_provider FOLDER TLS_PORT PORT

It has TLS at the first port (FOLDER has `server.pem` and `server.key`). Before each answer it reads
`answers.json`, and it appends each request to `requests.jsonl`, without secrets.
"""

import json
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import attrs
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import RSAAlgorithm

from gateway.demo.ports import free_port
from gateway.net.certs import write_certificates
from tests.harness.secret_files import write_secret
from tests.harness.servers import ServerProcess, answers

ROOT: Final = Path(__file__).parents[2]
TENANT: Final = "11111111-aaaa-bbbb-cccc-222222222222"
CLIENT: Final = "33333333-aaaa-bbbb-cccc-444444444444"
SECRET: Final = "a secret+of/this=test"
HEADER: Final = "the identity header of this test"  # the header that App Service demands
ISSUER: Final = f"https://sts.windows.net/{TENANT}/"
KEY_ID: Final = secrets.token_hex(4)  # each process has a key of its own
ASSERTION: Final = "client_assertion"


@attrs.frozen(kw_only=True)
class Answers:
    """The answers of the process from now on."""

    status: int = 200
    lifetime: int = 3600  # seconds, of its tokens
    renewed: int | None = None  # seconds after which they are to be renewed
    managed_lifetime: int = 3600  # of those of managed identities
    hang: float = 0.0  # seconds, before each answer
    echo: bool = False  # whether an error repeats the whole request, as a careless provider may
    refuses: bool = False  # managed identities: there is none


@attrs.define(eq=False)
class IdentityProvider:
    """The process, from the outside."""

    folder: Path
    tls_port: int
    port: int  # of the endpoint for managed identities
    server: ServerProcess

    @property
    def authority(self) -> str:
        return f"https://localhost:{self.tls_port}"

    @property
    def keys_url(self) -> str:
        return f"{self.authority}/{TENANT}/discovery/v2.0/keys"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def app_service(self) -> dict[str, str]:
        """The environment of a process in App Service."""
        url = f"http://127.0.0.1:{self.port}/msi/token"
        return {"IDENTITY_ENDPOINT": url, "IDENTITY_HEADER": HEADER}

    @property
    def machine(self) -> dict[str, str]:
        """The environment of a process on a virtual machine."""
        return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://127.0.0.1:{self.port}"}

    def answer(self, **answers: Any) -> None:
        _put(self.folder, Answers(**answers))

    def forget(self) -> None:
        """Answer as usual, with no requests so far, and nothing allowed but the secret."""
        self.answer()
        for name in ("requests.jsonl", "app.pem", "assertion"):
            (self.folder / name).unlink(missing_ok=True)

    def allow(self, certificate: Path) -> None:
        """Register a certificate of the app."""
        (self.folder / "app.pem").write_bytes(certificate.read_bytes())

    def allow_assertion(self, text: str) -> None:
        """Trust the issuer of that workload's token."""
        (self.folder / "assertion").write_text(text)

    def requests(self, path: str = "token") -> list[dict[str, Any]]:
        """The requests so far whose path ends so."""
        try:
            lines = (self.folder / "requests.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [each for each in map(json.loads, lines) if each["path"].endswith(path)]


def identity_provider(folder: Path) -> IdentityProvider:
    """Make an identity provider with its files in `folder`; it isn't started yet."""
    folder.mkdir(parents=True, exist_ok=True)
    write_certificates(folder, now=datetime.now(UTC))
    _put(folder, Answers())
    tls_port, port = free_port(), free_port()
    server = ServerProcess(
        command=[sys.executable, "-m", __name__, str(folder), str(tls_port), str(port)],
        folder=folder,
        environment={"PYTHONPATH": str(ROOT)},
        is_ready=lambda: answers(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 404"),
    )
    return IdentityProvider(folder, tls_port, port, server)


def write_app_certificate(path: Path, password: str = "") -> Path:
    """Write a new certificate of an app with its key to `path`, and return `path`."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        protection = serialization.BestAvailableEncryption(password.encode())
    write_secret(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
        + certificate.public_bytes(serialization.Encoding.PEM),
    )
    return path


def _put(folder: Path, answers: Answers) -> None:
    new = folder / "answers.new"
    new.write_text(json.dumps(attrs.asdict(answers)))
    new.replace(folder / "answers.json")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    key: rsa.RSAPrivateKey

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self._note(url.path, {name: values[0] for name, values in parse_qs(url.query).items()})
        wanted = self._answers()
        if url.path.endswith("/.well-known/openid-configuration"):
            self._discover(url.path.split("/")[1])
        elif url.path.endswith("/discovery/v2.0/keys"):
            public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
            self._send(200, {"keys": [{**public, "kid": KEY_ID, "alg": "RS256", "use": "sig"}]})
        elif url.path in {"/msi/token", "/metadata/identity/oauth2/token"}:
            self._managed(url.path, parse_qs(url.query), wanted)
        else:
            self._send(404, {"error": "not_found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        path = urlsplit(self.path).path
        hidden = {"client_secret", ASSERTION}
        self._note(path, {name: text for name, text in form.items() if name not in hidden})
        wanted = self._answers()
        if wanted.status != 200:
            self._send(wanted.status, {"error": "temporarily_unavailable"})
        elif refusal := self._refusal(path.split("/")[1], form):
            echo = f" {body} {form.get('client_secret', form.get(ASSERTION))}"
            text = f"{refusal}{echo if wanted.echo else ''}\r\nTrace ID: 1 Timestamp: 2"
            self._send(401, {"error": "invalid_client", "error_description": text})
        else:
            audience = form["scope"].removesuffix("/.default")
            token = self._token(audience, form["client_id"], wanted.lifetime)
            found: dict[str, Any] = {"token_type": "Bearer", "access_token": token}
            found |= {"expires_in": wanted.lifetime, "ext_expires_in": wanted.lifetime}
            if wanted.renewed is not None:
                found["refresh_in"] = wanted.renewed
            self._send(200, found)

    def log_message(self, *arguments: Any) -> None:
        """Nothing to do: `requests.jsonl` has all."""

    def _answers(self) -> Answers:
        wanted = Answers(**json.loads((self.folder / "answers.json").read_text()))
        time.sleep(wanted.hang)
        return wanted

    def _note(self, path: str, fields: Mapping[str, str]) -> None:
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write(f"{json.dumps({'path': path, **fields})}\n")

    def _discover(self, tenant: str) -> None:
        if tenant != TENANT:
            text = f"AADSTS90002: Tenant '{tenant}' not found.\r\nTrace ID: 1"
            self._send(400, {"error": "invalid_tenant", "error_description": text})
            return
        base = self._base(tenant)
        self._send(
            200,
            {
                "issuer": f"{base}/v2.0",
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "token_endpoint": f"{base}/oauth2/v2.0/token",
                "jwks_uri": f"{base}/discovery/v2.0/keys",
            },
        )

    def _base(self, tenant: str) -> str:
        return f"https://{self.headers['Host']}/{tenant}"

    def _refusal(self, tenant: str, form: Mapping[str, str]) -> str:
        if tenant != TENANT:
            return f"AADSTS90002: Tenant '{tenant}' not found."
        if form.get("client_id") != CLIENT:
            return f"AADSTS700016: Application '{form.get('client_id')}' was not found."
        if form.get("grant_type") != "client_credentials":
            return "AADSTS70003: The app requested an unsupported grant type."
        if ASSERTION in form:
            return self._refusal_of_assertion(tenant, form[ASSERTION])
        is_known = form.get("client_secret") == SECRET
        return "" if is_known else "AADSTS7000215: Invalid client secret provided."

    def _refusal_of_assertion(self, tenant: str, assertion: str) -> str:
        known = self.folder / "assertion"
        if known.exists() and known.read_text().strip() == assertion:
            return ""
        try:
            certificate = x509.load_pem_x509_certificate((self.folder / "app.pem").read_bytes())
            key: Any = certificate.public_key()
            audience = f"{self._base(tenant)}/oauth2/v2.0/token"
            jwt.decode(assertion, key, ["RS256", "PS256"], audience=audience)
        except (jwt.InvalidTokenError, FileNotFoundError) as error:
            return f"AADSTS700027: The assertion isn't signed by a known key: {error}"
        return ""

    def _managed(self, path: str, query: Mapping[str, list[str]], wanted: Answers) -> None:
        at_service = path == "/msi/token"
        if at_service and self.headers["X-IDENTITY-HEADER"] != HEADER:
            self._send(403, {"statusCode": 403, "message": "wrong header"})
        elif wanted.status != 200:
            self._send(wanted.status, {"statusCode": wanted.status, "message": "try later"})
        elif wanted.refuses:
            text = "Identity not found"
            both = {"error": "invalid_request", "error_description": text}
            self._send(400, {"statusCode": 400, "message": text, **both})
        else:
            client = query.get("client_id", ["system"])[0]
            token = self._token(query["resource"][0], client, wanted.managed_lifetime)
            ends = int(time.time()) + wanted.managed_lifetime
            found = {"access_token": token, "expires_on": str(ends), "token_type": "Bearer"}
            found |= {"expires_in": str(wanted.managed_lifetime), "resource": query["resource"][0]}
            self._send(200, found)

    def _token(self, audience: str, client: str, lifetime: int) -> str:
        now = int(time.time())
        claims = {
            "aud": audience,
            "iss": ISSUER,
            "iat": now,
            "nbf": now,
            "exp": now + lifetime,
            "appid": client,
            "sub": client,
            "tid": TENANT,
        }
        return jwt.encode(claims, self.key, "RS256", headers={"kid": KEY_ID})

    def _send(self, status: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(folder: Path, tls_port: int, port: int) -> None:
    _Handler.folder = folder
    _Handler.key = rsa.generate_private_key(65537, 2048)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    secure = ThreadingHTTPServer(("127.0.0.1", tls_port), _Handler)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    plain = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    threading.Thread(target=secure.serve_forever, daemon=True).start()
    plain.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
