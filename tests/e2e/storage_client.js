/*
What @azure/storage-queue 12 gets from a Pairgate: the parts of storage_client.py, in Node.

Runs as a process of its own, with NODE_PATH where make installed it, and prints one JSON object.
Usage: node storage_client.js CONNECTION_STRING node PART...
*/
"use strict";

// The SDK needs it, and Node.js has it from version 20 on; Debian 12 has 18.
globalThis.crypto ??= require("node:crypto").webcrypto;

const storage = require("@azure/storage-queue");
const { setTimeout: pause } = require("node:timers/promises");

const [CONNECTION, KIND, ...PARTS] = process.argv.slice(2);
const FIELDS = Object.fromEntries(
  CONNECTION.split(";").filter(Boolean).map((each) => [each.slice(0, each.indexOf("=")), each.slice(each.indexOf("=") + 1)]),
);
const { AccountName: ACCOUNT, AccountKey: KEY, QueueEndpoint: ENDPOINT } = FIELDS;
const CREDENTIAL = new storage.StorageSharedKeyCredential(ACCOUNT, KEY);
const ONCE = { retryOptions: { maxTries: 1 } };
const LATER = new Date(Date.now() + 3600e3);

const service = () => new storage.QueueServiceClient(ENDPOINT, CREDENTIAL, ONCE);
const queue = (name) => service().getQueueClient(`${KIND}-${name}`);

async function fresh(name) {
  const client = queue(name);
  await client.create();
  return client;
}

async function codeOf(call) {
  try {
    await call();
  } catch (error) {
    return error.code ?? error.details?.errorCode ?? String(error);
  }
  return null;
}

async function get(client, options = {}) {
  return (await client.receiveMessages(options)).receivedMessageItems;
}

async function texts(client, options) {
  return (await get(client, options)).map((each) => each.messageText);
}

async function listed(pages) {
  const items = [];
  for await (const each of pages) items.push(each);
  return items;
}

async function queues() {
  const found = {};
  const first = queue("a");
  const metadata = { Team: "blue", Floor_2: "x y" };
  await first.create({ metadata });
  found.again = (await first.create({ metadata }))._response.status;
  found.other = await codeOf(() => first.create({ metadata: { Team: "red" } }));
  for (const name of ["c", "b", "d"]) await queue(name).create();
  const items = [];
  const options = { prefix: `${KIND}-`, includeMetadata: true };
  for await (const page of service().listQueues(options).byPage({ maxPageSize: 2 })) items.push(...page.queueItems);
  found.listed = items
    .filter((each) => each.name.length === KIND.length + 2)
    .map((each) => [each.name.slice(KIND.length + 1), each.metadata || {}]);
  await first.setMetadata({ new: "1" });
  found.metadata = (await first.getProperties()).metadata;
  await first.delete();
  found.deleted = await codeOf(() => first.getProperties());
  found["deleted twice"] = await codeOf(() => first.delete());
  return found;
}

async function poison() {
  const [client, moved] = [await fresh("bad"), queue("bad-poison")];
  const found = { refused: await codeOf(() => client.setMetadata({ defaulttimeout: "1s" })), dequeues: [] };
  await client.setMetadata({ defaulttimeout: "1", poisonthreshold: "2" });
  await client.sendMessage("bad");
  const deadline = Date.now() + 30e3;
  while ((await codeOf(() => moved.getProperties())) && Date.now() < deadline) {
    for (const each of await get(client)) found.dequeues.push(each.dequeueCount);
    await pause(100);
  }
  found.moved = (await get(moved)).map((each) => [each.messageText, each.dequeueCount]);
  found.left = (await client.getProperties()).approximateMessagesCount;
  return found;
}

