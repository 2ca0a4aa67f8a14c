import static java.nio.charset.StandardCharsets.UTF_8;

import io.etcd.jetcd.Auth;
import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Election;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.Lease;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.auth.Permission;
import io.etcd.jetcd.common.exception.CompactedException;
import io.etcd.jetcd.election.LeaderKey;
import io.etcd.jetcd.election.LeaderResponse;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.kv.TxnResponse;
import io.etcd.jetcd.maintenance.HashKVResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.DeleteOption;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.etcd.jetcd.watch.WatchResponse;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * What jetcd offers, played on a cluster: {@code java -cp 'JARS/*' WithJetcd.java ENDPOINT...}
 *
 * <p>It prints a line for each check, {@code ok: NAME} or {@code FAILED: NAME: WHY}, and then {@code end}.
 */
public class WithJetcd {
    private static final int CHECK_SECONDS = 30;
    private static final int CALL_SECONDS = 10;

    private final String[] endpoints;
    private final Client client;
    private final KV kv;

    private WithJetcd(String[] endpoints) {
        this.endpoints = endpoints;
        client = Client.builder().endpoints(endpoints).build();
        kv = client.getKVClient();
    }

    private interface Check {
        void play() throws Exception;
    }

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, UTF_8);
    }

    private static String text(ByteSequence bytes) {
        return bytes.toString(UTF_8);
    }

    private static <T> T done(CompletableFuture<T> call) throws Exception {
        return call.get(CALL_SECONDS, TimeUnit.SECONDS);
    }

    private static Throwable refused(CompletableFuture<?> call) throws Exception {
        try {
            done(call);
        } catch (ExecutionException error) {
            return error.getCause();
        }
        throw new AssertionError("it is not refused");
    }

    private static void must(boolean holds, Object otherwise) {
        if (!holds) {
            throw new AssertionError(String.valueOf(otherwise));
        }
    }

    private static void same(Object expected, Object got) {
        must(expected.equals(got), "expected " + expected + ", got " + got);
    }

    private static <T> T next(BlockingQueue<T> queue) throws Exception {
        T found = queue.poll(CALL_SECONDS, TimeUnit.SECONDS);
        must(found != null, "nothing came");
        return found;
    }

    private List<String> values(GetResponse got) {
        List<String> values = new ArrayList<>();
        for (KeyValue pair : got.getKvs()) {
            values.add(text(pair.getValue()));
        }
        return values;
    }

    private List<String> get(KV kv, String key) throws Exception {
        return values(done(kv.get(bytes(key))));
    }

    private void put(String key, String value) throws Exception {
        done(kv.put(bytes(key), bytes(value)));
    }

    private void putGetDelete() throws Exception {
        put("foo", "bar");
        same(List.of("bar"), get(kv, "foo"));
        PutOption option = PutOption.builder().withPrevKV().build();
        same("bar", text(done(kv.put(bytes("foo"), bytes("baz"), option)).getPrevKv().getValue()));
        same(1L, done(kv.delete(bytes("foo"))).getDeleted());
        same(List.of(), get(kv, "foo"));
    }

    private void ranges() throws Exception {
        for (String key : List.of("b", "d", "a", "c")) {
            put("range/" + key, key);
        }
        GetOption.Builder sorted = GetOption.builder().isPrefix(true).withSortField(GetOption.SortTarget.KEY);
        GetOption option = sorted.withSortOrder(GetOption.SortOrder.DESCEND).withLimit(2).build();
        GetResponse got = done(kv.get(bytes("range/"), option));
        same(List.of("d", "c"), values(got));
        must(got.isMore() && got.getCount() == 4, got);
        GetOption some = GetOption.builder().withRange(bytes("range/d")).withKeysOnly(true).build();
        same(List.of("", ""), values(done(kv.get(bytes("range/b"), some))));
        same(4L, done(kv.delete(bytes("range/"), DeleteOption.builder().isPrefix(true).build())).getDeleted());
    }

    private void earlierRevision() throws Exception {
        long revision = done(kv.put(bytes("past"), bytes("first"))).getHeader().getRevision();
        put("past", "second");
        same(List.of("first"), values(done(kv.get(bytes("past"), GetOption.builder().withRevision(revision).build()))));
        same(1, done(kv.get(bytes("past"), GetOption.builder().withSerializable(true).build())).getKvs().size());
    }

    private TxnResponse swap(String from, String to) throws Exception {
        ByteSequence key = bytes("txn");
        Cmp is = new Cmp(key, Cmp.Op.EQUAL, CmpTarget.value(bytes(from)));
        Cmp wasPut = new Cmp(key, Cmp.Op.GREATER, CmpTarget.version(0));
        Op read = Op.get(key, GetOption.DEFAULT);
        Op write = Op.put(key, bytes(to), PutOption.DEFAULT);
        return done(kv.txn().If(is, wasPut).Then(write, read).Else(read).commit());
    }

    private void transactions() throws Exception {
        put("txn", "1");
        TxnResponse first = swap("1", "2");
        must(first.isSucceeded(), "the comparison holds");
        same(List.of("2"), values(first.getGetResponses().get(0)));
        TxnResponse second = swap("1", "3");
        must(!second.isSucceeded(), "the comparison does not hold");
        same(List.of("2"), values(second.getGetResponses().get(0)));
    }

    private void watches() throws Exception {
        BlockingQueue<WatchEvent> told = new LinkedBlockingQueue<>();
        BlockingQueue<Boolean> created = new LinkedBlockingQueue<>();
        WatchOption.Builder option = WatchOption.builder().isPrefix(true).withPrevKV(true).withCreateNotify(true);
        Watch.Listener listener = Watch.listener((WatchResponse response) -> {
            if (response.isCreatedNotify()) {
                created.add(true);
            }
            told.addAll(response.getEvents());
        });
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("watched/"), option.build(), listener)) {
            next(created);
            put("watched/a", "1");
            put("watched/a", "2");
            put("other", "3");
            done(kv.delete(bytes("watched/a")));
            WatchEvent first = next(told);
            WatchEvent second = next(told);
            WatchEvent third = next(told);
            same("PUT 1", first.getEventType() + " " + text(first.getKeyValue().getValue()));
            same("PUT 2", second.getEventType() + " " + text(second.getKeyValue().getValue()));
            same("1", text(second.getPrevKV().getValue()));
            same("DELETE 2", third.getEventType() + " " + text(third.getPrevKV().getValue()));
        }
    }

    private void watchOfThePast() throws Exception {
        long revision = done(kv.put(bytes("history"), bytes("1"))).getHeader().getRevision();
        put("history", "2");
        BlockingQueue<WatchEvent> told = new LinkedBlockingQueue<>();
        WatchOption option = WatchOption.builder().withRevision(revision).build();
        Watch.Listener listener = Watch.listener((WatchResponse response) -> told.addAll(response.getEvents()));
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("history"), option, listener)) {
            same("1", text(next(told).getKeyValue().getValue()));
            same("2", text(next(told).getKeyValue().getValue()));
        }
        done(kv.compact(revision + 1));
        BlockingQueue<Throwable> errors = new LinkedBlockingQueue<>();
        Watch.Listener failing = Watch.listener((WatchResponse response) -> { }, errors::add);
        try (Watch.Watcher watcher = client.getWatchClient().watch(bytes("history"), option, failing)) {
            Throwable error = next(errors);
            must(error instanceof CompactedException, error);
            same(revision + 1, ((CompactedException) error).getCompactedRevision());
        }
    }

    private void leases() throws Exception {
        Lease leases = client.getLeaseClient();
        long lease = done(leases.grant(2)).getID();
        done(kv.put(bytes("leased"), bytes("1"), PutOption.builder().withLeaseId(lease).build()));
        AtomicInteger renewals = new AtomicInteger();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        StreamObserver<io.etcd.jetcd.lease.LeaseKeepAliveResponse> observer = new StreamObserver<>() {
            @Override
            public void onNext(io.etcd.jetcd.lease.LeaseKeepAliveResponse response) {
                renewals.incrementAndGet();
            }

            @Override
            public void onError(Throwable error) {
                failed.set(error);
            }

            @Override
            public void onCompleted() {
            }
        };
        try (AutoCloseable renewing = leases.keepAlive(lease, observer)) {
            Thread.sleep(4_500);
        }
        must(renewals.get() > 1 && failed.get() == null, renewals + " renewals, " + failed);
        same(List.of("1"), get(kv, "leased"));
        var left = done(leases.timeToLive(lease, LeaseOption.builder().withAttachedKeys().build()));
        must(left.getGrantedTTL() == 2 && left.getTTL() <= 2, left);
        same("leased", text(left.getKeys().get(0)));
        done(leases.revoke(lease));
        same(List.of(), get(kv, "leased"));
        long shorter = done(leases.grant(1)).getID();
        done(kv.put(bytes("leased"), bytes("2"), PutOption.builder().withLeaseId(shorter).build()));
        while (!get(kv, "leased").isEmpty()) {
            Thread.sleep(100);
        }
    }

    private void locks() throws Exception {
        long first = done(client.getLeaseClient().grant(20)).getID();
        long second = done(client.getLeaseClient().grant(20)).getID();
        ByteSequence held = done(client.getLockClient().lock(bytes("lock"), first)).getKey();
        CompletableFuture<ByteSequence> waiting =
            client.getLockClient().lock(bytes("lock"), second).thenApply(response -> response.getKey());
        try {
            waiting.get(1, TimeUnit.SECONDS);
            throw new AssertionError("both hold the lock");
        } catch (TimeoutException expected) {
            done(client.getLockClient().unlock(held));
        }
        done(client.getLockClient().unlock(done(waiting)));
        // A lock whose holder is gone passes on with the lease.
        done(client.getLockClient().lock(bytes("lock"), first));
        CompletableFuture<?> next = client.getLockClient().lock(bytes("lock"), second);
        done(client.getLeaseClient().revoke(first));
        done(next);
        done(client.getLeaseClient().revoke(second));
    }

    private void elections() throws Exception {
        Election election = client.getElectionClient();
        ByteSequence name = bytes("chair");
        long first = done(client.getLeaseClient().grant(20)).getID();
        long second = done(client.getLeaseClient().grant(20)).getID();
        LeaderKey chair = done(election.campaign(name, first, bytes("one"))).getLeader();
        same("one", text(done(election.leader(name)).getKv().getValue()));
        BlockingQueue<String> leaders = new LinkedBlockingQueue<>();
        election.observe(name, new Election.Listener() {
            @Override
            public void onNext(LeaderResponse response) {
                leaders.add(text(response.getKv().getValue()));
            }

            @Override
            public void onError(Throwable error) {
                leaders.add(error.toString());
            }

            @Override
            public void onCompleted() {
            }
        });
        same("one", next(leaders));
        done(election.proclaim(chair, bytes("one again")));
        same("one again", next(leaders));
        CompletableFuture<LeaderKey> other =
            election.campaign(name, second, bytes("two")).thenApply(response -> response.getLeader());
        done(election.resign(chair));
        LeaderKey next = done(other);
        same("two", next(leaders));
        done(election.resign(next));
    }

    private void maintenance() throws Exception {
        var members = done(client.getClusterClient().listMember()).getMembers();
        same(endpoints.length, members.size());
        Set<Long> leaders = new HashSet<>();
        Set<Integer> hashes = new HashSet<>();
        long revision = done(kv.put(bytes("hashed"), bytes("1"))).getHeader().getRevision();
        for (String endpoint : endpoints) {
            // A read that needs a quorum: this replica has executed the put.
            try (Client one = Client.builder().endpoints(endpoint).build()) {
                same(List.of("1"), get(one.getKVClient(), "hashed"));
            }
            var status = done(client.getMaintenanceClient().statusMember(endpoint));
            must(status.getVersion().startsWith("3."), status);
            leaders.add(status.getLeader());
            HashKVResponse hash = done(client.getMaintenanceClient().hashKV(endpoint, revision));
            hashes.add(hash.getHash());
            done(client.getMaintenanceClient().defragmentMember(endpoint));
        }
        same(1, leaders.size());
        same(1, hashes.size());
        same(0, done(client.getMaintenanceClient().listAlarms()).getAlarms().size());
    }

    private void leaderMoves() throws Exception {
        for (String endpoint : endpoints) {
            long leader = done(client.getMaintenanceClient().statusMember(endpoint)).getLeader();
            try (Client one = Client.builder().endpoints(endpoint).build()) {
                if (leader == done(one.getClusterClient().listMember()).getHeader().getMemberId()) {
                    var members = done(one.getClusterClient().listMember()).getMembers();
                    var others = members.stream().mapToLong(member -> member.getId()).filter(id -> id != leader);
                    done(one.getMaintenanceClient().moveLeader(others.findFirst().getAsLong()));
                    put("moved", "1");
                    return;
                }
            }
        }
        throw new AssertionError("none says that it leads");
    }

    private void snapshots() throws Exception {
        ByteArrayOutputStream file = new ByteArrayOutputStream();
        long told = done(client.getMaintenanceClient().snapshot(file));
        must(file.size() > 512 && told == file.size(), told + " of " + file.size() + " bytes");
    }

    private void namespaces() throws Exception {
        try (Client inside = Client.builder().endpoints(endpoints).namespace(bytes("inside/")).build()) {
            done(inside.getKVClient().put(bytes("a"), bytes("1")));
            same(List.of("1"), get(kv, "inside/a"));
            same("a", text(done(inside.getKVClient().get(bytes("a"))).getKvs().get(0).getKey()));
        }
    }

    private Client of(String user, String password) {
        return Client.builder().endpoints(endpoints).user(bytes(user)).password(bytes(password)).build();
    }

    private void users() throws Exception {
        Auth auth = client.getAuthClient();
        put("public/a", "1");
        done(auth.roleAdd(bytes("reader")));
        done(auth.roleGrantPermission(bytes("reader"), bytes("public/"), bytes("public0"), Permission.Type.READ));
        Permission granted = done(auth.roleGet(bytes("reader"))).getPermissions().get(0);
        same(Permission.Type.READ, granted.getPermType());
        done(auth.roleAdd(bytes("root")));
        for (String[] each : new String[][] {{"root", "root"}, {"ada", "reader"}}) {
            done(auth.userAdd(bytes(each[0]), bytes("secret")));
            done(auth.userGrantRole(bytes(each[0]), bytes(each[1])));
        }
        same(List.of("reader"), done(auth.userGet(bytes("ada"))).getRoles());
        done(auth.authEnable());
        try (Client root = of("root", "secret"); Client ada = of("ada", "secret"); Client wrong = of("ada", "wrong")) {
            try {
                same(List.of("1"), get(ada.getKVClient(), "public/a"));
                refused(ada.getKVClient().put(bytes("public/a"), bytes("2")));
                refused(kv.get(bytes("public/a")));
                refused(wrong.getKVClient().get(bytes("public/a")));
                done(root.getKVClient().put(bytes("public/a"), bytes("3")));
            } finally {
                done(root.getAuthClient().authDisable());
            }
        }
        same(List.of("3"), get(kv, "public/a"));
    }

    private Map<String, Check> checks() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("put, get and delete", this::putGetDelete);
        checks.put("ranges that are sorted, limited, of keys only, and deleted", this::ranges);
        checks.put("an earlier revision", this::earlierRevision);
        checks.put("a comparison decides a transaction", this::transactions);
        checks.put("namespaces", this::namespaces);
        checks.put("a watch tells puts and deletions, and the value before", this::watches);
        checks.put("a watch from an earlier revision, and from one that is compacted", this::watchOfThePast);
        checks.put("a lease is kept alive, its keys go with it, and one that nobody renews ends", this::leases);
        checks.put("a lock excludes, and passes on", this::locks);
        checks.put("an election with a campaign, a proclamation, an observer and a resignation", this::elections);
        checks.put("status, members, hashes of all replicas, defragmentation, alarms", this::maintenance);
        checks.put("the leader moves", this::leaderMoves);
        checks.put("a snapshot comes as a stream", this::snapshots);
        checks.put("with users each may do what its roles allow", this::users);
        return checks;
    }

    public static void main(String[] endpoints) {
        WithJetcd played = new WithJetcd(endpoints);
        ExecutorService threads = Executors.newCachedThreadPool();
        int failed = 0;
        for (Map.Entry<String, Check> check : played.checks().entrySet()) {
            try {
                threads.submit(() -> {
                    check.getValue().play();
                    return null;
                }).get(CHECK_SECONDS, TimeUnit.SECONDS);
                System.out.println("ok: " + check.getKey());
            } catch (Exception error) {
                failed++;
                Throwable why = error instanceof ExecutionException ? error.getCause() : error;
                System.out.println("FAILED: " + check.getKey() + ": " + String.valueOf(why).replaceAll("\\s+", " "));
            }
        }
        System.out.println("end");
        System.exit(failed == 0 ? 0 : 1);
    }
}
