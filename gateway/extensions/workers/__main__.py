"""`python -m gateway.extensions.workers DESCRIPTOR`: a worker, which only its parent starts."""

import sys

import trio

from gateway.extensions.workers.worker import main

trio.run(main, int(sys.argv[1]))
