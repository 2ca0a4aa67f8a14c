// Package robustness runs scenarios of etcd's robustness suite on Synod. The suite stays as it is: its traffic, its failpoints
// and its checks are used, and what it reads from etcd's log is taken from subscriptions to what is decided.
package robustness

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

var (
	trafficName   = flag.String("traffic", "EtcdHighTraffic", "profile of the suite's traffic")
	failpointName = flag.String("failpoint", "Kill", "failpoint")
	seconds       = flag.Int("seconds", 5, "how long the traffic lasts, at least")
	members       = flag.Int("members", 3, "members of the cluster")
	groups        = flag.Int("groups", 1, "groups of each server, as its flag --groups says")
	folder        = flag.String("folder", "", "where everything goes that the run leaves")
	spoil         = flag.String("spoil", "", "spoil what is checked, which must then be refused: decided or answers")
	restarts      = flag.Int("restarts", 0, "how often a member is started again that ends by itself after a power failure")
	list          = flag.Bool("list", false, "print the names of traffic profiles and failpoints")
)

func TestMain(m *testing.M) {
	e2e.InitFlags()
	os.Exit(m.Run())
}

// result is printed at the end of a run, after the word RESULT.
type result struct {
	Operations, Failures, WatchEvents, Decided, SnapshotCount, CatchUpEntries int
	ElectionMs                                                                uint
	Seconds                                                                   float64
}

func TestRobustness(t *testing.T) {
	profiles := map[string]scenarios.TestScenario{}
	for _, each := range scenarios.Exploratory(t) {
		if name, ok := strings.CutSuffix(each.Name, "/ClusterOfSize3"); ok {
			profiles[name] = each
		}
	}
	if *list {
		fmt.Println("TRAFFIC", strings.Join(slices.Sorted(maps.Keys(profiles)), " "))
		fmt.Println("FAILPOINTS", strings.Join(slices.Sorted(maps.Keys(failpoints)), " "))
		return
	}
	scenario, ok := profiles[*trafficName]
	require.Truef(t, ok, "there is no traffic profile %q", *trafficName)
	scenario.Failpoint, ok = failpoints[*failpointName]
	require.Truef(t, ok, "there is no failpoint %q", *failpointName)

	config := &scenario.Cluster
	config.Logger = zaptest.NewLogger(t)
	config.GoFailEnabled = false
	config.ClusterSize = *members
	if scenario.Failpoint == failpoint.BlackholeUntilSnapshot {
		config.ServerConfig.SnapshotCount, config.ServerConfig.SnapshotCatchUpEntries = 50, 100
	}
	config.BaseDataDirPath = filepath.Join(*folder, "members")
	require.NoError(t, os.MkdirAll(config.BaseDataDirPath, 0o700))
	if _, ok := scenario.Failpoint.(powerLoss); ok {
		// The suite would remove what is mounted.
		config.KeepDataDir = true
		mountDisks(t, config.BaseDataDirPath, *members)
	}
	cluster, err := e2e.NewEtcdProcessCluster(t.Context(), t, e2e.WithConfig(config))
	require.NoError(t, err)
	// Killed, since an orderly end takes longer.
	defer func() {
		_ = end(context.Background(), cluster.Procs)
		_ = cluster.ConcurrentStop()
	}()
	for _, member := range cluster.Procs {
		go readErrors(member.PeerProxy().Error())
	}
	require.NoError(t, failpoint.Validate(cluster, scenario.Failpoint, scenario.Profile))
	scenario.Traffic = careful{scenario.Traffic, t}
	play(t, scenario, cluster)
}

// careful has a run go on that the suite would end with a panic: its compactions draw a revision between those of the last
// compaction and of the store, so a member must not tell an older one.
type careful struct {
	traffic.Traffic
	t *testing.T
}

func (c careful) RunCompactLoop(ctx context.Context, recording *client.RecordingClient, param traffic.RunCompactLoopParam) {
	defer func() {
		if why := recover(); why != nil {
			c.t.Errorf("a member's status has a revision before one that was compacted: %v", why)
		}
	}()
	c.Traffic.RunCompactLoop(ctx, recording, param)
}

// readErrors has a proxy of the suite accept connections for longer: it stops at the 17th error that nobody reads.
func readErrors(errors <-chan error) {
	for range errors {
	}
}

