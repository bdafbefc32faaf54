/*
What @azure/service-bus 7.9 gets from a Pairgate over AMQP: the parts of amqp_client.py, in Node.

Runs as a process of its own, with NODE_PATH where make installed it, and prints one JSON object.
Usage: node amqp_client.js CONNECTION_STRING OPTIONS PART...
*/
"use strict";

// The SDK needs it, and Node.js has it from version 20 on; Debian 12 has 18.
globalThis.crypto ??= require("node:crypto").webcrypto;

const { ServiceBusAdministrationClient, ServiceBusClient, isServiceBusError } = require("@azure/service-bus");
const { setTimeout: pause } = require("node:timers/promises");
const WebSocket = require("ws");

const [CONNECTION, OPTIONS, ...PARTS] = process.argv.slice(2);
const LOCK = 15000; // milliseconds: longer than the machine stalls
const WAIT = 60000; // for a message that is there
const SOON = 20000; // a scheduled message is seen, and one of them cancelled, before
const LARGE = 700000;
// How the other SDK calls the same errors.
const NAMES = { UnauthorizedAccess: "ServiceBusAuthentication", ServiceTimeout: "OperationTimeout", GeneralError: "ServiceBus" };

function client(connection = CONNECTION) {
  const { retry_total: maxRetries, transport_type: transport } = JSON.parse(OPTIONS);
  // A send on a connection that is reset waits for so long, and is made again.
  const timeoutInMs = PARTS.includes("producing_again") ? 15000 : 60000;
  const retryOptions = { maxRetries, retryDelayInMs: 1000, timeoutInMs };
  const webSocketOptions = transport === "AmqpOverWebsocket" ? { webSocket: WebSocket } : undefined;
  return new ServiceBusClient(connection, { retryOptions, webSocketOptions });
}

/* A manager of rules has nothing to close. */
async function using(link, use) {
  try {
    return await use(link);
  } finally {
    await link.close?.();
  }
}

function send(service, queue, ...messages) {
  return using(service.createSender(queue), (sender) => sender.sendMessages(messages));
}

/* So many messages, or those that came in time. */
async function take(receiver, count) {
  const taken = [];
  while (taken.length < count) {
    const got = await receiver.receiveMessages(count - taken.length, { maxWaitTimeInMs: WAIT });
    if (got.length === 0) break;
    taken.push(...got);
  }
  return taken;
}

async function complete(receiver, messages) {
  for (const message of messages) await receiver.completeMessage(message);
  return messages.map((message) => String(message.body));
}

async function peeked(receiver) {
  return (await receiver.peekMessages(10)).map((message) => String(message.body));
}

/* The name of the error that the call ends with. */
async function errorOf(call) {
  try {
    await call();
  } catch (error) {
    if (!isServiceBusError(error)) throw error;
    return NAMES[error.code] ?? error.code;
  }
  return null;
}

