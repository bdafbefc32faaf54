"""
Mistakes in a configuration: each is reported with its key and the expected value, all at once.
"""

from pathlib import Path

import pytest

from gateway.config.endpoints import is_loopback, requires_tls
from gateway.config.errors import ConfigError
from gateway.config.file import load, parse
from gateway.config.places import label_of
from gateway.config.secrets import SecretSource
from gateway.domain.access import Right
from gateway.pairing.options import Oversized
from tests.config.texts import ONE, PAIR, SECRET, UNLABELLED, config, problems, warnings
from tests.harness.secret_files import write_secret


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ("bogus = 1", "pairing.bogus: unknown key; known are "),
        (
            "suspect_weight = '1s'",
            "pairing.suspect_weight: unknown key; did you mean 'suspect_wait'?",
        ),
        ("failover_interval = '2h'", "pairing.failover_interval: must be <= 3600.0: 7200.0"),
        ("send_timeout = 30", 'pairing.send_timeout: a duration such as "10s"'),
        ("backlog_queues = 'many'", "pairing.backlog_queues: a whole number expected"),
        ("backlog_queues = 0", "pairing.backlog_queues: must be >= 1: 0"),
        ("backlog_queues = 1001", "pairing.backlog_queues: must be <= 1000: 1001"),
        ("send_timeout = '3651d'", "pairing.send_timeout: must be <= 315360000: 315446400"),
        ("send_timeout = 'P99999D'", "pairing.send_timeout: must be <= 315360000"),
        ("max_inflight = '1025GiB'", "pairing.max_inflight: must be <= 1099511627776"),
        ("successes_to_return = 100000001", "pairing.successes_to_return: must be <= 100000000"),
        (
            "trial_pause = { first = '10s' , cap = '5s'}",
            "pairing.trial_pause: first must be <= cap",
        ),
        ("backlog_queues = true", "pairing.backlog_queues: a whole number expected, found True"),
        ("enable_syphon = 1", "pairing.enable_syphon: true or false expected, found 1"),
        ("max_inflight = '64 MB'", 'pairing.max_inflight: a size such as "64KiB"'),
        ("while_suspect = 'no'", 'pairing.while_suspect: one of "divert", "raise" expected'),
        ("trial_pause = { jitter = 2 }", "pairing.trial_pause.jitter: must be < 1: 2.0"),
        ("trial_pause = '1s'", "pairing.trial_pause: a table expected, found a text"),
        ("options = {}", "pairing.options: unknown key"),
        ("state = 7", "pairing.state: a path expected, found 7"),
        ("state = '/'", "pairing.state: a path below / expected, found '/'"),
        (
            "backlog_queues = 99999999999999999999",
            "pairing.backlog_queues: must be <= 100000000: 99999999999999999999",
        ),
        ("[pairing.syphon]\nmax_drain_rate = 'x'", "pairing.syphon.max_drain_rate: a number"),
        ("[[entities]]\nmatch = 'a'\nordered = true", "entities[0].ordered: unknown key"),
        ("ordered = true", "pairing.ordered: a list expected"),
        ("order_lease = 'wait'", "pairing.order_lease: needs ordered"),
        ("on_lease_lost = 'send'", "pairing.on_lease_lost: needs order_lease"),
        ("ordered = ['a']\norder_lease = true", "pairing.order_lease: "),
        (
            "ordered = ['a']\norder_lease = 'forward'",
            'pairing.order_lease: "forward" needs [cluster]',
        ),
        (
            "[[endpoints]]\nprotocol = 'servicebus'\nbind = 'localhost:0'",
            'endpoints[0].protocol: one of "service-bus", "amqp", "service-bus-http",'
            ' "storage-queue", "rabbitmq", "admin" expected, found \'servicebus\';'
            " did you mean 'service-bus'?",
        ),
        ("[[endpoints]]\nprotocol = 'service-bus-http'", "endpoints[0].bind: is missing"),
        ("[endpoints]\nbind = 'localhost:0'", "endpoints: a list expected, found a table"),
        ("[limits]\nidle_timeout = '0s'", "limits.idle_timeout: must be > 0: 0.0"),
        ("[limits.rest]\nsecure = true", "limits.rest.secure: unknown key"),
        (
            "[logging]\nlevel = 'loud'",
            'logging.level: one of "debug", "info", "warning", "error" expected, found \'loud\'',
        ),
        ("[logging]\nrepeat_interval = '-1s'", "logging.repeat_interval:"),
        ("[[access]]\nname = 'a'\nrights = ['Send']", "access[0]: key is missing"),
        (
            "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = ['Read']",
            'access[0].rights[0]: one of "Send"',
        ),
        (
            "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = []",
            "access[0].rights: Length of 'rights'",
        ),
        (
            "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = 'Send'",
            "access[0].rights: a list expected",
        ),
        (
            "envelope_keys = [{ id = '1', key = 'x' }]",
            "pairing.envelope_keys[0].key: a secret must not be in",
        ),
        (
            "envelope_keys = [{ id = '1', key = {env = 'NO'} }]",
            "pairing.envelope_keys[0].key: set the env",
        ),
        (
            "[namespaces.far]\nurl = 'storage-queue:AccountName=a;AccountKey=b'",
            "namespaces.far.url: must not contain a secret; write key = { env = ... }",
        ),
        ("[namespaces.far]\nurl = 'ftp://a'", "namespaces.far: URL of a namespace: one of "),
        ("[namespaces.far]\nqueues = []", "namespaces.far.url: is missing"),
        (
            "[namespaces.far]\nurl = 'memory:'\nmax_queue = 1",
            "namespaces.far.max_queue: unknown key; did you mean 'max_queues'?",
        ),
        (
            "[namespaces.far]\nurl = 'memory:'\nqueues = ['a b']",
            "namespaces.far.queues[0]: entity name",
        ),
    ],
)
def test_a_mistake_is_named_with_its_key(addition: str, problem: str) -> None:
    found = problems(PAIR + addition)

    assert len(found) == 1
    assert found[0].startswith(problem)


