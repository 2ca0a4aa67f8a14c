"""What the package aetcd for Python offers, played on a cluster: python3 with_aetcd.py ENDPOINT...

It prints a line for each check, `ok: NAME` or `FAILED: NAME: WHY`, and then `end`.
"""

import asyncio
import inspect
import io
import sys
from urllib.parse import urlsplit

import aetcd
import aetcd.exceptions
import aetcd.rtypes

CHECK_SECONDS = 30
ENDPOINTS = [urlsplit(url) for url in sys.argv[1:]]


def at(of, **more):
    return aetcd.Client(host=ENDPOINTS[of].hostname, port=ENDPOINTS[of].port, timeout=5, **more)


async def refused(awaitable):
    """The error that something must end with."""
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001: the client has several kinds
        return error
    raise AssertionError("it is not refused")


async def put_get_delete(client):
    """put, get and delete"""
    await client.put(b"foo", b"bar")
    got = await client.get(b"foo")
    assert (got.key, got.value, got.version) == (b"foo", b"bar", 1), got
    put = await client.put(b"foo", b"baz", prev_kv=True)
    assert put.prev_kv.value == b"bar", put
    assert await client.delete(b"foo")
    assert await client.get(b"foo") is None
    assert not await client.delete(b"foo")


async def ranges(client):
    """ranges that are sorted, of keys only, and deleted"""
    for key in [b"b", b"d", b"a", b"c"]:
        await client.put(b"range/" + key, key)
    found = await client.get_prefix(b"range/", sort_order="descend")
    assert [pair.value for pair in found] == [b"d", b"c", b"b", b"a"], found
    found = await client.get_prefix(b"range/", sort_order="ascend", sort_target="create", keys_only=True)
    assert [pair.key[-1:] for pair in found] == [b"b", b"d", b"a", b"c"], found
    assert not any(pair.value for pair in found)
    assert len(await client.get_range(b"range/b", b"range/d")) == 2
    assert len(await client.get_all()) == 4
    assert (await client.delete_prefix(b"range/")).deleted == 4


async def replicas_agree(client):
    """each replica answers"""
    await client.put(b"everywhere", b"1")
    for of in range(len(ENDPOINTS)):
        async with at(of) as other:
            assert (await other.get(b"everywhere")).value == b"1"
            assert (await other.get(b"everywhere", serializable=True)) is not None


async def transactions(client):
    """a comparison decides a transaction"""
    await client.put(b"txn", b"1")
    of = client.transactions
    swap = lambda before, after: client.transaction(
        compare=[of.value(b"txn") == before, of.version(b"txn") > 0],
        success=[of.put(b"txn", after), of.get(b"txn")],
        failure=[of.get(b"txn")],
    )
    succeeded, responses = await swap(b"1", b"2")
    assert succeeded and responses[1][0][0] == b"2", responses
    succeeded, responses = await swap(b"1", b"3")
    assert not succeeded and responses[0][0][0] == b"2", responses
    assert await client.replace(b"txn", b"2", b"4")
    assert not await client.replace(b"txn", b"2", b"5")


async def watches(client):
    """a watch tells puts and deletions, and the value before"""
    watch = await client.watch_prefix(b"watched/", prev_kv=True)
    await client.put(b"watched/a", b"1")
    await client.put(b"watched/a", b"2")
    await client.put(b"other", b"3")
    await client.delete(b"watched/a")
    told = []
    async for event in watch:
        before = event.prev_kv.value if event.prev_kv else b""
        told.append((event.kind, event.kv.value, before))
        if len(told) == 3:
            await watch.cancel()
    assert told == [("PUT", b"1", b""), ("PUT", b"2", b"1"), ("DELETE", b"", b"2")], told


async def watch_of_the_past(client):
    """a watch from an earlier revision, and of one kind of event"""
    revision = (await client.put(b"history", b"1")).header.revision
    await client.put(b"history", b"2")
    await client.delete(b"history")
    event = await client.watch_once(b"history", timeout=5, start_revision=revision)
    assert event.kv.value == b"1", event
    kind = aetcd.rtypes.EventKind.DELETE
    event = await client.watch_once(b"history", timeout=5, start_revision=revision, kind=kind)
    assert event.kind == "DELETE", event
    assert isinstance(await refused(client.watch_once(b"silent", timeout=1)), aetcd.exceptions.WatchTimeoutError)


