package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3"
)

// A put, and how many of its events have not arrived.
type put struct {
	began time.Time
	left  atomic.Int64
	ended chan struct{}
}

// Opens many watches, puts keys while all of them are open, and prints how long after the beginning of a put its events
// arrived.
//
// Watches take their keys in turn, so that 1 key has all of them watch it, and as many keys as watches each its own. A writer
// puts the next key once all events of its last put have arrived. It prints a line of words: events a second; the median,
// the 99th percentile and the maximum of the latency of events in milliseconds; and the median of puts alone.
func watchers(clients []*clientv3.Client, streams, each, keys, count, writers int) {
	ctx := context.Background()
	key := func(number int) []byte { return []byte(fmt.Sprintf("watched/%09d", number%keys)) }

	puts := make([]*put, count)
	for number := range puts {
		puts[number] = &put{ended: make(chan struct{})}
	}
	latencies := make([][]time.Duration, streams)
	var opened sync.WaitGroup
	for stream := 0; stream < streams; stream++ {
		watch, err := pb.NewWatchClient(clients[stream%len(clients)].ActiveConnection()).Watch(ctx)
		check(err)
		opened.Add(1)
		go func() {
			sent := 0
			ask := func() {
				create := &pb.WatchCreateRequest{Key: key(stream*each + sent)}
				check(watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}))
				sent++
			}
			for created := 0; created < each; created++ {
				for sent < each && sent-created < window {
					ask()
				}
				answer, err := watch.Recv()
				check(err)
				if !answer.Created || answer.Canceled {
					log.Fatalf("a watch is refused: %v", answer)
				}
			}
			opened.Done()
			for {
				answer, err := watch.Recv()
				if err != nil {
					return
				}
				now := time.Now()
				for _, event := range answer.Events {
					number, err := strconv.Atoi(string(event.Kv.Value[:9]))
					check(err)
					of := puts[number]
					latencies[stream] = append(latencies[stream], now.Sub(of.began))
					if of.left.Add(-1) == 0 {
						close(of.ended)
					}
				}
			}
		}()
	}
	opened.Wait()

	// How many watch each key: all have the same number, or one more.
	watching := make([]int64, keys)
	for number := 0; number < streams*each; number++ {
		watching[number%keys]++
	}
	var next atomic.Int64
	var events atomic.Int64
	alone := make([][]time.Duration, writers)
	began := time.Now()
	together(writers, func(writer int) {
		client := clients[writer%len(clients)]
		for {
			number := int(next.Add(1)) - 1
			if number >= count {
				return
			}
			// Keys far apart follow each other.
			watched := number * 7919 % keys
			of := puts[number]
			of.left.Store(watching[watched])
			of.began = time.Now()
			_, err := client.Put(ctx, string(key(watched)), fmt.Sprintf("%09d%055d", number, 0))
			check(err)
			alone[writer] = append(alone[writer], time.Since(of.began))
			<-of.ended
			events.Add(watching[watched])
		}
	})
	seconds := time.Since(began).Seconds()
	times, answers := sorted(latencies), sorted(alone)
	fmt.Printf("%.0f %.2f %.2f %.2f %.2f\n", float64(events.Load())/seconds, ms(times[len(times)/2]),
		ms(times[len(times)*99/100]), ms(times[len(times)-1]), ms(answers[len(answers)/2]))
}