def test_all_mistakes_are_named_at_once() -> None:
    found = problems(PAIR + "bogus = 1\nbacklog_queues = 0\n[limits]\ngrace = 1\n")

    assert [line.partition(":")[0] for line in found] == [
        "pairing.backlog_queues",
        "pairing.bogus",
        "limits.grace",
    ]


def test_a_secret_file_that_every_user_can_read_is_named_with_its_key_and_its_mode(
    tmp_path: Path,
) -> None:
    (tmp_path / "orders.key").write_text(SECRET)
    (tmp_path / "orders.key").chmod(0o644)
    (tmp_path / "pairgate.toml").write_text(
        f"{ONE}[[access]]\nname = 'a'\nkey = {{ file = 'orders.key' }}\nrights = ['Send']\n"
    )

    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "pairgate.toml", environ={}, here=tmp_path)

    (problem,) = refused.value.problems
    assert f"access[0].key: {tmp_path / 'orders.key'}: every user" in problem
    assert "mode 0644" in problem
    assert SECRET not in problem


def test_a_number_of_thousands_of_digits_is_a_mistake() -> None:
    assert "digits" in problems(f"a = {'9' * 5000}")[0]


def test_invalid_toml_is_named_with_its_line() -> None:
    assert "line 2" in problems("a = 1\nb = = 2")[0]


TLS = "tls = {certificate = 'a.pem', key = 'a.key'%s}\n"
KNOWN = "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = ['Send']\n"


def endpoint(protocol: str, bind: str, more: str = "") -> str:
    return f"{ONE}[[endpoints]]\nprotocol = '{protocol}'\nbind = '{bind}:1'\n{TLS % more}{KNOWN}"


@pytest.mark.parametrize(
    ("protocol", "bind", "more", "required"),
    [
        ("service-bus", "127.0.0.1", "", False),
        ("service-bus", "127.0.0.1", ", required = true", True),
        ("service-bus", "127.0.0.1", ", client_ca = 'ca.pem'", True),
        ("service-bus", "0.0.0.0", "", True),
        ("service-bus", "0.0.0.0", ", required = false", False),
        ("service-bus-http", "127.0.0.1", "", True),
        ("service-bus-http", "127.0.0.1", ", required = false", False),
    ],
)
def test_tls_is_required_beyond_this_machine_unless_the_file_says_otherwise(
    protocol: str, bind: str, more: str, required: bool
) -> None:
    (found,) = config(endpoint(protocol, bind, more)).endpoints

    assert requires_tls(found) is required


def test_plain_text_beyond_this_machine_is_warned_of(tmp_path: Path) -> None:
    told = warnings(endpoint("service-bus", "0.0.0.0", ", required = false"), tmp_path)

    assert any("endpoints[0].tls.required: false" in each for each in told)
    assert not warnings(endpoint("service-bus", "0.0.0.0"), tmp_path)


