"""Parts of the tests of listen that other tests need, too."""

import trio

from gateway.domain.entity import EntityPath
from tests.e2e.processes import GatewayProcess
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")
LOOK = 0.05
NOTE = ("--python", "tests.e2e.handlers:note")


def noted(*listeners: GatewayProcess) -> list[str]:
    files = [listener.folder / "notes" for listener in listeners]
    return [line for file in files if file.exists() for line in file.read_text().split()]


async def until_noted(count: int, *listeners: GatewayProcess) -> None:
    """Return when the given number of different messages were processed."""
    with trio.fail_after(PATIENCE):
        while True:  # polled: another process decides
            if len(set(noted(*listeners))) >= count:
                return
            await trio.sleep(LOOK)


SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["ce-source"] == "/orders" and self.headers["ce-specversion"] == "1.0"
        with open("notes", "ab") as notes:
            notes.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
