"""
The producer that `benchmarks.celery_outage` measures, with Celery's own retries.

Usage, in .venv-rabbitmq: python -m benchmarks.celery_producer TASKS RATE PATIENCE
"""

import json
import sys
import time

from benchmarks.celery_app import add

TASKS, RATE, PATIENCE = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
LEAST = 0.1  # seconds for a result, once the patience is over

taken, failed, longest = [], [], 0.0
for number in range(TASKS):
    begun = time.monotonic()
    try:
        taken.append((number, add.delay(number, 1)))
    except Exception as error:
        failed.append(f"{type(error).__name__}: {error}")
    longest = max(longest, time.monotonic() - begun)
    time.sleep(1 / RATE)

ends = time.monotonic() + PATIENCE
results = 0
for number, awaited in taken:
    if time.monotonic() > ends + PATIENCE:  # a missing one takes its time, too
        print(f"no results of the tasks from {number} on were asked for", file=sys.stderr)
        break
    try:
        results += awaited.get(timeout=max(LEAST, ends - time.monotonic())) == number + 1
    except Exception as error:
        print(f"task {number}: {error!r}", file=sys.stderr)
json.dump(
    {"taken": len(taken), "failed": failed, "longest": longest, "results": results}, sys.stdout
)