@pytest.mark.parametrize(
    ("protocol", "bind", "told"),
    [
        ("service-bus", "0.0.0.0", "every client there has these rights without credentials: Send"),
        ("amqp", "0.0.0.0", "0.0.0.0:1 is reachable from other machines"),
        ("service-bus", "127.0.0.1", None),
        ("service-bus-http", "127.0.0.1", "no endpoint speaks AMQP"),
        ("service-bus-http", "0.0.0.0", "no endpoint speaks AMQP"),
    ],
)
def test_rights_without_credentials_beyond_this_machine_are_warned_of(
    tmp_path: Path, protocol: str, bind: str, told: str | None
) -> None:
    anybody = "\n[[access]]\nname = 'anybody'\nanonymous = true\nrights = ['Send']\n"
    found = [
        each
        for each in warnings(endpoint(protocol, bind) + anybody, tmp_path)
        if "].anonymous: " in each
    ]

    assert len(found) == (told is not None)
    assert told is None or told in found[0]


def test_where_clients_show_certificates_plain_text_can_not_be_allowed() -> None:
    more = ", client_ca = 'ca.pem', required = false"

    assert problems(endpoint("service-bus", "127.0.0.1", more)) == [
        "endpoints[0].tls.required: must be true with client_ca"
    ]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text("\ufeff" + ONE, encoding="utf-8")
    write_secret(tmp_path / "key", f"\ufeff{SECRET}\n")

    loaded = load(tmp_path / "pairgate.toml", environ={}, here=tmp_path)
    secret = SecretSource(environ={}, folder=tmp_path).read({"file": "key"})

    assert set(loaded.config.namespaces) == {"here"}
    assert secret.text == SECRET


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml: No such file"):
        load(tmp_path / "nope.toml", environ={}, here=tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PAIR.replace('"west"', '"east"'), "pairing.secondary: is the same namespace"),
        (
            PAIR.replace('primary = "east"', 'primary = "north"'),
            "pairing.primary: there is no namespace",
        ),
        (
            PAIR.replace("west.db", "./x/../east.db"),
            "namespaces.west: is the same store as namespaces.east",
        ),
        (PAIR + 'spool = "west.db"', "pairing.spool: is the same store as namespaces.west"),
        (UNLABELLED.replace("embedded:east.db", "rabbitmq://rabbit/"), "pairing.label: is missing"),
        (UNLABELLED.replace("embedded:west.db", "rabbitmq://rabbit/"), "pairing.label: is missing"),
        (PAIR.replace('label = "east"', 'label = "a/b"'), "pairing.label: letters, digits"),
        (PAIR.partition("[pairing]")[0], "pairing: is missing"),
        (ONE + "[[entities]]\nmatch = 'a'", "entities: needs [pairing]"),
        ("", "namespaces: is missing"),
        (
            ONE + "[[endpoints]]\nprotocol = 'amqp'\nbind = '127.0.0.1:1'\nallowed_origins = ['*']",
            "endpoints[0].allowed_origins: http(s)://HOST[:PORT] expected, found '*'",
        ),
        (ONE + "queues = ['a', 'A']", "namespaces.here.queues: 'a' is given twice; case makes no"),
        (ONE + "[limits]\nserver_name = 'p\u00e4rgate'", "limits.server_name: visible ASCII"),
        (ONE + "[limits]\nserver_name = 'a\\r\\nb: c'", "limits.server_name: visible ASCII"),
        (ONE + "[limits]\nserver_name = ''", "limits.server_name: visible ASCII"),
        (ONE + "[limits]\nmax_connections = 1000000", "limits.max_connections: must be <= 100000"),
        (
            ONE + "[[endpoints]]\nprotocol = 'amqp'\nbind = '127.0.0.1:70000'",
            "endpoints[0].bind: '127.0.0.1:70000' is not an address to listen on",
        ),
        (
            ONE + "[[accounts]]\nname = 'a12'\nkey = {env = 'BASE64'}\nsecond_key = {env = 'KEY'}",
            "accounts[0].second_key: at least 16 bytes in Base64 expected",
        ),
        (
            ONE + "[[endpoints]]\nprotocol = 'admin'\nbind = '127.0.0.1:1'\n"
            "allowed_hosts = ['http://bus.test']",
            "endpoints[0].allowed_hosts: a name without a port expected, found 'http://bus.test'",
        ),
        (
            ONE + "[[endpoints]]\nprotocol = 'service-bus-http'\nbind = '0.0.0.0:1'",
            "endpoints[0].bind: 0.0.0.0:1 is reachable",
        ),
        (
            ONE
            + "[[endpoints]]\nprotocol = 'storage-queue'\nbind = '0.0.0.0:1'\n"
            + "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = ['Send']",
            "endpoints[0].bind: 0.0.0.0:1 is reachable from other machines: add [[accounts]]",
        ),
        (
            ONE + "[[accounts]]\nname = 'contoso'\nkey = {env = 'BASE64'}\n" * 2,
            "accounts: the name 'contoso' is given twice",
        ),
        (
            ONE + "[[accounts]]\nname = 'contoso'\nkey = {env = 'KEY'}",
            "accounts[0].key: at least 16 bytes in Base64 expected",
        ),
        (
            ONE + "[[accounts]]\nname = 'Contoso'\nkey = {env = 'BASE64'}",
            "accounts[0].name: 3 to 24 lowercase letters and digits expected, found 'Contoso'",
        ),
        (
            ONE
            + "[[endpoints]]\nprotocol = 'service-bus-http'\nbind = '[::1]:1'\n"
            + "[[endpoints]]\nprotocol = 'service-bus-http'\nbind = '[::1]:1'",
            "endpoints: [::1]:1 is given twice",
        ),
        (
            ONE + "[[endpoints]]\nprotocol = 'amqp'\nbind = '[::1]:1'\nprocess = 'syphon'",
            'endpoints[0].process: "serve" expected, because only an endpoint of the protocol',
        ),
        (
            ONE + "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nrights = ['Send']\n" * 2,
            "access: the name 'a' is given twice",
        ),
        (
            PAIR + "envelope_keys = [" + "{ id = '1', key = { env = 'KEY' } }, " * 2 + "]",
            "pairing.envelope_keys: the id '1' is given twice",
        ),
        (
            PAIR + "encrypt = true\naccept_legacy_backlog = true",
            "pairing.encrypt: must be false with accept_legacy_backlog, because a legacy client",
        ),
        (
            PAIR + "encrypt = true\nenvelope_keys = [{ id = '1', key = { env = 'KEY' } }]",
            "pairing.envelope_keys[0].key: at least 32 bytes expected, because the first key",
        ),
    ],
)
def test_a_mistake_that_only_the_whole_shows_is_checked_too(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def far_pair(keys: str = "") -> str:
    return f"""
[namespaces.east]
url = "servicebus+https://gateway@east.example.net"
key = {{ env = "KEY" }}
[namespaces.west]
url = "servicebus+https://gateway@west.example.net"
key = {{ env = "KEY" }}
[pairing]
primary = "east"
secondary = "west"
{keys}
"""


def of_socket(bind: str, rest: str = "", protocol: str = "admin") -> str:
    return f"{ONE}[[endpoints]]\nprotocol = '{protocol}'\nbind = '{bind}'\n{rest}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (of_socket("unix:a", protocol="amqp"), "endpoints[0].bind: HOST:PORT expected; a Unix"),
        (of_socket("unix:/" + "a" * 107), f"endpoints[0].bind: /{'a' * 107} has 108 bytes, and"),
        (of_socket("unix:a", "mode = '0888'"), "endpoints[0].mode: "),
        (of_socket("127.0.0.1:1", "mode = '0660'"), "endpoints[0].mode: is for a Unix socket"),
        (
            of_socket("unix:a", "tls = { certificate = 'a', key = 'b' }"),
            "endpoints[0].tls: is for HOST:PORT; the permissions of a Unix socket's file say who",
        ),
        (
            of_socket("unix:a", "allowed_origins = ['http://localhost']"),
            "endpoints[0].allowed_origins: is for HOST:PORT",
        ),
    ],
)
def test_mistakes_about_unix_sockets_are_named(text: str, problem: str) -> None:
    assert any(problem in each for each in problems(text))


