"""aiokafka: asyncio."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code
from aiokafka.structs import OffsetAndMetadata

from smoke import *

REPORT = Report("aiokafka")
COMMON = {"bootstrap_servers": BROKERS, "request_timeout_ms": 12000}
PATIENCE = 120


async def send(records, topic=NAME, **settings):
    """Produces `(partition, key, value, headers, timestamp)`; returns the offsets."""
    sender = AIOKafkaProducer(**COMMON, **settings)
    await sender.start()
    try:
        futures = [
            await sender.send(topic, value_, key_, partition, timestamp, headers_)
            for partition, key_, value_, headers_, timestamp in records
        ]
        return [(await future).offset for future in futures]
    finally:
        await sender.stop()


async def consumer(group=None, *topics_):
    reader = AIOKafkaConsumer(
        *topics_, **COMMON, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        heartbeat_interval_ms=500, metadata_max_age_ms=5000,
    )
    await reader.start()
    return reader


async def gather(readers, done, what, seconds=15):
    """All records of the readers, until `done` says so of them."""
    found, deadline = [], time.monotonic() + seconds
    while not done(found):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds} s: {len(found)} did")
        for reader in readers:
            for records_ in (await reader.getmany(timeout_ms=100)).values():
                found.extend(records_)
    return found


async def read(partition, offset, count):
    reader = await consumer()
    try:
        target = TopicPartition(NAME, partition)
        reader.assign([target])
        if offset is None:
            await reader.seek_to_beginning(target)
        else:
            reader.seek(target, offset)
        return await gather([reader], lambda found: len(found) >= count, f"{count} records")
    finally:
        await reader.stop()


async def codec(name):
    partition = CODECS.index(name)
    records_ = [(partition, key(n), value(n), headers(n), None) for n in range(COUNT)]
    await send(records_, compression_type=None if name == "none" else name, linger_ms=5)
    for n, record in enumerate(await read(partition, None, COUNT)):
        same((record.key, record.value, list(record.headers)), (key(n), value(n), headers(n)), n)


async def records():
    shapes = [
        (None, b"no key", []),
        (b"tombstone", None, []),
        (b"", b"", []),
        (b"twice", b"x", [("h", b"1"), ("h", b"2"), ("empty", b"")]),
    ]
    await send([(RECORDS, *shape, BASE_MS + n) for n, shape in enumerate(shapes)])
    for n, record in enumerate(await read(RECORDS, None, len(shapes))):
        same((record.key, record.value, list(record.headers)), shapes[n], n)
        same(record.timestamp, BASE_MS + n, "timestamp")


async def assign():
    reader, target = await consumer(), TopicPartition(NAME, 0)
    try:
        ends = ((await reader.beginning_offsets([target]))[target], (await reader.end_offsets([target]))[target])
        same(ends, (0, COUNT), "ends")
    finally:
        await reader.stop()
    record = (await read(0, 25, 1))[0]
    same((record.offset, record.key), (25, key(25)), "record at 25")


async def timestamps():
    await send([(TIMESTAMPS, None, b"x", None, BASE_MS + n * 1000) for n in range(20)])
    reader, target = await consumer(), TopicPartition(NAME, TIMESTAMPS)
    try:
        for time_ms, offset in [(BASE_MS + 10_500, 11), (0, 0), (BASE_MS + 60_000, None)]:
            found = (await reader.offsets_for_times({target: time_ms}))[target]
            same(found and found.offset, offset, time_ms)
    finally:
        await reader.stop()


async def group():
    await send([(n % 4, None, b"%d" % n, None, None) for n in range(FIRST)], GROUP_TOPIC)
    members = []
    try:
        for _ in range(2):
            members.append(await consumer(GROUP, GROUP_TOPIC))

        def done(found):
            shares = [len(member.assignment()) for member in members]
            return len({record.value for record in found}) == FIRST and shares == [2, 2]

        await gather(members, done, "all records and both shares", 25)
        for member in members:
            await member.commit({p: OffsetAndMetadata(FIRST // 4, "note") for p in member.assignment()})
    finally:
        for member in members:
            await member.stop()
    await send([(n, None, b"later", None, None) for n in range(SECOND)], GROUP_TOPIC)
    member = await consumer(GROUP, GROUP_TOPIC)
    try:
        found = await gather([member], lambda found: len(found) >= SECOND, "records after the committed offsets")
        same([record.value for record in found], [b"later"] * SECOND, "records after the committed offsets")
        same(await member.committed(TopicPartition(GROUP_TOPIC, 0)), FIRST // 4, "committed")
    finally:
        await member.stop()


def with_admin(run):
    async def checked():
        admin = AIOKafkaAdminClient(**COMMON)
        await admin.start()
        try:
            return await run(admin)
        finally:
            await admin.close()

    return checked


def refuse(response):
    """aiokafka hands out answers as they came: errors are for the caller to look at."""
    for error in response.topic_errors if hasattr(response, "topic_errors") else response.topic_error_codes:
        if error[1] != 0:
            raise for_code(error[1])(str(error))


async def until_async(condition, what, seconds=15):
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds} s")


@with_admin
async def group_admin(admin):
    listed = [name for name, _ in await admin.list_consumer_groups()]
    assert GROUP in listed, "group not listed"
    (answer,) = await admin.describe_consumer_groups([GROUP])
    code, name, state = answer.groups[0][:3]
    same((code, name, state), (0, GROUP, "Empty"), "description")
    offsets = await admin.list_consumer_group_offsets(GROUP)
    found = {p.partition: (o.offset, o.metadata) for p, o in offsets.items()}
    same(found, {p: (FIRST // 4, "note") for p in range(4)}, "offsets")
    return "list, describe, offsets; the client cannot alter or delete"


@with_admin
async def topics(admin):
    new = [NewTopic(name, 2, 1, topic_configs={"retention.ms": "3600000"}) for name in (MADE_TOPIC, GONE_TOPIC)]
    refuse(await admin.create_topics(new))
    try:
        refuse(await admin.create_topics(new))
        raise AssertionError("made twice")
    except TopicAlreadyExistsError:
        pass
    refuse(await admin.create_partitions({MADE_TOPIC: NewPartitions(3)}))

    async def grown():
        return len((await admin.describe_topics([MADE_TOPIC]))[0]["partitions"]) == 3

    async def gone():
        return GONE_TOPIC not in await admin.list_topics()

    await until_async(grown, "partitions")
    refuse(await admin.delete_topics([GONE_TOPIC]))
    await until_async(gone, "deletion")


@with_admin
async def cluster(admin):
    described = await admin.describe_cluster()
    same([node["node_id"] for node in described["brokers"]], [described["controller_id"]], "nodes")
    assert described["cluster_id"], "no cluster id"


async def config(admin, name):
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, MADE_TOPIC)])
    code, message, _, _, entries = answers[0].resources[0]
    if code:
        raise for_code(code)(message)
    return {entry[0]: entry[1] for entry in entries}[name]


@with_admin
async def configs(admin):
    same(await config(admin, "retention.ms"), "3600000", "as created")
    change = ConfigResource(ConfigResourceType.TOPIC, MADE_TOPIC, {"retention.ms": "100000"})
    answers = await admin.alter_configs([change])
    code, message = answers[0].resources[0][:2]
    if code:
        raise for_code(code)(message)

    async def changed():
        return await config(admin, "retention.ms") == "100000"

    await until_async(changed, "the value set")
    return "AlterConfigs, the older call"


async def append():
    raise NotAvailable("the client has no incremental changes")


@with_admin
async def delete_records(admin):
    deleted = await admin.delete_records({TopicPartition(NAME, 0): RecordsToDelete(before_offset=10)})
    same(list(deleted.values()), [10], "low watermark")
    same((await read(0, None, 1))[0].offset, 10, "first offset")


async def log_dirs():
    raise NotAvailable("not in the client")


async def idempotent():
    records_ = [(IDEMPOTENT, key(n), value(n), None, None) for n in range(COUNT)]
    offsets = await send(records_, enable_idempotence=True, max_batch_size=2000)
    same(offsets, list(range(COUNT)), "offsets")
    same([record.key for record in await read(IDEMPOTENT, None, COUNT)], [r[1] for r in records_], "keys")


async def main():
    async def bounded(capability, run, *arguments):
        await REPORT.check_async(capability, lambda: asyncio.wait_for(run(*arguments), PATIENCE))

    for name in CODECS:
        await bounded(name, codec, name)
    await bounded("records", records)
    await bounded("assign", assign)
    await bounded("timestamps", timestamps)
    await bounded("group", group)
    await bounded("group-admin", group_admin)
    await bounded("topics", topics)
    await bounded("cluster", cluster)
    await bounded("configs", configs)
    await bounded("append", append)
    await bounded("delete-records", delete_records)
    await bounded("log-dirs", log_dirs)
    await bounded("idempotent", idempotent)


asyncio.run(main())
