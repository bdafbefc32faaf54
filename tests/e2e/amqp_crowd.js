/*
Senders of @azure/service-bus 7.9 that have many messages on their way, until each has met an error.

Runs as a process of its own, with NODE_PATH where make installed it. Each line that it prints is a
word and the id of a message: "sent", and then "accepted" or "refused".
Usage: node amqp_crowd.js CONNECTION_STRING QUEUE CLIENTS LANES
*/
"use strict";

// The SDK needs it, and Node.js has it from version 20 on; Debian 12 has 18.
globalThis.crypto ??= require("node:crypto").webcrypto;

const { ServiceBusClient } = require("@azure/service-bus");

const [CONNECTION, QUEUE, CLIENTS, LANES] = process.argv.slice(2);

async function sendOn(sender, name) {
  for (let number = 0; ; number++) {
    const messageId = `${name}-${number}`;
    console.log("sent", messageId);
    try {
      await sender.sendMessages({ body: "order", messageId });
    } catch {
      console.log("refused", messageId);
      return;
    }
    console.log("accepted", messageId);
  }
}

async function main() {
  const lanes = [];
  for (let client = 0; client < CLIENTS; client++) {
    const service = new ServiceBusClient(CONNECTION, { retryOptions: { maxRetries: 0 } });
    const sender = service.createSender(QUEUE);
    for (let lane = 0; lane < LANES; lane++) lanes.push(sendOn(sender, `${client}-${lane}`));
  }
  await Promise.all(lanes);
  process.exit(0);
}

main();
