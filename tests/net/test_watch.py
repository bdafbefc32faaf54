"""A request that takes long is watched, and no other one."""

import trio

from gateway.net.watch import WATCH_AFTER, RequestWatch


class Looks:
    def __init__(self):
        self.begun = 0
        self.going_on = False

    async def look(self):
        self.begun += 1
        self.going_on = True
        try:
            await trio.sleep_forever()
        finally:
            self.going_on = False


async def test_an_answer_that_comes_soon_is_not_watched(nursery, autojump_clock):
    looks = Looks()
    watch = RequestWatch(looks.look)

    for _ in range(3):
        watch.begin(nursery)
        await trio.sleep(WATCH_AFTER / 2)
        await watch.stop()
    await trio.sleep(1)

    assert looks.begun == 0


async def test_each_request_that_takes_long_is_watched_to_its_end(nursery, autojump_clock):
    looks = Looks()
    watch = RequestWatch(looks.look)

    for number in range(1, 4):
        watch.begin(nursery)
        await trio.sleep(WATCH_AFTER * 2)
        assert (looks.begun, looks.going_on) == (number, True)
        await watch.stop()
        assert not looks.going_on


async def test_an_answer_in_the_moment_when_looking_begins_is_not_watched(nursery, autojump_clock):
    looks = Looks()
    watch = RequestWatch(looks.look)

    for _ in range(3):
        watch.begin(nursery)
        await trio.sleep(WATCH_AFTER)
        await watch.stop()
        assert not looks.going_on
