"""
Answers beside those that the service gave to the official SDKs, as their repositories recorded
them: azure-sdk-for-python, sdk/storage/azure-storage-queue/tests/recordings (`test_queue.py`, below
without its prefix), and azure-sdk-for-js, sdk/storage/storage-queue/recordings/node. What differs
on purpose is in docs/reference/protocol.md: the mark in front of the documents, `Server`, markers,
and what follows the service's own sentences.
"""

import re

import pytest
from trio.testing import MockClock

from gateway.wire.http.messages import Headers, Request, Response
from tests.frontends.storage_client import ACCOUNT, HOST, open_client

TEXT = b"<QueueMessage><MessageText>message1</MessageText></QueueMessage>"
POLICY = (
    b"<SignedIdentifiers><SignedIdentifier><Id>testid</Id><AccessPolicy>"
    b"<Start>2022-10-27T22:01:36Z</Start><Expiry>2022-10-27T23:06:36Z</Expiry>"
    b"<Permission>%b</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
)
EMPTY_POLICY = (
    b"<SignedIdentifiers><SignedIdentifier><Id>empty</Id></SignedIdentifier></SignedIdentifiers>"
)
RULE = (
    "<CorsRule><AllowedMethods>GET</AllowedMethods><AllowedOrigins>example.com</AllowedOrigins>"
    "<AllowedHeaders>*</AllowedHeaders><ExposedHeaders>*</ExposedHeaders>"
    "<MaxAgeInSeconds>8888</MaxAgeInSeconds></CorsRule>"
)
PROPERTIES = (
    "<Logging><Version>1.0</Version><Read>true</Read><Write>true</Write><Delete>true</Delete>"
    "<RetentionPolicy><Enabled>true</Enabled><Days>5</Days></RetentionPolicy></Logging>"
    "<HourMetrics><Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>"
    "<RetentionPolicy><Enabled>true</Enabled><Days>3</Days></RetentionPolicy></HourMetrics>"
    "<MinuteMetrics><Version>1.0</Version><Enabled>true</Enabled><IncludeAPIs>true</IncludeAPIs>"
    "<RetentionPolicy><Enabled>true</Enabled><Days>4</Days></RetentionPolicy></MinuteMetrics>"
    f"<Cors>{RULE}</Cors>"
)

# Parts that each answer has of its own: dates, ids, receipts.
VARYING = (
    (re.compile(r"\w{3}, \d\d \w{3} (?!9999)\d{4} \d\d:\d\d:\d\d GMT"), "DATE"),
    (re.compile(r"<MessageId>[0-9a-f-]{36}<"), "<MessageId>ID<"),
    (re.compile(r"<PopReceipt>[A-Za-z0-9+/=]+<"), "<PopReceipt>RECEIPT<"),
    (re.compile(r"RequestId:\S+\nTime:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z"), "TRACE"),
)


def shape_of(response: Response) -> str:
    """The document, without its declaration, with a word for what varies."""
    text = response.body.decode().removeprefix('<?xml version="1.0" encoding="utf-8"?>')
    for varying, word in VARYING:
        text = varying.sub(word, text)
    return text


def requests_to(*asked: tuple[str, str, bytes]) -> list[Request]:
    return [
        Request(
            method=method,
            target=target,
            headers=Headers.of({"Content-Length": str(len(body))}),
            body=body,
        )
        for method, target, body in asked
    ]


async def last_answer(*asked: tuple[str, str, bytes]) -> Response:
    """The answer to the last of these requests to a new account with an empty queue `orders`."""
    async with open_client() as client:
        answers = [await client.send(request) for request in requests_to(*asked)]
    return answers[-1]


PUT = ("POST", "/orders/messages", TEXT)
ITEM = "<MessageId>ID</MessageId><InsertionTime>DATE</InsertionTime><ExpirationTime>"
RECEIPT = "<PopReceipt>RECEIPT</PopReceipt><TimeNextVisible>DATE</TimeNextVisible>"


def in_list(item: str) -> str:
    return f"<QueueMessagesList><QueueMessage>{item}</QueueMessage></QueueMessagesList>"


