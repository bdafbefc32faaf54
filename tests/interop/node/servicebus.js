// @azure/service-bus over TLS, plain text and WebSocket: messages, sessions, rules, and every way to sign in.
"use strict";

const { CONNECTION, HOST, KEY, PLAIN, POLICY, fresh, identity, signature, test } = require("./place");
const assert = require("node:assert/strict");
const { after } = require("node:test");
const { AzureNamedKeyCredential, AzureSASCredential } = require("@azure/core-auth");
const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");
const WebSocket = require("ws");

const WAIT = { maxWaitTimeInMs: 10000 };
const OPTIONS = {
  customEndpointAddress: `sb://${HOST}`,
  retryOptions: { maxRetries: 1, retryDelayInMs: 500, timeoutInMs: 20000 },
};
// The SDK tries again when it isn't authorized, and puts all errors into one.
const ONCE = { ...OPTIONS, retryOptions: { maxRetries: 0, timeoutInMs: 20000 } };
const OVER_WEBSOCKET = { webSocketOptions: { webSocket: WebSocket } };
const TOKEN = identity("INTEROP_BUS_TOKEN");
const admin = new ServiceBusAdministrationClient(CONNECTION);
const service = new ServiceBusClient(CONNECTION, OPTIONS);
after(() => service.close());

async function queue(options = {}) {
  const name = fresh("q");
  await admin.createQueue(name, options);
  return name;
}

async function send(name, ...messages) {
  const sender = service.createSender(name);
  for (const each of messages) await sender.sendMessages(each);
  await sender.close();
}

/* So many messages, or those that came in time. */
async function take(receiver, count = 1) {
  const taken = [];
  while (taken.length < count) {
    const got = await receiver.receiveMessages(count - taken.length, WAIT);
    if (got.length === 0) break;
    taken.push(...got);
  }
  return taken;
}

async function codeOf(call) {
  try {
    await call();
  } catch (error) {
    return error.code ?? String(error);
  }
  return null;
}

async function all(pages) {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
}

/* A message there and back, by a client of its own. */
async function trip(client, name) {
  try {
    await client.createSender(name).sendMessages({ body: "x" });
    const receiver = client.createReceiver(name);
    const [got] = await take(receiver);
    await receiver.completeMessage(got);
    return got.body;
  } finally {
    await client.close();
  }
}

// Messages.

test("every property arrives", async () => {
  const name = await queue();
  await send(name, {
    body: { nested: [1, "two"] },
    applicationProperties: { text: "grün", number: 7, real: 2.5, truth: true, date: new Date(1700000000000) },
    messageId: "id", subject: "subject", contentType: "application/json", correlationId: "correlation",
    replyTo: "answer", to: "target", partitionKey: "key", timeToLive: 3600000,
  });
  const receiver = service.createReceiver(name);

  const [got] = await take(receiver);

  assert.deepEqual(got.body, { nested: [1, "two"] });
  const { date, ...others } = got.applicationProperties;
  assert.deepEqual(others, { text: "grün", number: 7, real: 2.5, truth: true });
  assert.equal(new Date(date).getTime(), 1700000000000);
  assert.deepEqual(
    [got.messageId, got.subject, got.contentType, got.correlationId, got.replyTo, got.to, got.partitionKey],
    ["id", "subject", "application/json", "correlation", "answer", "target", "key"],
  );
  // The client counts from the creation (core-amqp, amqpAnnotatedMessage.js), the service from the enqueueing.
  const waited = got.enqueuedTimeUtc - got._rawAmqpMessage.properties.creationTime;
  assert.equal(Math.round((got.timeToLive - waited) / 1000), 3600);
  assert.equal(got.expiresAtUtc - got.enqueuedTimeUtc, 3600000);
  assert.deepEqual([got.sequenceNumber.toNumber(), got.deliveryCount, got.state], [1, 0, "active"]);
  assert.ok((await receiver.renewMessageLock(got)) > new Date());
  await receiver.completeMessage(got);
});

test("a batch arrives in order", async () => {
  const name = await queue();
  const sender = service.createSender(name);
  const batch = await sender.createMessageBatch();
  for (let n = 0; n < 100; n++) assert.ok(batch.tryAddMessage({ body: n }));
  await sender.sendMessages(batch);

  const taken = await take(service.createReceiver(name, { receiveMode: "receiveAndDelete" }), 100);

  assert.deepEqual(taken.map(({ body }) => body), [...Array(100).keys()]);
});

test("a large message has many frames", async () => {
  const name = await queue();
  await send(name, { body: Buffer.alloc(700000, "x") });

  const [got] = await take(service.createReceiver(name, { receiveMode: "receiveAndDelete" }));

  assert.equal(got.body.length, 700000);
});

