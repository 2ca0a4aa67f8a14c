"""Uses a cluster of Synod through the client etcd3gw for Python, which speaks etcd's JSON API: keys, a transaction, a watch,
a lease and a lock.

    pip install etcd3gw
    synod dev &
    python3 quickstart.py 127.0.0.1 2379
"""

import sys
import time

import etcd3gw


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}")


def main():
    host, port = sys.argv[1:3] if len(sys.argv) == 3 else ("127.0.0.1", "2379")
    client = etcd3gw.client(host=host, port=int(port), timeout=10)

    client.put("quickstart/city", "Lausanne")
    expect("city", client.get("quickstart/city"), [b"Lausanne"])

    # The key changes only if it still has the value that was read.
    expect("changed", client.replace("quickstart/city", "Lausanne", "Lugano"), True)
    expect("changed again", client.replace("quickstart/city", "Lausanne", "Locarno"), False)

    # A watch tells every change from now on.
    events, cancel = client.watch_prefix("quickstart/")
    client.put("quickstart/river", "Aare")
    event = next(events)
    expect("watch", event["kv"]["value"].decode(), "Aare")
    cancel()

    # A key with a lease is deleted when nobody renews the lease any more.
    lease = client.lease(ttl=2)
    client.put("quickstart/alive", "yes", lease=lease)
    expect("lease", lease.keys(), [b"quickstart/alive"])
    deadline = time.time() + 20
    while client.get("quickstart/alive"):
        if time.time() > deadline:
            sys.exit("the lease does not end")
        time.sleep(0.2)

    # A lock that is held while its lease lives.
    with client.lock("quickstart-lock", ttl=10) as lock:
        expect("lock", lock.is_acquired(), True)

    client.delete_prefix("quickstart/")
    print("etcd3gw for Python: keys, a transaction, a watch, a lease, a lock")


if __name__ == "__main__":
    main()
