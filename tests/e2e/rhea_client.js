// What rhea gets from a Pairgate without any credentials: it begins with AMQP itself, without SASL.
// Usage: rhea_client.js PORT QUEUE [SUBPROTOCOL]; prints one JSON object. With a subprotocol it's AMQP over
// WebSocket, at the path that .NET's SDK asks for.
"use strict";
const rhea = require("rhea");

const [port, queue, subprotocol] = process.argv.slice(2);
const types = rhea.types;
const LARGE = 10 * 1024 * 1024;

const described = types.wrap_described(types.wrap_string("inside"), "example:type");
const properties = {
  null: null,
  true: true,
  ubyte: types.wrap_ubyte(255),
  ushort: types.wrap_ushort(65535),
  uint: types.wrap_uint(4294967295),
  ulong: types.wrap_ulong(7),
  byte: types.wrap_byte(-128),
  short: types.wrap_short(-32768),
  int: types.wrap_int(-2147483648),
  long: types.wrap_long(-5),
  float: types.wrap_float(1.5),
  double: types.wrap_double(0.1),
  timestamp: types.wrap_timestamp(1700000000000),
  string: "häh",
  symbol: types.wrap_symbol("sym"),
  char: types.wrap_char(252),
  uuid: types.wrap_uuid(Buffer.alloc(16, 7)),
  binary: types.wrap_binary(Buffer.from("octets")),
};
const map = { number: 1, list: ["a", 2, null], nested: { deep: true } };
const bodies = [
  map,
  types.wrap_list([1, "two", [3]]),
  types.wrap_array([1, 2, 3], 0x71),
  described,
  rhea.message.data_section(Buffer.from("bytes")),
  rhea.message.sequence_section(["one", 2]),
  rhea.message.data_section(Buffer.alloc(LARGE, "x")),
];
const fields = {
  durable: true,
  priority: 7,
  ttl: 3600000,
  to: "there",
  subject: "a subject",
  reply_to: "here",
  reply_to_group_id: "the group of the answer",
  correlation_id: "correlated",
  content_type: "application/json",
  content_encoding: "identity",
  absolute_expiry_time: new Date(1700003600000),
  creation_time: new Date(1700000000000),
  group_sequence: 3,
  message_annotations: { "x-opt-mine": types.wrap_ushort(3) },
  footer: { "x-opt-sum": "of all" }, // rhea writes it before the body
};

function plain(value) {
  if (Buffer.isBuffer(value)) return value.length > 100 ? { large: value.length } : value.toString();
  if (value instanceof Date) return value.getTime();
  if (Array.isArray(value)) return value.map(plain);
  if (value && value.typecode !== undefined && value.content !== undefined) return { content: plain(value.content) };
  if (value && typeof value === "object") {
    if (value.descriptor !== undefined) return { described: plain(value.value) };
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, plain(each)]));
  }
  return value;
}

const found = { bodies: [], refused: null };
const container = rhea.create_container();
const url = `ws://localhost:${port}/$servicebus/websocket/`;
const place = subprotocol
  ? { connection_details: container.websocket_connect(require("ws"))(url, [subprotocol]) }
  : { host: "localhost", port: Number(port) };
const connection = container.connect({ ...place, reconnect: false });
let settled = 0;
container.once("sendable", ({ sender }) => {
  bodies.forEach((body, at) => {
    sender.send({ ...fields, message_id: `m${at}`, application_properties: properties, body });
  });
});
container.on("accepted", ({ sender }) => {
  settled += 1;
  if (settled === bodies.length) connection.open_receiver({ source: queue, credit_window: 20 });
});
container.on("message", ({ message }) => {
  found.bodies.push(plain(message.body));
  if (found.bodies.length === 1) {
    found.properties = plain(message.application_properties);
    // The expiry is the namespace's.
    const others = ["message_annotations", "footer", "absolute_expiry_time"];
    found.fields = Object.fromEntries(Object.keys(fields).filter((name) => !others.includes(name))
      .map((name) => [name, plain(message[name])]));
    found.annotation = plain(message.message_annotations["x-opt-mine"]);
    found.footer = plain(message.footer);
  }
  if (found.bodies.length === bodies.length) connection.open_sender("forbidden");
});
container.on("sender_error", ({ sender }) => {
  found.refused = sender.error.condition;
  connection.close();
});
container.on("connection_close", () => {
  console.log(JSON.stringify(found));
});
container.on("disconnected", ({ error }) => {
  if (error) throw error;
});
connection.open_sender(queue);