def test_a_unix_socket_is_below_the_folder_of_the_file_and_needs_no_access_policy(
    tmp_path: Path,
) -> None:
    loaded = parse(of_socket("unix:run/a"), source="x", folder=tmp_path, environ={})

    assert loaded.config.endpoints[0].bind == f"unix:{tmp_path / 'run' / 'a'}"


def test_processes_of_different_kinds_may_have_the_same_address() -> None:
    endpoint = "[[endpoints]]\nprotocol = 'admin'\nbind = '[::1]:1'\n"

    read = config(f"{ONE}{endpoint}{endpoint}process = 'syphon'\n")

    assert list(read.endpoints_of("serve")) == [0]
    assert list(read.endpoints_of("syphon")) == [1]


def test_where_other_machines_take_part_the_envelope_needs_a_key() -> None:
    assert problems(far_pair())[0].startswith("pairing.envelope_keys: is missing")


def test_the_label_is_the_first_dns_label_of_the_primary() -> None:
    pairing = config(far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]')).pairing

    assert pairing is not None
    assert pairing.options.label == "east"


STORAGE = 'url = "storage-queue:UseDevelopmentStorage=true"'


@pytest.mark.parametrize(
    ("protocol", "primary", "more", "oversized"),
    [
        ("storage-queue", STORAGE, "", Oversized.PRIMARY_ONLY),
        ("storage-queue", STORAGE, 'oversized = "refuse"', Oversized.REFUSE),
        ("service-bus", STORAGE, "", Oversized.REFUSE),
        ("storage-queue", 'url = "memory:"', "", Oversized.REFUSE),
        ("rabbitmq", 'url = "rabbitmq://127.0.0.1"', "", Oversized.PRIMARY_ONLY),
        ("rabbitmq", 'url = "rabbitmq://127.0.0.1"', 'oversized = "refuse"', Oversized.REFUSE),
        ("service-bus", 'url = "memory:"', 'oversized = "primary-only"', Oversized.PRIMARY_ONLY),
    ],
)
def test_clients_of_storage_and_rabbitmq_meet_the_limit_of_the_service_that_they_know(
    protocol: str, primary: str, more: str, oversized: Oversized
) -> None:
    text = (
        f'[[endpoints]]\nprotocol = "{protocol}"\nbind = "127.0.0.1:8080"\n'
        f'[namespaces.east]\n{primary}\n[namespaces.west]\nurl = "memory:"\n'
        f'[pairing]\nprimary = "east"\nsecondary = "west"\nlabel = "east"\n{more}\n'
    )

    pairing = config(text).pairing

    assert pairing is not None
    assert pairing.options.oversized is oversized
    warned = [
        each for each in warnings(text, Path("/nowhere")) if each.startswith("pairing.oversized")
    ]
    assert bool(warned) is (oversized is Oversized.PRIMARY_ONLY)


