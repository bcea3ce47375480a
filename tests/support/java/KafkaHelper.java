import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client's admin and producer for tests; the first program argument is the bootstrap list. */
public final class KafkaHelper {
    private static String bootstrap;
    private static Admin admin;
    /** Producers with an open transaction: closing one would abort it. */
    private static final List<KafkaProducer<byte[], byte[]>> OPEN = new ArrayList<>();

    private KafkaHelper() {}

    public static void main(String[] programArguments) throws Exception {
        bootstrap = programArguments[0];
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("default.api.timeout.ms", "60000");
        properties.put("request.timeout.ms", "20000");
        admin = Admin.create(properties);
        CommandLoop.run(KafkaHelper::run);
    }

    private static int run(List<String> a) throws Exception {
        switch (a.get(0)) {
            case "create-topic": createTopic(a); break;
            case "create-partitions":
                admin.createPartitions(Map.of(a.get(1), NewPartitions.increaseTo(Integer.parseInt(a.get(2)))))
                        .all().get();
                awaitLeaders(a.get(1), Integer.parseInt(a.get(2)));
                break;
            case "delete-topic": deleteTopic(a.get(1)); break;
            case "delete-records":
                admin.deleteRecords(Map.of(partition(a), RecordsToDelete.beforeOffset(Long.parseLong(a.get(3)))))
                        .all().get();
                break;
            case "offsets": offsets(partition(a)); break;
            case "leader": leader(partition(a)); break;
            case "produce": produce(a, null); break;
            case "transaction": produce(a, a.get(4)); break;
            case "finish-transactions": finish(a.get(1)); break;
            default: throw new IllegalArgumentException("unknown command " + a.get(0));
        }
        return 0;
    }

    private static TopicPartition partition(List<String> a) {
        return new TopicPartition(a.get(1), Integer.parseInt(a.get(2)));
    }

    /** create-topic TOPIC PARTITIONS REPLICATION [KEY=VALUE]... */
    private static void createTopic(List<String> a) throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String pair : a.subList(4, a.size())) {
            int equals = pair.indexOf('=');
            configs.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        int partitions = Integer.parseInt(a.get(2));
        NewTopic topic = new NewTopic(a.get(1), partitions, Short.parseShort(a.get(3))).configs(configs);
        admin.createTopics(List.of(topic)).all().get();
        awaitLeaders(a.get(1), partitions);
    }

    /** A topic's creation is answered before its leaders serve it; a produce then would have to be retried. */
    private static void awaitLeaders(String topic, int partitions) throws Exception {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (true) {
            try {
                Map<TopicPartition, OffsetSpec> all = new HashMap<>();
                for (int partition = 0; partition < partitions; partition++) {
                    all.put(new TopicPartition(topic, partition), OffsetSpec.latest());
                }
                admin.listOffsets(all).all().get();
                return;
            } catch (Exception e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(50);
            }
        }
    }

    private static void deleteTopic(String topic) throws Exception {
        admin.deleteTopics(List.of(topic)).all().get();
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (admin.listTopics().names().get().contains(topic)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(topic + " is still listed");
            }
            Thread.sleep(50);
        }
    }

    /** offsets TOPIC PARTITION prints "EARLIEST LATEST". */
    private static void offsets(TopicPartition partition) throws Exception {
        long earliest = offset(partition, OffsetSpec.earliest());
        System.out.print(earliest + " " + offset(partition, OffsetSpec.latest()));
    }

    private static long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    /** leader TOPIC PARTITION prints the node id. */
    private static void leader(TopicPartition partition) throws Exception {
        System.out.print(admin.describeTopics(List.of(partition.topic())).allTopicNames().get()
                .get(partition.topic()).partitions().get(partition.partition()).leader().id());
    }

    /**
     * produce TOPIC PARTITION FILE COMPRESSION [TIMESTAMP-MS] and transaction TOPIC PARTITION FILE commit|abort|open;
     * each line of the file is a value. Prints "FIRST LAST", the first and last offset, nothing for no records.
     */
    private static void produce(List<String> a, String end) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        p.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class.getName());
        p.put(ProducerConfig.LINGER_MS_CONFIG, "5");
        if (end == null) {
            p.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, a.get(4));
        } else {
            p.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "test-" + UUID.randomUUID());
            p.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, "600000");
        }
        Long timestamp = a.size() > 5 ? Long.valueOf(a.get(5)) : null;
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p);
        boolean keep = "open".equals(end);
        try {
            if (end != null) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String value : Files.readAllLines(Path.of(a.get(3)))) {
                sent.add(producer.send(new ProducerRecord<>(a.get(1), Integer.parseInt(a.get(2)), timestamp, null,
                        value.getBytes(StandardCharsets.UTF_8))));
            }
            producer.flush();
            if ("commit".equals(end)) {
                producer.commitTransaction();
            } else if ("abort".equals(end)) {
                producer.abortTransaction();
            }
            if (!sent.isEmpty()) {
                System.out.print(sent.get(0).get().offset() + " " + sent.get(sent.size() - 1).get().offset());
            }
            if (keep) {
                OPEN.add(producer);
            }
        } finally {
            if (!keep) {
                producer.close();
            }
        }
    }

    /** finish-transactions commit|abort ends all open ones. */
    private static void finish(String end) {
        for (KafkaProducer<byte[], byte[]> producer : OPEN) {
            if ("commit".equals(end)) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
            producer.close();
        }
        OPEN.clear();
    }
}
