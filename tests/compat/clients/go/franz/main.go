// Command franz is the smoke of franz-go.
package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	. "logferry.test/clients/smoke"
)

func client(options ...kgo.Opt) (*kgo.Client, error) {
	common := []kgo.Opt{
		kgo.SeedBrokers(Brokers),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RetryTimeout(10 * time.Second),
		kgo.FetchMaxWait(200 * time.Millisecond),
	}
	return kgo.NewClient(append(common, options...)...)
}

func send(ctx context.Context, records []*kgo.Record, options ...kgo.Opt) error {
	cl, err := client(append(options, kgo.DefaultProduceTopic(Topic))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	// Not RecordDeliveryTimeout: it counts from a record's own timestamp.
	ctx, cancel := context.WithTimeout(ctx, 14*time.Second)
	defer cancel()
	return cl.ProduceSync(ctx, records...).FirstErr()
}

func read(ctx context.Context, partition int32, from kgo.Offset, count int) ([]*kgo.Record, error) {
	cl, err := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{Topic: {partition: from}}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var found []*kgo.Record
	for len(found) < count {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records: %w", len(found), count, err)
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}

func codec(partition int32, codec kgo.CompressionCodec) func(context.Context) error {
	return func(ctx context.Context) error {
		var records []*kgo.Record
		for n := range Count {
			headers := []kgo.RecordHeader{{Key: "n", Value: fmt.Append(nil, n)}, {Key: "codec", Value: []byte("any")}}
			records = append(records, &kgo.Record{Partition: partition, Key: []byte(Key(n)), Value: []byte(Value(n)), Headers: headers})
		}
		options := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.DisableIdempotentWrite(), kgo.ProducerLinger(5 * time.Millisecond)}
		if err := send(ctx, records, options...); err != nil {
			return err
		}
		found, err := read(ctx, partition, kgo.NewOffset().AtStart(), Count)
		if err != nil {
			return err
		}
		for n, record := range found {
			if err := Same(shape(record), shape(records[n]), Key(n)); err != nil {
				return err
			}
		}
		return nil
	}
}

// shape tells null from empty.
func shape(r *kgo.Record) string {
	text := fmt.Sprintf("%q %v %q %v", r.Key, r.Key == nil, r.Value, r.Value == nil)
	for _, header := range r.Headers {
		text += fmt.Sprintf(" %s=%q %v", header.Key, header.Value, header.Value == nil)
	}
	return text
}

func records(ctx context.Context) error {
	shapes := []*kgo.Record{
		{Value: []byte("no key")},
		{Key: []byte("tombstone")},
		{Key: []byte{}, Value: []byte{}},
		{Key: []byte("twice"), Value: []byte("x"), Headers: []kgo.RecordHeader{
			{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "none"}, {Key: "empty", Value: []byte{}},
		}},
	}
	for n, record := range shapes {
		record.Partition, record.Timestamp = Records, time.UnixMilli(BaseMs+int64(n))
	}
	if err := send(ctx, shapes); err != nil {
		return err
	}
	found, err := read(ctx, Records, kgo.NewOffset().AtStart(), len(shapes))
	if err != nil {
		return err
	}
	for n, record := range found {
		if err := Same(shape(record), shape(shapes[n]), Key(n)); err != nil {
			return err
		}
		if err := Same(record.Timestamp.UnixMilli(), BaseMs+int64(n), "timestamp"); err != nil {
			return err
		}
	}
	return nil
}

func withAdmin(run func(context.Context, *kadm.Client) error) func(context.Context) error {
	return func(ctx context.Context) error {
		cl, err := client()
		if err != nil {
			return err
		}
		defer cl.Close()
		return run(ctx, kadm.NewClient(cl))
	}
}

func assign(ctx context.Context, admin *kadm.Client) error {
	starts, err := admin.ListStartOffsets(ctx, Topic)
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, Topic)
	if err != nil {
		return err
	}
	start, _ := starts.Lookup(Topic, 0)
	end, _ := ends.Lookup(Topic, 0)
	if err := Same([]int64{start.Offset, end.Offset}, []int64{0, Count}, "ends"); err != nil {
		return err
	}
	found, err := read(ctx, 0, kgo.NewOffset().At(25), 1)
	if err != nil {
		return err
	}
	return Same(fmt.Sprint(found[0].Offset, string(found[0].Key)), fmt.Sprint(25, Key(25)), "record at 25")
}