def test_the_label_of_a_pair_of_stores_is_the_name_of_the_primary() -> None:
    pairing = config(UNLABELLED.replace("east", "orders-store")).pairing

    assert pairing is not None
    assert pairing.options.label == "orders-store"


def over_amqp() -> str:
    text = "Endpoint=sb://{}.example.net/;SharedAccessKeyName=gateway"
    return (
        far_pair()
        .replace("servicebus+https://gateway@east.example.net", "servicebus:" + text.format("east"))
        .replace("servicebus+https://gateway@west.example.net", "servicebus:" + text.format("west"))
    )


def test_a_connection_string_says_which_host_it_is() -> None:
    (problem,) = problems(over_amqp())
    (same, *_) = problems(over_amqp().replace("sb://west", "sb://east"))

    assert problem.startswith("pairing.envelope_keys: is missing")
    assert "is the same store as" in same
    keys = 'envelope_keys = [{ id = "1", key = { env = "KEY" } }]'
    pairing = config(over_amqp() + keys).pairing
    assert pairing is not None
    assert pairing.options.label == "east"


def test_a_key_in_a_connection_string_in_a_url_is_refused_and_not_repeated() -> None:
    found = problems(over_amqp().replace("=gateway", "=gateway;SharedAccessKey=hush", 1))

    assert any(line.startswith("namespaces.east.url: must not contain a secret") for line in found)
    assert "hush" not in " ".join(found)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("pairing", "envelope_keys = 'hush'"),
        ("pairing", "envelope_keys = ['hush']"),
        ("pairing", "envelope_keys = { 1 = 'hush' }"),
        ("cluster", "peers = ['a:1']\nsecrets = 'hush'"),
        ("cluster", "peers = ['a:1']\nsecrets = ['hush']"),
        ("namespaces.a", "url = 'servicebus:Endpoint=sb://b/'\ncredential = 'hush'"),
        ("namespaces.a", "url = 'servicebus:Endpoint=sb://b:hu/sh@c/'\nkey = { env = 'KEY' }"),
        ("namespaces.a", "url = 'servicebus+https://b:hu/sh@c/'\nkey = { env = 'KEY' }"),
        ("namespaces.a", "url = 'amqps://b:hu/sh@c/'\npassword = { env = 'KEY' }"),
        ("namespaces.a", "url = 'rabbitmqs://b:hu/sh@c/'\npassword = { env = 'KEY' }"),
        ("namespaces.a", "url = 'storage-queue:https://b.c/?sv=1&sig=hush'"),
        ("namespaces.a", "url = 'storage-queue:QueueEndpoint=https://b/?sig=hush'"),
        ("namespaces.a", "url = 'storage-queue:AccountName=abc;QueueEndpoint=https://b:hu/sh@c'"),
        ("claims", "store = 'azure-blob:https://b.c/d?sig=hush'"),
        (
            "claims",
            "store = 'azure-blob:AccountName=abc;BlobEndpoint=https://b:hu/sh@c'\n"
            "key = { env = 'BASE64' }",
        ),
        ("traces", "endpoint = 'https://user:hush@collector/v1/traces'"),
        ("traces", "endpoint = 'https://user:hu/sh@collector/v1/traces'"),
        (
            "namespaces.a",
            "url = 'servicebus:Endpoint=sb://b/'\n"
            "credential = { kind = 'managed-identity', authority = 'https://user:hush@b' }",
        ),
        ("[access]", "name = 'a'\nrights = ['Send']\ntoken = 'hush'"),
    ],
)
def test_a_secret_in_the_wrong_place_or_form_is_refused_and_not_repeated(
    table: str, options: str
) -> None:
    before = PAIR if table == "pairing" else f"{ONE}[{table}]\n"

    assert "hu" not in " ".join(problems(before + options))


