/*
What @azure/storage-queue signs, by its own code: prints requests for vectors.json.

NODE_PATH=.node/node_modules node tests/wire/storage/signers.js
*/
"use strict";

const storage = require("@azure/storage-queue");

const ACCOUNT = "contoso";
const KEY = "YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw==";
const credential = new storage.StorageSharedKeyCredential(ACCOUNT, KEY);

async function recorded(url) {
  const requests = [];
  const httpClient = {
    async sendRequest(request) {
      requests.push({
        method: request.method,
        url: request.url,
        headers: request.headers.toJson({ preserveCase: true }),
        body: request.body ?? "",
      });
      throw new Error("recorded");
    },
  };
  const pipeline = storage.newPipeline(credential, { httpClient, retryOptions: { maxTries: 1 } });
  const service = new storage.QueueServiceClient(url, pipeline);
  const queue = service.getQueueClient("orders-1");
  const metadata = { Zeta: "1", alpha_2: "two words", a1: "x", A_b: "b", ab: "y" };
  const calls = [
    () => service.listQueues({ prefix: "a b+c", includeMetadata: true }).next(),
    () => service.getProperties(),
    () => service.getStatistics(),
    () => queue.create({ metadata }),
    () => queue.getProperties(),
    () => queue.setMetadata(metadata),
    () => queue.setAccessPolicy([{ id: "p", accessPolicy: { permissions: "r" } }]),
    () => queue.getAccessPolicy(),
    () => queue.sendMessage("hello <&> grün", { visibilityTimeout: 3, messageTimeToLive: 60 }),
    () => queue.receiveMessages({ numberOfMessages: 2, visibilityTimeout: 9 }),
    () => queue.peekMessages({ numberOfMessages: 32 }),
    () => queue.updateMessage("an-id", "AgAA+/==", "new", 0),
    () => queue.deleteMessage("an-id", "AgAA+/=="),
    () => queue.clearMessages(),
    () => queue.delete(),
  ];
  for (const call of calls) await call().catch(() => {});
  return requests;
}

function signatures() {
  const startsOn = new Date("2025-01-01T00:00:00Z");
  const expiresOn = new Date("2036-01-01T00:00:00Z");
  const account = storage.generateAccountSASQueryParameters(
    {
      startsOn,
      expiresOn,
      ipRange: { start: "10.0.0.1", end: "10.0.0.9" },
      protocol: storage.SASProtocol.Https,
      permissions: storage.AccountSASPermissions.parse("rwdlacup"),
      resourceTypes: "sco",
      services: "q",
    },
    credential,
  );
  const queue = storage.generateQueueSASQueryParameters(
    { queueName: "orders-1", permissions: storage.QueueSASPermissions.parse("raup"), expiresOn },
    credential,
  );
  const stored = storage.generateQueueSASQueryParameters({ queueName: "orders-1", identifier: "pol1" }, credential);
  return [account, queue, stored].map(String);
}

(async () => {
  const requests = [
    ...(await recorded("http://127.0.0.1:10001/contoso")),
    ...(await recorded("https://contoso.queue.core.windows.net")),
  ];
  console.log(JSON.stringify({ requests, sas: signatures() }, null, 1));
})();
