package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// failpoints are etcd's that need no build of etcd with failpoints in it, and ours.
var failpoints = map[string]failpoint.Failpoint{
	"Kill":                   failpoint.KillFailpoint,
	"Blackhole":              failpoint.BlackholePeerNetwork,
	"BlackholeUntilSnapshot": failpoint.BlackholeUntilSnapshot,
	"Delay":                  failpoint.DelayPeerNetwork,
	"Drop":                   failpoint.DropPeerNetwork,
	"MemberReplace":          failpoint.MemberReplace,
	"KillLeader":             fault{"KillLeader", onLeader(1, kill)},
	"KillTwo":                fault{"KillTwo", onLeader(2, kill)},
	"KillAll":                fault{"KillAll", onLeader(all, kill)},
	"PauseLeader":            fault{"PauseLeader", onLeader(1, pause)},
	"PauseTwo":               fault{"PauseTwo", onLeader(2, pause)},
	"Reconfigure":            fault{"Reconfigure", reconfigure},
	"ReconfigureKill":        fault{"ReconfigureKill", reconfigureKill},
	"MoveLeader":             fault{"MoveLeader", moveLeader},
	"RollingReplace":         fault{"RollingReplace", rollingReplace},
	"PowerLossLeader":        powerLoss{fault{"PowerLossLeader", onLeader(1, losePower)}},
	"PowerLossAll":           powerLoss{fault{"PowerLossAll", onLeader(all, losePower)}},
}

// fault is a failpoint of ours: what is done to a cluster.
type fault struct {
	name   string
	inject func(ctx context.Context, clus *e2e.EtcdProcessCluster) error
}

func (f fault) Name() string { return f.name }

func (f fault) Inject(ctx context.Context, _ *testing.T, _ *zap.Logger, clus *e2e.EtcdProcessCluster, _ time.Time, _ identity.Provider) ([]report.ClientReport, error) {
	return nil, f.inject(ctx, clus)
}

func (f fault) Available(config e2e.EtcdProcessClusterConfig, _ e2e.EtcdProcess, _ traffic.Profile) bool {
	return config.ClusterSize > 1
}

// Timeout is longer than the suite's, since members are replaced one after the other.
func (f fault) Timeout() time.Duration { return 2 * time.Minute }

// powerLoss is a fault of members whose data are on disks of their own.
type powerLoss struct{ fault }

func (powerLoss) Timeout() time.Duration { return 30 * time.Second }

const all = -1

// onLeader does something to the leader and this many members in all.
func onLeader(count int, do func(ctx context.Context, members []e2e.EtcdProcess) error) func(context.Context, *e2e.EtcdProcessCluster) error {
	return func(ctx context.Context, clus *e2e.EtcdProcessCluster) error {
		leader, others, err := leaderAndOthers(ctx, clus)
		if err != nil {
			return err
		}
		members := append([]e2e.EtcdProcess{leader}, others...)
		if count != all {
			members = members[:count]
		}
		return do(ctx, members)
	}
}

func leaderAndOthers(ctx context.Context, clus *e2e.EtcdProcessCluster) (leader e2e.EtcdProcess, others []e2e.EtcdProcess, err error) {
	for _, member := range clus.Procs {
		status, err := withClient(member, func(client *clientv3.Client) (*clientv3.StatusResponse, error) {
			return client.Status(ctx, member.EndpointsGRPC()[0])
		})
		if err != nil {
			return nil, nil, err
		}
		if leader == nil && status.Leader == status.Header.MemberId {
			leader = member
		} else {
			others = append(others, member)
		}
	}
	if leader == nil {
		return nil, nil, errors.New("no member says that it leads")
	}
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return leader, others, nil
}

func withClient[T any](member e2e.EtcdProcess, ask func(client *clientv3.Client) (T, error)) (answer T, err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: member.EndpointsGRPC(), Logger: zap.NewNop()})
	if err != nil {
		return answer, err
	}
	defer client.Close()
	return ask(client)
}

func kill(ctx context.Context, members []e2e.EtcdProcess) error {
	return errors.Join(end(ctx, members), start(ctx, members))
}

func end(ctx context.Context, members []e2e.EtcdProcess) (err error) {
	for _, member := range members {
		err = errors.Join(err, member.Kill())
	}
	for _, member := range members {
		err = errors.Join(err, member.Wait(ctx))
	}
	return err
}

// start starts members at the same time, since one may wait for another.
func start(ctx context.Context, members []e2e.EtcdProcess) error {
	var group errgroup.Group
	for _, member := range members {
		group.Go(func() error { return member.Start(ctx) })
	}
	return group.Wait()
}

func pause(_ context.Context, members []e2e.EtcdProcess) (err error) {
	for _, member := range members {
		err = errors.Join(err, member.Pause())
	}
	time.Sleep(2 * time.Second)
	for _, member := range members {
		err = errors.Join(err, member.Resume())
	}
	return err
}

