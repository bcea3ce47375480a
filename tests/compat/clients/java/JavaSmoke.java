import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The smoke of kafka-clients. Arguments: BROKERS NAME; what they mean is said in ../python/smoke.py. */
public final class JavaSmoke {
    private static final int RECORDS = 5;
    private static final int TIMESTAMPS = 6;
    private static final int IDEMPOTENT = 7;
    private static final int COUNT = 50;
    private static final int FIRST = 40;
    private static final int SECOND = 4;
    private static final long BASE_MS = 1_700_000_000_000L;
    private static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    private static String brokers;
    private static String name;
    private static String groupTopic;
    private static String made;
    private static String group;

    private JavaSmoke() {}

    public static void main(String[] arguments) {
        brokers = arguments[0];
        name = arguments[1];
        groupTopic = name + "-group";
        made = name + "-made";
        group = name + "-members";
        for (int partition = 0; partition < CODECS.size(); partition++) {
            int index = partition;
            check(CODECS.get(index), () -> codec(CODECS.get(index), index));
        }
        check("records", JavaSmoke::records);
        check("assign", JavaSmoke::assign);
        check("timestamps", JavaSmoke::timestamps);
        check("group", JavaSmoke::group);
        check("group-admin", () -> withAdmin(JavaSmoke::groupAdmin));
        check("topics", () -> withAdmin(JavaSmoke::topics));
        check("cluster", () -> withAdmin(JavaSmoke::cluster));
        check("configs", () -> withAdmin(JavaSmoke::configs));
        check("append", () -> withAdmin(JavaSmoke::append));
        check("delete-records", () -> withAdmin(JavaSmoke::deleteRecords));
        check("log-dirs", () -> withAdmin(JavaSmoke::logDirs));
        check("idempotent", JavaSmoke::idempotent);
        System.exit(0);
    }

    private interface Check {
        void run() throws Exception;
    }

    private interface AdminCheck {
        void run(Admin admin) throws Exception;
    }

    private static void check(String capability, Check run) {
        String line = "ok java " + capability;
        try {
            run.run();
        } catch (Exception | AssertionError e) {
            Throwable cause = e instanceof ExecutionException ? e.getCause() : e;
            String text = cause.toString().replaceAll("\\s+", " ");
            line = "ERR java " + capability + " " + text.substring(0, Math.min(400, text.length()));
        }
        System.out.println(line);
    }

