"""Listeners learn of new messages: by the endpoint `admin`, and by the topic of `[triggers]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:TRIGGERS"],
    apart=["options:keepers"],
    completions=["options:completed"],
    checks=["options:problems"],
    interceptors=["assembly:ANNOUNCING"],
    services=["assembly:ANNOUNCER"],
    admin_routes=["routes:TriggerRoutes"],
    wakes=["waking:WAY"],
    feeds=["feeds:make_feeds"],
    stream_feeds=["trigger_feed:TriggerFeed"],
)
