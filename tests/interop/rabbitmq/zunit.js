// Runs rascal's tests, and writes a file of JUnit's form: `node zunit.js FILE`.
const { openSync, writeSync } = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const { Harness, Suite, SurefireReporter, syntax } = require('zunit');

// One test, which is left out where `CI` is set, needs it, and no registry has it any more.
const load = Module._load;
Module._load = (name, ...rest) => (name === 'random-readable' ? {} : load(name, ...rest));

// Without a place the tests connect to the usual port.
const amqplib = require('amqplib/callback_api');
const { connect } = amqplib;
amqplib.connect = (to, ...rest) =>
  typeof to === 'function' ? connect(process.env.AMQP_URL, to) : connect(to, ...rest);

// The reporter's own stream loses what hasn't been written when it ends.
const file = openSync(process.argv[2], 'w');
class Report extends SurefireReporter {
  _write(text) {
    writeSync(file, text);
  }
}

// What a test throws in a timer of its own ends that test, by its time limit, and no other.
process.on('uncaughtException', (error) => console.error(error));

Object.assign(globalThis, syntax);
new Suite('rascal')
  .discover({ directory: path.resolve('test'), pattern: /^[\w-]+.tests.js$/ })
  .then((suite) => new Harness(suite).run(new Report()))
  .then(() => process.exit());