func play(t *testing.T, scenario scenarios.TestScenario, cluster *e2e.EtcdProcessCluster) {
	lg := cluster.Cfg.Logger
	decidedFolder := filepath.Join(*folder, "decided")
	unique := scenario.Traffic.ExpectUniqueRevision()
	saved, err := report.NewTestReport(lg, filepath.Join(*folder, "report"), map[string]string{"decided": decidedFolder}, &report.TrafficDetail{ExpectUniqueRevision: unique})
	require.NoError(t, err)
	began, panicked := time.Now(), true
	defer func() {
		if err := saved.Finalize(t.Failed(), panicked); err != nil {
			t.Error(err)
		}
	}()

	following := follow(t.Context(), lg, cluster.EndpointsGRPC())
	reports := simulate(t, scenario, cluster)
	batches, err := following.finish()
	if err != nil {
		t.Error(err)
	}
	requests, err := persisted(lg, batches, decidedFolder)
	if err != nil {
		t.Error(err)
	}
	saved.SetClientReports(reports)
	told := summary(reports)
	told.Decided, told.ElectionMs = len(requests), cluster.Cfg.ServerConfig.ElectionMs
	told.SnapshotCount, told.CatchUpEntries = int(cluster.Cfg.ServerConfig.SnapshotCount), int(cluster.Cfg.ServerConfig.SnapshotCatchUpEntries)

	switch *spoil {
	case "decided":
		requests = withoutAPut(t, requests)
	case "answers":
		withoutAnAnswer(t, reports)
	}
	verdict := validate.ValidateAndReturnVisualize(lg, validate.Config{ExpectRevisionUnique: unique}, reports, requests, 2*time.Minute)
	if err = verdict.Error(); err != nil {
		t.Error(err)
	} else {
		saved.SetVisualizer(verdict.Linearization.Visualize)
	}
	told.Seconds = time.Since(began).Seconds()
	line, err := json.Marshal(told)
	require.NoError(t, err)
	fmt.Printf("RESULT %s\n", line)
	panicked = false
}

// simulate lets the suite's clients work while the failpoint is injected, and returns what they saw.
func simulate(t *testing.T, scenario scenarios.TestScenario, cluster *e2e.EtcdProcessCluster) []report.ClientReport {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lg, ids, base := cluster.Cfg.Logger, identity.NewIDProvider(), time.Now()
	ending := base.Add(time.Duration(*seconds) * time.Second)
	injected, maxRevision := make(chan report.FailpointInjection, 1), make(chan int64, 1)
	var ofFailpoint []report.ClientReport
	var group errgroup.Group
	group.Go(func() error {
		defer close(injected)
		time.Sleep(time.Second)
		done, err := failpoint.Inject(ctx, t, lg, cluster, scenario.Failpoint, base, ids)
		if err != nil {
			cancel()
			return err
		}
		time.Sleep(max(time.Second, time.Until(ending)))
		ofFailpoint = done.Client
		injected <- done.FailpointInjection
		return nil
	})
	trafficClients, watchClients := client.NewSet(ids, base), client.NewSet(ids, base)
	defer trafficClients.Close()
	defer watchClients.Close()
	group.Go(func() error {
		defer close(maxRevision)
		reports := traffic.SimulateTraffic(ctx, t, lg, cluster, scenario.Profile, scenario.Traffic, injected, trafficClients)
		maxRevision <- report.OperationsMaxRevision(reports)
		return nil
	})
	group.Go(func() error {
		return client.CollectClusterWatchEvents(ctx, client.CollectClusterWatchEventsParam{
			Lg: lg, Endpoints: cluster.EndpointsGRPC(), MaxRevisionChan: maxRevision, ClientSet: watchClients,
		})
	})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if err := client.CheckEndOfTestHashKV(ctx, cluster); err != nil {
		t.Error(err)
	}
	return slices.Concat(trafficClients.Reports(), watchClients.Reports(), ofFailpoint)
}

func summary(reports []report.ClientReport) (told result) {
	for _, each := range reports {
		told.WatchEvents += each.WatchEventCount()
		for _, operation := range each.KeyValue {
			if operation.Output.(model.MaybeEtcdResponse).Error == "" {
				told.Operations++
			} else {
				told.Failures++
			}
		}
	}
	return told
}

// withoutAPut drops a put from what is decided, as if its entry had been lost.
func withoutAPut(t *testing.T, requests []model.EtcdRequest) []model.EtcdRequest {
	for at := len(requests) / 2; at < len(requests); at++ {
		if puts(requests[at]) {
			return slices.Delete(slices.Clone(requests), at, at+1)
		}
	}
	require.Fail(t, "no put was decided")
	return nil
}

// withoutAnAnswer drops a put that was answered from what clients say.
func withoutAnAnswer(t *testing.T, reports []report.ClientReport) {
	for client := range reports {
		operations := reports[client].KeyValue
		for at := len(operations) / 2; at < len(operations); at++ {
			if puts(operations[at].Input.(model.EtcdRequest)) && operations[at].Output.(model.MaybeEtcdResponse).Error == "" {
				reports[client].KeyValue = slices.Delete(operations, at, at+1)
				return
			}
		}
	}
	require.Fail(t, "no put was answered")
}

func puts(request model.EtcdRequest) bool {
	return request.Type == model.Txn && len(request.Txn.Conditions) == 0 && request.Txn.OperationsOnSuccess[0].Type == model.PutOperation
}
