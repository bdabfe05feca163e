"""Celery on Redis: a task for each record, acknowledged late, retried by Celery; its row is written by the task."""

from __future__ import annotations

from celery import Celery, Task

from tests.scoreboard.programs.surroundings import TOPIC, append, call, source
from tests.scoreboard.records import LIMIT, LOCK_MS, OK

REDIS = {"visibility_timeout": LOCK_MS // 1_000, "unacked_restore_throttle": 1}
"""After so many seconds a task is given away again. Celery's docs: longer than any task takes; an hour is the default.
Without the second one it looks for such tasks only each 100 seconds."""

app = Celery("scored", broker=source())
app.conf.update(
    task_default_queue=TOPIC,
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options=REDIS,
)


@app.task(bind=True, max_retries=LIMIT - 1, name="handle")
def handle(task: Task, number: int) -> None:
    """Ask the service, and write a row; a letter after the last retry."""
    if call(number, task.request.retries + 1) == OK:
        append("rows", [number])
    elif task.request.retries == task.max_retries:
        append("letters", [number])
    else:
        raise task.retry(countdown=0)
