'use strict';

// The demo's worker for ali-ons, the RocketMQ client that Node programs use:
//
//     node ali_ons.js publish|subscribe ADDRESS TOPIC GROUP
//
// It says what `publish.py` and `subscribe.py` say, one JSON object a line. What it publishes are
// lines of JSON on its standard input; it ends when that is closed.

const crypto = require('node:crypto');
const readline = require('node:readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [role, nameSrv, topic, group] = process.argv.slice(2);
const quiet = { info() {}, debug() {}, warn() {}, error: console.error };
const options = {
  accessKeyId: 'unused',
  accessKeySecret: 'unused',
  httpclient: { request() { throw new Error('no HTTP here'); } },
  logger: quiet,
  nameSrv,
};

const now = () => Number(process.hrtime.bigint()) / 1e9;
const say = line => process.stdout.write(`${JSON.stringify(line)}\n`);

async function publish(lines) {
  const producer = new Producer({ ...options, producerGroup: group });
  await producer.ready();
  for await (const line of lines) {
    const { tag, key, body, properties } = JSON.parse(line);
    const message = new Message(topic, tag, Buffer.from(body, 'base64'));
    message.keys = [key];
    Object.assign(message.properties, properties);
    const sent = now();
    const { sendStatus } = await producer.send(message);
    if (sendStatus !== 'SEND_OK') throw new Error(`the broker said ${sendStatus}`);
    say({ event: 'acked', tag, sent, at: now() });
  }
}

async function subscribe(lines) {
  const consumer = new Consumer({
    ...options, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.subscribe(topic, '*', async ({ body, keys, properties, tags, topic: place }) => {
    const digest = crypto.createHash('sha256').update(body || '').digest('hex');
    say({
      event: 'received', tag: tags, digest, at: now(),
      attributes: {
        topic: place, key: keys, content_type: properties['content-type'],
        kind: properties.kind, CE_kind: properties.CE_kind,
      },
    });
  });
  await consumer.ready();
  say({ event: 'ready' });
  for await (const _ of lines);
}

// The iterator exists before the first line can come, or lines would be lost.
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
(role === 'publish' ? publish : subscribe)(lines)
  .then(() => process.exit(0), error => { console.error(error); process.exit(1); });
