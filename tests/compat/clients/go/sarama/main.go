// Command sarama is the smoke of sarama.
package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/IBM/sarama"

	. "logferry.test/clients/smoke"
)

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.ClientID = "smoke"
	c.Net.DialTimeout, c.Net.ReadTimeout, c.Net.WriteTimeout = 10*time.Second, 10*time.Second, 10*time.Second
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return c
}

func send(c *sarama.Config, messages []*sarama.ProducerMessage) error {
	producer, err := sarama.NewSyncProducer([]string{Brokers}, c)
	if err != nil {
		return err
	}
	err = producer.SendMessages(messages)
	return errors.Join(err, producer.Close())
}

func read(ctx context.Context, partition int32, from int64, count int) ([]*sarama.ConsumerMessage, error) {
	consumer, err := sarama.NewConsumer([]string{Brokers}, config())
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	claim, err := consumer.ConsumePartition(Topic, partition, from)
	if err != nil {
		return nil, err
	}
	defer claim.Close()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var found []*sarama.ConsumerMessage
	for len(found) < count {
		select {
		case message := <-claim.Messages():
			found = append(found, message)
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d records: %w", len(found), count, ctx.Err())
		}
	}
	return found, nil
}

func header(key, value string) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(key), Value: []byte(value)}
}

func codec(partition int32, codec sarama.CompressionCodec) func(context.Context) error {
	return func(ctx context.Context) error {
		c := config()
		c.Producer.Compression = codec
		c.Producer.Flush.Frequency = 20 * time.Millisecond
		var messages []*sarama.ProducerMessage
		for n := range Count {
			messages = append(messages, &sarama.ProducerMessage{
				Topic: Topic, Partition: partition, Key: sarama.StringEncoder(Key(n)), Value: sarama.StringEncoder(Value(n)),
				Headers: []sarama.RecordHeader{header("n", fmt.Sprint(n)), header("codec", "any")},
			})
		}
		if err := send(c, messages); err != nil {
			return err
		}
		found, err := read(ctx, partition, sarama.OffsetOldest, Count)
		if err != nil {
			return err
		}
		for n, message := range found {
			got := fmt.Sprintf("%q %q %s", message.Key, message.Value, headers(message.Headers))
			expected := fmt.Sprintf("%q %q [n=%q codec=\"any\"]", Key(n), Value(n), fmt.Sprint(n))
			if err := Same(got, expected, Key(n)); err != nil {
				return err
			}
		}
		return nil
	}
}

func headers(headers []*sarama.RecordHeader) string {
	var all []string
	for _, header := range headers {
		all = append(all, fmt.Sprintf("%s=%q", header.Key, header.Value))
	}
	return fmt.Sprint(all)
}

func records(ctx context.Context) error {
	empty := sarama.ByteEncoder([]byte{})
	shapes := []*sarama.ProducerMessage{
		{Value: sarama.StringEncoder("no key")},
		{Key: sarama.StringEncoder("tombstone")},
		{Key: empty, Value: empty},
		{Key: sarama.StringEncoder("twice"), Value: sarama.StringEncoder("x"), Headers: []sarama.RecordHeader{
			header("h", "1"), header("h", "2"), header("empty", ""),
		}},
	}
	for n, message := range shapes {
		message.Topic, message.Partition, message.Timestamp = Topic, Records, time.UnixMilli(BaseMs+int64(n))
	}
	if err := send(config(), shapes); err != nil {
		return err
	}
	found, err := read(ctx, Records, sarama.OffsetOldest, len(shapes))
	if err != nil {
		return err
	}
	var got []string
	for n, m := range found {
		got = append(got, fmt.Sprintf("%q %v %q %v %s", m.Key, m.Key == nil, m.Value, m.Value == nil, headers(m.Headers)))
		if err := Same(m.Timestamp.UnixMilli(), BaseMs+int64(n), "timestamp"); err != nil {
			return err
		}
	}
	expected := []string{
		`"" true "no key" false []`,
		`"tombstone" false "" true []`,
		`"" false "" false []`,
		`"twice" false "x" false [h="1" h="2" empty=""]`,
	}
	return Same(got, expected, "records")
}

