// @azure/storage-queue over TLS: queues, messages, signatures, policies, and identities.
"use strict";

const { STORAGE, fresh, identity, test } = require("./place");
const assert = require("node:assert/strict");
const storage = require("@azure/storage-queue");

// The account and the key of the emulators, which their documentation publishes.
const ACCOUNT = "devstoreaccount1";
const KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const CREDENTIAL = new storage.StorageSharedKeyCredential(ACCOUNT, KEY);
const ONCE = { retryOptions: { maxTries: 1 } };
const LATER = () => new Date(Date.now() + 3600e3);
const service = new storage.QueueServiceClient(STORAGE, CREDENTIAL, ONCE);

async function created(metadata) {
  const queue = service.getQueueClient(fresh("q"));
  await queue.create({ metadata });
  return queue;
}

async function codeOf(call) {
  try {
    await call();
  } catch (error) {
    return error.code ?? error.details?.errorCode ?? String(error);
  }
  return null;
}

const texts = async (queue) => (await queue.receiveMessages()).receivedMessageItems.map(({ messageText }) => messageText);

test("a queue is made, listed and deleted", async () => {
  const queue = await created({ team: "blue" });
  const names = [];
  for await (const each of service.listQueues({ includeMetadata: true })) if (each.name === queue.name) names.push(each.metadata);
  const told = await queue.getProperties();
  await queue.delete();

  assert.deepEqual(names, [{ team: "blue" }]);
  assert.deepEqual([told.metadata, told.approximateMessagesCount], [{ team: "blue" }, 0]);
  assert.deepEqual([await queue.exists(), await codeOf(() => queue.getProperties())], [false, "QueueNotFound"]);
});

test("a message is put, peeked, taken, changed and deleted", async () => {
  const queue = await created();
  const put = await queue.sendMessage("text <&> grün", { messageTimeToLive: 600 });
  const peeked = (await queue.peekMessages()).peekedMessageItems[0];
  const got = (await queue.receiveMessages({ visibilityTimeout: 30 })).receivedMessageItems[0];
  const changed = await queue.updateMessage(got.messageId, got.popReceipt, "new text", 0);
  const again = (await queue.receiveMessages()).receivedMessageItems[0];

  assert.deepEqual([peeked.messageText, got.messageId, got.dequeueCount], ["text <&> grün", put.messageId, 1]);
  assert.deepEqual([again.messageText, again.dequeueCount], ["new text", 2]);
  assert.equal(await codeOf(() => queue.deleteMessage(got.messageId, changed.popReceipt)), "PopReceiptMismatch");
  await queue.deleteMessage(again.messageId, again.popReceipt);
  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
});

test("many messages are taken at once and cleared", async () => {
  const queue = await created();
  for (let n = 0; n < 5; n++) await queue.sendMessage(String(n));
  const taken = (await queue.receiveMessages({ numberOfMessages: 3 })).receivedMessageItems;
  await queue.clearMessages();

  assert.equal(taken.length, 3);
  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
});

test("a signature allows what it says and no more", async () => {
  const queue = await created();
  const url = queue.generateSasUrl({ permissions: storage.QueueSASPermissions.parse("a"), expiresOn: LATER() });
  const limited = new storage.QueueClient(url, new storage.AnonymousCredential(), ONCE);
  await limited.sendMessage("x");

  assert.equal(await codeOf(() => limited.receiveMessages()), "AuthorizationPermissionMismatch");
});

test("a connection string with an account's signature connects", async () => {
  const queue = await created();
  const sas = storage.generateAccountSASQueryParameters(
    { expiresOn: LATER(), permissions: storage.AccountSASPermissions.parse("ap"), resourceTypes: "sco", services: "q" },
    CREDENTIAL,
  );
  const string = `QueueEndpoint=${STORAGE};SharedAccessSignature=${sas}`;
  const signed = storage.QueueServiceClient.fromConnectionString(string, ONCE).getQueueClient(queue.name);
  await signed.sendMessage("x");

  assert.deepEqual(await texts(signed), ["x"]);
});

test("an access policy is stored and obeyed", async () => {
  const queue = await created();
  const policy = { permissions: "a", expiresOn: LATER(), startsOn: new Date(0) };
  await queue.setAccessPolicy([{ id: "adders", accessPolicy: policy }]);
  const sas = storage.generateQueueSASQueryParameters({ queueName: queue.name, identifier: "adders" }, CREDENTIAL);
  const limited = new storage.QueueClient(`${queue.url}?${sas}`, new storage.AnonymousCredential(), ONCE);
  await limited.sendMessage("x");

  assert.equal((await queue.getAccessPolicy()).signedIdentifiers[0].id, "adders");
  assert.equal(await codeOf(() => limited.receiveMessages()), "AuthorizationPermissionMismatch");
});

test("an identity is a credential", async () => {
  const queue = await created();
  const named = new storage.QueueServiceClient(STORAGE, identity("INTEROP_STORAGE_TOKEN"), ONCE);
  await named.getQueueClient(queue.name).sendMessage("x");

  assert.deepEqual(await texts(named.getQueueClient(queue.name)), ["x"]);
});

test("an identity that isn't known is refused with its code", async () => {
  const stranger = { getToken: async () => ({ token: "no.token.atall", expiresOnTimestamp: Date.now() + 3600e3 }) };
  const named = new storage.QueueServiceClient(STORAGE, stranger, ONCE);

  assert.equal(await codeOf(() => named.getProperties()), "InvalidAuthenticationInfo");
});

test("a wrong key is refused with its code", async () => {
  const wrong = new storage.StorageSharedKeyCredential(ACCOUNT, "d3Jvbmcga2V5IHdyb25nIGtleQ==");

  assert.equal(await codeOf(() => new storage.QueueServiceClient(STORAGE, wrong, ONCE).getProperties()), "AuthenticationFailed");
});

test("service properties and statistics are told", async () => {
  const rule = { allowedOrigins: "https://a.example", allowedMethods: "GET", allowedHeaders: "", exposedHeaders: "", maxAgeInSeconds: 5 };
  await service.setProperties({ cors: [rule] });
  const secondary = new storage.QueueServiceClient(`${STORAGE}-secondary`, CREDENTIAL, ONCE);

  assert.equal((await service.getProperties()).cors[0].allowedOrigins, "https://a.example");
  assert.equal((await secondary.getStatistics()).geoReplication.status, "live");
});

test("a queue that exists with other metadata is a conflict", async () => {
  const queue = await created({ team: "blue" });

  assert.equal(await codeOf(() => queue.create({ metadata: { team: "red" } })), "QueueAlreadyExists");
});
