"""Parts of the tests of backoff that other tests need, too."""

import random


class Drawn(random.Random):
    """Chance that always says the same."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def random(self):
        return self.value


MIDDLE = Drawn(0.5)
