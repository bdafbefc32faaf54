"""The application that `benchmarks.celery_outage` measures: one task whose result is awaited."""

import os
import time

from celery import Celery

app = Celery("benchmark", broker=os.environ["BROKER"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    task_default_queue_type=os.environ["TYPE"],
    task_acks_late=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    result_persistent=True,
)


@app.task
def add(one, other):
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{time.time()}\n")
    return one + other
