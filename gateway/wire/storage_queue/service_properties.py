"""The service properties of an account as XML, both directions: logging, metrics, CORS."""

from typing import Final
from xml.etree.ElementTree import Element

from gateway.wire.http.hardened_xml import text_of
from gateway.wire.storage_queue.errors import StorageRefusal
from gateway.wire.storage_queue.operations import (
    MAX_CORS_BYTES,
    MAX_CORS_RULES,
    CorsRule,
    LoggingProperties,
    Metrics,
    RetentionPolicy,
    ServiceProperties,
)
from gateway.wire.storage_queue.xml import document, leaf, parsed_or_refused, root_of

_MAX_DAYS: Final = 365  # of retention; the service's limit
_MAX_AGE: Final = 2**31 - 1  # seconds: of the service's Int32
_METHODS: Final = frozenset(
    {"DELETE", "GET", "HEAD", "MERGE", "POST", "OPTIONS", "PUT", "PATCH", "CONNECT", "TRACE"}
)


def build_properties(properties: ServiceProperties) -> bytes:
    """The document of these properties, without properties that are None."""
    parts = ""
    if properties.logging is not None:
        parts += _logging(properties.logging)
    if properties.hour_metrics is not None:
        parts += _metrics("HourMetrics", properties.hour_metrics)
    if properties.minute_metrics is not None:
        parts += _metrics("MinuteMetrics", properties.minute_metrics)
    if properties.cors is not None:
        rules = "".join(map(_rule, properties.cors))
        parts += f"<Cors>{rules}</Cors>" if rules else "<Cors />"
    return document("StorageServiceProperties", parts)


def parse_properties(body: bytes) -> ServiceProperties:
    """
    Parse the document; a property that it lacks is None.

    Raises:
        StorageRefusal: InvalidXmlDocument, InvalidXmlNodeValue.
    """
    root = root_of(body, "StorageServiceProperties")
    logging, cors = root.find("{*}Logging"), root.find("{*}Cors")
    # Until 2013 there were hour metrics only, and they had no other name.
    hour = root.find("{*}HourMetrics")
    hour = root.find("{*}Metrics") if hour is None else hour
    minute = root.find("{*}MinuteMetrics")
    return ServiceProperties(
        logging=None if logging is None else _parsed_logging(logging),
        hour_metrics=None if hour is None else _parsed_metrics(hour),
        minute_metrics=None if minute is None else _parsed_metrics(minute),
        cors=None if cors is None else _parsed_cors(cors),
    )


def _logging(logging: LoggingProperties) -> str:
    flags = (("Read", logging.read), ("Write", logging.write), ("Delete", logging.delete))
    parts = leaf("Version", logging.version) + "".join(_flag(*flag) for flag in flags)
    return f"<Logging>{parts}{_retention(logging.retention)}</Logging>"


def _metrics(name: str, metrics: Metrics) -> str:
    parts = leaf("Version", metrics.version) + _flag("Enabled", metrics.enabled)
    if metrics.include_apis is not None:
        parts += _flag("IncludeAPIs", metrics.include_apis)
    return f"<{name}>{parts}{_retention(metrics.retention)}</{name}>"


def _retention(retention: RetentionPolicy) -> str:
    days = "" if retention.days is None else leaf("Days", str(retention.days))
    return f"<RetentionPolicy>{_flag('Enabled', retention.enabled)}{days}</RetentionPolicy>"


def _rule(rule: CorsRule) -> str:
    values = (
        ("AllowedMethods", rule.methods),
        ("AllowedOrigins", rule.origins),
        ("AllowedHeaders", rule.headers),
        ("ExposedHeaders", rule.exposed),
        ("MaxAgeInSeconds", str(rule.max_age)),
    )
    return f"<CorsRule>{''.join(leaf(*value) for value in values)}</CorsRule>"


def _flag(name: str, flag: bool) -> str:
    return leaf(name, "true" if flag else "false")


def _parsed_logging(element: Element) -> LoggingProperties:
    return LoggingProperties(
        version=text_of(element, "Version") or "1.0",
        delete=_parsed_flag(element, "Delete"),
        read=_parsed_flag(element, "Read"),
        write=_parsed_flag(element, "Write"),
        retention=_parsed_retention(element),
    )


def _parsed_metrics(element: Element) -> Metrics:
    enabled = _parsed_flag(element, "Enabled")
    apis = element.find("{*}IncludeAPIs")
    if enabled and apis is None:
        raise StorageRefusal("InvalidXmlDocument", "IncludeAPIs is expected.")
    return Metrics(
        version=text_of(element, "Version") or "1.0",
        enabled=enabled,
        include_apis=None if apis is None else _parsed_flag(element, "IncludeAPIs"),
        retention=_parsed_retention(element),
    )


def _parsed_retention(element: Element) -> RetentionPolicy:
    found = element.find("{*}RetentionPolicy")
    if found is None:
        return RetentionPolicy()
    enabled, text = _parsed_flag(found, "Enabled"), text_of(found, "Days")
    if enabled and not text:
        raise StorageRefusal("InvalidXmlDocument", "Days is expected.")
    days = parsed_or_refused("Days", _days, text) if text else None
    return RetentionPolicy(enabled=enabled, days=days)


def _parsed_cors(element: Element) -> tuple[CorsRule, ...]:
    rules = tuple(_parsed_rule(each) for each in element.findall("{*}CorsRule"))
    if len(rules) > MAX_CORS_RULES:
        raise StorageRefusal("InvalidXmlDocument", f"At most {MAX_CORS_RULES} rules are taken.")
    if sum(map(_size, rules)) > MAX_CORS_BYTES:
        raise StorageRefusal(
            "InvalidXmlDocument", f"At most {MAX_CORS_BYTES} bytes are taken in all rules."
        )
    return rules


def _size(rule: CorsRule) -> int:
    return sum(map(len, (rule.origins, rule.methods, rule.headers, rule.exposed)))


def _parsed_rule(element: Element) -> CorsRule:
    return CorsRule(
        origins=parsed_or_refused("AllowedOrigins", _some, text_of(element, "AllowedOrigins")),
        methods=parsed_or_refused("AllowedMethods", _methods, text_of(element, "AllowedMethods")),
        headers=parsed_or_refused("AllowedHeaders", _plain, text_of(element, "AllowedHeaders")),
        exposed=parsed_or_refused("ExposedHeaders", _plain, text_of(element, "ExposedHeaders")),
        max_age=parsed_or_refused("MaxAgeInSeconds", _age, text_of(element, "MaxAgeInSeconds")),
    )


def _parsed_flag(element: Element, name: str) -> bool:
    text = text_of(element, name)
    if text.lower() not in {"true", "false", ""}:
        raise StorageRefusal(
            "InvalidXmlNodeValue", extra={"XmlNodeName": name, "XmlNodeValue": text[:100]}
        )
    return text.lower() == "true"


def _days(text: str) -> int:
    return _number(text, 1, _MAX_DAYS)


def _age(text: str) -> int:
    return _number(text, 0, _MAX_AGE)


def _number(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise ValueError(f"a number from {least} to {most} is expected")
    return int(text)


def _some(text: str) -> str:
    if not text:
        raise ValueError("at least one is expected")
    return _plain(text)


def _plain(text: str) -> str:
    """The text, if a header of an answer can have it."""
    if not (text.isascii() and text.isprintable()):
        raise ValueError("printable ASCII characters are expected")
    return text


def _methods(text: str) -> str:
    if not text or not {each.strip().upper() for each in text.split(",")} <= _METHODS:
        raise ValueError("methods of HTTP are expected")
    return text
