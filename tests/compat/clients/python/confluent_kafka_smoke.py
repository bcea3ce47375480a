"""confluent-kafka: librdkafka from a wheel."""

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    OFFSET_BEGINNING,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from smoke import *

REPORT = Report("confluent-kafka")
QUIET = {"log_level": 0}
ADMIN = AdminClient({"bootstrap.servers": BROKERS, **QUIET})
WAIT = {"request_timeout": 12}


def results(futures):
    return {key: future.result(15) for key, future in futures.items()}


def producer(**settings):
    return Producer({"bootstrap.servers": BROKERS, "message.timeout.ms": 12000, **QUIET, **settings})


def consumer(group=None, **settings):
    common = {"bootstrap.servers": BROKERS, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({**common, "group.id": group or NAME + "-none", **QUIET, **settings})


def send(records, **settings):
    """Produces `(partition, key, value, headers, timestamp)`; returns the offsets."""
    outcomes = []
    sender = producer(**settings)
    for partition, key_, value_, headers_, timestamp in records:
        sender.produce(
            NAME, value_, key_, partition, headers=headers_, timestamp=timestamp,
            on_delivery=lambda error, message: outcomes.append((error, message)),
        )
    same(sender.flush(14), 0, "records not delivered")
    for error, _ in outcomes:
        if error is not None:
            raise KafkaException(error)
    return [message.offset() for _, message in outcomes]


def read(partition, offset, count):
    reader = consumer()
    reader.assign([TopicPartition(NAME, partition, offset)])
    found = []

    def poll():
        message = reader.poll(0.5)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        return len(found) >= count

    try:
        until(poll, f"{count} records")
    finally:
        reader.close()
    return found


def codec(name):
    partition = CODECS.index(name)
    records = [(partition, key(n), value(n), headers(n), 0) for n in range(COUNT)]
    send(records, **{"compression.type": name})
    for n, message in enumerate(read(partition, OFFSET_BEGINNING, COUNT)):
        same((message.key(), message.value(), message.headers()), (key(n), value(n), headers(n)), n)


def records():
    shapes = [
        (None, b"no key", None),
        (b"tombstone", None, None),
        (b"", b"", []),
        (b"twice", b"x", [("h", b"1"), ("h", b"2"), ("none", None), ("empty", b"")]),
    ]
    send([(RECORDS, *shape, BASE_MS + n) for n, shape in enumerate(shapes)])
    for n, message in enumerate(read(RECORDS, OFFSET_BEGINNING, len(shapes))):
        key_, value_, headers_ = shapes[n]
        same((message.key(), message.value(), message.headers()), (key_, value_, headers_ or None), n)
        same(message.timestamp()[1], BASE_MS + n, "timestamp")


def assign():
    reader = consumer()
    try:
        same(reader.get_watermark_offsets(TopicPartition(NAME, 0), 12), (0, COUNT), "watermarks")
    finally:
        reader.close()
    message = read(0, 25, 1)[0]
    same((message.offset(), message.key()), (25, key(25)), "record at 25")


def timestamps():
    send([(TIMESTAMPS, None, b"x", None, BASE_MS + n * 1000) for n in range(20)])
    reader = consumer()
    try:
        for time_ms, offset in [(BASE_MS + 10_500, 11), (0, 0), (BASE_MS + 60_000, -1)]:
            found = reader.offsets_for_times([TopicPartition(NAME, TIMESTAMPS, time_ms)], 12)[0]
            if found.error:
                raise KafkaException(found.error)
            # librdkafka says "end" (-1) where there is no such record.
            same(found.offset, offset, time_ms)
    finally:
        reader.close()
    partition = TopicPartition(NAME, TIMESTAMPS)
    listed = results(ADMIN.list_offsets({partition: OffsetSpec.for_timestamp(BASE_MS + 3_000)}, **WAIT))
    same(listed[partition].offset, 3, "list_offsets")


def group():
    sender = producer()
    for n in range(FIRST):
        sender.produce(GROUP_TOPIC, b"%d" % n, partition=n % 4)
    same(sender.flush(14), 0, "records not delivered")
    members = [consumer(GROUP) for _ in range(2)]
    try:
        for member in members:
            member.subscribe([GROUP_TOPIC])
        found = []

        def poll():
            for member in members:
                message = member.poll(0.1)
                if message is not None and not message.error():
                    found.append(message.value())
            shares = [len(member.assignment()) for member in members]
            return len(set(found)) == FIRST and shares == [2, 2]

        until(poll, f"all records and both shares (found {len(found)})", 120)
        for member in members:
            positions = member.position(member.assignment())
            member.commit(
                offsets=[TopicPartition(p.topic, p.partition, FIRST // 4, "note") for p in positions],
                asynchronous=False,
            )
    finally:
        for member in members:
            member.close()
    resume(sender)


def resume(sender):
    for n in range(SECOND):
        sender.produce(GROUP_TOPIC, b"later", partition=n)
    same(sender.flush(14), 0, "records not delivered")
    member = consumer(GROUP)
    found = []

    def poll():
        message = member.poll(0.5)
        if message is not None and not message.error():
            found.append(message.value())
        return len(found) >= SECOND

    try:
        member.subscribe([GROUP_TOPIC])
        until(poll, "records after the committed offsets")
        same(found, [b"later"] * SECOND, "records after the committed offsets")
        committed = member.committed([TopicPartition(GROUP_TOPIC, 0)], 12)[0]
        same((committed.offset, committed.metadata), (FIRST // 4, "note"), "committed")
    finally:
        member.close()


def group_admin():
    listed = ADMIN.list_consumer_groups(**WAIT).result(15)
    assert GROUP in [group.group_id for group in listed.valid], "group not listed"
    described = results(ADMIN.describe_consumer_groups([GROUP], **WAIT))[GROUP]
    same(described.state.name, "EMPTY", "state")
    target = [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(GROUP_TOPIC, 0, 3)])]
    results(ADMIN.alter_consumer_group_offsets(target, **WAIT))
    query = [ConsumerGroupTopicPartitions(GROUP)]
    offsets = results(ADMIN.list_consumer_group_offsets(query, **WAIT))[GROUP]
    found = {p.partition: p.offset for p in offsets.topic_partitions}
    same(found, {0: 3, 1: FIRST // 4, 2: FIRST // 4, 3: FIRST // 4}, "offsets")
    results(ADMIN.delete_consumer_groups([GROUP], **WAIT))
    listed = ADMIN.list_consumer_groups(**WAIT).result(15)
    assert GROUP not in [group.group_id for group in listed.valid], "group still listed"


def topics():
    new = [NewTopic(name, 2, 1, config={"retention.ms": "3600000"}) for name in (MADE_TOPIC, GONE_TOPIC)]
    results(ADMIN.create_topics(new, **WAIT))
    try:
        results(ADMIN.create_topics(new, **WAIT))
        raise AssertionError("made twice")
    except KafkaException as error:
        same(error.args[0].code(), KafkaError.TOPIC_ALREADY_EXISTS, "second creation")
    results(ADMIN.create_partitions([NewPartitions(MADE_TOPIC, 3)], **WAIT))
    until(lambda: len(ADMIN.list_topics(MADE_TOPIC, 12).topics[MADE_TOPIC].partitions) == 3, "partitions")
    described = results(ADMIN.describe_topics(TopicCollection([MADE_TOPIC]), **WAIT))
    same(len(described[MADE_TOPIC].partitions), 3, "partitions described")
    results(ADMIN.delete_topics([GONE_TOPIC], **WAIT))
    until(lambda: GONE_TOPIC not in ADMIN.list_topics(timeout=12).topics, "deletion")


def cluster():
    described = ADMIN.describe_cluster(**WAIT).result(15)
    same(len(described.nodes), 1, "nodes")
    same(described.controller.id, described.nodes[0].id, "controller")
    assert described.cluster_id, "no cluster id"


def config(name):
    resource = ConfigResource(ResourceType.TOPIC, MADE_TOPIC)
    return results(ADMIN.describe_configs([resource], **WAIT))[resource][name].value


def alter(name, value_, operation):
    entry = ConfigEntry(name, value_, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, MADE_TOPIC, incremental_configs=[entry])
    results(ADMIN.incremental_alter_configs([resource], **WAIT))


def configs():
    same(config("retention.ms"), "3600000", "as created")
    alter("retention.ms", "100000", AlterConfigOpType.SET)
    until(lambda: config("retention.ms") == "100000", "the value set")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    until(lambda: config("retention.ms") != "100000", "the default")


def append():
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    until(lambda: config("cleanup.policy") == "delete,compact", "the list appended to")
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    until(lambda: config("cleanup.policy") == "compact", "the list subtracted from")


def delete_records():
    partition = TopicPartition(NAME, 0, 10)
    deleted = results(ADMIN.delete_records([partition], **WAIT))
    same([result.low_watermark for result in deleted.values()], [10], "low watermark")
    same(read(0, OFFSET_BEGINNING, 1)[0].offset(), 10, "first offset")


def log_dirs():
    raise NotAvailable("not in the client")


def idempotent():
    records = [(IDEMPOTENT, key(n), value(n), None, 0) for n in range(COUNT)]
    settings = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 5}
    same(send(records, **settings), list(range(COUNT)), "offsets")
    same([m.key() for m in read(IDEMPOTENT, OFFSET_BEGINNING, COUNT)], [r[1] for r in records], "keys")


for name in CODECS:
    REPORT.check(name, codec, name)
REPORT.check("records", records)
REPORT.check("assign", assign)
REPORT.check("timestamps", timestamps)
REPORT.check("group", group)
REPORT.check("group-admin", group_admin)
REPORT.check("topics", topics)
REPORT.check("cluster", cluster)
REPORT.check("configs", configs)
REPORT.check("append", append)
REPORT.check("delete-records", delete_records)
REPORT.check("log-dirs", log_dirs)
REPORT.check("idempotent", idempotent)
