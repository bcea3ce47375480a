// kafkajs. Arguments: BROKERS NAME; what they mean is said in ../python/smoke.py.
'use strict';
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs');
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');

const [BROKERS, NAME] = process.argv.slice(2);
const [GROUP_TOPIC, MADE, GONE, GROUP] = ['group', 'made', 'gone', 'members'].map((end) => `${NAME}-${end}`);
const [RECORDS, TIMESTAMPS, IDEMPOTENT, COUNT, FIRST, SECOND] = [5, 6, 7, 50, 40, 4];
const BASE_MS = 1_700_000_000_000;

const kafka = new Kafka({
  brokers: [BROKERS],
  logLevel: logLevel.NOTHING,
  requestTimeout: 12_000,
  retry: { retries: 3, initialRetryTime: 200 },
});

class NotAvailable extends Error {}

async function check(capability, run) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('did not end within 120 s')), 120_000);
  });
  let line;
  try {
    line = `ok kafkajs ${capability} ${(await Promise.race([run(), limit])) || ''}`;
  } catch (error) {
    line = `${error instanceof NotAvailable ? 'n/a' : 'ERR'} kafkajs ${capability} ${error.message}`;
  }
  clearTimeout(timer);
  console.log(line.replace(/\s+/g, ' ').slice(0, 500));
}

function same(found, expected, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${what}: ${a} instead of ${b}`);
}

async function until(condition, what, seconds = 15) {
  const end = Date.now() + seconds * 1000;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not come within ${seconds} s`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function send(messages, options = {}, topic = NAME) {
  const { compression, ...settings } = options;
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...settings });
  await producer.connect();
  try {
    return await producer.send({ topic, messages, compression });
  } finally {
    await producer.disconnect();
  }
}

// kafkajs reads partitions only as member of a group; one that names its offset itself stands for `assign`.
async function read(partition, offset, count) {
  const consumer = kafka.consumer({ groupId: `${NAME}-read-${partition}-${offset}`, rebalanceTimeout: 5000, maxWaitTimeInMs: 100 });
  await consumer.connect();
  try {
    await consumer.subscribe({ topic: NAME, fromBeginning: true });
    const found = [];
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition: from, message }) => {
        if (from === partition) found.push(message);
      },
    });
    if (offset !== null) consumer.seek({ topic: NAME, partition, offset: String(offset) });
    await until(() => found.length >= count, `${count} records`);
    return found;
  } finally {
    await consumer.disconnect();
  }
}

const text = (bytes) => (bytes === null ? null : bytes.toString());
const key = (n) => `key-${n}`;
const value = (n) => `value-${n} `.repeat(20);
const range = (count) => Array.from({ length: count }, (_, n) => n);

const codec = (name, partition, compression) => async () => {
  await send(range(COUNT).map((n) => ({ partition, key: key(n), value: value(n), headers: { n: String(n), codec: 'any' } })), { compression });
  (await read(partition, null, COUNT)).forEach((message, n) => {
    const headers = Object.fromEntries(Object.entries(message.headers).map(([name, bytes]) => [name, text(bytes)]));
    same([text(message.key), text(message.value), headers], [key(n), value(n), { n: String(n), codec: 'any' }], n);
  });
};

async function records() {
  const shapes = [
    { key: null, value: 'no key' },
    { key: 'tombstone', value: null },
    { key: '', value: '' },
    { key: 'twice', value: 'x', headers: { h: ['1', '2'], empty: '' } },
  ];
  await send(shapes.map((shape, n) => ({ ...shape, partition: RECORDS, timestamp: String(BASE_MS + n) })));
  const found = await read(RECORDS, null, shapes.length);
  found.forEach((message, n) => {
    same([text(message.key), text(message.value)], [shapes[n].key, shapes[n].value], n);
    same(message.timestamp, String(BASE_MS + n), 'timestamp');
  });
  same([found[3].headers.h.map(text), text(found[3].headers.empty)], [['1', '2'], ''], 'headers');
}

async function assign() {
  const ends = (await withAdmin((admin) => admin.fetchTopicOffsets(NAME))).find((row) => row.partition === 0);
  same([ends.low, ends.high], ['0', String(COUNT)], 'ends');
  const message = (await read(0, 25, 1)).find((found) => found.offset === '25');
  same(text(message.key), key(25), 'record at 25');
  return 'seek as the only member of a group; the client has no assign';
}

async function timestamps() {
  await send(range(20).map((n) => ({ partition: TIMESTAMPS, value: 'x', timestamp: String(BASE_MS + n * 1000) })));
  for (const [time, offset] of [[BASE_MS + 10_500, '11'], [0, '0'], [BASE_MS + 60_000, '20']]) {
    // kafkajs gives the end where there is no such record.
    const found = await withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(NAME, time));
    same(found.find((row) => row.partition === TIMESTAMPS).offset, offset, time);
  }
}

async function member(found, shares, name) {
  const consumer = kafka.consumer({ groupId: GROUP, rebalanceTimeout: 5000, heartbeatInterval: 500, maxWaitTimeInMs: 100 });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    shares[name] = (payload.memberAssignment[GROUP_TOPIC] || []).length;
  });
  await consumer.connect();
  await consumer.subscribe({ topic: GROUP_TOPIC, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => void found.push(text(message.value)) });
  return consumer;
}