    private static void same(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    private static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + 15_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                throw new AssertionError(what + " did not come within 15 s");
            }
            Thread.sleep(10);
        }
    }

    private static Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", brokers);
        properties.put("request.timeout.ms", "12000");
        for (int i = 0; i < pairs.length; i += 2) {
            properties.put(pairs[i], pairs[i + 1]);
        }
        return properties;
    }

    private static KafkaProducer<byte[], byte[]> producer(String... pairs) {
        Properties properties = properties(pairs);
        properties.put("delivery.timeout.ms", "14000");
        properties.put("max.block.ms", "14000");
        properties.putIfAbsent("linger.ms", "5");
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String... pairs) {
        Properties properties = properties(pairs);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("default.api.timeout.ms", "14000");
        properties.put("heartbeat.interval.ms", "500");
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<Long> send(List<ProducerRecord<byte[], byte[]>> records, String... pairs) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(pairs)) {
            records.forEach(record -> sent.add(producer.send(record)));
            producer.flush();
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return offsets;
    }

    private static List<ConsumerRecord<byte[], byte[]>> read(int partition, long from, int count) throws Exception {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        TopicPartition target = new TopicPartition(name, partition);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(target));
            if (from < 0) {
                consumer.seekToBeginning(List.of(target));
            } else {
                consumer.seek(target, from);
            }
            until(count + " records", () -> {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
                return found.size() >= count;
            });
        }
        return found;
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : "'" + new String(bytes, UTF_8) + "'";
    }

    private static String key(int n) {
        return "key-" + n;
    }

    private static String value(int n) {
        return ("value-" + n + " ").repeat(20);
    }

    private static String shape(byte[] key, byte[] value, Headers headers) {
        StringBuilder shape = new StringBuilder(text(key) + ":" + text(value));
        for (Header header : headers) {
            shape.append(" ").append(header.key()).append("=").append(text(header.value()));
        }
        return shape.toString();
    }

    private static void compare(List<ConsumerRecord<byte[], byte[]>> found, List<ProducerRecord<byte[], byte[]>> sent) {
        for (int n = 0; n < sent.size(); n++) {
            ConsumerRecord<byte[], byte[]> a = found.get(n);
            ProducerRecord<byte[], byte[]> b = sent.get(n);
            same(shape(a.key(), a.value(), a.headers()), shape(b.key(), b.value(), b.headers()), "record " + n);
            if (b.timestamp() != null) {
                same(a.timestamp(), b.timestamp(), "timestamp of record " + n);
            }
        }
    }

    private static void codec(String codec, int partition) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < COUNT; n++) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(name, partition, bytes(key(n)), bytes(value(n)));
            record.headers().add("n", bytes("" + n)).add("codec", bytes("any"));
            records.add(record);
        }
        send(records, "compression.type", codec, "enable.idempotence", "false");
        compare(read(partition, -1, COUNT), records);
    }

    private static ProducerRecord<byte[], byte[]> stamped(int partition, int n, String key, String value) {
        return new ProducerRecord<>(name, partition, BASE_MS + n, bytes(key), bytes(value));
    }

    private static void records() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = List.of(
                stamped(RECORDS, 0, null, "no key"),
                stamped(RECORDS, 1, "tombstone", null),
                stamped(RECORDS, 2, "", ""),
                stamped(RECORDS, 3, "twice", "x"));
        records.get(3).headers().add("h", bytes("1")).add("h", bytes("2")).add("none", null).add("empty", bytes(""));
        send(records);
        compare(read(RECORDS, -1, records.size()), records);
    }

    private static void assign() throws Exception {
        TopicPartition target = new TopicPartition(name, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            same(consumer.beginningOffsets(List.of(target)).get(target), 0L, "beginning");
            same(consumer.endOffsets(List.of(target)).get(target), (long) COUNT, "end");
        }
        ConsumerRecord<byte[], byte[]> record = read(0, 25, 1).get(0);
        same(record.offset() + text(record.key()), "25'" + key(25) + "'", "record at 25");
    }

    private static void timestamps() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < 20; n++) {
            records.add(stamped(TIMESTAMPS, n * 1000, null, "x"));
        }
        send(records);
        TopicPartition target = new TopicPartition(name, TIMESTAMPS);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            Map<Long, Long> expected = new HashMap<>();
            expected.put(BASE_MS + 10_500, 11L);
            expected.put(0L, 0L);
            expected.put(BASE_MS + 60_000, null);
            expected.forEach((time, offset) -> {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(target, time)).get(target);
                same(found == null ? null : found.offset(), offset, "offset at " + time);
            });
        }
        withAdmin(admin -> same(
                admin.listOffsets(Map.of(target, OffsetSpec.forTimestamp(BASE_MS + 3_000))).partitionResult(target).get().offset(),
                3L, "listOffsets"));
    }

    private static List<ProducerRecord<byte[], byte[]>> forGroup(int count, String value) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            records.add(new ProducerRecord<>(groupTopic, n % 4, null, bytes(value == null ? "" + n : value)));
        }
        return records;
    }

    private static KafkaConsumer<byte[], byte[]> member() {
        KafkaConsumer<byte[], byte[]> member = consumer("group.id", group, "group.protocol", "classic");
        member.subscribe(List.of(groupTopic));
        return member;
    }

    private static void group() throws Exception {
        send(forGroup(FIRST, null));
        try (KafkaConsumer<byte[], byte[]> a = member(); KafkaConsumer<byte[], byte[]> b = member()) {
            Set<String> found = new HashSet<>();
            until("all records and both shares", () -> {
                for (KafkaConsumer<byte[], byte[]> member : List.of(a, b)) {
                    member.poll(Duration.ofMillis(100)).forEach(record -> found.add(text(record.value())));
                }
                return found.size() == FIRST && a.assignment().size() == 2 && b.assignment().size() == 2;
            });
            for (KafkaConsumer<byte[], byte[]> member : List.of(a, b)) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                member.assignment().forEach(p -> offsets.put(p, new OffsetAndMetadata(FIRST / 4, "note")));
                member.commitSync(offsets);
            }
        }
        send(forGroup(SECOND, "later"));
        try (KafkaConsumer<byte[], byte[]> member = member()) {
            List<String> found = new ArrayList<>();
            until("records after the committed offsets", () -> {
                member.poll(Duration.ofMillis(100)).forEach(record -> found.add(text(record.value())));
                return found.size() >= SECOND;
            });
            same(found, List.of("'later'", "'later'", "'later'", "'later'"), "records after the committed offsets");
            TopicPartition target = new TopicPartition(groupTopic, 0);
            OffsetAndMetadata committed = member.committed(Set.of(target)).get(target);
            same(committed.offset() + committed.metadata(), FIRST / 4 + "note", "committed");
        }
    }

    private static void withAdmin(AdminCheck check) throws Exception {
        try (Admin admin = Admin.create(properties("default.api.timeout.ms", "14000"))) {
            check.run(admin);
        }
    }

    private static boolean listed(Admin admin) throws Exception {
        return admin.listGroups().all().get().stream().anyMatch(listing -> listing.groupId().equals(group));
    }

    private static void groupAdmin(Admin admin) throws Exception {
        same(listed(admin), true, "listed");
        same(admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState(), GroupState.EMPTY, "state");
        TopicPartition first = new TopicPartition(groupTopic, 0);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(3))).all().get();
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(groupTopic, 1))).all().get();
        Map<Integer, Long> found = new HashMap<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((partition, offset) -> found.put(partition.partition(), offset.offset()));
        same(found, Map.of(0, 3L, 2, FIRST / 4L, 3, FIRST / 4L), "offsets");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        same(listed(admin), false, "listed");
    }

    private static void topics(Admin admin) throws Exception {
        String gone = name + "-gone";
        List<NewTopic> topics = new ArrayList<>();
        for (String topic : List.of(made, gone)) {
            topics.add(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000")));
        }
        admin.createTopics(topics).all().get();
        try {
            admin.createTopics(topics).all().get();
            throw new AssertionError("made twice");
        } catch (ExecutionException e) {
            same(e.getCause().getClass(), TopicExistsException.class, "second creation");
        }
        admin.createPartitions(Map.of(made, NewPartitions.increaseTo(3))).all().get();
        until("partitions", () ->
                admin.describeTopics(List.of(made)).allTopicNames().get().get(made).partitions().size() == 3);
        admin.deleteTopics(List.of(gone)).all().get();
        until("deletion", () -> !admin.listTopics().names().get().contains(gone));
    }

    private static void cluster(Admin admin) throws Exception {
        List<Node> nodes = new ArrayList<>(admin.describeCluster().nodes().get());
        same(nodes.size(), 1, "nodes");
        same(admin.describeCluster().controller().get().id(), nodes.get(0).id(), "controller");
        if (admin.describeCluster().clusterId().get() == null) {
            throw new AssertionError("no cluster id");
        }
    }

    private static String config(Admin admin, String key) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
        ConfigEntry entry = admin.describeConfigs(List.of(resource)).all().get().get(resource).get(key);
        if (entry == null) {
            throw new AssertionError(key + " is not described");
        }
        return entry.value();
    }

    private static void alter(Admin admin, OpType operation, String key, String value) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(key, value), operation);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    private static void configs(Admin admin) throws Exception {
        same(config(admin, "retention.ms"), "3600000", "as created");
        alter(admin, OpType.SET, "retention.ms", "100000");
        until("the value set", () -> config(admin, "retention.ms").equals("100000"));
        alter(admin, OpType.DELETE, "retention.ms", null);
        until("the default", () -> !config(admin, "retention.ms").equals("100000"));
    }

    private static void append(Admin admin) throws Exception {
        alter(admin, OpType.APPEND, "cleanup.policy", "compact");
        until("the list appended to", () -> config(admin, "cleanup.policy").equals("delete,compact"));
        alter(admin, OpType.SUBTRACT, "cleanup.policy", "delete");
        until("the list subtracted from", () -> config(admin, "cleanup.policy").equals("compact"));
    }

    private static void deleteRecords(Admin admin) throws Exception {
        TopicPartition target = new TopicPartition(name, 0);
        long low = admin.deleteRecords(Map.of(target, RecordsToDelete.beforeOffset(10)))
                .lowWatermarks().get(target).get().lowWatermark();
        same(low, 10L, "low watermark");
        same(read(0, -1, 1).get(0).offset(), 10L, "first offset");
    }

    private static void logDirs(Admin admin) throws Exception {
        int broker = admin.describeCluster().nodes().get().iterator().next().id();
        long sizes = 0;
        for (LogDirDescription dir : admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker).values()) {
            var replica = dir.replicaInfos().get(new TopicPartition(name, 1));
            sizes += replica == null ? 0 : replica.size();
        }
        if (sizes == 0) {
            throw new AssertionError("no bytes of the partition in any directory");
        }
    }

    private static void idempotent() throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        List<Long> expected = new ArrayList<>();
        for (int n = 0; n < COUNT; n++) {
            records.add(new ProducerRecord<>(name, IDEMPOTENT, bytes(key(n)), bytes(value(n))));
            expected.add((long) n);
        }
        same(send(records, "enable.idempotence", "true", "batch.size", "2000", "linger.ms", "0"), expected, "offsets");
        compare(read(IDEMPOTENT, -1, COUNT), records);
    }
}