func losePower(ctx context.Context, members []e2e.EtcdProcess) error {
	err := end(ctx, members)
	for _, member := range members {
		err = errors.Join(err, cutPower(member.Config().DataDirPath))
	}
	return errors.Join(err, startAgain(ctx, members))
}

// startAgain starts members, and those again that end by themselves, since they notice that their disk forgot what it had.
func startAgain(ctx context.Context, members []e2e.EtcdProcess) error {
	err := start(ctx, members)
	for range *restarts {
		time.Sleep(time.Second)
		ended := slices.DeleteFunc(slices.Clone(members), e2e.EtcdProcess.IsRunning)
		err = start(ctx, ended)
	}
	return err
}

var protocols = []string{"raft", "sequence-paxos", "ring", "multipaxos"}

// reconfigure has the cluster use each protocol for a while.
func reconfigure(ctx context.Context, clus *e2e.EtcdProcessCluster) error {
	for _, protocol := range protocols {
		if err := changeProtocol(ctx, clus, protocol); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
	}
	return nil
}

// reconfigureKill kills the leader while the protocol changes.
func reconfigureKill(ctx context.Context, clus *e2e.EtcdProcessCluster) error {
	leader, _, err := leaderAndOthers(ctx, clus)
	if err != nil {
		return err
	}
	for _, protocol := range protocols[:2] {
		var group errgroup.Group
		group.Go(func() error { return changeProtocol(ctx, clus, protocol) })
		time.Sleep(time.Duration(rand.Intn(20)) * time.Millisecond)
		if err = errors.Join(kill(ctx, []e2e.EtcdProcess{leader}), group.Wait()); err != nil {
			return err
		}
	}
	return nil
}

func changeProtocol(ctx context.Context, clus *e2e.EtcdProcessCluster, protocol string) error {
	for group := range *groups {
		err := synod(ctx, clus, "reconfigure", "--protocol", protocol, "--group", strconv.Itoa(group))
		for try := 0; err != nil && try < 20; try++ {
			time.Sleep(200 * time.Millisecond)
			err = synod(ctx, clus, "reconfigure", "--protocol", protocol, "--group", strconv.Itoa(group))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func moveLeader(ctx context.Context, clus *e2e.EtcdProcessCluster) error {
	for range 3 {
		leader, others, err := leaderAndOthers(ctx, clus)
		if err != nil {
			return err
		}
		if err = synod(ctx, clus, "move-leader", "--group", "0", others[0].Config().Name); err != nil {
			return fmt.Errorf("from %s: %w", leader.Config().Name, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

// rollingReplace has each member lose its data, and puts a new one in its place.
func rollingReplace(ctx context.Context, clus *e2e.EtcdProcessCluster) error {
	for i, member := range clus.Procs {
		config := member.Config()
		if err := end(ctx, []e2e.EtcdProcess{member}); err != nil {
			return err
		}
		if err := os.RemoveAll(config.DataDirPath); err != nil {
			return err
		}
		for at, argument := range config.Args {
			if strings.HasPrefix(argument, "--initial-cluster-state=") {
				config.Args[at] = "--initial-cluster-state=existing"
			}
		}
		others := *clus
		others.Procs = append(append([]e2e.EtcdProcess{}, clus.Procs[:i]...), clus.Procs[i+1:]...)
		var group errgroup.Group
		// It ends when the new member votes, in all groups.
		group.Go(func() error {
			return synod(ctx, &others, "member", "replace", "--peer-urls", config.PeerURL.String(), config.Name, config.Name)
		})
		err := untilOneLearns(ctx, others.Procs[0])
		if err == nil {
			err = member.Start(ctx)
		}
		if err = errors.Join(err, group.Wait()); err != nil {
			return err
		}
	}
	return nil
}

func untilOneLearns(ctx context.Context, member e2e.EtcdProcess) error {
	_, err := withClient(member, func(client *clientv3.Client) (any, error) {
		for {
			list, err := client.MemberList(ctx)
			if err != nil || slices.ContainsFunc(list.Members, (*etcdserverpb.Member).GetIsLearner) {
				return nil, err
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	return err
}

// synod runs the program beside the stand-in for etcd as a client of these members.
func synod(ctx context.Context, clus *e2e.EtcdProcessCluster, arguments ...string) error {
	program := filepath.Join(filepath.Dir(e2e.BinPath.Etcd), "synod")
	arguments = append(arguments, "--command-timeout", "20s", "--endpoints", strings.Join(clus.EndpointsGRPC(), ","))
	said, err := exec.CommandContext(ctx, program, arguments...).CombinedOutput()
	// It is so already, perhaps since the answer to an earlier try was lost.
	if err != nil && !strings.Contains(string(said), "nothing would change") {
		return fmt.Errorf("synod %s: %w: %s", strings.Join(arguments, " "), err, said)
	}
	return nil
}
