// What the package etcd3 for Node offers, played on a cluster: node with_etcd3.js ENDPOINT...
//
// It prints a line for each check, `ok: NAME` or `FAILED: NAME: WHY`, and then `end`.
'use strict';

const assert = require('assert');
const { once } = require('events');
const net = require('net');
const { Etcd3, EtcdLockFailedError, EtcdPermissionDeniedError } = require('etcd3');

const CHECK_MS = 30_000;
const hosts = process.argv.slice(2);
const client = new Etcd3({ hosts });
const checks = [];
const check = (name, play) => checks.push({ name, play });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, holds) {
  for (const began = Date.now(); Date.now() - began < CHECK_MS / 2; await sleep(50)) {
    if (await holds()) return;
  }
  assert.fail(`not in time: ${what}`);
}

check('put, get and delete', async () => {
  await client.put('foo').value('bar');
  assert.strictEqual(await client.get('foo').string(), 'bar');
  assert.deepStrictEqual(await client.getAll().prefix('f').keys(), ['foo']);
  const previous = await client.put('foo').value('baz').getPrevious();
  assert.strictEqual(previous.value.toString(), 'bar');
  assert.strictEqual((await client.delete().key('foo')).deleted, '1');
  assert.strictEqual(await client.get('foo').string(), null);
  assert.strictEqual(await client.get('foo').exists(), false);
});

check('numbers, JSON and bytes', async () => {
  const bytes = Buffer.from([0, 255, 10, 0]);
  await client.put('kinds/number').value(42);
  await client.put('kinds/json').value(JSON.stringify({ a: [1] }));
  await client.put('kinds/bytes').value(bytes);
  assert.strictEqual(await client.get('kinds/number').number(), 42);
  assert.deepStrictEqual(await client.get('kinds/json').json(), { a: [1] });
  assert.ok(bytes.equals(await client.get('kinds/bytes').buffer()));
});

check('ranges that are sorted, limited, counted and deleted', async () => {
  for (const key of ['b', 'd', 'a', 'c']) await client.put(`range/${key}`).value(key);
  const all = () => client.getAll().prefix('range/');
  assert.strictEqual(await all().count(), 4);
  assert.deepStrictEqual(await all().sort('Key', 'Descend').limit(2).keys(), ['range/d', 'range/c']);
  const created = ['range/b', 'range/d', 'range/a', 'range/c'];
  assert.deepStrictEqual(await all().sort('Create', 'Ascend').keys(), created);
  const some = await client.getAll().inRange({ start: 'range/b', end: 'range/d' }).strings();
  assert.deepStrictEqual(some, { 'range/b': 'b', 'range/c': 'c' });
  assert.strictEqual((await client.delete().prefix('range/')).deleted, '4');
});

check('an earlier revision', async () => {
  const { header } = await client.put('past').value('first');
  await client.put('past').value('second');
  assert.strictEqual(await client.get('past').revision(header.revision).string(), 'first');
  assert.strictEqual(await client.get('past').serializable(true).exists(), true);
});

check('a comparison decides a transaction', async () => {
  await client.put('txn').value('1');
  const swap = (from, to) =>
    client.if('txn', 'Value', '==', from).and('txn', 'Version', '>', 0)
      .then(client.put('txn').value(to)).else(client.get('txn')).commit();
  assert.strictEqual((await swap('1', '2')).succeeded, true);
  const refused = await swap('1', '3');
  assert.strictEqual(refused.succeeded, false);
  assert.strictEqual(refused.responses[0].response_range.kvs[0].value.toString(), '2');
});

check('software transactions', async () => {
  await client.put('count').value(0);
  const add = () => client.stm({ retries: 50 }).transact(async (tx) => {
    await tx.put('count').value((await tx.get('count').number()) + 1);
  });
  await Promise.all(Array.from({ length: 5 }, add));
  assert.strictEqual(await client.get('count').number(), 5);
});

check('namespaces', async () => {
  const inside = client.namespace('inside/');
  await inside.put('a').value('1');
  assert.strictEqual(await client.get('inside/a').string(), '1');
  assert.deepStrictEqual(await inside.getAll().keys(), ['a']);
  await inside.delete().all();
  assert.strictEqual(await client.get('inside/a').string(), null);
});

check('a watch tells puts and deletions, and the value before', async () => {
  const watcher = await client.watch().prefix('watched/').withPreviousKV().create();
  const told = [];
  const text = (kv) => (kv ? kv.value.toString() : '');
  watcher.on('put', (kv, before) => told.push(['put', kv.key.toString(), text(kv), text(before)]));
  watcher.on('delete', (kv, before) => told.push(['delete', kv.key.toString(), text(kv), text(before)]));
  await client.put('watched/a').value('1');
  await client.put('watched/a').value('2');
  await client.put('other').value('3');
  await client.delete().key('watched/a');
  await until('three events', () => told.length >= 3);
  await watcher.cancel();
  const key = 'watched/a';
  assert.deepStrictEqual(told, [['put', key, '1', ''], ['put', key, '2', '1'], ['delete', key, '', '2']]);
});

