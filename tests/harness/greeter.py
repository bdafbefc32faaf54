"""Parts of the tests of greeter that other tests need, too."""

import sys
from pathlib import Path

from tests.harness.servers import ServerProcess, answers

SERVER = """
import socketserver, sys

class Greeting(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"hello " + self.rfile.readline())

socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Greeting).serve_forever()
"""


def greeter(folder: Path, port: int) -> ServerProcess:
    return ServerProcess(
        command=[sys.executable, "-c", SERVER, str(port)],
        folder=folder,
        is_ready=lambda: answers(port, b"you\n", b"hello you"),
    )
