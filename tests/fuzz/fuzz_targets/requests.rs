//! Requests to a broker on a real directory, as its connections hand them on: the input is frames, each behind its
//! length in two bytes. Time is tokio's paused one, so long polls and joins end at once; one that does not end in
//! months of it hangs.
#![no_main]

use std::cell::RefCell;
use std::time::Duration;

use broker_protocol::frame;
use broker_protocol::messages::CreateTopicsRequest;
use broker_protocol::messages::create_topics::CreatableTopic;
use broker_server::fuzzing::{answer, load_groups};
use broker_server::{Broker, Config};
use bytes::{Bytes, BytesMut};
use bytesize::ByteSize;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Inputs for one broker; then a new one, so that what piles up in it does not slow the next.
const INPUTS: usize = 2_000;
/// Longer than any wait that the protocol can ask for, which is 2^31 ms.
const MONTHS: Duration = Duration::from_secs(60 * 24 * 3600);

struct Bench {
    runtime: Runtime,
    broker: Broker,
    _folder: TempDir,
    left: usize,
}

impl Bench {
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config {
            data_dir: folder.path().join("data"),
            listen: "127.0.0.1:0".to_owned(),
            max_partitions: 100,
            min_free_bytes: ByteSize(0),
            flush_on_shutdown: false,
            ..Config::default()
        };
        config.groups.initial_rebalance_delay = Duration::ZERO;
        config.groups.max_groups = 100;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let broker = {
            let _entered = runtime.enter();
            Broker::open(config).expect("an empty directory opens")
        };
        let bench = Self {
            runtime,
            broker,
            _folder: folder,
            left: INPUTS,
        };
        bench.runtime.block_on(load_groups(&bench.broker));
        bench.create("t");
        bench
    }

    fn create(&self, topic: &str) {
        let topic = CreatableTopic {
            name: topic.into(),
            num_partitions: 2,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest {
            topics: vec![topic],
            ..CreateTopicsRequest::default()
        };
        let mut out = BytesMut::new();
        frame::encode_request(&mut out, &request, 7, 1, None).expect("a request");
        self.requests(vec![out.freeze().slice(frame::PREFIX_LEN..)]);
    }

    /// Sends requests one behind the other. Each answer is whole, and to one of them, in their order.
    fn requests(&self, frames: Vec<Bytes>) {
        let ids = frames.iter().filter_map(|frame| frame.get(4..8));
        let mut asked = ids.map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter();
        let answering = async { timeout(MONTHS, answer(&self.broker, frames.clone())).await };
        let answered = self.runtime.block_on(answering);
        let answered = answered.unwrap_or_else(|_| panic!("no answer to {frames:?}"));
        let mut rest = &answered[..];
        while let Some((length, behind)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(i32::from_be_bytes(*length)).expect("a length");
            let whole = behind.split_at_checked(length).expect("a whole answer");
            let (id, _) = whole.0.split_first_chunk::<4>().expect("an id");
            assert!(
                asked.any(|asked| asked == *id),
                "in the answers to {frames:?}"
            );
            rest = whole.1;
        }
        assert!(rest.is_empty(), "behind the answers to {frames:?}");
    }
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    BENCH.with_borrow_mut(|bench| {
        if bench.as_ref().is_none_or(|bench| bench.left == 0) {
            *bench = None;
            *bench = Some(Bench::open());
        }
        let Some(bench) = bench else { return };
        bench.left -= 1;
        let mut rest = input;
        let mut frames = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
            let (frame, behind) = behind.split_at(length);
            rest = behind;
            if frame.len() >= frame::MIN_REQUEST_LEN {
                frames.push(Bytes::copy_from_slice(frame));
            }
        }
        bench.requests(frames);
    });
});
