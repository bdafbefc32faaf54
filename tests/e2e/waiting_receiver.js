/*
A consumer of @azure/service-bus 7.9 that subscribes once, and goes on whatever happens: the lines of
waiting_receiver.py, in Node.

Usage: node waiting_receiver.js CONNECTION_STRING QUEUE
*/
"use strict";

globalThis.crypto ??= require("node:crypto").webcrypto;

const { ServiceBusClient } = require("@azure/service-bus");

const [CONNECTION, QUEUE] = process.argv.slice(2);
const say = (fields) => console.log(JSON.stringify(fields));

const receiver = new ServiceBusClient(CONNECTION).createReceiver(QUEUE);
receiver.subscribe({
  processMessage: async (message) => say({ got: String(message.body) }),
  processError: async ({ error }) => say({ error: error.code ?? error.name, text: error.message }),
});
say({ opened: QUEUE });
