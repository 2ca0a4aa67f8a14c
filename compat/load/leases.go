package main

import (
	"context"
	"fmt"
	"log"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3"
)

const (
	workers = 128
	// Keys that one transaction puts.
	batch = 100
)

// Grants many leases with a key each, keeps them alive for some rounds, and lets them expire.
//
// A phase is a line of words: its name, leases a second, and for grants and renewals the 99th percentile and the maximum of the
// latency in milliseconds; for the expiry how many seconds after its due time the last key was gone, and whether a key
// went before its time.
func leases(clients []*clientv3.Client, count, ttl, rounds int) {
	ctx := context.Background()
	phase("grant", count, func(worker int, took func(time.Time)) {
		lessor := pb.NewLeaseClient(clients[worker%len(clients)].ActiveConnection())
		for id := worker + 1; id <= count; id += workers {
			began := time.Now()
			_, err := lessor.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl)})
			check(err)
			took(began)
		}
	})
	// In transactions, so that the first leases do not end before the last keys are there.
	phase("put", count, func(worker int, took func(time.Time)) {
		for first := 1 + worker*batch; first <= count; first += workers * batch {
			var puts []clientv3.Op
			for id := first; id < first+batch && id <= count; id++ {
				lease := clientv3.WithLease(clientv3.LeaseID(id))
				puts = append(puts, clientv3.OpPut(fmt.Sprintf("lease/%09d", id), "value", lease))
			}
			began := time.Now()
			_, err := clients[worker%len(clients)].Txn(ctx).Then(puts...).Commit()
			check(err)
			took(began)
		}
	})
	var renewing time.Time
	for round := 0; round < rounds; round++ {
		renewing = time.Now()
		phase("renew", count, func(worker int, took func(time.Time)) { renew(ctx, clients, worker, count, took) })
	}
	renewed := time.Now()

	// No lease may end before its time has passed since it was last renewed, so that all are there for `ttl` since the last
	// round began.
	present := func() int {
		found, err := clients[0].Get(ctx, "lease/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		check(err)
		return int(found.Count)
	}
	due := time.Duration(ttl) * time.Second
	early, began := 0, time.Time{}
	for {
		before := time.Now()
		left := present()
		if left < count && began.IsZero() {
			began = before
		}
		if time.Since(renewing) < due && left < count {
			early = count - left
		}
		if left == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Printf("expire %.0f late %.1f early %d\n",
		float64(count)/time.Since(began).Seconds(), (time.Since(renewed) - due).Seconds(), early)
}

// Has one client keep many leases, as programs do, and says how many the client and the server have lost then. The client sends
// the renewals of all leases that are due at once, on one stream.
func keep(client *clientv3.Client, count, ttl, seconds int) {
	ctx := context.Background()
	var kept []<-chan *clientv3.LeaseKeepAliveResponse
	lessor := pb.NewLeaseClient(client.ActiveConnection())
	together(workers, func(worker int) {
		for id := worker + 1; id <= count; id += workers {
			_, err := lessor.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl)})
			check(err)
		}
	})
	for id := 1; id <= count; id++ {
		answers, err := client.KeepAlive(ctx, clientv3.LeaseID(id))
		check(err)
		kept = append(kept, answers)
	}
	lost := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for at, answers := range kept {
			for open := answers != nil; open; {
				select {
				case _, going := <-answers:
					if !going {
						kept[at], open = nil, false
						lost++
					}
				default:
					open = false
				}
			}
		}
	}
	left, err := client.Leases(ctx)
	check(err)
	fmt.Printf("keep %d: the client lost %d, the server has %d\n", count, lost, len(left.Leases))
}

// renew renews a worker's leases once each, over one stream.
func renew(ctx context.Context, clients []*clientv3.Client, worker, leases int, took func(time.Time)) {
	stream, err := pb.NewLeaseClient(clients[worker%len(clients)].ActiveConnection()).LeaseKeepAlive(ctx)
	check(err)
	var own []int64
	for id := worker + 1; id <= leases; id += workers {
		own = append(own, int64(id))
	}
	began := make(map[int64]time.Time)
	sent := 0
	for answered := 0; answered < len(own); answered++ {
		for sent < len(own) && sent-answered < window {
			began[own[sent]] = time.Now()
			check(stream.Send(&pb.LeaseKeepAliveRequest{ID: own[sent]}))
			sent++
		}
		answer, err := stream.Recv()
		check(err)
		if answer.TTL <= 0 {
			log.Fatalf("lease %d is gone", answer.ID)
		}
		took(began[answer.ID])
	}
	check(stream.CloseSend())
}

func phase(name string, leases int, work func(worker int, took func(time.Time))) {
	all := make([][]time.Duration, workers)
	began := time.Now()
	together(workers, func(worker int) {
		work(worker, func(began time.Time) { all[worker] = append(all[worker], time.Since(began)) })
	})
	seconds := time.Since(began).Seconds()
	times := sorted(all)
	fmt.Printf("%s %.0f %.1f %.1f\n", name, float64(leases)/seconds, ms(times[len(times)*99/100]), ms(times[len(times)-1]))
}