def test_two_vhosts_of_a_host_are_two_namespaces(tmp_path: Path) -> None:
    text = far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]')
    for name in ("east", "west"):
        url, broker = f"servicebus+https://gateway@{name}.example.net", f"rabbitmqs://g@a.b/{name}"
        text = text.replace(f'{url}"\nkey', f'{broker}"\npassword')

    assert config(text).namespaces["west"].options.password
    assert "one fault can affect both" in warnings(text, tmp_path)[0]


def test_one_port_of_a_host_is_one_namespace() -> None:
    assert "is the same store as" in problems(far_pair().replace("//gateway@west", "//g@east"))[0]


def test_only_the_key_that_encrypts_must_be_long() -> None:
    keys = "{ id = '2', key = { env = 'LONG_KEY' } }, { id = '1', key = { env = 'KEY' } }"
    pairing = config(f"{PAIR}encrypt = true\nenvelope_keys = [{keys}]").pairing

    assert pairing is not None
    assert (pairing.encrypt, [key.id for key in pairing.envelope_keys]) == (True, ["2", "1"])


def test_a_key_that_only_this_machine_has_is_doubted_if_it_encrypts(tmp_path: Path) -> None:
    text = PAIR + 'encrypt = true\nstate = "kept/state.json"'
    keys = "\nenvelope_keys = [{ id = '1', key = { env = 'LONG_KEY' } }]"

    assert any(f"only in {tmp_path}/kept: " in each for each in warnings(text, tmp_path))
    assert not any("pairing.encrypt" in each for each in warnings(text + keys, tmp_path))
    assert not any("pairing.encrypt" in each for each in warnings(PAIR, tmp_path))


def test_two_secrets_may_have_one_id() -> None:
    text = (
        PAIR
        + "envelope_keys = [{ id = '1', key = { env = 'KEY' } }, "
        + ("{ id = '1', key = { env = 'OTHER_KEY' } }]")
    )

    assert [key.id for key in config(text).pairing.envelope_keys] == ["1", "1"]


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    found = problems(far_pair().replace("gateway@west", "gateway:hush@west"))

    assert any(line.startswith("namespaces.west.url: must not contain a secret") for line in found)
    assert "hush" not in " ".join(found)


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("servicebus+https://key@Contoso.servicebus.windows.net", "Contoso".lower()),
        ("servicebus+http://key@a-b.example:5300", "a-b"),
        ("servicebus+http://key@127.0.0.1:5300", ""),
        ("servicebus+http://key@localhost:5300", ""),
        ("servicebus+http://key@[::1]:5300", ""),
        ("embedded:/var/a.b/c.db", ""),
        ("memory:", ""),
    ],
)
def test_a_label_comes_from_dns_names_only(url: str, label: str) -> None:
    assert label_of(url) == label


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.net", ""])
def test_anything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    file = folder / "pairgate.toml"
    file.write_text(
        PAIR
        + """
spool = "/var/spool.db"
[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:0"
tls = { certificate = "tls/server.pem", key = "tls/server.key" }
"""
    )

    loaded = load(file, environ={}, here=tmp_path).config

    assert loaded.pairing is not None
    assert loaded.endpoints[0].tls is not None
    assert loaded.namespaces["east"].url == f"embedded:{folder}/east.db"
    assert loaded.pairing.state == folder / "var/state.json"
    assert loaded.pairing.spool == Path("/var/spool.db")
    assert loaded.endpoints[0].tls.key == folder / "tls/server.key"