check('a watch from an earlier revision', async () => {
  const { header } = await client.put('history').value('1');
  await client.put('history').value('2');
  const watcher = await client.watch().key('history').startRevision(header.revision).create();
  const told = [];
  watcher.on('put', (kv) => told.push(kv.value.toString()));
  await until('both events', () => told.length >= 2);
  await watcher.cancel();
  assert.deepStrictEqual(told, ['1', '2']);
});

check('a lease is kept alive, and its keys go with it', async () => {
  const lease = client.lease(2);
  await lease.put('leased').value('1');
  await sleep(4_500);
  assert.strictEqual(await client.get('leased').string(), '1');
  await lease.keepaliveOnce();
  await lease.revoke();
  assert.strictEqual(await client.get('leased').string(), null);
});

check('a lease that nobody renews ends', async () => {
  const lease = client.lease(1, { autoKeepAlive: false });
  await lease.put('shortly').value('1');
  assert.strictEqual(await client.get('shortly').string(), '1');
  await until('the key is gone', async () => !(await client.get('shortly').exists()));
});

check('a lock excludes', async () => {
  const first = await client.lock('lock').ttl(10).acquire();
  await assert.rejects(client.lock('lock').acquire(), EtcdLockFailedError);
  await first.release();
  assert.strictEqual(await client.lock('lock').do(() => 'done'), 'done');
});

check('an election with a campaign, a proclamation, an observer and a resignation', async () => {
  const election = client.election('chair', 10);
  const first = election.campaign('one');
  await first.wait();
  assert.strictEqual(await election.leader(), 'one');
  const observer = await election.observe();
  const second = election.campaign('two');
  await first.proclaim('one again');
  await until('the proclamation is observed', () => observer.leader() === 'one again');
  const elected = second.wait();
  await first.resign();
  await elected;
  await until('the change is observed', () => observer.leader() === 'two');
  await observer.cancel();
  await second.resign();
});

check('status, members, hash, alarms', async () => {
  const status = await client.maintenance.status();
  assert.ok(/^3\./.test(status.version) && status.leader !== '0', JSON.stringify(status));
  const { members } = await client.cluster.memberList({});
  assert.strictEqual(members.length, hosts.length);
  assert.ok((await client.maintenance.hash()).hash);
  assert.deepStrictEqual((await client.maintenance.alarm({ action: 'Get', memberID: 0, alarm: 'None' })).alarms, []);
});

check('a snapshot comes as a stream', async () => {
  const stream = await client.maintenance.snapshot();
  let bytes = 0;
  stream.on('data', ({ blob }) => { bytes += blob.length; });
  await once(stream, 'end');
  assert.ok(bytes > 512, `${bytes} bytes`);
});

check('an endpoint that refuses is left', async () => {
  const closed = await new Promise((resolve) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(`http://127.0.0.1:${port}`));
    });
  });
  const some = new Etcd3({ hosts: [closed, ...hosts] });
  for (let number = 0; number < 20; number++) await some.put('left').value(number);
  assert.strictEqual(await some.get('left').number(), 19);
  some.close();
});

check('roles and users', async () => {
  const role = await client.role('reader').create();
  await role.grant({ permission: 'Read', range: client.range({ prefix: 'public/' }) });
  const [{ permission, range }] = await role.permissions();
  assert.strictEqual(permission, 'Read');
  assert.strictEqual(range.start.toString(), 'public/');
  const user = await client.user('ada').create('secret');
  await user.addRole('reader');
  assert.deepStrictEqual((await user.roles()).map(({ name }) => name), ['reader']);
  assert.deepStrictEqual((await client.getUsers()).map(({ name }) => name), ['ada']);
});

// The last one: from then on nobody else may do anything.
check('with users each may do what its roles allow', async () => {
  await client.put('public/a').value('1');
  await (await client.user('root').create('top')).addRole(await client.role('root').create());
  await client.auth.authEnable();
  const ada = new Etcd3({ hosts, auth: { username: 'ada', password: 'secret' } });
  const root = new Etcd3({ hosts, auth: { username: 'root', password: 'top' } });
  try {
    assert.strictEqual(await ada.get('public/a').string(), '1');
    await assert.rejects(ada.put('public/a').value('2').exec(), EtcdPermissionDeniedError);
    await assert.rejects(client.get('public/a').string());
    await assert.rejects(new Etcd3({ hosts, auth: { username: 'ada', password: 'wrong' } }).get('public/a').string());
    await root.put('public/a').value('3');
    assert.strictEqual(await ada.get('public/a').string(), '3');
  } finally {
    await root.auth.authDisable();
  }
  assert.strictEqual(await client.get('public/a').string(), '3');
});

(async () => {
  let failed = 0;
  for (const { name, play } of checks) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no end within ${CHECK_MS / 1000} s`)), CHECK_MS);
    });
    try {
      await Promise.race([play(), late]);
      console.log(`ok: ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED: ${name}: ${String(error && error.message).replace(/\s+/g, ' ')}`);
    }
    clearTimeout(timer);
  }
  console.log('end');
  process.exit(failed ? 1 : 0);
})();