async function messages() {
  const client = await fresh("messages");
  const found = { empty: await texts(client) };
  const put = await client.sendMessage("first <&> grün \r\n", { messageTimeToLive: -1 });
  found.never = put.expiresOn.getUTCFullYear();
  await client.sendMessage("");
  await client.sendMessage("x".repeat(65536));
  const late = await client.sendMessage("late", { visibilityTimeout: 600 });
  found.count = (await client.getProperties()).approximateMessagesCount;
  const peeked = (await client.peekMessages({ numberOfMessages: 32 })).peekedMessageItems;
  found.peeked = peeked.map((each) => [each.messageText.length, each.dequeueCount]);
  const got = await get(client, { numberOfMessages: 32, visibilityTimeout: 60 });
  found.got = got.map((each) => [each.messageText.length, each.dequeueCount]);
  found.text = got[0].messageText;
  found.same = got[0].messageId === put.messageId;
  found.hidden = await texts(client);
  await client.updateMessage(got[0].messageId, got[0].popReceipt, "changed", 0);
  const [again] = await get(client);
  found.changed = [again.messageText, again.dequeueCount, again.messageId === got[0].messageId];
  found.stale = await codeOf(() => client.deleteMessage(got[0].messageId, got[0].popReceipt));
  found["stale update"] = await codeOf(() => client.updateMessage(got[0].messageId, got[0].popReceipt, undefined, 1));
  await client.deleteMessage(again.messageId, again.popReceipt);
  found.deleted = await codeOf(() => client.deleteMessage(again.messageId, again.popReceipt));
  await client.deleteMessage(late.messageId, late.popReceipt);
  await client.updateMessage(got[1].messageId, got[1].popReceipt, undefined, 1);
  await pause(1200);
  const [back] = await get(client);
  found.back = [back.messageId === got[1].messageId, back.dequeueCount];
  found["wrong receipt"] = await codeOf(() => client.deleteMessage(back.messageId, "Ym9ndXM="));
  await client.clearMessages();
  found.cleared = (await client.getProperties()).approximateMessagesCount;
  const short = await client.sendMessage("short", { messageTimeToLive: 1 });
  await pause(1200);
  found.expired = [await texts(client), await codeOf(() => client.deleteMessage(short.messageId, short.popReceipt))];
  return found;
}

async function refusals() {
  const client = await fresh("refusals");
  const missing = queue("missing");
  const named = (name) => service().getQueueClient(name);
  return {
    "no queue": await codeOf(() => missing.sendMessage("x")),
    "no queue to get": await codeOf(() => missing.receiveMessages()),
    "no queue to peek": await codeOf(() => missing.peekMessages()),
    "no queue to clear": await codeOf(() => missing.clearMessages()),
    name: await codeOf(() => named("Bad_Name").create()),
    "short name": await codeOf(() => named("ab").create()),
    "too large": await codeOf(() => client.sendMessage("x".repeat(65537))),
    "far too large": await codeOf(() => client.sendMessage("x".repeat(140000))),
    life: await codeOf(() => client.sendMessage("x", { messageTimeToLive: 0 })),
    visibility: await codeOf(() => client.sendMessage("x", { visibilityTimeout: 604801 })),
    "visibility and life": await codeOf(() => client.sendMessage("x", { visibilityTimeout: 60, messageTimeToLive: 60 })),
    hide: await codeOf(() => client.receiveMessages({ visibilityTimeout: 604801 })),
    many: await codeOf(() => client.receiveMessages({ numberOfMessages: 33 })),
    "no such message": await codeOf(() => client.deleteMessage("00000000-0000-8465-8000-00000000ffff", "Ym9ndXM=")),
    "no id": await codeOf(() => client.deleteMessage("no-id", "Ym9ndXM=")),
    "metadata name": await codeOf(() => client.setMetadata({ "a-b": "1" })),
    "metadata size": await codeOf(() => client.setMetadata({ a: "x".repeat(9000) })),
  };
}

