package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/raft/v3/raftpb"
)

// decided is what the members of a cluster decide, in the order in which they do. Each member is followed by itself, from its
// first slot on. All must be told the same.
type decided struct {
	lg      *zap.Logger
	stop    context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// The batches, as the members encode them.
	batches [][]byte
	// Where a subscription goes on after the last of them: fields `points` of a request.
	end []byte
	// A put of the key `last` is among them.
	complete bool
	err      error
}

// last is the key that the suite puts when all other traffic has ended.
const last = "tombstone"

func follow(ctx context.Context, lg *zap.Logger, endpoints []string) *decided {
	ctx, stop := context.WithCancel(ctx)
	d := &decided{lg: lg, stop: stop}
	for _, endpoint := range endpoints {
		d.running.Add(1)
		go func() {
			defer d.running.Done()
			d.followMember(ctx, strings.TrimPrefix(endpoint, "http://"))
		}()
	}
	return d
}

// finish waits for the last command, and returns what was decided.
func (d *decided) finish() ([][]byte, error) {
	defer d.running.Wait()
	defer d.stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		d.mu.Lock()
		batches, complete, err := d.batches, d.complete, d.err
		d.mu.Unlock()
		if complete || err != nil {
			return batches, err
		}
	}
	return nil, fmt.Errorf("the put of %q was not seen among what is decided: members no longer keep what comes before it, or do not answer", last)
}

