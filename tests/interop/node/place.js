// Where the gateway is, and what else the runner has prepared.
"use strict";

// The SDKs need it, and Node.js has it from version 20 on; Debian 12 has 18.
globalThis.crypto ??= require("node:crypto").webcrypto;

const { randomUUID, createHmac } = require("node:crypto");
const node = require("node:test");

const wanted = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`the runner sets ${name}: python -m tests.interop node`);
  return value;
};

const HOST = `localhost:${wanted("INTEROP_PORT")}`;
const POLICY = "RootManageSharedAccessKey";
const KEY = "SAS_KEY_VALUE";

/* A shared access signature for a resource, as Service Bus has it. */
function signature(resource, seconds = 3600) {
  const escaped = encodeURIComponent(resource);
  const expires = Math.ceil(Date.now() / 1000) + seconds;
  const signed = createHmac("sha256", KEY).update(`${escaped}\n${expires}`).digest("base64");
  return `SharedAccessSignature sr=${escaped}&sig=${encodeURIComponent(signed)}&se=${expires}&skn=${POLICY}`;
}

/* A credential of @azure/identity's form: it has a token of the provider that the gateway trusts. */
const identity = (name) => ({
  getToken: async () => ({ token: wanted(name), expiresOnTimestamp: Date.now() + 3600e3 }),
});

/* A test that ends, so that the runner doesn't wait for one that hangs. */
const test = (name, run) => node.test(name, { timeout: 60000 }, run);

module.exports = {
  HOST,
  POLICY,
  KEY,
  CONNECTION: `Endpoint=sb://${HOST}/;SharedAccessKeyName=${POLICY};SharedAccessKey=${KEY}`,
  PLAIN: `Endpoint=sb://localhost:${wanted("INTEROP_PLAIN_PORT")};SharedAccessKeyName=${POLICY};SharedAccessKey=${KEY};UseDevelopmentEmulator=true`,
  STORAGE: `https://localhost:${wanted("INTEROP_STORAGE_PORT")}/devstoreaccount1`,
  fresh: (kind) => `${kind}-${randomUUID().slice(0, 13)}`,
  identity,
  signature,
  test,
  wanted,
};