async function access() {
  const client = await fresh("access");
  const policy = { permissions: "rp", expiresOn: LATER, startsOn: new Date(0) };
  await client.setAccessPolicy([{ id: "readers", accessPolicy: policy }, { id: "nothing", accessPolicy: {} }]);
  const { signedIdentifiers } = await client.getAccessPolicy();
  const stored = signedIdentifiers.map((each) => [each.id, each.accessPolicy?.permissions ?? null]).sort();
  const found = { stored: Object.fromEntries(stored) };
  const by = (sas) => new storage.QueueClient(`${ENDPOINT}/${client.name}?${sas}`, new storage.AnonymousCredential(), ONCE);
  const ofQueue = (options) => storage.generateQueueSASQueryParameters({ queueName: client.name, ...options }, CREDENTIAL);
  const permitted = (letters, options = {}) =>
    ofQueue({ permissions: storage.QueueSASPermissions.parse(letters), expiresOn: LATER, ...options });
  await by(permitted("a")).sendMessage("by a signature");
  const readers = ofQueue({ identifier: "readers" });
  found["by policy"] = await texts(by(readers));
  found["no permission"] = await codeOf(() => by(readers).sendMessage("x"));
  found["no policy"] = await codeOf(() => by(ofQueue({ identifier: "x" })).sendMessage("x"));
  const past = new Date(Date.now() - 60e3);
  found.expired = await codeOf(() => by(permitted("a", { expiresOn: past })).sendMessage("x"));
  found["of another queue"] = await codeOf(() => by(permitted("a", { queueName: "other" })).sendMessage("x"));
  const ofAccount = (letters, types = "sco", options = {}) =>
    storage.generateAccountSASQueryParameters(
      { expiresOn: LATER, permissions: storage.AccountSASPermissions.parse(letters), resourceTypes: types, services: "q", ...options },
      CREDENTIAL,
    );
  await by(ofAccount("a")).sendMessage("by an account's");
  found.account = await texts(by(ofAccount("p")));
  found["account's permission"] = await codeOf(() => by(ofAccount("r")).sendMessage("x"));
  found.type = await codeOf(() => by(ofAccount("a", "s")).sendMessage("x"));
  const { Https } = storage.SASProtocol;
  found.protocol = await codeOf(() => by(ofAccount("a", "sco", { protocol: Https })).sendMessage("x"));
  const elsewhere = { ipRange: { start: "10.0.0.1" } };
  found.address = await codeOf(() => by(ofAccount("a", "sco", elsewhere)).sendMessage("x"));
  await by(ofAccount("a", "sco", { ipRange: { start: "127.0.0.0", end: "127.0.0.9" } })).sendMessage("x");
  found["list of a queue's"] = await codeOf(() => by(ofAccount("r")).getAccessPolicy());
  const wrong = new storage.StorageSharedKeyCredential(ACCOUNT, "d3Jvbmcga2V5IHdyb25nIGtleQ==");
  found["wrong key"] = await codeOf(() => new storage.QueueClient(client.url, wrong, ONCE).sendMessage("x"));
  const nobody = new storage.StorageSharedKeyCredential("nobody", KEY);
  const there = client.url.replace(ACCOUNT, "nobody");
  found["no account"] = await codeOf(() => new storage.QueueClient(there, nobody, ONCE).sendMessage("x"));
  return found;
}

async function properties() {
  const client = service();
  const rule = { allowedOrigins: "https://a.example", allowedMethods: "GET,PUT", allowedHeaders: "", exposedHeaders: "", maxAgeInSeconds: 5 };
  await client.setProperties({ cors: [rule] });
  const found = await client.getProperties();
  const secondary = new storage.QueueServiceClient(`${ENDPOINT}-secondary`, CREDENTIAL, ONCE);
  const stats = await secondary.getStatistics();
  return {
    cors: found.cors.map((each) => [each.allowedOrigins, each.allowedMethods]),
    logging: found.queueAnalyticsLogging.version,
    replication: stats.geoReplication.status,
    "too many": await codeOf(() => client.setProperties({ cors: Array(6).fill(rule) })),
  };
}

/* Until the standard input ends: what was accepted, and the longest time of one send. */
async function sending() {
  const client = new storage.QueueServiceClient(ENDPOINT, CREDENTIAL).getQueueClient("orders");
  let ended = false;
  process.stdin.resume().on("end", () => (ended = true));
  const found = { sent: [], errors: [], longest: 0 };
  while (!ended) {
    const body = `${KIND}-${found.sent.length}`;
    const begun = performance.now();
    try {
      await client.sendMessage(body);
      found.sent.push(body);
      process.stdout.write("\n"); // a sign that it goes on
    } catch (error) {
      found.errors.push(String(error));
    }
    found.longest = Math.max(found.longest, (performance.now() - begun) / 1000);
    await pause(20);
  }
  return found;
}

const KNOWN = { queues, poison, messages, refusals, access, properties, "send-all-the-time": sending };

(async () => {
  const found = {};
  for (const part of PARTS) found[part] = await KNOWN[part]();
  process.stdout.write(JSON.stringify(found));
})();