// followMember subscribes again and again, until the context ends.
func (d *decided) followMember(ctx context.Context, address string) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.fail(err)
		return
	}
	defer conn.Close()
	// How many batches this member has told, and where it goes on.
	told, points := 0, []byte(nil)
	for ctx.Err() == nil {
		err = d.subscribe(ctx, conn, &told, &points)
		if status.Code(err) == codes.OutOfRange {
			// It keeps no longer what comes next. Others were told that.
			d.mu.Lock()
			told, points = len(d.batches), d.end
			d.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Numbers of fields and values in crates/api/proto/synod.proto and kv.proto.
const (
	requestStart, startBeginning, startPoints = 2, 1, 3
	requestPoints                             = 4
	responseBatches, responsePoints           = 1, 2
	batchGroup, batchCommands                 = 1, 4
	commandKind, kindApply                    = 1, 0
	commandSession, commandSequence           = 2, 3
	commandPayload                            = 4
	kvPut, kvDeleteRange, kvTxn, kvCompact    = 1, 2, 3, 4
	kvLeaseGrant, kvLeaseRevoke, kvLeaseRenew = 6, 7, 8
	kvHashCheck                               = 16
)

func (d *decided) subscribe(ctx context.Context, conn *grpc.ClientConn, told *int, points *[]byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/synod.v1.Native/Subscribe", grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	start := uint64(startBeginning)
	if *points != nil {
		start = startPoints
	}
	request := protowire.AppendTag(nil, requestStart, protowire.VarintType)
	request = append(protowire.AppendVarint(request, start), *points...)
	if err = stream.SendMsg(&request); err != nil {
		return err
	}
	if err = stream.CloseSend(); err != nil {
		return err
	}
	for {
		var response []byte
		if err = stream.RecvMsg(&response); err != nil {
			return err
		}
		if err = d.add(response, told, points); err != nil {
			d.fail(err)
			return err
		}
	}
}

// add takes a response of a member that has told `told` batches before.
func (d *decided) add(response []byte, told *int, points *[]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var next []byte
	err := eachField(response, func(field protowire.Number, _ uint64, content []byte) error {
		switch field {
		case responseBatches:
			*told++
			if *told > len(d.batches) {
				d.batches = append(d.batches, content)
				return d.lookForLast(content)
			}
			if before := d.batches[*told-1]; !bytes.Equal(before, content) {
				return fmt.Errorf("members disagree on batch %d of what is decided: %x and %x", *told, before, content)
			}
		case responsePoints:
			next = protowire.AppendBytes(protowire.AppendTag(next, requestPoints, protowire.BytesType), content)
		}
		return nil
	})
	if err != nil {
		return err
	}
	*points = next
	if *told == len(d.batches) {
		d.end = next
	}
	return nil
}

func (d *decided) lookForLast(batch []byte) error {
	requests, err := newRequests().of(batch)
	for _, request := range requests {
		var raft pb.InternalRaftRequest
		err = errors.Join(err, proto.Unmarshal(request, &raft))
		d.complete = d.complete || string(raft.GetPut().GetKey()) == last
	}
	return err
}

func (d *decided) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = errors.Join(d.err, err)
}

// requests translates batches to requests as etcd writes them to its log. What is decided, but not executed, is left out.
type requests struct {
	seen map[command]bool
	// The latest life of each replica that asked in a group: commands of earlier lives are not executed any more.
	lives map[[2]uint64]uint64
}

type command struct{ group, session, sequence uint64 }

func newRequests() *requests {
	return &requests{map[command]bool{}, map[[2]uint64]uint64{}}
}

// lifeBits is how many bits of the session of a replica count its lives (crates/wire/src/session.rs).
const lifeBits = 48

func (r *requests) executes(c command) bool {
	replica := [2]uint64{c.group, c.session >> lifeBits}
	if c.session>>63 == 1 {
		if c.session < r.lives[replica] {
			return false
		}
		r.lives[replica] = c.session
	}
	again := r.seen[c]
	r.seen[c] = true
	return !again
}

func (r *requests) of(batch []byte) (requests [][]byte, err error) {
	var group uint64
	err = eachField(batch, func(field protowire.Number, number uint64, content []byte) error {
		if field == batchGroup {
			group = number
		}
		if field != batchCommands {
			return nil
		}
		c, kind, payload := command{group: group}, uint64(kindApply), []byte(nil)
		err := eachField(content, func(field protowire.Number, number uint64, content []byte) error {
			switch field {
			case commandKind:
				kind = number
			case commandSession:
				c.session = number
			case commandSequence:
				c.sequence = number
			case commandPayload:
				payload = content
			}
			return nil
		})
		if err != nil || !r.executes(c) || kind != kindApply {
			return err
		}
		request, err := request(payload)
		if request != nil {
			requests = append(requests, request)
		}
		return err
	})
	return requests, err
}

// request is an InternalRaftRequest with what a KvCommand holds, which is the same message; nothing if the command changes
// neither keys nor leases.
func request(kv []byte) (request []byte, err error) {
	err = eachField(kv, func(field protowire.Number, _ uint64, content []byte) error {
		var as protowire.Number
		switch field {
		case kvPut, kvDeleteRange, kvTxn, kvCompact:
			as = field + 3
		case kvLeaseGrant, kvLeaseRevoke:
			as = field + 2
		case kvLeaseRenew, kvHashCheck, 10, 11, 12, 13, 14, 15:
			return nil
		default:
			return fmt.Errorf("field %d of a KvCommand is not known here", field)
		}
		request = protowire.AppendBytes(protowire.AppendTag(nil, as, protowire.BytesType), content)
		return nil
	})
	return request, err
}

// persisted are the requests of these batches, as etcd's own report reads them from a log of etcd. `folder` gets that log.
func persisted(lg *zap.Logger, batches [][]byte, folder string) ([]model.EtcdRequest, error) {
	translation := newRequests()
	var entries []*raftpb.Entry
	for _, batch := range batches {
		requests, err := translation.of(batch)
		if err != nil {
			return nil, err
		}
		for _, data := range requests {
			index := uint64(len(entries) + 1)
			entries = append(entries, &raftpb.Entry{Term: proto.Uint64(1), Index: &index, Data: data})
		}
	}
	if err := os.MkdirAll(datadir.ToMemberDir(folder), 0o700); err != nil {
		return nil, err
	}
	log, err := wal.Create(zap.NewNop(), datadir.ToWALDir(folder), nil)
	if err != nil {
		return nil, err
	}
	state := &raftpb.HardState{Term: proto.Uint64(1), Vote: proto.Uint64(1), Commit: proto.Uint64(uint64(len(entries)))}
	if err = errors.Join(log.Save(state, entries), log.Close()); err != nil {
		return nil, err
	}
	return report.PersistedRequests(lg, []string{folder})
}

// eachField calls `take` for each field of a message, with its number or with its content.
func eachField(message []byte, take func(field protowire.Number, number uint64, content []byte) error) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var number uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			content, size = protowire.ConsumeBytes(message)
		default:
			return fmt.Errorf("field %d has the kind %d", field, kind)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := take(field, number, content); err != nil {
			return err
		}
	}
	return nil
}

// raw is a codec for messages that are encoded already.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }
