"""kafka-python: the protocol in Python."""

import threading

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import AlterConfigOp, ConfigFilterType, ConfigResource, ConfigResourceType
from kafka.errors import TopicAlreadyExistsError

from smoke import *

REPORT = Report("kafka-python")
COMMON = {"bootstrap_servers": BROKERS, "request_timeout_ms": 12000}


def send(records, **settings):
    """Produces `(partition, key, value, headers, timestamp)`; returns the offsets."""
    sender = KafkaProducer(**{**COMMON, "linger_ms": 5, "max_block_ms": 12000, "delivery_timeout_ms": 14000, **settings})
    try:
        futures = [
            sender.send(NAME, value_, key_, headers_, partition, timestamp)
            for partition, key_, value_, headers_, timestamp in records
        ]
        return [future.get(15).offset for future in futures]
    finally:
        sender.close(5)


def consumer(group=None, **settings):
    return KafkaConsumer(
        **COMMON, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        heartbeat_interval_ms=500, session_timeout_ms=10000, **settings,
    )


def read(partition, offset, count):
    reader = consumer()
    target = TopicPartition(NAME, partition)
    reader.assign([target])
    if offset is None:
        reader.seek_to_beginning(target)
    else:
        reader.seek(target, offset)
    found = []

    def poll():
        for records_ in reader.poll(500).values():
            found.extend(records_)
        return len(found) >= count

    try:
        until(poll, f"{count} records")
    finally:
        reader.close()
    return found


def codec(name):
    partition = CODECS.index(name)
    records_ = [(partition, key(n), value(n), headers(n), None) for n in range(COUNT)]
    send(records_, compression_type=None if name == "none" else name, enable_idempotence=False)
    for n, record in enumerate(read(partition, None, COUNT)):
        same((record.key, record.value, list(record.headers)), (key(n), value(n), headers(n)), n)


def records():
    shapes = [
        (None, b"no key", []),
        (b"tombstone", None, []),
        (b"", b"", []),
        (b"twice", b"x", [("h", b"1"), ("h", b"2"), ("empty", b"")]),
    ]
    send([(RECORDS, *shape, BASE_MS + n) for n, shape in enumerate(shapes)])
    for n, record in enumerate(read(RECORDS, None, len(shapes))):
        same((record.key, record.value, list(record.headers)), shapes[n], n)
        same(record.timestamp, BASE_MS + n, "timestamp")


def assign():
    reader, target = consumer(), TopicPartition(NAME, 0)
    try:
        same((reader.beginning_offsets([target])[target], reader.end_offsets([target])[target]), (0, COUNT), "ends")
    finally:
        reader.close()
    record = read(0, 25, 1)[0]
    same((record.offset, record.key), (25, key(25)), "record at 25")


def timestamps():
    send([(TIMESTAMPS, None, b"x", None, BASE_MS + n * 1000) for n in range(20)])
    reader, target = consumer(), TopicPartition(NAME, TIMESTAMPS)
    try:
        for time_ms, offset in [(BASE_MS + 10_500, 11), (0, 0), (BASE_MS + 60_000, None)]:
            found = reader.offsets_for_times({target: time_ms})[target]
            same(found and found.offset, offset, time_ms)
    finally:
        reader.close()


def group():
    sender = KafkaProducer(**COMMON)
    for future in [sender.send(GROUP_TOPIC, b"%d" % n, partition=n % 4) for n in range(FIRST)]:
        future.get(15)
    members = [consumer(GROUP) for _ in range(2)]
    found, shares, ended = set(), [0, 0], threading.Event()

    def read(index):
        # Each in a thread of its own: a member that waits for the other to join must not keep it from joining.
        members[index].subscribe([GROUP_TOPIC])
        while not ended.is_set():
            for records_ in members[index].poll(100).values():
                found.update(record.value for record in records_)
            shares[index] = len(members[index].assignment())

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    try:
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(found) == FIRST and shares == [2, 2], "all records and both shares", 120)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        for member in members:
            member.commit({p: OffsetAndMetadata(FIRST // 4, "note", -1) for p in member.assignment()})
    finally:
        for member in members:
            member.close()
    for future in [sender.send(GROUP_TOPIC, b"later", partition=n) for n in range(SECOND)]:
        future.get(15)
    sender.close(5)
    resume()


def resume():
    member = consumer(GROUP)
    found = []

    def poll():
        for records_ in member.poll(500).values():
            found.extend(record.value for record in records_)
        return len(found) >= SECOND

    try:
        member.subscribe([GROUP_TOPIC])
        until(poll, "records after the committed offsets")
        same(found, [b"later"] * SECOND, "records after the committed offsets")
        committed = member.committed(TopicPartition(GROUP_TOPIC, 0), metadata=True)
        same((committed.offset, committed.metadata), (FIRST // 4, "note"), "committed")
    finally:
        member.close()


def with_admin(run):
    def checked():
        admin = KafkaAdminClient(**COMMON)
        try:
            return run(admin)
        finally:
            admin.close()

    return checked


def group_names(admin):
    return [group_["group_id"] for group_ in admin.list_groups()]


@with_admin
def group_admin(admin):
    assert GROUP in group_names(admin), "group not listed"
    same(str(admin.describe_groups([GROUP])[GROUP]["group_state"]).lower(), "empty", "state")
    admin.alter_group_offsets(GROUP, {TopicPartition(GROUP_TOPIC, 0): OffsetAndMetadata(3, "", -1)})
    admin.delete_group_offsets(GROUP, [TopicPartition(GROUP_TOPIC, 1)])
    found = {p.partition: o.offset for p, o in admin.list_group_offsets(GROUP)[GROUP].items() if o.offset >= 0}
    same(found, {0: 3, 2: FIRST // 4, 3: FIRST // 4}, "offsets")
    admin.delete_groups([GROUP])
    assert GROUP not in group_names(admin), "group still listed"


@with_admin
def topics(admin):
    new = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "3600000"}}
           for name in (MADE_TOPIC, GONE_TOPIC)}
    admin.create_topics(new)
    try:
        admin.create_topics(new)
        raise AssertionError("made twice")
    except TopicAlreadyExistsError:
        pass
    admin.create_partitions({MADE_TOPIC: 3})
    until(lambda: len(admin.describe_topics([MADE_TOPIC])[0]["partitions"]) == 3, "partitions")
    admin.delete_topics([GONE_TOPIC])
    until(lambda: GONE_TOPIC not in admin.list_topics(), "deletion")


@with_admin
def cluster(admin):
    described = admin.describe_cluster()
    same([node["broker_id"] for node in described["brokers"]], [described["controller_id"]], "nodes")
    assert described["cluster_id"], "no cluster id"


def config(admin, name):
    resource = ConfigResource(ConfigResourceType.TOPIC, MADE_TOPIC, {name: None})
    described = admin.describe_configs([resource], config_filter=ConfigFilterType.ALL)
    (entries,) = [found for resources in described.values() for found in resources.values()]
    return entries[name]["value"]


def alter(admin, name, operation, value_):
    change = {name: (operation, value_)}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, MADE_TOPIC, change)])


@with_admin
def configs(admin):
    same(config(admin, "retention.ms"), "3600000", "as created")
    alter(admin, "retention.ms", AlterConfigOp.SET, "100000")
    until(lambda: config(admin, "retention.ms") == "100000", "the value set")
    alter(admin, "retention.ms", AlterConfigOp.DELETE, None)
    until(lambda: config(admin, "retention.ms") != "100000", "the default")


@with_admin
def append(admin):
    alter(admin, "cleanup.policy", AlterConfigOp.APPEND, "compact")
    until(lambda: config(admin, "cleanup.policy") == "delete,compact", "the list appended to")
    alter(admin, "cleanup.policy", AlterConfigOp.SUBTRACT, "delete")
    until(lambda: config(admin, "cleanup.policy") == "compact", "the list subtracted from")


@with_admin
def delete_records(admin):
    deleted = admin.delete_records({TopicPartition(NAME, 0): 10})
    same([result["low_watermark"] for result in deleted.values()], [10], "low watermark")
    same(read(0, None, 1)[0].offset, 10, "first offset")


@with_admin
def log_dirs(admin):
    text = str(admin.describe_log_dirs([NAME]))
    assert NAME in text, f"no partition of the topic in {text}"


def idempotent():
    records_ = [(IDEMPOTENT, key(n), value(n), [], None) for n in range(COUNT)]
    offsets = send(records_, enable_idempotence=True, batch_size=2000, linger_ms=0)
    same(offsets, list(range(COUNT)), "offsets")
    same([record.key for record in read(IDEMPOTENT, None, COUNT)], [r[1] for r in records_], "keys")


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