async def compaction(client):
    """a watch of a revision that is compacted is refused"""
    revision = (await client.put(b"compacted", b"1")).header.revision
    await client.put(b"compacted", b"2")
    await client.compact(revision + 1, physical=True)
    watch = await client.watch(b"compacted", start_revision=revision)
    error = await refused(anext(aiter(watch)))
    assert isinstance(error, aetcd.exceptions.RevisionCompactedError), repr(error)
    assert error.compacted_revision == revision + 1, error.compacted_revision
    await refused(client.compact(revision))


async def leases(client):
    """a lease is renewed, and its keys go with it"""
    lease = await client.lease(3)
    await client.put(b"leased", b"1", lease=lease)
    assert list(await lease.keys()) == [b"leased"]
    for _ in range(4):
        await asyncio.sleep(1)
        assert (await lease.refresh()).TTL == 3
    assert (await client.get(b"leased")).value == b"1"
    assert await lease.granted_ttl() == 3 and await lease.remaining_ttl() <= 3
    await lease.revoke()
    assert await client.get(b"leased") is None


async def lease_ends(client):
    """a lease that nobody renews ends"""
    await client.put(b"shortly", b"1", lease=await client.lease(1))
    assert await client.get(b"shortly")
    while await client.get(b"shortly"):
        await asyncio.sleep(0.1)


async def locks(client):
    """a lock excludes, and passes on"""
    first, second = client.lock(b"lock", ttl=10), client.lock(b"lock", ttl=10)
    assert await first.acquire() and await first.is_acquired()
    assert not await second.acquire(timeout=1)
    waiting = asyncio.create_task(second.acquire(timeout=10))
    await asyncio.sleep(0.2)
    await first.refresh()
    assert await first.release()
    assert await waiting and not await first.is_acquired()
    assert await second.release()
    async with client.lock(b"lock", ttl=10) as third:
        assert await third.is_acquired()


async def maintenance(client):
    """status, members, hash, defragmentation"""
    status = await client.status()
    members = [member async for member in client.members()]
    assert status.version.startswith("3.") and len(members) == len(ENDPOINTS), (status.version, members)
    assert status.leader.id in [member.id for member in members]
    assert await client.hash()
    await client.defragment()


async def snapshots(client):
    """a snapshot comes as a stream"""
    file = io.BytesIO()
    await client.snapshot(file)
    assert file.tell() > 512, file.tell()


async def alarms(client):
    """an alarm refuses writes until it is disarmed"""
    [alarm] = await client.create_alarm()
    assert alarm.member_id == 0, alarm.member_id
    await refused(client.put(b"full", b"1"))
    assert len([each async for each in client.list_alarms()]) == 1
    await client.disarm_alarm()
    assert not [each async for each in client.list_alarms()]
    await client.put(b"full", b"1")


async def users(client):
    """with users each may do what its roles allow"""
    stub, rpc = aetcd.rpc.AuthStub(client.channel), aetcd.rpc
    read = rpc.Permission(permType=rpc.Permission.READ, key=b"public/", range_end=b"public0")
    await client.put(b"public/a", b"1")
    await stub.RoleAdd(rpc.AuthRoleAddRequest(name="reader"))
    await stub.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="reader", perm=read))
    await stub.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
    for name, role in [("root", "root"), ("ada", "reader")]:
        await stub.UserAdd(rpc.AuthUserAddRequest(name=name, password="secret"))
        await stub.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=role))
    await stub.AuthEnable(rpc.AuthEnableRequest())
    async with at(0, username="root", password="secret") as root:
        try:
            async with at(1, username="ada", password="secret") as ada:
                assert (await ada.get(b"public/a")).value == b"1"
                await refused(ada.put(b"public/a", b"2"))
            await refused(client.get(b"public/a"))
            await refused(at(0, username="ada", password="wrong").connect())
            await root.put(b"public/a", b"3")
        finally:
            off = rpc.AuthDisableRequest()
            await aetcd.rpc.AuthStub(root.channel).AuthDisable(off, metadata=root.metadata)
    assert (await client.get(b"public/a")).value == b"3"


CHECKS = [
    put_get_delete, ranges, replicas_agree, transactions, watches, watch_of_the_past, compaction, leases, lease_ends,
    locks, maintenance, snapshots, alarms, users,
]


async def main():
    failed = 0
    for check in CHECKS:
        name = inspect.getdoc(check)
        try:
            async with at(0) as client:
                await asyncio.wait_for(check(client), CHECK_SECONDS)
            print(f"ok: {name}", flush=True)
        except Exception as error:  # noqa: BLE001: any failure of a check is its result
            failed += 1
            print(f"FAILED: {name}: {' '.join(repr(error).split())}", flush=True)
    print("end")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