test("values, sequences and footers are what they were", async () => {
  const name = await queue();
  await send(
    name,
    { body: 12, bodyType: "value", footer: { sum: "of all" }, messageAnnotations: { "x-opt-mine": "yes" } },
    { body: [["a", 1]], bodyType: "sequence", header: { priority: 7 } },
  );

  const [value, sequence] = await take(service.createReceiver(name, { receiveMode: "receiveAndDelete" }), 2);

  assert.deepEqual([value._rawAmqpMessage.bodyType, value.body], ["value", 12]);
  assert.equal(sequence._rawAmqpMessage.bodyType, "sequence");
});

test("an annotated message keeps its sections", async () => {
  const name = await queue();
  await send(name, { bodyType: "value", body: 12, footer: { sum: "of all" }, messageAnnotations: { mine: "yes" }, header: { priority: 7 } });

  const [got] = await take(service.createReceiver(name, { receiveMode: "receiveAndDelete" }));

  const raw = got._rawAmqpMessage;
  assert.equal(raw.footer.sum, "of all");
  assert.equal(raw.messageAnnotations.mine, "yes");
  assert.equal(raw.header.priority, 7);
});

test("a dead letter says why and counts no failed delivery", async () => {
  const name = await queue();
  await send(name, { body: "x" });
  const receiver = service.createReceiver(name);
  const [got] = await take(receiver);
  await receiver.deadLetterMessage(got, { deadLetterReason: "reason", deadLetterErrorDescription: "text", changed: true });

  const [letter] = await take(service.createReceiver(name, { subQueueType: "deadLetter" }));

  assert.deepEqual([letter.deadLetterReason, letter.deadLetterErrorDescription], ["reason", "text"]);
  assert.deepEqual([letter.applicationProperties.changed, letter.deliveryCount], [true, 0]);
});

test("an abandoned message comes again", async () => {
  const name = await queue();
  await send(name, { body: "x" });
  const receiver = service.createReceiver(name);
  await receiver.abandonMessage((await take(receiver))[0], { changed: 1 });

  const [again] = await take(receiver);

  assert.deepEqual([again.deliveryCount, again.applicationProperties.changed], [1, 1]);
  await receiver.completeMessage(again);
});

test("a deferred message is received by its number", async () => {
  const name = await queue();
  await send(name, { body: "later" });
  const receiver = service.createReceiver(name);
  const [got] = await take(receiver);
  await receiver.deferMessage(got);

  const [found] = await receiver.receiveDeferredMessages(got.sequenceNumber);

  assert.deepEqual([found.body, found.state], ["later", "deferred"]);
  await receiver.completeMessage(found);
  assert.equal(await codeOf(() => receiver.receiveDeferredMessages(got.sequenceNumber)), "MessageNotFound");
});

test("a schedule is peeked and cancelled", async () => {
  const name = await queue();
  const sender = service.createSender(name);
  const numbers = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], new Date(Date.now() + 3600e3));
  const receiver = service.createReceiver(name);

  const peeked = await receiver.peekMessages(10);
  await sender.cancelScheduledMessages(numbers);

  assert.deepEqual(peeked.map(({ state }) => state), ["scheduled", "scheduled"]);
  assert.deepEqual(await receiver.peekMessages(10, { fromSequenceNumber: numbers[0] }), []);
});

test("messages are peeked without their bodies", async () => {
  const name = await queue();
  await send(name, { body: "heavy", subject: "kept" });

  const [peeked] = await service.createReceiver(name).peekMessages(1, { omitMessageBody: true });

  assert.equal(peeked.subject, "kept");
  assert.ok(!peeked.body || peeked.body.length === 0);
});

test("a handler completes what it gets", async () => {
  const name = await queue();
  await send(name, ...[1, 2, 3].map((body) => ({ body })));
  const receiver = service.createReceiver(name);
  const got = [];
  await new Promise((resolve, reject) => {
    receiver.subscribe(
      {
        processMessage: async ({ body }) => {
          if (got.push(body) === 3) setTimeout(resolve, 500);
        },
        processError: async ({ error }) => reject(error),
      },
      { maxConcurrentCalls: 2 },
    );
  });
  await receiver.close();

  assert.deepEqual(got.sort(), [1, 2, 3]);
  assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
});

test("a lock that is gone has its code", async () => {
  const name = await queue({ lockDuration: "PT1S" });
  await send(name, { body: "x" });
  const receiver = service.createReceiver(name, { maxAutoLockRenewalDurationInMs: 0 });
  const [got] = await take(receiver);
  await new Promise((resolve) => setTimeout(resolve, 1500));

  assert.equal(await codeOf(() => receiver.completeMessage(got)), "MessageLockLost");
});

