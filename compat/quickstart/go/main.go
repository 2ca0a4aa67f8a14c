// Uses a cluster of Synod through etcd's own client for Go: keys, a transaction, a watch, a lease and a lock.
//
//	synod dev &
//	go run . http://127.0.0.1:2379 http://127.0.0.1:22379 http://127.0.0.1:32379
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	endpoints := os.Args[1:]
	if len(endpoints) == 0 {
		endpoints = []string{"http://127.0.0.1:2379"}
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	// Any replica takes any request, and each sees what the others have acknowledged.
	_, err = client.Put(ctx, "quickstart/city", "Lausanne")
	check(err)
	found, err := client.Get(ctx, "quickstart/city")
	check(err)
	expect("city", string(found.Kvs[0].Value), "Lausanne")

	// A transaction changes the key only if nobody else has since.
	changed, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision("quickstart/city"), "=", found.Kvs[0].ModRevision)).
		Then(clientv3.OpPut("quickstart/city", "Lugano")).
		Commit()
	check(err)
	expect("changed", fmt.Sprint(changed.Succeeded), "true")

	// A watch tells every change, also those since a revision in the past.
	watch := client.Watch(ctx, "quickstart/", clientv3.WithPrefix(), clientv3.WithRev(found.Kvs[0].ModRevision))
	var seen []string
	for len(seen) < 2 {
		for _, event := range (<-watch).Events {
			seen = append(seen, string(event.Kv.Value))
		}
	}
	expect("watch", fmt.Sprint(seen), "[Lausanne Lugano]")

	// A key with a lease is deleted when nobody renews the lease any more.
	lease, err := client.Grant(ctx, 2)
	check(err)
	_, err = client.Put(ctx, "quickstart/alive", "yes", clientv3.WithLease(lease.ID))
	check(err)
	for event := range client.Watch(ctx, "quickstart/alive", clientv3.WithFilterPut()) {
		expect("lease", event.Events[0].Type.String(), "DELETE")
		break
	}

	// A lock that is held while its session is alive.
	session, err := concurrency.NewSession(client)
	check(err)
	mutex := concurrency.NewMutex(session, "quickstart/lock")
	check(mutex.Lock(ctx))
	check(mutex.Unlock(ctx))
	check(session.Close())

	_, err = client.Delete(ctx, "quickstart/", clientv3.WithPrefix())
	check(err)
	fmt.Println("etcd's client for Go: keys, a transaction, a watch, a lease, a lock")
}

func expect(what, got, wanted string) {
	if got != wanted {
		log.Fatalf("%s: %s, not %s", what, got, wanted)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