func offset(partition int32, at int64) (int64, error) {
	client, err := sarama.NewClient([]string{Brokers}, config())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return client.GetOffset(Topic, partition, at)
}

func assign(ctx context.Context) error {
	start, err := offset(0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	end, err := offset(0, sarama.OffsetNewest)
	if err := errors.Join(err, Same([]int64{start, end}, []int64{0, Count}, "ends")); err != nil {
		return err
	}
	found, err := read(ctx, 0, 25, 1)
	if err != nil {
		return err
	}
	return Same(fmt.Sprint(found[0].Offset, string(found[0].Key)), fmt.Sprint(25, Key(25)), "record at 25")
}

func timestamps(context.Context) error {
	var messages []*sarama.ProducerMessage
	for n := range 20 {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: Topic, Partition: Timestamps, Value: sarama.StringEncoder("x"), Timestamp: time.UnixMilli(BaseMs + int64(n)*1000),
		})
	}
	if err := send(config(), messages); err != nil {
		return err
	}
	for at, expected := range map[int64]int64{BaseMs + 10_500: 11, 0: 0, BaseMs + 60_000: -1} {
		found, err := offset(Timestamps, at)
		if err := errors.Join(err, Same(found, expected, fmt.Sprint(at))); err != nil {
			return err
		}
	}
	return nil
}

// member is one consumer of the group; its values and its share are read under the lock.
type member struct {
	group sarama.ConsumerGroup
	stop  context.CancelFunc
	done  chan struct{}

	lock  sync.Mutex
	found []string
	share int
	err   error
}

func join(ctx context.Context) (*member, error) {
	group, err := sarama.NewConsumerGroup([]string{Brokers}, Group, config())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	m := &member{group: group, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{GroupTopic}, m); err != nil {
				m.lock.Lock()
				m.err = err
				m.lock.Unlock()
				return
			}
		}
	}()
	return m, nil
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.share = len(session.Claims()[GroupTopic])
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.lock.Lock()
			m.found = append(m.found, string(message.Value))
			m.lock.Unlock()
			session.MarkMessage(message, "note")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) state() ([]string, int, error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	return append([]string{}, m.found...), m.share, m.err
}

// leave ends the member after its last commit.
func (m *member) leave() error {
	m.stop()
	<-m.done
	return m.group.Close()
}

func sendToGroup(count int, value func(int) string) error {
	var messages []*sarama.ProducerMessage
	for n := range count {
		messages = append(messages, &sarama.ProducerMessage{Topic: GroupTopic, Partition: int32(n % 4), Value: sarama.StringEncoder(value(n))})
	}
	return send(config(), messages)
}

func group(ctx context.Context) error {
	if err := sendToGroup(First, func(n int) string { return fmt.Sprint(n) }); err != nil {
		return err
	}
	if err := together(ctx); err != nil {
		return err
	}
	if err := sendToGroup(Second, func(int) string { return "later" }); err != nil {
		return err
	}
	m, err := join(ctx)
	if err != nil {
		return err
	}
	err = Until("records after the committed offsets", func() (bool, error) {
		found, _, err := m.state()
		return len(found) >= Second, err
	})
	found, _, _ := m.state()
	expected := []string{"later", "later", "later", "later"}
	return errors.Join(err, Same(found, expected, "records after the committed offsets"), m.leave())
}

func together(ctx context.Context) (err error) {
	var members []*member
	for range 2 {
		m, joined := join(ctx)
		if joined != nil {
			return joined
		}
		defer func() { err = errors.Join(err, m.leave()) }()
		members = append(members, m)
	}
	return Until("all records and both shares", func() (bool, error) {
		distinct, shares := map[string]bool{}, []int{}
		for _, m := range members {
			found, share, err := m.state()
			if err != nil {
				return false, err
			}
			shares = append(shares, share)
			for _, value := range found {
				distinct[value] = true
			}
		}
		return len(distinct) == First && fmt.Sprint(shares) == "[2 2]", nil
	})
}