async function group() {
  await send(range(FIRST).map((n) => ({ partition: n % 4, value: String(n) })), {}, GROUP_TOPIC);
  const [found, shares] = [[], {}];
  const members = [];
  try {
    for (const name of ['a', 'b']) members.push(await member(found, shares, name));
    await until(() => new Set(found).size === FIRST && shares.a === 2 && shares.b === 2, 'all records and both shares', 25);
    await members[0].commitOffsets(range(4).map((partition) => ({ topic: GROUP_TOPIC, partition, offset: String(FIRST / 4), metadata: 'note' })));
  } finally {
    for (const one of members) await one.disconnect();
  }
  await send(range(SECOND).map((partition) => ({ partition, value: 'later' })), {}, GROUP_TOPIC);
  const later = [];
  const resumed = await member(later, {}, 'c');
  try {
    await until(() => later.length >= SECOND, 'records after the committed offsets');
    same(later, range(SECOND).map(() => 'later'), 'records after the committed offsets');
  } finally {
    await resumed.disconnect();
  }
}

async function withAdmin(run) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await run(admin);
  } finally {
    await admin.disconnect();
  }
}

const groupAdmin = () => withAdmin(async (admin) => {
  const listed = async () => (await admin.listGroups()).groups.some((one) => one.groupId === GROUP);
  same(await listed(), true, 'listed');
  same((await admin.describeGroups([GROUP])).groups[0].state, 'Empty', 'state');
  await admin.setOffsets({ groupId: GROUP, topic: GROUP_TOPIC, partitions: [{ partition: 0, offset: '3' }] });
  const offsets = (await admin.fetchOffsets({ groupId: GROUP, topics: [GROUP_TOPIC] }))[0].partitions;
  const found = offsets.map((row) => [row.partition, row.offset]).sort();
  same(found, [[0, '3'], [1, '10'], [2, '10'], [3, '10']], 'offsets');
  same(offsets.find((row) => row.partition === 1).metadata, 'note', 'metadata');
  await admin.deleteGroups([GROUP]);
  same(await listed(), false, 'listed');
});

const topics = () => withAdmin(async (admin) => {
  const made = [MADE, GONE].map((topic) => ({ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '3600000' }] }));
  same(await admin.createTopics({ topics: made }), true, 'created');
  same(await admin.createTopics({ topics: made }), false, 'created again');
  await admin.createPartitions({ topicPartitions: [{ topic: MADE, count: 3 }] });
  await until(async () => (await admin.fetchTopicMetadata({ topics: [MADE] })).topics[0].partitions.length === 3, 'partitions');
  await admin.deleteTopics({ topics: [GONE] });
  await until(async () => !(await admin.listTopics()).includes(GONE), 'deletion');
});

const cluster = () => withAdmin(async (admin) => {
  const described = await admin.describeCluster();
  same(described.brokers.map((node) => node.nodeId), [described.controller], 'nodes');
  if (!described.clusterId) throw new Error('no cluster id');
});

const config = async (admin, name) => {
  const { resources } = await admin.describeConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: MADE }] });
  return resources[0].configEntries.find((entry) => entry.configName === name).configValue;
};

const configs = () => withAdmin(async (admin) => {
  same(await config(admin, 'retention.ms'), '3600000', 'as created');
  await admin.alterConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: MADE, configEntries: [{ name: 'retention.ms', value: '100000' }] }] });
  await until(async () => (await config(admin, 'retention.ms')) === '100000', 'the value set');
  return 'AlterConfigs, the older call';
});

const deleteRecords = () => withAdmin(async (admin) => {
  await admin.fetchTopicOffsets(NAME); // loads the metadata that the next call wants
  await admin.deleteTopicRecords({ topic: NAME, partitions: [{ partition: 0, offset: '10' }] });
  const ends = (await admin.fetchTopicOffsets(NAME)).find((row) => row.partition === 0);
  same(ends.low, '10', 'log start');
  same((await read(0, null, 1))[0].offset, '10', 'first offset');
});

async function idempotent() {
  const messages = range(COUNT).map((n) => ({ partition: IDEMPOTENT, key: key(n), value: value(n) }));
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    for (let from = 0; from < COUNT; from += 10) {
      const [result] = await producer.send({ topic: NAME, acks: -1, messages: messages.slice(from, from + 10) });
      same(result.baseOffset, String(from), 'offset');
    }
  } finally {
    await producer.disconnect();
  }
  same((await read(IDEMPOTENT, null, COUNT)).map((message) => text(message.key)), range(COUNT).map(key), 'keys');
}

const lacks = (reason) => async () => {
  throw new NotAvailable(reason);
};

(async () => {
  await check('none', codec('none', 0, CompressionTypes.None));
  await check('gzip', codec('gzip', 1, CompressionTypes.GZIP));
  await check('snappy', codec('snappy', 2, CompressionTypes.Snappy));
  await check('lz4', lacks('the client has no such codec; plug-ins for it are native code'));
  await check('zstd', lacks('the client has no such codec; plug-ins for it are native code'));
  await check('records', records);
  await check('assign', assign);
  await check('timestamps', timestamps);
  await check('group', group);
  await check('group-admin', groupAdmin);
  await check('topics', topics);
  await check('cluster', cluster);
  await check('configs', configs);
  await check('append', lacks('the client has no incremental changes'));
  await check('delete-records', deleteRecords);
  await check('log-dirs', lacks('not in the client'));
  await check('idempotent', idempotent);
  process.exit(0);
})();
