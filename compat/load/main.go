// Command load puts load on a server with etcd's client, and prints how fast it was served.
//
//	load leases ENDPOINT LEASES TTL_SECONDS ROUNDS
//	load keep ENDPOINT LEASES TTL_SECONDS SECONDS
//	load watchers ENDPOINT STREAMS WATCHES_OF_EACH KEYS PUTS WRITERS
package main

import (
	"log"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3"
)

const usage = `usage: load leases ENDPOINT LEASES TTL_SECONDS ROUNDS
       load keep ENDPOINT LEASES TTL_SECONDS SECONDS
       load watchers ENDPOINT STREAMS WATCHES_OF_EACH KEYS PUTS WRITERS`

// Requests of a stream that have no answer yet.
const window = 64

func main() {
	words := os.Args[1:]
	switch {
	case len(words) == 5 && words[0] == "leases":
		of := numbers(words[2:])
		leases(connect(words[1], 8), of[0], of[1], of[2])
	case len(words) == 5 && words[0] == "keep":
		of := numbers(words[2:])
		keep(connect(words[1], 1)[0], of[0], of[1], of[2])
	case len(words) == 7 && words[0] == "watchers":
		of := numbers(words[2:])
		watchers(connect(words[1], 10), of[0], of[1], of[2], of[3], of[4])
	default:
		log.Fatal(usage)
	}
}

// Connections that last as long as the program.
func connect(endpoint string, count int) []*clientv3.Client {
	var clients []*clientv3.Client
	for len(clients) < count {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
		check(err)
		clients = append(clients, client)
	}
	return clients
}

// Runs work in this many goroutines, and waits for all.
func together(workers int, work func(worker int)) {
	var group sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			work(worker)
		}()
	}
	group.Wait()
}

// All times of several workers, the shortest first.
func sorted(parts [][]time.Duration) []time.Duration {
	var all []time.Duration
	for _, part := range parts {
		all = append(all, part...)
	}
	sort.Slice(all, func(a, b int) bool { return all[a] < all[b] })
	return all
}

func ms(of time.Duration) float64 {
	return float64(of.Microseconds()) / 1e3
}

func numbers(words []string) []int {
	var all []int
	for _, word := range words {
		number, err := strconv.Atoi(word)
		check(err)
		all = append(all, number)
	}
	return all
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