func withAdmin(run func(sarama.ClusterAdmin) error) func(context.Context) error {
	return func(context.Context) error {
		admin, err := sarama.NewClusterAdmin([]string{Brokers}, config())
		if err != nil {
			return err
		}
		return errors.Join(run(admin), admin.Close())
	}
}

func listed(admin sarama.ClusterAdmin, expected bool) error {
	groups, err := admin.ListConsumerGroups()
	_, found := groups[Group]
	return errors.Join(err, Same(found, expected, "listed"))
}

func groupAdmin(admin sarama.ClusterAdmin) error {
	if err := listed(admin, true); err != nil {
		return err
	}
	described, err := admin.DescribeConsumerGroups([]string{Group})
	if err != nil {
		return err
	}
	if err := Same(described[0].State, "Empty", "state"); err != nil {
		return err
	}
	changed := map[string]map[int32]sarama.OffsetAndMetadata{GroupTopic: {0: {Offset: 3, LeaderEpoch: -1, Metadata: "note"}}}
	if _, err := admin.AlterConsumerGroupOffsets(Group, changed, nil); err != nil {
		return err
	}
	if err := admin.DeleteConsumerGroupOffset(Group, GroupTopic, 1); err != nil {
		return err
	}
	offsets, err := admin.ListConsumerGroupOffsets(Group, nil)
	if err != nil {
		return err
	}
	var found []string
	for partition, block := range offsets.Blocks[GroupTopic] {
		found = append(found, fmt.Sprintf("%d at %d %s", partition, block.Offset, block.Metadata))
	}
	sort.Strings(found)
	if err := Same(found, []string{"0 at 3 note", "2 at 11 note", "3 at 11 note"}, "offsets"); err != nil {
		return err
	}
	if err := admin.DeleteConsumerGroup(Group); err != nil {
		return err
	}
	return listed(admin, false)
}

func topics(admin sarama.ClusterAdmin) error {
	hour := "3600000"
	detail := &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &hour}}
	for _, topic := range []string{Made, Gone} {
		if err := admin.CreateTopic(topic, detail, false); err != nil {
			return err
		}
	}
	if err := admin.CreateTopic(Made, detail, false); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("second creation: %v", err)
	}
	if err := admin.CreatePartitions(Made, 3, nil, false); err != nil {
		return err
	}
	err := Until("partitions", func() (bool, error) {
		described, err := admin.DescribeTopics([]string{Made})
		return err == nil && len(described[0].Partitions) == 3, err
	})
	if err != nil {
		return err
	}
	if err := admin.DeleteTopic(Gone); err != nil {
		return err
	}
	return Until("deletion", func() (bool, error) {
		all, err := admin.ListTopics()
		_, found := all[Gone]
		return !found, err
	})
}

func cluster(admin sarama.ClusterAdmin) error {
	brokers, controller, err := admin.DescribeCluster()
	if err != nil {
		return err
	}
	var ids []int32
	for _, broker := range brokers {
		ids = append(ids, broker.ID())
	}
	return Same(ids, []int32{controller}, "nodes")
}

func value(admin sarama.ClusterAdmin, name string) (string, error) {
	entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: Made})
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if entry.Name == name {
			return entry.Value, nil
		}
	}
	return "", fmt.Errorf("%s is not described", name)
}

func alter(admin sarama.ClusterAdmin, operation sarama.IncrementalAlterConfigsOperation, name, text string) error {
	entry := sarama.IncrementalAlterConfigsEntry{Operation: operation, Value: &text}
	if operation == sarama.IncrementalAlterConfigsOperationDelete {
		entry.Value = nil
	}
	changes := map[string]sarama.IncrementalAlterConfigsEntry{name: entry}
	return admin.IncrementalAlterConfig(sarama.TopicResource, Made, changes, false)
}

