// rhea, the AMQP client below Node's SDK: sections and types as they are, over TLS and a WebSocket, with a key and a token.
"use strict";

const { KEY, POLICY, test, wanted } = require("./place");
const assert = require("node:assert/strict");
const { once } = require("node:events");
const rhea = require("rhea");

const { types, message } = rhea;
const PORT = Number(wanted("INTEROP_PLAIN_PORT"));
const QUEUE = wanted("INTEROP_QUEUE");
const LOGIN = { username: POLICY, password: KEY };
const LARGE = 900 * 1024;

function connect(options) {
  return rhea.create_container().connect({ reconnect: false, ...LOGIN, ...options });
}

const plain = () => connect({ host: "localhost", port: PORT });

/* The message as it comes back. */
async function trip(sent, connection = plain()) {
  const sender = connection.open_sender(QUEUE);
  if (!sender.sendable()) await once(sender, "sendable");
  sender.send(sent);
  await once(sender, "accepted");
  const receiver = connection.open_receiver({ source: QUEUE, credit_window: 0 });
  receiver.add_credit(1);
  const [{ message: got }] = await once(receiver, "message");
  connection.close();
  await once(connection, "connection_close");
  return got;
}

test("a footer before the body is taken", async () => {
  // rhea writes the footer before the body.
  const got = await trip({ body: "x", footer: { "x-opt-sum": "of all" } });

  assert.deepEqual([got.body, got.footer["x-opt-sum"]], ["x", "of all"]);
});

test("each type of AMQP comes back", async () => {
  const properties = {
    ubyte: types.wrap_ubyte(255), ushort: types.wrap_ushort(65535), uint: types.wrap_uint(4294967295),
    byte: types.wrap_byte(-128), short: types.wrap_short(-32768), int: types.wrap_int(-2147483648), long: types.wrap_long(-5),
    float: types.wrap_float(1.5), double: types.wrap_double(0.1), timestamp: types.wrap_timestamp(1700000000000),
    string: "häh", symbol: types.wrap_symbol("sym"), uuid: types.wrap_uuid(Buffer.alloc(16, 7)), truth: true,
  };

  const got = (await trip({ body: "x", application_properties: properties })).application_properties;

  assert.deepEqual([got.ubyte, got.ushort, got.uint, got.byte, got.short], [255, 65535, 4294967295, -128, -32768]);
  assert.deepEqual([got.int, got.long, got.float, got.double], [-2147483648, -5, 1.5, 0.1]);
  assert.deepEqual([got.string, String(got.symbol), got.truth], ["häh", "sym", true]);
  assert.ok(Buffer.alloc(16, 7).equals(got.uuid));
});

for (const [name, body] of [
  ["a map", { number: 1, list: ["a", 2, null], nested: { deep: true } }],
  ["a list", types.wrap_list([1, "two", [3]])],
  ["a described value", types.wrap_described(types.wrap_string("inside"), "example:type")],
  ["data", message.data_section(Buffer.from("bytes"))],
  ["sequences", message.sequence_section(["one", 2])],
]) {
  test(`${name} is a body`, async () => {
    assert.ok((await trip({ body })).body);
  });
}

test("a message of many frames comes back", async () => {
  const got = await trip({ body: message.data_section(Buffer.alloc(LARGE, "x")) });

  assert.equal(got.body.content.length, LARGE);
});

test("properties and header come back", async () => {
  const sent = {
    durable: true, priority: 7, to: "there", subject: "subject", reply_to: "here", correlation_id: "correlated",
    content_type: "application/json", content_encoding: "identity", group_sequence: 3, creation_time: new Date(1700000000000),
  };

  const got = await trip({ ...sent, body: "x", message_annotations: { "x-opt-mine": types.wrap_ushort(3) } });

  assert.deepEqual(Object.fromEntries(Object.keys(sent).map((name) => [name, got[name]])), sent);
  assert.equal(got.message_annotations["x-opt-mine"], 3);
});

test("messages travel over a WebSocket", async () => {
  const dial = rhea.create_container().websocket_connect(require("ws"));
  const details = dial(`ws://localhost:${PORT}/$servicebus/websocket/`, ["amqp"]);

  assert.equal((await trip({ body: "x" }, connect({ connection_details: details }))).body, "x");
});

test("messages travel over TLS", async () => {
  const connection = connect({ host: "localhost", port: Number(wanted("INTEROP_PORT")), transport: "tls" });

  assert.equal((await trip({ body: "x" }, connection)).body, "x");
});

test("a token is a password", async () => {
  const token = { username: "anything", password: wanted("INTEROP_BUS_TOKEN") };

  assert.equal((await trip({ body: "x" }, connect({ host: "localhost", port: PORT, ...token }))).body, "x");
});

test("a missing entity ends the link with its condition", async () => {
  const connection = plain();
  const sender = connection.open_sender("missing");
  await once(sender, "sender_error");

  assert.equal(sender.error.condition, "amqp:not-found");
  connection.close();
  await once(connection, "connection_close");
});