const parts = {
  async sending(service) {
    await using(service.createSender("sending"), async (sender) => {
      await sender.sendMessages({ body: "single" });
      await sender.sendMessages([0, 1].map((n) => ({ body: `list ${n}` })));
      const batch = await sender.createMessageBatch();
      for (let n = 0; n < 3; n++) batch.tryAddMessage({ body: `batch ${n}` });
      await sender.sendMessages(batch);
      await sender.sendMessages({ body: "x".repeat(LARGE) });
    });
    return using(service.createReceiver("sending"), async (receiver) => {
      const bodies = await complete(receiver, await take(receiver, 7));
      return {
        bodies: bodies.filter((body) => body.length < 100),
        large: Math.max(...bodies.map((body) => body.length)),
        left: await peeked(receiver),
      };
    });
  },

  async properties(service) {
    await send(service, "properties", {
      body: "rich",
      applicationProperties: { text: "grün", number: 7, real: 2.5, truth: true },
      messageId: "the id",
      subject: "the subject",
      contentType: "text/plain",
      correlationId: "the correlation",
      replyTo: "the answer",
      to: "the target",
      partitionKey: "key",
      timeToLive: 3600000,
    });
    return using(service.createReceiver("properties"), async (receiver) => {
      const [got] = await take(receiver, 1);
      await complete(receiver, [got]);
      return {
        body: got.body,
        properties: got.applicationProperties,
        id: got.messageId,
        subject: got.subject,
        content_type: got.contentType,
        correlation: got.correlationId,
        reply_to: got.replyTo,
        to: got.to,
        key: got.partitionKey,
        // The client counts it from the creation, the service from the enqueueing.
        ttl: Math.round((got.timeToLive - (got.enqueuedTimeUtc - got._rawAmqpMessage.properties.creationTime)) / 1000),
        count: got.deliveryCount,
        numbered: got.sequenceNumber.greaterThan(0),
        recent: Math.abs(Date.now() - got.enqueuedTimeUtc) < 60000,
      };
    });
  },

  async scheduling(service) {
    return using(service.createSender("scheduling"), (sender) =>
      using(service.createReceiver("scheduling"), async (receiver) => {
        const due = new Date(Date.now() + SOON);
        const several = [{ body: "later" }, { body: "never" }];
        const numbers = await sender.scheduleMessages(several, due);
        await sender.sendMessages({ body: "by property", scheduledEnqueueTimeUtc: due });
        const before = await peeked(receiver);
        const early = await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 });
        await sender.cancelScheduledMessages(numbers[1]);
        const arrived = await complete(receiver, await take(receiver, 2));
        return {
          numbers: new Set(numbers.map(String)).size,
          before: before.sort(),
          early: early.length,
          arrived: arrived.sort(),
          cancelled_twice: await errorOf(() => sender.cancelScheduledMessages(numbers[1])),
        };
      }),
    );
  },

  async settling(service) {
    const ways = ["complete", "abandon", "dead-letter", "defer"];
    await send(service, "settling", ...ways.map((body) => ({ body })));
    const found = await using(service.createReceiver("settling"), async (receiver) => {
      const messages = await take(receiver, 4);
      const of = Object.fromEntries(messages.map((message) => [message.body, message]));
      await receiver.completeMessage(of.complete);
      await receiver.abandonMessage(of.abandon);
      await receiver.deadLetterMessage(of["dead-letter"], {
        deadLetterReason: "the reason",
        deadLetterErrorDescription: "the description",
      });
      await receiver.deferMessage(of.defer);
      const [again] = await take(receiver, 1);
      await complete(receiver, [again]);
      const number = of.defer.sequenceNumber;
      const deferred = await complete(receiver, await receiver.receiveDeferredMessages(number));
      return {
        abandoned: [again.body, again.deliveryCount],
        deferred,
        deferred_twice: await errorOf(() => receiver.receiveDeferredMessages(number)),
        left: await peeked(receiver),
      };
    });
    const deadLetters = service.createReceiver("settling", { subQueueType: "deadLetter" });
    return using(deadLetters, async (receiver) => {
      const [dead] = await take(receiver, 1);
      await complete(receiver, [dead]);
      return { ...found, dead: [dead.body, dead.deadLetterReason, dead.deadLetterErrorDescription] };
    });
  },

  async deleting(service) {
    await send(service, "deleting", ...["0", "1", "2"].map((body) => ({ body })));
    const receiver = service.createReceiver("deleting", { receiveMode: "receiveAndDelete" });
    return using(receiver, async () => {
      const bodies = (await take(receiver, 3)).map((message) => message.body);
      return { bodies, left: await peeked(receiver) };
    });
  },

  async peeking(service) {
    await send(service, "peeking", ...["0", "1", "2", "3"].map((body) => ({ body })));
    return using(service.createReceiver("peeking"), async (receiver) => {
      const messages = await receiver.peekMessages(2);
      const number = messages[1].sequenceNumber.add(1);
      const rest = await receiver.peekMessages(10, { fromSequenceNumber: number });
      return { first: messages.map((m) => m.body), rest: rest.map((m) => m.body) };
    });
  },

  async renewing(service) {
    await send(service, "renewing", { body: "by hand" });
    // The SDK renews what it handles through `subscribe` by itself.
    return using(service.createReceiver("renewing"), async (receiver) => {
      const [message] = await take(receiver, 1);
      const before = message.lockedUntilUtc;
      await pause(1000);
      const after = await receiver.renewMessageLock(message);
      await complete(receiver, [message]);
      await send(service, "renewing", { body: "by itself" });
      const kept = await new Promise((resolve, reject) => {
        receiver.subscribe(
          {
            async processMessage(late) {
              await pause(LOCK + 1000);
              resolve(await errorOf(() => receiver.completeMessage(late)));
            },
            processError: async ({ error }) => reject(error),
          },
          { autoCompleteMessages: false },
        );
      });
      return { later: after > before, kept, left: await peeked(receiver) };
    });
  },

  async losing(service) {
    await send(service, "losing", { body: "late" });
    return using(service.createReceiver("losing", { maxAutoLockRenewalDurationInMs: 0 }), async (receiver) => {
      const [message] = await take(receiver, 1);
      await pause(LOCK + 500);
      const late = await errorOf(() => receiver.completeMessage(message));
      const [again] = await take(receiver, 1);
      await complete(receiver, [again]);
      return { late, count: again.deliveryCount };
    });
  },

  async sessions(service) {
    const without = await using(service.createSender("sessions"), async (sender) => {
      for (const n of [0, 1])
        for (const sessionId of ["a", "b"]) await sender.sendMessages({ body: `${sessionId}${n}`, sessionId });
      return errorOf(() => sender.sendMessages({ body: "no session" }));
    });
    const found = await using(await service.acceptSession("sessions", "b"), async (receiver) => {
      const before = receiver.sessionLockedUntilUtc;
      await receiver.setSessionState("the state");
      const state = String(await receiver.getSessionState());
      await pause(1000);
      return {
        without,
        state,
        renewed: (await receiver.renewSessionLock()) > before,
        locked: await errorOf(() => service.acceptSession("sessions", "b")),
        bodies: await complete(receiver, await take(receiver, 2)),
      };
    });
    const next = await using(await service.acceptNextSession("sessions"), async (receiver) => [
      receiver.sessionId,
      await complete(receiver, await take(receiver, 2)),
    ]);
    const state = await using(await service.acceptSession("sessions", "b"), async (receiver) => {
      const kept = String(await receiver.getSessionState());
      await receiver.setSessionState(null);
      return [found.state, kept, !(await receiver.getSessionState())];
    });
    return { ...found, next, state };
  },

  async losing_sessions(service) {
    await send(service, "losing-sessions", { body: "late", sessionId: "s" });
    const options = { maxAutoLockRenewalDurationInMs: 0 };
    const open = () => service.acceptSession("losing-sessions", "s", options);
    const late = await using(await open(), async (receiver) => {
      const [message] = await take(receiver, 1);
      await pause(LOCK + 500);
      return errorOf(() => receiver.completeMessage(message));
    });
    return using(await open(), async (receiver) => {
      const [again] = await take(receiver, 1);
      await complete(receiver, [again]);
      return { late, again: again.body };
    });
  },

  async topics(service) {
    await using(service.createSender("topic"), async (sender) => {
      for (const colour of ["red", "blue"])
        await sender.sendMessages({ body: colour, subject: colour, applicationProperties: { colour } });
    });
    const found = {};
    for (const [name, count] of [["all", 2], ["red", 1], ["blue", 1]])
      found[name] = await using(service.createReceiver("topic", name), async (receiver) => [
        ...(await complete(receiver, await take(receiver, count))),
        ...(await peeked(receiver)),
      ]);
    return found;
  },

  async rules(service) {
    return using(service.createRuleManager("ruled", "sub"), async (manager) => {
      const names = async () => {
        const found = [];
        for await (const rule of manager.listRules()) found.push([rule.name, rule.filter.sqlExpression ?? rule.filter.subject]);
        return found;
      };
      const first = await names();
      await manager.createRule("sql", { sqlExpression: "size > 10" });
      await manager.createRule(
        "correlation",
        { subject: "urgent", applicationProperties: { size: 1 } },
        { sqlExpression: "SET size = 2 SET sys.Label = 'done'" },
      );
      await manager.deleteRule("$Default");
      const twice = await errorOf(() => manager.createRule("sql", { sqlExpression: "1 = 1" }));
      const missing = await errorOf(() => manager.deleteRule("nothing"));
      const then = (await names()).map(([name]) => name).sort();
      await send(service, "ruled", { body: "big", applicationProperties: { size: 11 } });
      await send(service, "ruled", { body: "small", applicationProperties: { size: 1 } });
      await send(service, "ruled", { body: "urgent", subject: "urgent", applicationProperties: { size: 1 } });
      return using(service.createReceiver("ruled", "sub"), async (receiver) => {
        const got = await take(receiver, 2);
        await complete(receiver, got);
        return {
          first,
          then,
          twice,
          missing,
          arrived: got.map((m) => [m.body, m.subject ?? null, m.applicationProperties.size]),
          left: await peeked(receiver),
        };
      });
    });
  },

  async refusals(service) {
    const opening = (receiver) =>
      using(receiver, () => errorOf(() => receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 })));
    const first = (sender, message = { body: "x" }) => using(sender, () => errorOf(() => sender.sendMessages(message)));
    const wrong = client(CONNECTION.replace("SAS_KEY_VALUE", "no key at all"));
    return {
      sender: await first(service.createSender("nowhere")),
      receiver: await opening(service.createReceiver("nowhere")),
      subscription: await opening(service.createReceiver("topic", "nowhere")),
      disabled: await opening(service.createReceiver("disabled")),
      wrong_key: await using(wrong, () => first(wrong.createSender("sending"))),
      too_large: await first(service.createSender("sending"), { body: "x".repeat(2000000) }),
    };
  },

  /*
   * Send until a line comes in. A message whose send ended with an error that `forgives` allows is
   * sent again; any other error ends the part.
   */
  async producing(service, forgives = () => false) {
    let stopped = false;
    process.stdin.once("data", () => {
      stopped = true;
      process.stdin.destroy();
    });
    return using(service.createSender("orders"), async (sender) => {
      const sent = [];
      let longest = 0;
      while (!stopped) {
        const messageId = `node ${sent.length}`;
        const began = performance.now();
        try {
          await sender.sendMessages({ body: "order", messageId });
        } catch (error) {
          if (!forgives(error)) throw error;
          await pause(100);
          continue;
        }
        longest = Math.max(longest, (performance.now() - began) / 1000);
        sent.push(messageId);
        process.stdout.write("\n"); // a sign that it goes on
        await pause(20);
      }
      return { sent, longest };
    });
  },

  /* Subscriptions and rules over HTTP, whose names this SDK reads from the paths of the answers. */
  async administering() {
    const admin = new ServiceBusAdministrationClient(CONNECTION);
    const all = async (pages, name) => {
      const found = [];
      for await (const each of pages) found.push(name(each));
      return found;
    };
    const topic = "shop/messages~placed";
    const byName = ({ topicName, subscriptionName }) => [topicName, subscriptionName];
    const made = byName((await admin.createTopic(topic), await admin.createSubscription(topic, "s")));
    const rule = await admin.createRule(topic, "s", "r", { sqlExpression: "size > 10" });
    return {
      made,
      got: byName(await admin.getSubscription(topic, "s")),
      updated: byName(await admin.updateSubscription(await admin.getSubscription(topic, "s"))),
      counted: byName(await admin.getSubscriptionRuntimeProperties(topic, "s")),
      listed: await all(admin.listSubscriptions(topic), byName),
      ruled: [rule.name, (await admin.getRule(topic, "s", "r")).name],
      rules: await all(admin.listRules(topic, "s"), ({ name }) => name),
      exist: [
        await admin.subscriptionExists(topic, "s"),
        await admin.subscriptionExists(topic, "none"),
        await admin.ruleExists(topic, "s", "r"),
        await admin.ruleExists(topic, "s", "none"),
      ],
    };
  },

  /* As `producing`, across connections that are reset: this SDK doesn't retry after a reset. */
  async producing_again(service) {
    return parts.producing(service, () => true);
  },

  /*
   * As `producing`, across restarts that refuse no connection. A send that begins just after a close
   * connects again, and takes the end of the old connection for that of the new one.
   */
  async producing_across_restarts(service) {
    return parts.producing(service, (error) => error.message === "Failed to connect");
  },
};

async function run(name) {
  const began = Date.now();
  const service = client();
  try {
    return await parts[name](service);
  } catch (error) {
    console.error(error);
    return `${error.name} ${error.code}: ${error.message}`;
  } finally {
    await service.close();
    console.error(`${name}: ${(Date.now() - began) / 1000} s`);
  }
}

async function main() {
  const results = await Promise.all(PARTS.map(run));
  console.log(JSON.stringify(Object.fromEntries(PARTS.map((name, index) => [name, results[index]]))));
}

main();
