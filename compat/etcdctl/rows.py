"""The commands of etcdctl that are given to Synod and to etcd, in this order: what one writes the next ones read.

`{n0}` is the number of a member, `{client0}` and `{peer0}` its addresses, `{peer3}` and `{peer4}` those of members that are
not started, `{lease}` the lease that was granted last, `{folder}` a folder of the side's own.
"""

from dataclasses import dataclass


@dataclass
class Row:
    command: str
    typed: str = ""
    # Sizes and counts are a server's own business here: any number equals any other.
    any_numbers: bool = False
    # Members are named by their numbers.
    members: bool = False
    # They are listed in the order of their numbers, which nobody chose: a line for each, or words.
    any_order: bool = False
    any_order_of_words: bool = False
    # A command that goes on: it runs until it has printed this many lines (-1: for a second), while these are given.
    until_lines: int = 0
    meanwhile: tuple = ()
    # Both tell a storage version, each its own.
    storage_version: bool = False
    # Why Synod answers otherwise, where it must; and the exit code and a part of what each says then.
    differs: str = ""
    ours: tuple = ()
    theirs: tuple = ()
    # Takes minutes.
    long: bool = False


def rows(commands, **more):
    """A row for each line."""
    return [Row(command.strip(), **more) for command in commands.strip().splitlines()]


KEYS = [
    *rows("""
        put a 1
        put b 2
        put c 3 -w json
        put a 4 --prev-kv
        put a 5 --prev-kv -w json
        put nothing --ignore-value
        put a --ignore-value
        put a 6 --ignore-lease
        put '' value
        put d
        put e 1 2
    """),
    Row("put typed", typed="from the standard input"),
    *rows("""
        get a
        get a -w json
        get a -w fields
        get a -w table
        get nothing
        get nothing -w json
        get a c
        get --prefix ''
        get --from-key b
        get a --rev=2
        get a --rev=9999
        get a --rev=-1
        get --prefix '' --keys-only
        get --prefix '' --count-only
        get --prefix '' --count-only -w fields
        get --prefix '' --limit=2
        get --prefix '' --limit=2 -w json
        get --prefix '' --sort-by=MODIFY --order=DESCEND
        get --prefix '' --sort-by=VALUE
        get a --print-value-only
        get a --hex
        get a --consistency=s
        get a --consistency=x
        get --prefix '' --min-mod-rev=4 -w json
        get --prefix '' --max-create-rev=3
        get a c --prefix
        get ''
        get a --command-timeout=0s
        del b
        del b
        del c --prev-kv
        del --prefix typed -w json
        del --range a b --prev-kv -w json
        put k1 v1
        put k2 v2
        put k3 v3
        del --from-key k2
        del ''
        del --prefix nothing
    """),
    Row("txn", typed='mod("k1") > "0"\n\nput k1 then\nget k1\n\nput k1 otherwise\n\n'),
    Row("txn -w json", typed='value("k1") = "other"\n\nput k1 then\n\nget k1\nget k2\n\n'),
    Row("txn -i", typed='create("k9") = "0"\nver("k1") = "2"\n\nput k9 x\ndel k1\n\nget k9\n\n'),
    Row("txn", typed='\nput twice 1\nput twice 2\n\n\n'),
    Row("txn", typed='c_rev("k9") > "1"\n\nget k9\n\n\n'),
    Row("txn", typed='nothing("k9") = "0"\n\n\n\n'),
]

WATCHES = [
    Row("watch w", until_lines=6, meanwhile=("put w 1", "put w 2")),
    Row("watch w --prev-kv", until_lines=8, meanwhile=("put w 3", "del w")),
    Row("watch --prefix w -w json", until_lines=2, meanwhile=("put w1 1", "put w2 2")),
    Row("watch w1 w3 -w fields", until_lines=20, meanwhile=("put w1 3", "del w2")),
    Row("watch w --rev=2", until_lines=12),
    Row("watch --prefix '' --rev=2", until_lines=30),
    Row("watch w -- echo changed", until_lines=4, meanwhile=("put w 5",)),
    Row("watch -i", typed="watch w\nwatch --prefix w1\n", until_lines=6, meanwhile=("put w 6", "put w1 6")),
    Row("watch --progress-notify w -w json", until_lines=1, meanwhile=("put w 7",)),
    *rows("""
        watch
        watch a --rev=x
    """),
]

COMPACTION = [
    *rows("""
        compaction 5
        compaction 5
        compaction 9999
        compaction x
        compaction 8 --physical
        get a --rev=2
        get a --rev=6
    """),
    Row("watch a --rev=2"),
]