test("refusals have their codes", async () => {
  const wrong = new ServiceBusClient(CONNECTION.replace(KEY, "no key at all"), ONCE);
  const name = await queue({ status: "Disabled" });
  const first = (sender, body = "x") => codeOf(() => sender.sendMessages({ body }));

  assert.equal(await first(service.createSender(fresh("none"))), "MessagingEntityNotFound");
  assert.equal(await first(service.createSender(name)), "MessagingEntityDisabled");
  assert.equal(await first(wrong.createSender(name)), "UnauthorizedAccess");
  await wrong.close();
});

// Sessions.

test("a session is accepted by name and keeps its state", async () => {
  const name = await queue({ requiresSession: true });
  await send(name, { body: "a", sessionId: "one" });
  const session = await service.acceptSession(name, "one");

  await session.setSessionState({ half: "done" });
  const before = session.sessionLockedUntilUtc;
  const after = await session.renewSessionLock();
  const [got] = await take(session);
  await session.completeMessage(got);

  assert.deepEqual(await session.getSessionState(), { half: "done" });
  assert.ok(after >= before);
  assert.equal(got.sessionId, "one");
  assert.equal(await codeOf(() => service.acceptSession(name, "one")), "SessionCannotBeLocked");
  await session.close();
});

test("the next session is the one that has messages", async () => {
  const name = await queue({ requiresSession: true });
  await send(name, { body: "a", sessionId: "two" });

  const session = await service.acceptNextSession(name);

  assert.equal(session.sessionId, "two");
  await session.close();
});

test("without a session the wait ends with its code", async () => {
  const name = await queue({ requiresSession: true });
  const short = new ServiceBusClient(CONNECTION, { ...ONCE, retryOptions: { maxRetries: 0, timeoutInMs: 3000 } });

  assert.equal(await codeOf(() => short.acceptNextSession(name)), "ServiceTimeout");
  await short.close();
});

test("a deferred message of a session is settled", async () => {
  const name = await queue({ requiresSession: true });
  await send(name, { body: "later", sessionId: "s" });
  const session = await service.acceptSession(name, "s");
  const [got] = await take(session);
  await session.deferMessage(got);

  const [found] = await session.receiveDeferredMessages([got.sequenceNumber]);
  await session.completeMessage(found);

  assert.deepEqual(await session.peekMessages(1), []);
  await session.close();
});

// Rules over AMQP.

test("rules are managed over AMQP", async () => {
  const topic = fresh("t");
  await admin.createTopic(topic);
  await admin.createSubscription(topic, "s");
  const manager = service.createRuleManager(topic, "s");

  const first = await all(manager.listRules());
  await manager.createRule("sql", { sqlExpression: "size > 10" }, { sqlExpression: "SET marked = TRUE" });
  await manager.createRule("correlation", { subject: "urgent", applicationProperties: { size: 1 } });
  await manager.deleteRule("$Default");
  const then = await all(manager.listRules());
  await send(topic, { body: "big", applicationProperties: { size: 11 } }, { body: "small", applicationProperties: { size: 1 } });
  const taken = await take(service.createReceiver(topic, "s", { receiveMode: "receiveAndDelete" }));

  assert.deepEqual(first.map(({ name, filter }) => [name, filter.sqlExpression]), [["$Default", "1=1"]]);
  assert.deepEqual(then.map(({ name }) => name).sort(), ["correlation", "sql"]);
  assert.equal(then.find(({ name }) => name === "correlation").filter.applicationProperties.size, 1);
  assert.deepEqual(taken.map(({ body, applicationProperties }) => [body, applicationProperties.marked]), [["big", true]]);
  assert.equal(await codeOf(() => manager.deleteRule("none")), "MessagingEntityNotFound");
});

// Connections and credentials.

test("messages travel without TLS as against the emulator", async () => {
  assert.equal(await trip(new ServiceBusClient(PLAIN, { retryOptions: OPTIONS.retryOptions }), await queue()), "x");
});

test("messages travel over a WebSocket", async () => {
  assert.equal(await trip(new ServiceBusClient(CONNECTION, { ...OPTIONS, ...OVER_WEBSOCKET }), await queue()), "x");
});

test("a string with a signature connects", async () => {
  const name = await queue();
  const string = (resource) => `Endpoint=sb://localhost/;SharedAccessSignature=${signature(resource)}`;

  assert.equal(await trip(new ServiceBusClient(string("sb://localhost/"), OPTIONS), name), "x");
  assert.equal(await trip(new ServiceBusClient(string("http://localhost/"), OPTIONS), name), "x");
  const overWebSocket = new ServiceBusClient(string("sb://localhost/"), { ...OPTIONS, ...OVER_WEBSOCKET });
  assert.equal(await trip(overWebSocket, name), "x");
});