@pytest.mark.parametrize(
    ("asked", "status", "shape"),
    [
        # test_put_message_infinite_time_to_live.json
        (
            [("POST", "/orders/messages?messagettl=-1", TEXT)],
            201,
            in_list(f"{ITEM}Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime>{RECEIPT}"),
        ),
        # test_update_message.json
        (
            [PUT, ("GET", "/orders/messages", b"")],
            200,
            in_list(
                f"{ITEM}DATE</ExpirationTime>{RECEIPT}<DequeueCount>1</DequeueCount>"
                "<MessageText>message1</MessageText>"
            ),
        ),
        # test_peek_messages.json
        (
            [PUT, ("GET", "/orders/messages?peekonly=true", b"")],
            200,
            in_list(
                f"{ITEM}DATE</ExpirationTime><DequeueCount>0</DequeueCount>"
                "<MessageText>message1</MessageText>"
            ),
        ),
        # recording_update_and_delete_message_with_all_parameters.json
        ([("GET", "/orders/messages?peekonly=true", b"")], 200, "<QueueMessagesList />"),
        # test_set_queue_acl_with_signed_identifiers.json
        (
            [("PUT", "/orders?comp=acl", POLICY % b"r"), ("GET", "/orders?comp=acl", b"")],
            200,
            "<SignedIdentifiers><SignedIdentifier><Id>testid</Id><AccessPolicy>"
            "<Start>2022-10-27T22:01:36.0000000Z</Start>"
            "<Expiry>2022-10-27T23:06:36.0000000Z</Expiry><Permission>r</Permission>"
            "</AccessPolicy></SignedIdentifier></SignedIdentifiers>",
        ),
        # test_set_queue_acl_with_empty_signed_identifier.json
        (
            [("PUT", "/orders?comp=acl", EMPTY_POLICY), ("GET", "/orders?comp=acl", b"")],
            200,
            EMPTY_POLICY.decode(),
        ),
        # test_set_queue_acl_with_empty_signed_identifiers.json
        (
            [("PUT", "/orders?comp=acl", b""), ("GET", "/orders?comp=acl", b"")],
            200,
            "<SignedIdentifiers />",
        ),
        # test_list_queues_with_options.json
        (
            [("GET", "/?comp=list&prefix=ord&maxresults=3", b"")],
            200,
            f'<EnumerationResults ServiceEndpoint="http://{HOST}/{ACCOUNT}/"><Prefix>ord</Prefix>'
            "<MaxResults>3</MaxResults><Queues><Queue><Name>orders</Name></Queue></Queues>"
            "<NextMarker /></EnumerationResults>",
        ),
        # queueserviceclient/recording_setproperties_with_all_parameters.js
        (
            [
                (
                    "PUT",
                    "/?comp=properties&restype=service",
                    f"<StorageServiceProperties>{PROPERTIES}</StorageServiceProperties>".encode(),
                ),
                ("GET", "/?comp=properties&restype=service", b""),
            ],
            200,
            f"<StorageServiceProperties>{PROPERTIES}</StorageServiceProperties>",
        ),
    ],
    ids=[
        *("put for ever", "get", "peek", "peek nothing", "policy", "empty policy", "no policy"),
        *("list", "properties"),
    ],
)
async def test_documents_are_the_recorded_ones(
    asked: list[tuple[str, str, bytes]], status: int, shape: str, autojump_clock: MockClock
) -> None:
    response = await last_answer(*asked)

    assert (response.status, shape_of(response)) == (status, shape)


def error(code: str, text: str, more: str = "") -> str:
    return f"<Error><Code>{code}</Code><Message>{text}\nTRACE</Message>{more}</Error>"


INVALID = "Value for one of the query parameters specified in the request URI is invalid."


@pytest.mark.parametrize(
    ("asked", "status", "code", "shape"),
    [
        # queueclient/recording_getproperties_negative.json
        (
            ("GET", "/nobody?comp=metadata", b""),
            404,
            "QueueNotFound",
            error("QueueNotFound", "The specified queue does not exist."),
        ),
        # queueclient_messageid_methods/recording_delete_message_negative.js
        (
            (
                "DELETE",
                "/orders/messages/224f9823-41a5-4766-b68c-33228548ed58?popreceipt=invalid",
                b"",
            ),
            400,
            "InvalidQueryParameterValue",
            error(
                "InvalidQueryParameterValue",
                INVALID,
                "<QueryParameterName>popreceipt</QueryParameterName><QueryParameterValue>invalid"
                "</QueryParameterValue><Reason>Invalid pop receipt format</Reason>",
            ),
        ),
        # queueclient_message_methods/recording_enqueue_peek_and_dequeue_negative.js
        (
            ("POST", "/orders/messages?visibilitytimeout=30&messagettl=30", TEXT),
            400,
            "InvalidQueryParameterValue",
            error(
                "InvalidQueryParameterValue",
                INVALID,
                "<QueryParameterName>visibilitytimeout</QueryParameterName><QueryParameterValue>30"
                "</QueryParameterValue><Reason>messagettl must be greater than visibilitytimeout"
                "</Reason>",
            ),
        ),
        (
            ("GET", "/orders/messages?numofmessages=100", b""),
            400,
            "OutOfRangeQueryParameterValue",
            error(
                "OutOfRangeQueryParameterValue",
                "One of the query parameters specified in the request URI is outside the"
                " permissible range.",
                "<QueryParameterName>numofmessages</QueryParameterName><QueryParameterValue>100"
                "</QueryParameterValue><MinimumAllowed>1</MinimumAllowed>"
                "<MaximumAllowed>32</MaximumAllowed>",
            ),
        ),
    ],
    ids=["no queue", "receipt", "hidden for its life", "too many"],
)
async def test_errors_are_the_recorded_ones(
    asked: tuple[str, str, bytes], status: int, code: str, shape: str, autojump_clock: MockClock
) -> None:
    response = await last_answer(asked)

    assert (response.status, shape_of(response)) == (status, shape)
    assert response.headers.get("x-ms-error-code") == code
    assert response.headers.get("Cache-Control") is None


async def test_a_permission_of_blobs_is_refused_with_the_recorded_code(
    autojump_clock: MockClock,
) -> None:
    """queueclient/recording_setaccesspolicy_negative.js"""
    response = await last_answer(("PUT", "/orders?comp=acl", POLICY % b"rwdl"))

    assert response.status == 400
    assert response.headers.get("x-ms-error-code") == "InvalidXmlDocument"


@pytest.mark.parametrize(
    "target",
    [
        *("/orders/messages", "/orders?comp=metadata", "/orders?comp=acl"),
        *("/?comp=list", "/?comp=properties&restype=service"),
    ],
)
async def test_answers_to_get_are_not_cached(target: str, autojump_clock: MockClock) -> None:
    """All recorded answers to GET have this header, those to other methods don't."""
    read = await last_answer(("GET", target, b""))
    put = await last_answer(PUT)

    assert read.headers.get("Cache-Control") == "no-cache"
    assert put.headers.get("Cache-Control") is None