LEASES = [
    *rows("""
        lease grant 600
        lease timetolive {lease}
        put leased value --lease={lease}
        put leased2 value --lease={lease}
        lease list
        lease list -w json
    """),
    *rows("""
        lease timetolive {lease} --keys
        lease timetolive {lease} --keys -w json
    """, any_order_of_words=True),
    *rows("""
        lease keep-alive {lease} --once
        lease keep-alive {lease} --once -w json
        get leased -w json
        lease revoke {lease}
        lease revoke {lease}
        lease timetolive {lease}
        lease timetolive {lease} -w json
        lease list
        get leased
        lease keep-alive 1234
        lease keep-alive 1234 --once
        lease timetolive 1234
        lease revoke 1234
        put x y --lease=1234
        lease grant 0
        lease grant -1
        lease grant x
        lease grant 9999999999
        lease grant 600 -w json
        put x y --lease=x
        lease grant 2
        put short value --lease={lease}
    """),
    Row("watch short", until_lines=2),
    *rows("""
        get short
        lease timetolive {lease}
        lease grant 2
    """),
    Row("lease keep-alive {lease}", until_lines=3),
]

LOCKS = [
    *rows("""
        lock name -- echo held
        lock name -- false
        lock
    """),
    Row("lock name", until_lines=1, meanwhile=("get --prefix name --keys-only",)),
    *rows("""
        lock name --ttl=5 -- echo again
        lock name -- no-such-program
    """),
    Row("elect name n", until_lines=2, meanwhile=("get --prefix name --print-value-only",)),
    Row("elect -l name2", until_lines=2, meanwhile=("put name2/1 first",)),
    *rows("""
        elect
        elect name
    """),
]

MIRROR = [
    Row("make-mirror --prefix k1 --dest-prefix mirror/ --no-dest-prefix {client1}"),
    Row("make-mirror --prefix from/ --dest-prefix to/ {client1}", until_lines=-1,
        meanwhile=("put from/1 a", "put from/2 b", "del from/1")),
    *rows("""
        get --prefix to/
        make-mirror
    """),
]

LEARNS_FIRST = "a new member learns first, and votes once it has caught up"
CLUSTER = [
    *rows("""
        endpoint health
        endpoint hashkv
    """, any_numbers=True),
    Row("endpoint health --cluster", any_numbers=True, any_order=True),
    *rows("""
        endpoint status --cluster
    """, any_numbers=True, any_order=True, members=True, storage_version=True),
    Row("endpoint hashkv --cluster", any_numbers=True, any_order=True),
    *rows("""
        endpoint health -w json
        endpoint hashkv -w json
        endpoint health -w table
    """, any_numbers=True),
    *rows("""
        endpoint status -w json
        endpoint status -w fields
    """, any_numbers=True, storage_version=True),
    Row("endpoint status -w table", any_numbers=True, members=True, storage_version=True),
    *rows("""
        endpoint health --endpoints=127.0.0.1:1 --command-timeout=1s
        endpoint status --endpoints=127.0.0.1:1 --command-timeout=1s
    """),
    *rows("""
        endpoint hashkv --rev=20
        endpoint hashkv --rev=9999
        endpoint hashkv --rev=2
    """, any_numbers=True),
    *rows("""
        member list
        member list -w table
    """, any_order=True, members=True),
    *rows("""
        move-leader {n0}
        move-leader {n0}
        move-leader {n0} --endpoints={client1}
    """, members=True),
    *rows("""
        move-leader 1234
        move-leader x
        move-leader
    """),
    Row("member add n3 --learner --peer-urls={peer3}", members=True, any_order_of_words=True),
    Row("member list", any_order=True, members=True),
    *rows("""
        member promote {n3}
        member add n4 --learner --peer-urls={peer4}
        member update {n3} --peer-urls={peer4}
    """, members=True),
    *rows("""
        member update {n3} --peer-urls={peer4}/
        member update {n3} --peer-urls={peer0}
        member update {n3} --peer-urls=nothing
        member add n4 --learner --peer-urls={peer4}
    """),
    *rows("""
        member remove {n3}
        member remove {n3}
    """, members=True),
    Row("member add n3 --peer-urls={peer4}", members=True, differs=LEARNS_FIRST,
        ours=(0, "MEMBER-n3 added as learner to cluster CLUSTER"), theirs=(0, "MEMBER-n3 added to cluster CLUSTER")),
    Row("member list", any_order=True, members=True, differs=LEARNS_FIRST,
        ours=(0, "MEMBER-n3, unstarted, , http://PEER-n4, , true"),
        theirs=(0, "MEMBER-n3, unstarted, , http://PEER-n4, , false")),
    Row("member remove {n3}", members=True),
    *rows("""
        member promote 1234
        member promote {n0}
        member update 1234 --peer-urls={peer3}
        member remove 1234
        member remove x
        member add n3
        member add n3 --peer-urls=nothing
        member add n3 --peer-urls={peer0}
        member add
    """),
]

