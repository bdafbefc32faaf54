// Sends a message over TLS as rhea, whose token is in SASL XOAUTH2; then tries to receive it.
// Usage: xoauth2_client.js PORT CA QUEUE TOKEN; prints one JSON object.
"use strict";
const fs = require("fs");
const rhea = require("rhea");

const [port, ca, queue, token] = process.argv.slice(2);
const found = {};

let ended = false;

function end(connection) {
  if (ended) return;
  ended = true;
  process.stdout.write(JSON.stringify(found));
  connection.close();
}

rhea.on("sendable", (context) => {
  if (!found.sent) context.sender.send({ body: "hello" });
  found.sent = true;
});
rhea.on("accepted", (context) => {
  found.accepted = true;
  context.connection.open_receiver(queue);
});
rhea.on("receiver_error", (context) => {
  found.receiver = context.receiver.error.condition;
  end(context.connection);
});
rhea.on("message", (context) => {
  found.receiver = "message";
  end(context.connection);
});
for (const event of ["connection_error", "disconnected"]) {
  rhea.on(event, (context) => {
    if (found.receiver) return;
    const error = context.connection.error || context.error;
    found[event] = (error && (error.condition || error.message)) || null;
    end(context.connection);
    process.exit(0);
  });
}
rhea
  .connect({
    host: "localhost",
    port,
    transport: "tls",
    ca: fs.readFileSync(ca),
    servername: "localhost",
    username: "the-application",
    token,
    reconnect: false,
  })
  .open_sender(queue);
