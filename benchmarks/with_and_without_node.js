// The program that is measured, with @azure/service-bus: senders with the SDK's own retries.
// Usage: with_and_without_node.js CONNECTION_STRING QUEUE SECONDS SENDERS PAUSE
const { ServiceBusClient } = require("@azure/service-bus");

const [connection, queue, seconds, senders, pause] = process.argv.slice(2);
const accepted = [], failed = [];
let longest = 0;

async function sendUntil(ends, name) {
  const client = new ServiceBusClient(connection);
  const sender = client.createSender(queue);
  for (let number = 1; performance.now() < ends; number += 1) {
    const begun = performance.now(), messageId = `${name}-${number}`;
    try {
      await sender.sendMessages({ body: "hello", messageId });
      accepted.push(messageId);
    } catch (error) {
      failed.push(error.code ?? error.name);
    }
    longest = Math.max(longest, (performance.now() - begun) / 1000);
    await new Promise(resolve => setTimeout(resolve, pause * 1000));
  }
  await client.close();
}

const ends = performance.now() + seconds * 1000;
Promise.all([...Array(Number(senders)).keys()].map(n => sendUntil(ends, `node-${n}`))).then(() => {
  process.stdout.write(JSON.stringify({ accepted, failed, longest }), () => process.exit(0));
});
