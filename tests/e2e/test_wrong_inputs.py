"""Commands and configurations with a mistake: each is refused with its cause."""

import shlex

import pytest

from tests.e2e.commands import ADMIN, run
from tests.e2e.processes import Gateways

pytestmark = pytest.mark.slow

CONFIG = f"""
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]

[namespaces.west]
url = "embedded:west.db"

[pairing]
primary = "east"
secondary = "west"
label = "east"

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"
{ADMIN}"""
USAGE, FAILED, AWAY = 2, 1, 75
# The words typed, the exit code, and a part of the answer: the cause, or the right word.
COMMANDS = [
    ("sned orders hi", USAGE, "Did you mean send?"),
    ("send", USAGE, "Missing argument 'ENTITY'"),
    ("send nosuch hello", FAILED, "run `pairgate create queue nosuch`"),
    ("send orders/ hello", USAGE, "entity name 'orders/'"),
    ("send '' hello", USAGE, "1 to 260 characters expected, got 0"),
    ("send orders hello --ttl -1", USAGE, 'a duration such as "10s"'),
    ("send orders hello --ttl 5x", USAGE, "found '5x'"),
    ("send orders hello --session", USAGE, "requires an argument"),
    ("receive nosuch", FAILED, "there is no entity nosuch"),
    ("receive orders --count 0", USAGE, "0 is not in the range x>=1"),
    ("peek orders --limit 1", USAGE, "No such option '--limit'"),
    ("status --url http://127.0.0.1:1", AWAY, "Connection refused"),
    ("status --url ftp://x", USAGE, "http(s)://HOST[:PORT] or unix:PATH expected"),
    ("reload --url http://127.0.0.1:1", AWAY, "Connection refused"),
    ("failover ordres", FAILED, "did you mean orders?"),
    ("failover", USAGE, "an entity, a pattern or --all expected"),
    ("failback nope", FAILED, "nobody knows 'nope'"),
    ("pause nope", FAILED, "nobody knows 'nope'"),
    ("rate -- -5", USAGE, "a number above 0, or off, expected"),
    ("rate abc", USAGE, "a number above 0, or off, expected, found 'abc'"),
    ("drill --entity orders", USAGE, "No such option '--entity'"),
    ("drill orders --for 0s", USAGE, "'--for': a duration above 0 expected"),
    ("redrive nosuch", FAILED, "there is no entity nosuch"),
    ("purge backlog-99", FAILED, "a backlog queue of this pair (east/x-servicebus-transfer/0 ...)"),
    ("purge", USAGE, "Missing argument 'QUEUE'"),
    ("dead-letters nosuch", FAILED, "there is no entity nosuch"),
    ("explain", USAGE, "Missing argument 'MESSAGE-ID'"),
    ("explain some-id", FAILED, "keeps no ledger"),
    ("reconcile --since yesterday", USAGE, "found 'yesterday'"),
    ("fault add busy", FAILED, "`[faults]` with `allowed = true`"),
    ("create queue", USAGE, "Missing argument 'NAME'"),
    ("create queue 'bad name!'", USAGE, "entity name 'bad name!'"),
    ("create queue orders", FAILED, "exists already"),
    ("create queue q --lock-duration 10h", FAILED, "up to PT5M expected, got 'PT10H'"),
    ("create queue q --max-delivery-count 0", USAGE, "0 is not in the range x>=1"),
    ("delete queue nosuch", FAILED, "there is no queue nosuch"),
    ("create subscription nosuch sub", FAILED, "there is no topic nosuch"),
    ("serve --config nofile.toml", USAGE, "nofile.toml: No such file or directory"),
    ("check --config nofile.toml", USAGE, "nofile.toml: No such file or directory"),
    ("listen orders", USAGE, "one of --to, --exec and --python expected"),
    ("listen orders --exec", USAGE, "requires an argument"),
    ("keys rotate", USAGE, "Missing argument 'NAME'"),
    ("store verify nosuch", USAGE, "No such command 'verify'"),
]
PAIR = '[pairing]\nprimary = "a"\nsecondary = "b"\nlabel = "x"\n'
TWO = '[namespaces.a]\nurl = "embedded:a.db"\n[namespaces.b]\nurl = "embedded:b.db"\n'
SERVED = '[namespaces.a]\nurl = "embedded:a.db"\n[[endpoints]]\nprotocol = "service-bus"\n'
CONFIGURATIONS = [
    ("", "namespaces: is missing"),
    ("[namespaces.a", "Expected ']' at the end of a table declaration"),
    ('[namespace.a]\nurl = "memory:"', "did you mean 'namespaces'?"),
    ('[namespaces.a]\nurll = "memory:"', "namespaces.a.urll: unknown key; did you mean 'url'?"),
    ('[namespaces.a]\nurl = "embeded:a.db"', "one of memory, embedded, rabbitmq"),
    ('[namespaces.a]\nurl = "memory:"\nqueues = "orders"', "a list expected, found a text"),
    (
        '[namespaces.a]\nurl = "rabbitmq://localhost"\npassword = { env = "NOT_SET" }',
        "namespaces.a.password: set the environment variable NOT_SET",
    ),
    ('[namespaces.a]\nurl = "embedded:a.db"\n' + PAIR, "there is no namespace 'b'"),
    (TWO + PAIR.replace('"b"', '"a"'), "a pair needs two"),
    (TWO + PAIR + 'failover_interval = "soon"', "pairing.failover_interval: a duration such as"),
    (TWO + PAIR + "backlog_queues = 0", "pairing.backlog_queues: must be >= 1: 0"),
    (SERVED + 'bind = "127.0.0.1:99999"', "is not an address to listen on: write host:port"),
    (SERVED + 'bind = "0.0.0.0:5672"', "add [[access]], or bind to 127.0.0.1"),
    (
        SERVED + '[[access]]\nname = "x"\nkey = "short"\nrights = ["Send"]',
        "a secret must not be in this file",
    ),
]


async def test_each_command_that_is_mistyped_says_what_is_wrong(gateways: Gateways) -> None:
    gateway = await gateways.start(CONFIG)
    gateway.config_file.write_text(gateway.config)
    answers = []
    for line, _, _ in COMMANDS:
        code, out, err = await run(gateway.folder, *shlex.split(line))
        answers.append((line, code, out, err))

    wrong = [
        (answer, code, text)
        for answer, (_, code, text) in zip(answers, COMMANDS, strict=True)
        if answer[1] != code or text not in " ".join(answer[3].split())
    ]
    assert wrong == []
    assert not [answer for answer in answers if "Traceback" in answer[3]]
    assert gateway.garbage == []


async def test_each_configuration_that_is_wrong_says_which_key(gateways: Gateways) -> None:
    folder = gateways.folder
    wrong = []
    for text, problem in CONFIGURATIONS:
        (folder / "wrong.toml").write_text(text)
        code, out, err = await run(folder, "check", "--config", "wrong.toml")
        if code != USAGE or problem not in " ".join(err.split()):
            wrong.append((text, problem, code, out, err))

    assert wrong == []