def test_off_is_the_absence_of_a_limit() -> None:
    pairing = config(PAIR + "throttle_failover_after = 'off'").pairing

    assert pairing is not None
    assert pairing.options.throttle_failover_after is None


def test_entities_are_options_of_the_pair() -> None:
    pairing = config(PAIR + "[[entities]]\nmatch = 'a*'\nfailover_interval = '5s'").pairing

    assert pairing is not None
    assert [(rule.match, rule.failover_interval) for rule in pairing.options.entities] == [
        ("a*", 5.0)
    ]


def test_access_may_have_two_keys_and_shows_none() -> None:
    policy = config(
        ONE
        + "[[access]]\nname = 'a'\nkey = {env = 'KEY'}\nsecond_key = {env = 'OTHER_KEY'}\n"
        + "rights = ['Send', 'Listen']\nentities = ['orders']"
    ).access[0]

    assert policy.keys == (SECRET, SECRET[::-1])
    assert policy.rights == {Right.SEND, Right.LISTEN}
    assert policy.entities == ("orders",)
    assert SECRET not in repr(policy)


def test_nothing_of_a_configuration_shows_a_secret() -> None:
    whole = config(far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]'))

    assert SECRET not in repr(whole)


def test_two_namespaces_on_one_disk_are_a_warning(tmp_path: Path) -> None:
    assert warnings(PAIR, tmp_path) == (
        "pairing: both namespaces are on this disk; one fault can affect both",
    )


def test_two_namespaces_on_one_host_are_a_warning(tmp_path: Path) -> None:
    text = far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]')
    same_host = text.replace("west.example.net", "east.example.net:5301")

    assert "both namespaces are on the host" in warnings(same_host, tmp_path)[0]
    assert warnings(text, tmp_path) == ()


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("attempt_timeout = '5s'", ["east", "west"]),
        ("send_timeout = '12s'", ["east", "west"]),
        ("attempt_timeout = '6s'", []),
    ],
)
def test_a_connect_that_outlasts_an_attempt_is_a_warning(
    option: str, names: list[str], tmp_path: Path
) -> None:
    key = 'envelope_keys = [{ id = "1", key = { env = "KEY" } }]'

    found = warnings(far_pair(f"{key}\n{option}"), tmp_path)

    assert [line.partition(":")[0] for line in found] == [
        f"namespaces.{name}.connect_timeout" for name in names
    ]


def test_memory_namespaces_are_two_stores() -> None:
    text = PAIR.replace("embedded:east.db", "memory:").replace("embedded:west.db", "memory:")

    assert len(config(text).namespaces) == 2


DECLARES = '[[endpoints]]\nprotocol = "rabbitmq"\nbind = "127.0.0.1:5673"\n'
FAR_PAIR = far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]')


@pytest.mark.parametrize("text", [PAIR, FAR_PAIR], ids=["stores", "Service Bus"])
def test_clients_of_rabbitmq_may_have_any_primary(text: str) -> None:
    assert config(text + DECLARES).kept_queues is not None


def test_exchanges_of_rabbitmqs_clients_need_a_place() -> None:
    [found] = problems(ONE + DECLARES)

    assert found.startswith("endpoints[0].protocol: rabbitmq needs [pairing], beside whose state")
    assert found.endswith("here is memory:")


def rabbits(east: str, west: str = "rabbitmqs://g@d,e/v", more: str = "") -> str:
    text = far_pair('envelope_keys = [{ id = "1", key = { env = "KEY" } }]\nlabel = "orders"')
    for name, url in (("east", east), ("west", west)):
        old = f'servicebus+https://gateway@{name}.example.net"\nkey'
        text = text.replace(old, f'{url}"\n{more}password')
    return text