func configs(admin sarama.ClusterAdmin) error {
	if created, err := value(admin, "retention.ms"); err != nil || created != "3600000" {
		return fmt.Errorf("as created: %s %w", created, err)
	}
	if err := alter(admin, sarama.IncrementalAlterConfigsOperationSet, "retention.ms", "100000"); err != nil {
		return err
	}
	err := Until("the value set", func() (bool, error) {
		found, err := value(admin, "retention.ms")
		return found == "100000", err
	})
	if err != nil {
		return err
	}
	if err := alter(admin, sarama.IncrementalAlterConfigsOperationDelete, "retention.ms", ""); err != nil {
		return err
	}
	return Until("the default", func() (bool, error) {
		found, err := value(admin, "retention.ms")
		return found != "100000", err
	})
}

func appendConfig(admin sarama.ClusterAdmin) error {
	steps := []struct {
		operation    sarama.IncrementalAlterConfigsOperation
		text, result string
	}{
		{sarama.IncrementalAlterConfigsOperationAppend, "compact", "delete,compact"},
		{sarama.IncrementalAlterConfigsOperationSubtract, "delete", "compact"},
	}
	for _, step := range steps {
		if err := alter(admin, step.operation, "cleanup.policy", step.text); err != nil {
			return err
		}
		err := Until(step.result, func() (bool, error) {
			found, err := value(admin, "cleanup.policy")
			return found == step.result, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func deleteRecords(ctx context.Context) error {
	err := withAdmin(func(admin sarama.ClusterAdmin) error {
		return admin.DeleteRecords(Topic, map[int32]int64{0: 10})
	})(ctx)
	if err != nil {
		return err
	}
	found, err := read(ctx, 0, sarama.OffsetOldest, 1)
	if err != nil {
		return err
	}
	return Same(found[0].Offset, 10, "first offset")
}

func logDirs(admin sarama.ClusterAdmin) error {
	_, controller, err := admin.DescribeCluster()
	if err != nil {
		return err
	}
	described, err := admin.DescribeLogDirs([]int32{controller})
	if err != nil {
		return err
	}
	found := 0
	for _, dir := range described[controller] {
		for _, topic := range dir.Topics {
			for _, partition := range topic.Partitions {
				if topic.Topic == Topic && partition.PartitionID == 1 && partition.Size > 0 {
					found++
				}
			}
		}
	}
	return Same(found, 1, "directories with the partition")
}

func idempotent(ctx context.Context) error {
	c := config()
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{Brokers}, c)
	if err != nil {
		return err
	}
	defer producer.Close()
	for n := range Count {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: Topic, Partition: Idempotent, Key: sarama.StringEncoder(Key(n))})
		if err := errors.Join(err, Same(offset, n, "offset")); err != nil {
			return err
		}
	}
	found, err := read(ctx, Idempotent, sarama.OffsetOldest, Count)
	if err != nil {
		return err
	}
	for n, message := range found {
		if err := Same(string(message.Key), Key(n), "key"); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	check := func(capability string, run func(context.Context) error) { Check("sarama", capability, run) }
	check("none", codec(0, sarama.CompressionNone))
	check("gzip", codec(1, sarama.CompressionGZIP))
	check("snappy", codec(2, sarama.CompressionSnappy))
	check("lz4", codec(3, sarama.CompressionLZ4))
	check("zstd", codec(4, sarama.CompressionZSTD))
	check("records", records)
	check("assign", assign)
	check("timestamps", timestamps)
	check("group", group)
	check("group-admin", withAdmin(groupAdmin))
	check("topics", withAdmin(topics))
	check("cluster", withAdmin(cluster))
	check("configs", withAdmin(configs))
	check("append", withAdmin(appendConfig))
	check("delete-records", deleteRecords)
	check("log-dirs", withAdmin(logDirs))
	check("idempotent", idempotent)
}
