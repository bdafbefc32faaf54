"""Parts of the tests of page commands that other tests need, too."""

import re
import shlex

# The command and its arguments, in a block or within a sentence.
PAIRGATE = re.compile(r"(?:^|`)(?:\.venv/bin/)?pairgate ([^`\n]*)", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in PAIRGATE.findall(text)]
