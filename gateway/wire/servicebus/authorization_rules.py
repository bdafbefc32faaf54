"""AuthorizationRules of a queue or topic, both directions; see `description`."""

from typing import Final
from xml.etree.ElementTree import Element

from gateway.domain.entity import AuthorizationRule
from gateway.domain.errors import InvalidRequest
from gateway.wire.http.hardened_xml import text_of
from gateway.wire.servicebus.description import INSTANCE, NAMESPACE, NestedElement, leaf

ELEMENT: Final = "AuthorizationRules"
MAX_RULES: Final = 12  # of an entity; Service Bus's limit
_MAX_TEXT: Final = 256  # characters of a key and its name; Service Bus's limit
_RIGHTS: Final = ("Manage", "Listen", "Send")
_TEXTS: Final = {
    "ClaimType": "claim_type",
    "ClaimValue": "claim_value",
    "CreatedTime": "created",
    "ModifiedTime": "modified",
    "KeyName": "key_name",
    "PrimaryKey": "primary_key",
    "SecondaryKey": "secondary_key",
}


def build(rules: tuple[AuthorizationRule, ...]) -> str:
    """
    Build the element.

    Raises:
        InvalidRequest: a text that XML can't hold; the text names the element.
    """
    built = "".join(map(_build_rule, rules))
    return f"<{ELEMENT}>{built}</{ELEMENT}>" if built else f"<{ELEMENT}/>"


def _build_rule(rule: AuthorizationRule) -> str:
    texts = {element: getattr(rule, name) for element, name in _TEXTS.items()}
    leaves = {element: leaf(element, text) for element, text in texts.items() if text}
    rights = "".join(leaf("AccessRights", right) for right in rule.rights)
    first = leaves.pop("ClaimType", "") + leaves.pop("ClaimValue", "")
    return (
        f'<AuthorizationRule xmlns:i="{INSTANCE}" i:type="SharedAccessAuthorizationRule">'
        f"{first}<Rights>{rights}</Rights>{''.join(leaves.values())}</AuthorizationRule>"
    )


def parse(description: Element) -> tuple[AuthorizationRule, ...]:
    """
    Parse the rules of a description.

    Raises:
        InvalidRequest: the text names the element and what is expected.
    """
    rules = description.findall(f"{{{NAMESPACE}}}{ELEMENT}/{{{NAMESPACE}}}AuthorizationRule")
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"{ELEMENT}: up to {MAX_RULES} rules expected, got {len(rules)}")
    return tuple(map(_parse_rule, rules))


def _parse_rule(rule: Element) -> AuthorizationRule:
    texts = {name: text_of(rule, element) for element, name in _TEXTS.items()}
    for element, name in _TEXTS.items():
        if len(texts[name]) > _MAX_TEXT:
            raise InvalidRequest(f"{element}: up to {_MAX_TEXT} characters expected")
    if not texts["key_name"]:
        raise InvalidRequest("KeyName: the name of the rule's key expected")
    rights = tuple((each.text or "").strip() for each in rule.iter(f"{{{NAMESPACE}}}AccessRights"))
    if not rights or not set(rights) <= set(_RIGHTS):
        raise InvalidRequest(f"AccessRights: {', '.join(_RIGHTS)} expected")
    return AuthorizationRule(rights=rights, **texts)


RULES: Final = NestedElement(ELEMENT, "authorization_rules", build, parse)