func timestamps(ctx context.Context, admin *kadm.Client) error {
	var records []*kgo.Record
	for n := range 20 {
		records = append(records, &kgo.Record{Partition: Timestamps, Value: []byte("x"), Timestamp: time.UnixMilli(BaseMs + int64(n)*1000)})
	}
	if err := send(ctx, records); err != nil {
		return err
	}
	for at, offset := range map[int64]int64{BaseMs + 10_500: 11, 0: 0, BaseMs + 60_000: 20} {
		// franz-go gives the end where there is no such record.
		listed, err := admin.ListOffsetsAfterMilli(ctx, at, Topic)
		if err != nil {
			return err
		}
		found, _ := listed.Lookup(Topic, Timestamps)
		if err := errors.Join(found.Err, Same(found.Offset, offset, fmt.Sprint(at))); err != nil {
			return err
		}
	}
	return nil
}

func sendToGroup(ctx context.Context, count int, value func(int) string) error {
	var records []*kgo.Record
	for n := range count {
		records = append(records, &kgo.Record{Topic: GroupTopic, Partition: int32(n % 4), Value: []byte(value(n))})
	}
	return send(ctx, records)
}

func member() (*kgo.Client, error) {
	return client(kgo.ConsumerGroup(Group), kgo.ConsumeTopics(GroupTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.HeartbeatInterval(500*time.Millisecond))
}

// poll adds the values that come within a quarter of a second.
func poll(ctx context.Context, cl *kgo.Client, found *[]string) error {
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	fetches := cl.PollFetches(ctx)
	for _, record := range fetches.Records() {
		*found = append(*found, string(record.Value))
	}
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func group(ctx context.Context) error {
	if err := sendToGroup(ctx, First, func(n int) string { return fmt.Sprint(n) }); err != nil {
		return err
	}
	if err := together(ctx); err != nil {
		return err
	}
	if err := sendToGroup(ctx, Second, func(int) string { return "later" }); err != nil {
		return err
	}
	cl, err := member()
	if err != nil {
		return err
	}
	defer cl.Close()
	var later []string
	err = Until("records after the committed offsets", func() (bool, error) {
		err := poll(ctx, cl, &later)
		return len(later) >= Second, err
	})
	return errors.Join(err, Same(later, []string{"later", "later", "later", "later"}, "records after the committed offsets"))
}

// together has two members share the partitions, read everything and commit.
func together(ctx context.Context) error {
	var members []*kgo.Client
	for range 2 {
		cl, err := member()
		if err != nil {
			return err
		}
		defer cl.Close()
		members = append(members, cl)
	}
	var found []string
	err := Until("all records and both shares", func() (bool, error) {
		shares := []int{}
		for _, cl := range members {
			if err := poll(ctx, cl, &found); err != nil {
				return false, err
			}
			described, err := kadm.NewClient(cl).DescribeGroups(ctx, Group)
			if err != nil {
				return false, err
			}
			for _, member := range described[Group].Members {
				assigned, ok := member.Assigned.AsConsumer()
				if ok && len(assigned.Topics) == 1 {
					shares = append(shares, len(assigned.Topics[0].Partitions))
				}
			}
		}
		distinct := map[string]bool{}
		for _, value := range found {
			distinct[value] = true
		}
		return len(distinct) == First && fmt.Sprint(shares) == "[2 2 2 2]", nil
	})
	if err != nil {
		return fmt.Errorf("%w (%d records)", err, len(found))
	}
	for _, cl := range members {
		if err := cl.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
	return nil
}

func groupAdmin(ctx context.Context, admin *kadm.Client) error {
	if err := listed(ctx, admin, true); err != nil {
		return err
	}
	described, err := admin.DescribeGroups(ctx, Group)
	if err != nil {
		return err
	}
	if err := Same(described[Group].State, "Empty", "state"); err != nil {
		return err
	}
	changed := kadm.Offsets{}
	changed.Add(kadm.Offset{Topic: GroupTopic, Partition: 0, At: 3, LeaderEpoch: -1, Metadata: "note"})
	if err := admin.CommitAllOffsets(ctx, Group, changed); err != nil {
		return err
	}
	if deleted, err := admin.DeleteOffsets(ctx, Group, kadm.TopicsSet{GroupTopic: {1: {}}}); err != nil {
		return err
	} else if err := deleted.Error(); err != nil {
		return err
	}
	offsets, err := admin.FetchOffsets(ctx, Group)
	if err != nil {
		return err
	}
	var found []string
	offsets.Each(func(o kadm.OffsetResponse) { found = append(found, fmt.Sprintf("%d at %d", o.Partition, o.At)) })
	sort.Strings(found)
	if err := Same(found, []string{"0 at 3", "2 at 10", "3 at 10"}, "offsets"); err != nil {
		return err
	}
	changedTo, _ := offsets.Lookup(GroupTopic, 0)
	if err := Same(changedTo.Metadata, "note", "metadata"); err != nil {
		return err
	}
	lags, err := admin.Lag(ctx, Group)
	if err != nil {
		return err
	}
	if lag, _ := lags[Group].Lag.Lookup(GroupTopic, 2); lag.Lag != 1 {
		return fmt.Errorf("lag %d instead of 1", lag.Lag)
	}
	if deleted, err := admin.DeleteGroups(ctx, Group); err != nil {
		return err
	} else if err := deleted.Error(); err != nil {
		return err
	}
	return listed(ctx, admin, false)
}

func listed(ctx context.Context, admin *kadm.Client, expected bool) error {
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	_, found := groups[Group]
	return Same(found, expected, "listed")
}

func topics(ctx context.Context, admin *kadm.Client) error {
	hour := "3600000"
	configs := map[string]*string{"retention.ms": &hour}
	created, err := admin.CreateTopics(ctx, 2, 1, configs, Made, Gone)
	if err := errors.Join(err, created.Error()); err != nil {
		return err
	}
	if _, err := admin.CreateTopic(ctx, 2, 1, configs, Made); !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("second creation: %v", err)
	}
	grown, err := admin.UpdatePartitions(ctx, 3, Made)
	if err := errors.Join(err, grown.Error()); err != nil {
		return err
	}
	err = Until("partitions", func() (bool, error) {
		details, err := admin.ListTopics(ctx, Made)
		return len(details[Made].Partitions) == 3, err
	})
	if err != nil {
		return err
	}
	deleted, err := admin.DeleteTopics(ctx, Gone)
	if err := errors.Join(err, deleted.Error()); err != nil {
		return err
	}
	return Until("deletion", func() (bool, error) {
		details, err := admin.ListTopics(ctx)
		return !details.Has(Gone), err
	})
}

func cluster(ctx context.Context, admin *kadm.Client) error {
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if metadata.Cluster == "" {
		return errors.New("no cluster id")
	}
	return Same(metadata.Brokers.NodeIDs(), []int32{metadata.Controller}, "nodes")
}

func config(ctx context.Context, admin *kadm.Client, name string) (string, error) {
	described, err := admin.DescribeTopicConfigs(ctx, Made)
	if err != nil {
		return "", err
	}
	resource, err := described.On(Made, nil)
	if err := errors.Join(err, resource.Err); err != nil {
		return "", err
	}
	for _, entry := range resource.Configs {
		if entry.Key == name {
			return entry.MaybeValue(), nil
		}
	}
	return "", fmt.Errorf("%s is not described", name)
}

func alter(ctx context.Context, admin *kadm.Client, op kadm.IncrementalOp, name, value string) error {
	change := kadm.AlterConfig{Op: op, Name: name, Value: &value}
	if op == kadm.DeleteConfig {
		change.Value = nil
	}
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{change}, Made)
	if err != nil {
		return err
	}
	_, err = altered.On(Made, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	return err
}

func configs(ctx context.Context, admin *kadm.Client) error {
	if created, err := config(ctx, admin, "retention.ms"); err != nil || created != "3600000" {
		return fmt.Errorf("as created: %s %w", created, err)
	}
	if err := alter(ctx, admin, kadm.SetConfig, "retention.ms", "100000"); err != nil {
		return err
	}
	err := Until("the value set", func() (bool, error) {
		found, err := config(ctx, admin, "retention.ms")
		return found == "100000", err
	})
	if err != nil {
		return err
	}
	if err := alter(ctx, admin, kadm.DeleteConfig, "retention.ms", ""); err != nil {
		return err
	}
	return Until("the default", func() (bool, error) {
		found, err := config(ctx, admin, "retention.ms")
		return found != "100000", err
	})
}

func appendConfig(ctx context.Context, admin *kadm.Client) error {
	steps := []struct {
		op            kadm.IncrementalOp
		value, result string
	}{{kadm.AppendConfig, "compact", "delete,compact"}, {kadm.SubtractConfig, "delete", "compact"}}
	for _, step := range steps {
		if err := alter(ctx, admin, step.op, "cleanup.policy", step.value); err != nil {
			return err
		}
		err := Until(step.result, func() (bool, error) {
			found, err := config(ctx, admin, "cleanup.policy")
			return found == step.result, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func deleteRecords(ctx context.Context, admin *kadm.Client) error {
	before := kadm.Offsets{}
	before.AddOffset(Topic, 0, 10, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	if err := errors.Join(err, deleted.Error()); err != nil {
		return err
	}
	answer, _ := deleted.Lookup(Topic, 0)
	if err := Same(answer.LowWatermark, 10, "low watermark"); err != nil {
		return err
	}
	found, err := read(ctx, 0, kgo.NewOffset().AtStart(), 1)
	if err != nil {
		return err
	}
	return Same(found[0].Offset, 10, "first offset")
}

func logDirs(ctx context.Context, admin *kadm.Client) error {
	set := kadm.TopicsSet{}
	set.Add(Topic, 1)
	described, err := admin.DescribeAllLogDirs(ctx, set)
	if err != nil {
		return err
	}
	found := 0
	described.Each(func(dir kadm.DescribedLogDir) {
		err = errors.Join(err, dir.Err)
		dir.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			if p.Topic == Topic && p.Partition == 1 && p.Size > 0 {
				found++
			}
		})
	})
	return errors.Join(err, Same(found, 1, "directories with the partition"))
}

func idempotent(ctx context.Context) error {
	cl, err := client(kgo.DefaultProduceTopic(Topic), kgo.RecordDeliveryTimeout(14*time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	for n := range Count {
		record := &kgo.Record{Partition: Idempotent, Key: []byte(Key(n))}
		if err := cl.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		if err := Same(record.Offset, n, "offset"); err != nil {
			return err
		}
	}
	found, err := read(ctx, Idempotent, kgo.NewOffset().AtStart(), Count)
	if err != nil {
		return err
	}
	for n, record := range found {
		if err := Same(string(record.Key), Key(n), "key"); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	check := func(capability string, run func(context.Context) error) { Check("franz-go", capability, run) }
	check("none", codec(0, kgo.NoCompression()))
	check("gzip", codec(1, kgo.GzipCompression()))
	check("snappy", codec(2, kgo.SnappyCompression()))
	check("lz4", codec(3, kgo.Lz4Compression()))
	check("zstd", codec(4, kgo.ZstdCompression()))
	check("records", records)
	check("assign", withAdmin(assign))
	check("timestamps", withAdmin(timestamps))
	check("group", group)
	check("group-admin", withAdmin(groupAdmin))
	check("topics", withAdmin(topics))
	check("cluster", withAdmin(cluster))
	check("configs", withAdmin(configs))
	check("append", withAdmin(appendConfig))
	check("delete-records", withAdmin(deleteRecords))
	check("log-dirs", withAdmin(logDirs))
	check("idempotent", idempotent)
}
