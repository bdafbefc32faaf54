/*
A consumer of @azure/service-bus 7.9 that subscribes once, or accepts one session after the other, and
goes on whatever happens: the lines of waiting_receiver.py, in Node.

Usage: node waiting_receiver.js node|node-sessions CONNECTION_STRING QUEUE
*/
"use strict";

globalThis.crypto ??= require("node:crypto").webcrypto;

const { ServiceBusClient } = require("@azure/service-bus");

const [KIND, CONNECTION, QUEUE] = process.argv.slice(2);
const IDLE = 1000; // milliseconds without a message, after which another session has its turn
const say = (fields) => console.log(JSON.stringify(fields));
const sayError = (error) => say({ error: error.code ?? error.name, text: error.message });

const client = new ServiceBusClient(CONNECTION);

async function receiveSession() {
  const receiver = await client.acceptNextSession(QUEUE);
  for (;;) {
    const messages = await receiver.receiveMessages(10, { maxWaitTimeInMs: IDLE });
    if (!messages.length) break;
    for (const message of messages) {
      await receiver.completeMessage(message);
      say({ got: String(message.body), session: receiver.sessionId });
    }
  }
  await receiver.close();
}

async function receiveSessions() {
  for (;;) {
    try {
      await receiveSession();
    } catch (error) {
      sayError(error);
    }
  }
}

if (KIND === "node-sessions") {
  receiveSessions();
} else {
  client.createReceiver(QUEUE).subscribe({
    processMessage: async (message) => say({ got: String(message.body) }),
    processError: async ({ error }) => sayError(error),
  });
}
say({ opened: QUEUE });
