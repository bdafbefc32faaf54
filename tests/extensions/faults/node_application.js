// An application's own tests with @azure/service-bus: each kind of fault.
// Run by `node --test` with CONNECTION in the environment, after the commands that add the faults.
const assert = require("node:assert");
const test = require("node:test");
const { ServiceBusClient } = require("@azure/service-bus");

const { CONNECTION } = process.env;
// The code of the error at the first send, and the messages that are kept.
const SENDS = {
  busy: ["ServiceBusy", 0],
  fail: ["GeneralError", 0],
  detach: ["ServiceTimeout", 0],
  drop: ["ServiceTimeout", 0],
  lose: ["ServiceTimeout", 1],
  delay: ["", 1],
};

function open(maxRetries) {
  const retryOptions = { maxRetries, retryDelayInMs: 100, timeoutInMs: 1500 };
  return new ServiceBusClient(CONNECTION, { retryOptions });
}

async function codeOf(promise) {
  try {
    await promise;
    return "";
  } catch (error) {
    return error.code ?? error.name;
  }
}

test("a send meets each kind", async () => {
  const met = await Promise.all(
    Object.keys(SENDS).map(async (kind) => {
      const client = open(0);
      const code = await codeOf(client.createSender(kind).sendMessages({ body: "hello" }));
      await client.close();
      const other = open(3);
      const peeked = await other.createReceiver(kind).peekMessages(10);
      await other.close();
      return [kind, [code, peeked.length]];
    }),
  );
  assert.deepStrictEqual(Object.fromEntries(met), SENDS);
});

test("of several sends at once the first ones fail", async () => {
  const client = open(0);
  const sender = client.createSender("orders");
  const found = await Promise.all([1, 2, 3, 4].map((body) => codeOf(sender.sendMessages({ body }))));
  await client.close();
  assert.deepStrictEqual(found, ["ServiceBusy", "ServiceBusy", "", ""]);
});

test("a receiver whose link was detached gets the message, and a settlement is refused", async () => {
  const client = open(0);
  await client.createSender("bills").sendMessages({ body: "hello" });
  const first = await codeOf(client.createReceiver("bills").receiveMessages(1, { maxWaitTimeInMs: 3000 }));
  const receiver = client.createReceiver("bills");
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 10000 });
  const settled = await codeOf(receiver.completeMessage(message));
  await client.close();
  assert.deepStrictEqual([first, message.body, settled], ["ServiceTimeout", "hello", "ServiceBusy"]);
});
