// A client in a process of its own: @azure/service-bus as its users know it. Messages in flight are a
// list of up to a hundred in one call, and beyond that a sender for each hundred, with a connection of
// its own. A processor with 32 calls completes one message each. Prints one JSON object, as the other
// clients of `benchmarks.amqp`. Usage: amqp_node.js JOB
const fs = require("node:fs");
const path = require("node:path");

const modules = path.join(__dirname, "..", ".node", "node_modules");
const { ServiceBusClient } = require(require.resolve("@azure/service-bus", { paths: [modules] }));

const CALLS = 32, BATCH = 100, TICK = 100; // clock ticks of a second, as on each Linux of today
const job = JSON.parse(process.argv[2]);
const batch = Math.min(job.window, BATCH), body = Buffer.alloc(1024, "x");
const connection = `Endpoint=sb://127.0.0.1:${job.port};SharedAccessKeyName=${job.user};` +
  `SharedAccessKey=${job.password};UseDevelopmentEmulator=true;`;

// proc(5): utime and stime follow the name, which ends with a parenthesis.
function processorTime(pid) {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(")").pop().trim().split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICK;
}

function begin() {
  const before = Object.entries(job.servers).map(([name, pid]) => [name, pid, processorTime(pid)]);
  const own = process.cpuUsage(), began = performance.now(), latencies = [];
  let messages = 0;
  return {
    get messages() { return messages; },
    add(since, count) {
      latencies.push((performance.now() - since) / 1000);
      messages += count;
    },
    read() {
      const seconds = (performance.now() - began) / 1000, { user, system } = process.cpuUsage(own);
      latencies.sort((one, other) => one - other);
      return {
        messages, seconds, busy: (user + system) / 1e6 / seconds,
        p50: latencies[Math.floor(latencies.length / 2)],
        p99: latencies[Math.floor((latencies.length * 99) / 100)],
        servers: Object.fromEntries(
          before.map(([name, pid, taken]) => [name, (processorTime(pid) - taken) / messages])),
      };
    },
  };
}

async function send() {
  const clients = Array.from({ length: Math.max(1, Math.floor(job.window / BATCH)) },
    () => new ServiceBusClient(connection));
  const senders = clients.map(client => client.createSender(job.address));
  await Promise.all(senders.map(sender => sender.open?.()));
  const watch = begin(), ends = performance.now() + job.seconds * 1000;
  await Promise.all(senders.map(async sender => {
    while (performance.now() < ends) {
      const began = performance.now();
      await sender.sendMessages(Array.from({ length: batch }, () => ({ body })));
      watch.add(began, batch);
    }
  }));
  const found = watch.read();
  await Promise.all(clients.map(client => client.close()));
  return found;
}

async function receive(count) {
  const client = new ServiceBusClient(connection);
  const receiver = client.createReceiver(job.address);
  const watch = begin();
  await new Promise((done, failed) => {
    const processMessage = async message => {
      const began = performance.now();
      await receiver.completeMessage(message);
      watch.add(began, 1);
      if (watch.messages >= count) done();
    };
    receiver.subscribe({ processMessage, processError: async ({ error }) => failed(error) },
      { maxConcurrentCalls: CALLS, autoCompleteMessages: false });
  });
  const found = watch.read();
  await client.close();
  return found;
}

(async () => {
  const sent = await send();
  const answer = { send: sent, receive: await receive(sent.messages) };
  process.stdout.write(JSON.stringify(answer), () => process.exit(0));
})();