def test_a_namespace_may_have_several_hosts(tmp_path: Path) -> None:
    text = rabbits("amqps://g@a:1,[::1]:2,c")

    assert config(text).namespaces["east"].url == "amqps://g@a:1,[::1]:2,c"
    assert warnings(text, tmp_path) == ()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("rabbitmq://g@a,,b", "namespaces.east.url: host 2 of 3: HOST[:PORT] expected"),
        ("rabbitmq://g@a,b:70000", "namespaces.east.url: host 2 of 2: a port from 1 to 65535"),
        ("amqp://g@a,a", "namespaces.east.url: host 2 of 2: is given twice"),
        ("rabbitmqs://g@a,e/v", "namespaces.west: is the same store as namespaces.east"),
    ],
)
def test_a_wrong_list_of_hosts_is_named_with_its_key(url: str, problem: str) -> None:
    assert any(line.startswith(problem) for line in problems(rabbits(url)))


def test_several_hosts_are_refused_where_a_namespace_has_one_only() -> None:
    found = problems(far_pair().replace("east.example.net", "a,b"))

    assert any(line.startswith("namespaces.east.url: one host expected") for line in found)


def test_a_wrong_list_of_hosts_of_the_management_plugin_is_named_with_its_key() -> None:
    text = rabbits("rabbitmqs://g@a,b", more='management = "https://a,:b"\n')

    assert any(
        line.startswith("namespaces.east.management: host 2 of 2") for line in problems(text)
    )


def test_clusters_that_share_a_host_are_a_warning(tmp_path: Path) -> None:
    text = rabbits("rabbitmqs://g@a,b,c/v", "rabbitmqs://g@c,d,b/w")

    assert warnings(text, tmp_path) == (
        "pairing: both namespaces are on the hosts b, c; one fault can affect both",
    )


def test_of_several_hosts_none_names_the_pair() -> None:
    assert label_of("rabbitmqs://g@a.example") == "a"
    assert label_of("rabbitmqs://g@a.example,b.example") == ""


@pytest.mark.parametrize(
    ("url", "scheme", "text"),
    [
        ("embedded:east.db", "storage-queue", "the primary east is a Storage Queue, which doesn't"),
        ("embedded:west.db", "storage-queue", "the secondary west is a Storage Queue, which"),
        ("embedded:west.db", "rabbitmq", "the secondary west has no sessions, by which syphons"),
    ],
)
def test_ordered_entities_need_namespaces_that_keep_an_order(
    url: str, scheme: str, text: str
) -> None:
    location = {
        "storage-queue": "storage-queue:UseDevelopmentStorage=true",
        "rabbitmq": "rabbitmq://gateway@west.example",
    }
    pair = PAIR.replace(url, location[scheme])

    assert any(text in each for each in problems(f"{pair}\nordered = ['orders']\n"))


def test_leases_on_a_store_of_this_process_are_a_warning(tmp_path: Path) -> None:
    text = f"{PAIR}\nordered = ['orders']\norder_lease = 'wait'\n"

    assert any("no other gateway can take one" in each for each in warnings(text, tmp_path))
    assert not any("order_lease" in each for each in warnings(PAIR, tmp_path))


@pytest.mark.parametrize("protocol", ["service-bus", "amqp", "storage-queue", "admin"])
def test_development_opens_an_endpoint_beyond_this_machine_and_is_warned_of(
    tmp_path: Path, protocol: str
) -> None:
    text = f"{ONE}[[endpoints]]\nprotocol = '{protocol}'\nbind = '0.0.0.0:1'\n"

    assert "endpoints[0].bind: 0.0.0.0:1 is reachable" in problems(text)[0]
    assert warnings(f"development = true\n{text}", tmp_path) == (
        "development: 0.0.0.0:1 accepts the emulators' well-known key, with all rights, from every"
        " machine that reaches it",
    )


def test_development_is_not_warned_of_where_nothing_is_open(tmp_path: Path) -> None:
    near = f"{ONE}[[endpoints]]\nprotocol = 'service-bus'\nbind = '127.0.0.1:1'\n"
    known = f"{ONE}[[endpoints]]\nprotocol = 'service-bus'\nbind = '0.0.0.0:1'\n{KNOWN}"

    for text in (near, known):
        assert not warnings(f"development = true\n{text}", tmp_path)
