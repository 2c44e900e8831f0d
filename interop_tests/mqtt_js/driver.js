'use strict';

// One process with any number of unmodified MQTT.js clients, driven by lines of JSON: each command
// on standard input has an id, which its answer on standard output repeats. Messages that a client
// receives are lines of their own.

const readline = require('node:readline');
const mqtt = require('mqtt');

const clients = new Map();

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const commands = {
  async connect({ name, url, options }) {
    // What a session has waiting may come with the answer to CONNECT, so the listeners come first.
    const client = mqtt.connect(url, { clientId: name, ...options });
    client.on('message', (topic, body, packet) => {
      const { userProperties } = packet.properties ?? {};
      const { qos, retain } = packet;
      say({ client: name, topic, body: body.toString('base64'), qos, retain, userProperties });
    });
    client.on('connect', packet => say({ client: name, present: packet.sessionPresent }));
    client.on('error', error => say({ client: name, failed: error.message }));
    clients.set(name, client);
    await new Promise((resolve, reject) => {
      client.once('connect', resolve);
      client.once('error', reject);
    });
    return {};
  },

  async subscribe({ name, filter, qos }) {
    const [granted] = await clients.get(name).subscribeAsync(filter, { qos });
    return { qos: granted.qos };
  },

  async publish({ name, topic, body, qos, count, properties, retain }) {
    const data = Buffer.from(body, 'base64');
    const sent = [];
    for (let n = 0; n < count; n += 1) {
      sent.push(clients.get(name).publishAsync(topic, data, { qos, properties, retain }));
    }
    await Promise.all(sent);
    return { count };
  },

  // Ends the connection without a goodbye.
  async cut({ name }) {
    clients.get(name).stream.destroy();
    return {};
  },

  async end({ name }) {
    await clients.get(name).endAsync();
    return {};
  },
};

readline.createInterface({ input: process.stdin }).on('line', async text => {
  const { id, command, ...given } = JSON.parse(text);
  try {
    say({ id, result: await commands[command](given) });
  } catch (error) {
    say({ id, error: error.message });
  }
}).on('close', () => process.exit(0));

say({ ready: true });
