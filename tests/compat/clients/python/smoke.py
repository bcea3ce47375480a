"""What the smokes in Python share: the shape of the test data, and one line a check.

Arguments: BROKERS NAME. The topic NAME exists with 8 partitions (one a codec, then records, timestamps,
idempotent), the topic NAME-group with 4; the smoke makes NAME-made and NAME-gone itself.
"""

import sys
import time

BROKERS, NAME = sys.argv[1], sys.argv[2]
GROUP_TOPIC, MADE_TOPIC, GONE_TOPIC = NAME + "-group", NAME + "-made", NAME + "-gone"
GROUP = NAME + "-members"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS, TIMESTAMPS, IDEMPOTENT = 5, 6, 7
COUNT = 50
# Of the group: records before the second generation, and in it.
FIRST, SECOND = 40, 4
BASE_MS = 1_700_000_000_000


class NotAvailable(Exception):
    """The client has no such thing."""


def key(n):
    return f"key-{n}".encode()


def value(n):
    return f"value-{n} ".encode() * 20


def headers(n):
    return [("n", str(n).encode()), ("codec", b"any")]


def same(found, expected, what):
    assert found == expected, f"{what}: {found!r} instead of {expected!r}"


def until(condition, what, seconds=15):
    """Calls `condition` until it gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.01)
    raise TimeoutError(f"{what} did not come within {seconds} s")


class Report:
    def __init__(self, client):
        self.client = client

    def ok(self, capability, detail=""):
        self.line("ok", capability, detail)

    def failed(self, capability, error):
        status = "n/a" if isinstance(error, NotAvailable) else "ERR"
        text = str(error) if status == "n/a" else f"{type(error).__name__}: {error}"
        self.line(status, capability, text)

    def line(self, status, capability, text):
        print(status, self.client, capability, " ".join(str(text or "").split())[:400], flush=True)

    def check(self, capability, run, *arguments):
        try:
            detail = run(*arguments)
        except Exception as error:  # whatever a client raises is the finding
            self.failed(capability, error)
        else:
            self.ok(capability, detail)

    async def check_async(self, capability, run, *arguments):
        try:
            detail = await run(*arguments)
        except Exception as error:
            self.failed(capability, error)
        else:
            self.ok(capability, detail)