test("an expired signature is refused in known words", async () => {
  const old = `Endpoint=sb://localhost/;SharedAccessSignature=${signature("sb://localhost/", -3600)}`;
  const client = new ServiceBusClient(old, ONCE);

  await assert.rejects(client.createSender(await queue()).sendMessages({ body: "x" }), /ExpiredToken: The token is expired/);
  await client.close();
});

test("a named key and a signature are credentials", async () => {
  const name = await queue();
  const named = new AzureNamedKeyCredential(POLICY, KEY);
  const signed = new AzureSASCredential(signature("sb://localhost/"));

  assert.equal(await trip(new ServiceBusClient("localhost", named, OPTIONS), name), "x");
  assert.equal(await trip(new ServiceBusClient("localhost", signed, OPTIONS), name), "x");
});

test("an identity is a credential", async () => {
  const name = await queue();

  assert.equal(await trip(new ServiceBusClient("localhost", TOKEN, OPTIONS), name), "x");
  assert.equal(await trip(new ServiceBusClient("localhost", TOKEN, { ...OPTIONS, ...OVER_WEBSOCKET }), name), "x");
});

// Administration.

for (const [who, manager] of [
  ["a key", admin],
  ["an identity", new ServiceBusAdministrationClient(HOST, TOKEN)],
  ["a named key", new ServiceBusAdministrationClient(HOST, new AzureNamedKeyCredential(POLICY, KEY))],
]) {
  test(`a queue is made, changed, listed and deleted by ${who}`, async () => {
    const [name, target] = [fresh("q"), await queue()];
    const made = await manager.createQueue(name, { lockDuration: "PT45S", maxDeliveryCount: 7, forwardTo: target, userMetadata: "mine" });
    const changed = await manager.updateQueue({ ...(await manager.getQueue(name)), maxDeliveryCount: 3 });
    const listed = (await all(manager.listQueues())).filter((each) => each.name === name);
    const counted = await manager.getQueueRuntimeProperties(name);
    const there = await manager.queueExists(name);
    await manager.deleteQueue(name);

    assert.deepEqual([made.lockDuration, made.maxDeliveryCount, made.userMetadata], ["PT45S", 7, "mine"]);
    assert.ok(made.forwardTo.endsWith(target));
    assert.deepEqual([changed.maxDeliveryCount, listed.length, counted.totalMessageCount], [3, 1, 0]);
    assert.ok(Math.abs(Date.now() - counted.createdAt) < 60000);
    assert.deepEqual([there, await manager.queueExists(name)], [true, false]);
  });

  test(`a topic is managed by ${who}`, async () => {
    const topic = `shop/${fresh("messages~placed")}`;
    await manager.createTopic(topic, { requiresDuplicateDetection: true });
    await manager.createSubscription(topic, "s", {
      maxDeliveryCount: 5,
      defaultRuleOptions: { name: "first", filter: { sqlExpression: "a = 1" } },
    });
    const rule = await manager.createRule(topic, "s", "r", { subject: "x", applicationProperties: { n: 1 } });
    const updated = await manager.updateRule(topic, "s", { ...rule, filter: { sqlExpression: "n > 1" } });
    const subscription = await manager.updateSubscription({ ...(await manager.getSubscription(topic, "s")), maxDeliveryCount: 6 });
    const rules = (await all(manager.listRules(topic, "s"))).map(({ name }) => name).sort();
    const names = (await all(manager.listSubscriptions(topic))).map((each) => [each.topicName, each.subscriptionName]);
    const counts = await manager.getSubscriptionRuntimeProperties(topic, "s");
    const exist = [
      await manager.topicExists(topic), await manager.subscriptionExists(topic, "s"), await manager.subscriptionExists(topic, "none"),
      await manager.ruleExists(topic, "s", "r"), await manager.ruleExists(topic, "s", "none"),
    ];
    await manager.deleteRule(topic, "s", "r");
    await manager.deleteTopic(topic);

    assert.equal(updated.filter.sqlExpression, "n > 1");
    assert.equal(subscription.maxDeliveryCount, 6);
    assert.deepEqual(rules, ["first", "r"]);
    assert.deepEqual(names, [[topic, "s"]]);
    assert.equal(counts.totalMessageCount, 0);
    assert.deepEqual(exist, [true, true, false, true, false]);
  });
}

test("the namespace tells its name and tier", async () => {
  const told = await admin.getNamespaceProperties();

  assert.ok(told.name);
  assert.ok(["Standard", "Premium"].includes(told.messagingSku));
});

test("what exists and what is fixed is refused with its code", async () => {
  const name = await queue();

  assert.equal(await codeOf(() => admin.createQueue(name)), "MessageEntityAlreadyExistsError");
  const session = { ...(await admin.getQueue(name)), requiresSession: true };
  await assert.rejects(admin.updateQueue(session), /RequiresSession property of an existing Queue cannot be changed/);
});
