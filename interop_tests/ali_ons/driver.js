'use strict';

// One process with any number of unmodified ali-ons clients, driven by lines of JSON: each command
// on standard input has an id, which its answer on standard output repeats. Messages that a consumer
// receives are lines of their own. What the library says goes to standard error.

const readline = require('node:readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [address] = process.argv.slice(2);
const clients = new Map();
const logger = { info() {}, debug() {}, warn: console.error, error: console.error };

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function options({ accessKey, secretKey }, extra) {
  return {
    accessKeyId: accessKey || 'unused',
    accessKeySecret: secretKey || 'unused',
    httpclient: { request() { throw new Error('no HTTP here'); } },
    logger,
    nameSrv: address,
    ...extra,
  };
}

const commands = {
  async producer({ name, group, ...keys }) {
    const producer = new Producer(options(keys, { producerGroup: group, instanceName: name }));
    producer.on('error', error => console.error('producer', error.message));
    await producer.ready();
    clients.set(name, producer);
  },

  async send({ name, topic, tag, keys, body, properties, shard }) {
    const message = new Message(topic, tag, Buffer.from(body, 'base64'));
    if (keys) message.keys = keys;
    Object.assign(message.properties, properties);
    const result = await clients.get(name).send(message, shard);
    return { status: result.sendStatus, id: result.msgId, offset: result.queueOffset,
      queue: Number(result.messageQueue.queueId) };
  },

  async consumer({ name, group, topic, tags, broadcast, fail, ...keys }) {
    const consumer = new Consumer(options(keys, {
      consumerGroup: group, instanceName: name, isBroadcast: !!broadcast, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    }));
    consumer.on('error', error => console.error('consumer', error.message));
    const failures = new Map();
    consumer.subscribe(topic, tags || '*', async message => {
      const text = message.body.toString();
      const failed = failures.get(text) || 0;
      const fails = failed < (fail || 0);
      say({
        consumer: name, body: message.body.toString('base64'), tag: message.tags || null,
        keys: message.keys || null, properties: message.properties, topic: message.topic,
        queue: message.queueId, offset: message.queueOffset, id: message.msgId,
        times: message.reconsumeTimes, failed: fails,
      });
      if (fails) {
        failures.set(text, failed + 1);
        throw new Error('not this time');
      }
    });
    await consumer.ready();
    clients.set(name, consumer);
  },

  async close({ name }) {
    await clients.get(name).close();
    clients.delete(name);
  },
};

process.on('unhandledRejection', error => console.error('unhandled', error));
readline.createInterface({ input: process.stdin }).on('line', async line => {
  const { id, command, ...given } = JSON.parse(line);
  try {
    say({ id, result: (await commands[command](given)) || {} });
  } catch (error) {
    say({ id, error: String(error.message || error), code: error.code });
  }
}).on('close', () => process.exit(0));
say({ ready: true });
