"""`python -m gateway.app.workers DESCRIPTOR`: a worker, which only its parent starts."""

import sys

import trio

from gateway.app.workers.worker import main

trio.run(main, int(sys.argv[1]))