NOT_TO = (1, "Error: etcdserver: invalid downgrade target version")
UNDER_WAY = (1, "Error: etcdserver: cluster has a downgrade job in progress")
NO_DOWNGRADE = "a cluster of Synod cannot be joined by etcd 3.6: the way back is a snapshot"
MAINTENANCE = [
    *rows("""
        defrag
        defrag --cluster
    """, any_numbers=True, any_order=True),
    *rows("""
        alarm list
        alarm disarm
        alarm list -w json
    """),
    Row("snapshot save {folder}/snapshot", any_numbers=True, storage_version=True),
    *rows("""
        snapshot save
        snapshot save {folder}/nowhere/snapshot
        downgrade validate
        downgrade validate x
        downgrade validate 3.5.0
        downgrade enable 3.5.0
    """),
    Row("downgrade validate 3.6.0", differs=NO_DOWNGRADE, ours=NOT_TO,
        theirs=(0, "Downgrade validate success, cluster version 3.7")),
    Row("downgrade enable 3.6.0", differs=NO_DOWNGRADE, ours=NOT_TO,
        theirs=(0, "Downgrade enable success, cluster version 3.7")),
    Row("downgrade enable 3.6.0", differs=NO_DOWNGRADE, ours=NOT_TO, theirs=UNDER_WAY),
    Row("downgrade validate 3.6.0", differs=NO_DOWNGRADE, ours=NOT_TO, theirs=UNDER_WAY),
    Row("downgrade cancel"),
]

CHECKS = [
    *rows("""
        check perf --load=x
        check datascale --load=x
    """),
    *rows("""
        check perf --load=s --auto-compact --auto-defrag
        check datascale --load=s --auto-compact
    """, any_numbers=True, long=True),
]

USERS = [
    *rows("""
        auth status
        auth enable
        user list
        role list
        user get nobody
        role get nothing
        user delete nobody
        role add r
        role add r
        role grant-permission r read a
        role grant-permission r readwrite b c
        role grant-permission r write d --prefix
        role grant-permission r read e --from-key
        role grant-permission r x f
        role grant-permission nothing read a
        role get r
        role get r -w json
        role list
        role list -w json
        role revoke-permission r a
        role revoke-permission r a
        role revoke-permission r b c
        role revoke-permission r e --from-key
        role grant-permission r readwrite a z
        user add u:word
        user add u:word
        user add v --no-password
        user add w --new-user-password=word
        user add :x
    """),
    Row("user add typed --interactive=false", typed="word\n"),
    Row("user passwd u --interactive=false", typed="another\n"),
    Row("user passwd nobody --interactive=false", typed="another\n"),
    *rows("""
        user grant-role u r
        user grant-role u r
        user grant-role u nothing
        user grant-role nobody r
        user get u
        user get u --detail
        user get u -w json
        user list
        user list -w json
        user revoke-role u nothing
        user add root:secret
        auth enable
        user grant-role root root
        auth enable
        auth status
        auth status --user=root:secret
        get a
        put a 1
        get a --user=u:another
        put a 1 --user=u:another
        get zz --user=u:another
        get a --user=u:word
        get a --user=nobody:word
        get a --user=v:
        get a --user=u --password=another
        user list --user=u:another
        user get u --user=u:another
        role get r --user=u:another
        role list --user=u:another
        auth disable --user=u:another
        del --prefix '' --user=u:another
        lease grant 100 --user=u:another
        member list
        alarm list --user=u:another
    """),
    *rows("""
        compaction 30 --user=u:another
        endpoint health --user=u:another
        endpoint status
        lease list --user=u:another
        lease timetolive 1234 --user=u:another
        lease revoke 1234
        defrag --user=u:another
    """, any_numbers=True),
    Row("watch zz --user=u:another"),
    Row("watch a --user=u:another", until_lines=3, meanwhile=("put a 2 --user=root:secret",)),
    *rows("""
        lock a/lock --user=root:secret -- echo held
        user delete root --user=root:secret
        role delete root --user=root:secret
        user revoke-role root root --user=root:secret
        role delete r --user=root:secret
        user get u --user=root:secret
        user delete u --user=root:secret
        user delete u --user=root:secret
        get a --user=u:another
        auth disable --user=root:secret
        auth disable
        auth status
        user delete v
        user delete w
        role delete r
    """),
]

ALL = KEYS + WATCHES + COMPACTION + LEASES + LOCKS + MIRROR + CLUSTER + MAINTENANCE + USERS + CHECKS
