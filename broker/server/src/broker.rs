//! The broker as a whole: opened on a directory, served on a listener, closed in order.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use broker_log::{
    LogDir, LogDirConfig, RecoveryReport,
    disk::{Disk, RealDisk},
};
use tokio::{
    sync::{Semaphore, watch},
    time::{MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use crate::{
    clock::{Clock, SystemClock},
    config::Config,
    connection, descriptors,
    error::Error,
    fetch_sessions::FetchSessions,
    group::Coordinator,
    housekeeping,
    listener::{self, Listeners},
    metadata_store::EmbeddedMetadata,
    metrics::Metrics,
    partition::Now,
    pool::{Failed, Pool},
    security::Security,
    space::Space,
    steady_clock::SteadyClock,
    topic_config::{Overrides, TopicConfig},
    topics::Topics,
};

/// Producer ids taken from the metadata at a time; those not given out when the broker stops are lost.
const PRODUCER_ID_BLOCK: u32 = 1000;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// As validated.
    pub(crate) config: Arc<Config>,
    /// Wall clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// The wall clock as far as it can be believed, for what cannot be taken back.
    pub(crate) steady_clock: SteadyClock,
    /// Topics, their logs, the metadata.
    pub(crate) topics: Arc<Topics>,
    /// Consumer groups.
    pub(crate) groups: Arc<Coordinator>,
    /// For work that blocks.
    pub(crate) pool: Pool,
    /// Bytes of requests that may still be read.
    pub(crate) request_budget: Arc<Semaphore>,
    /// Bytes of records that may still be put into answers.
    pub(crate) fetch_budget: Arc<Semaphore>,
    /// Bytes that clients with much under way may have for their buffers.
    pub(crate) large_buffers: Arc<Semaphore>,
    /// What clients fetch.
    pub(crate) fetch_sessions: FetchSessions,
    /// What keeps a part of the disk free.
    pub(crate) space: Space,
    /// Certificates, keys and users.
    pub(crate) security: Security,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// How many connections may be open.
    pub(crate) max_connections: usize,
    producer_ids: Mutex<std::ops::Range<i64>>,
    work: TaskTracker,
}

impl Shared {
    /// The time of an append.
    pub(crate) fn now(&self) -> Now {
        Now {
            wall_ms: self.clock.now_ms(),
            monotonic: self.clock.monotonic(),
        }
    }

    /// The time for what cannot be taken back, in milliseconds.
    pub(crate) fn steady_now_ms(&self) -> i64 {
        self.steady_clock.now_ms(&*self.clock)
    }

    /// A producer id that no other producer of this broker has or had.
    ///
    /// # Errors
    /// A block of ids could not be reserved in the metadata.
    pub(crate) async fn next_producer_id(self: &Arc<Self>) -> Result<i64, Error> {
        let take = |ids: &Mutex<std::ops::Range<i64>>| {
            ids.lock().unwrap_or_else(PoisonError::into_inner).next()
        };
        if let Some(id) = take(&self.producer_ids) {
            return Ok(id);
        }
        let this = Arc::clone(self);
        let reserved = self.pool.run(move || {
            let mut block = this.topics.reserve_producer_ids(PRODUCER_ID_BLOCK)?;
            let id = block.next().unwrap_or(block.start);
            // Two that come here together reserve a block each, and one block is lost.
            *this
                .producer_ids
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = block;
            Ok(id)
        });
        reserved.await.unwrap_or_else(|Failed| {
            Err(Error::Internal {
                operation: "reserving producer ids",
            })
        })
    }
}

/// Compaction leaves holes that mean nothing, but none at the log end; all others are lost records.
fn judge_holes(report: &mut RecoveryReport, topics: &Topics) {
    let topic = topics.get(report.partition.topic.as_str());
    if topic.is_some_and(|topic| topic.config.compacted) {
        let log_end = report.log_end_offset;
        report.holes.retain(|hole| hole.start >= log_end);
    }
    for hole in &report.holes {
        warn!(
            topic = %report.partition.topic, partition = report.partition.partition,
            from_offset = hole.start, to_offset = hole.end,
            "records that had been synced are gone; restore the segment files, or go on without them"
        );
    }
}

/// An open broker that does not serve yet. Dropped unserved it leaves its directory as a crash would.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    recovery: Vec<RecoveryReport>,
    warnings: Vec<String>,
    ready: watch::Sender<bool>,
}

impl Broker {
    /// Opens the data directory: locks it, recovers the logs, reads the metadata. Makes it if it is missing.
    ///
    /// Blocks on the disk, after an unclean stop for as long as the tails of the logs take to scan.
    ///
    /// # Errors
    /// A configuration with mistakes, a directory in use by another broker, damaged metadata, a disk that
    /// fails. A single log that cannot be opened is no error: its partition is off line.
    pub fn open(config: Config) -> Result<Self, Error> {
        Self::open_with(config, Arc::new(SystemClock), Arc::new(RealDisk))
    }

    /// As [`Self::open`], with a clock and a file system of the caller's; the latter for the logs only.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        config: Config,
        clock: Arc<dyn Clock>,
        disk: Arc<dyn Disk>,
    ) -> Result<Self, Error> {
        config
            .validate()
            .map_err(|problems| Error::Config { problems })?;
        let security = Security::open(&config)?;
        let log = TopicConfig::new(&config, &Overrides::new()).log_config();
        let files = LogDirConfig::default().max_open_files;
        let (plan, warning) = descriptors::plan(&config, files, descriptors::limit())?;
        let dir_config = LogDirConfig {
            log,
            disk,
            max_open_files: plan.files,
        };
        let metrics = Metrics::new();
        let begun = Instant::now();
        let mut opened = LogDir::open(&config.data_dir, dir_config)
            .map_err(|source| Error::logs(&config.data_dir, source))?;
        let store = EmbeddedMetadata::open(&config.data_dir, config.node_id)?;
        let mut recovery: Vec<RecoveryReport> = opened
            .partitions
            .iter()
            .map(|(_, report)| report.clone())
            .collect();
        metrics
            .state
            .recovery_seconds
            .set(begun.elapsed().as_secs_f64());
        let mut warnings = std::mem::take(&mut opened.warnings);
        warnings.extend(warning);
        let last_written_ms = opened.last_written_ms;
        let config = Arc::new(config);
        let topics = Topics::open(
            Arc::clone(&config),
            opened,
            Box::new(store),
            metrics.flush_seconds.clone(),
        )?;
        let topics = Arc::new(topics);
        for report in &mut recovery {
            judge_holes(report, &topics);
        }
        let budget = |size: bytesize::ByteSize| {
            let bytes = usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)))
        };
        let work = TaskTracker::new();
        let pool = Pool::new(work.clone());
        let groups = Coordinator::new(
            Arc::clone(&config),
            Arc::clone(&clock),
            Arc::clone(&topics),
            pool.clone(),
            work.clone(),
        );
        let shared = Shared {
            request_budget: budget(config.request_bytes_in_flight),
            fetch_budget: budget(config.fetch_bytes_in_flight),
            large_buffers: Arc::new(Semaphore::new(connection::LARGE_BUFFERS)),
            fetch_sessions: FetchSessions::new(config.max_fetch_sessions),
            pool,
            groups: Arc::new(groups),
            space: Space::new(config.min_free_bytes.as_u64()),
            security,
            metrics,
            max_connections: plan.connections,
            producer_ids: Mutex::new(0..0),
            steady_clock: SteadyClock::new(&*clock, last_written_ms),
            config,
            clock,
            topics,
            work,
        };
        Ok(Self {
            shared: Arc::new(shared),
            recovery,
            warnings,
            ready: watch::Sender::new(false),
        })
    }

    /// Turns true when every request is served: the logs are open, the groups are read. Closed when the broker is.
    pub fn readiness(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What recovery found, one report a partition.
    pub fn recovery(&self) -> &[RecoveryReport] {
        &self.recovery
    }

    /// What was odd in the data directory or with the limits of the system, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Identity of the cluster: made with the directory, kept in it.
    pub fn cluster_id(&self) -> String {
        self.shared.topics.cluster_id()
    }

    /// Opens the configured listeners, for [`Self::serve`]. Port 0 takes a free one.
    ///
    /// # Errors
    /// An address is not this machine's or taken.
    pub async fn bind(&self) -> Result<Listeners, Error> {
        Listeners::bind(&self.shared.config).await
    }

    /// Serves clients until `stop` is cancelled; then accepts no more, lets each connection finish the request
    /// in hand for at most `drain_timeout`, and closes the logs.
    ///
    /// Not cancel safe: dropped, it leaves the data directory as a crash would.
    ///
    /// # Errors
    /// The logs could not be flushed and closed: the next start recovers them. [`Error::AllOffline`] when failures of
    /// the disk have left no partition that can be used; then it stops by itself.
    pub async fn serve(
        self,
        mut listeners: Listeners,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let shared = self.shared;
        let config = Arc::clone(&shared.config);
        for report in self.recovery.iter().filter(|report| !report.clean) {
            info!(%report, "log recovered");
        }
        for warning in &self.warnings {
            warn!(warning, "something is odd");
        }
        shared.security.warn_at_start(&config);
        for (name, address) in listeners.addresses() {
            info!(%address, listener = name, data_dir = %config.data_dir.display(), "broker listens");
        }
        let admin = listeners.take_admin();
        if let Some(admin) = &admin {
            admin.health.opened(&shared);
        }
        let stop = stop.child_token();
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        housekeeping::spawn(&shared, &connections, &stop);
        let groups = Arc::clone(&shared.groups);
        let ready = self.ready;
        connections.spawn(async move {
            groups.load().await;
            if !ready.send_replace(groups.is_loaded()) && groups.is_loaded() {
                info!("broker is ready");
            }
        });
        connections.spawn(reloading(Arc::clone(&shared), stop.clone()));
        let serving = listener::run(&shared, listeners, &connections, &stop, &abort);
        let watching = async {
            let lost = housekeeping::disk_failed(&shared, &stop).await;
            stop.cancel();
            lost
        };
        let ((), lost) = tokio::join!(serving, watching);
        if let Some(partitions) = lost {
            error!(partitions, "every partition is off line, stopping");
        }
        if let Some(admin) = &admin {
            admin.health.draining();
        }
        shared.groups.stop();

        connections.close();
        if tokio::time::timeout(config.drain_timeout, connections.wait())
            .await
            .is_err()
        {
            warn!(
                connections = connections.len(),
                "connections did not end in time and are cut"
            );
            abort.cancel();
            connections.wait().await;
        }
        if let Some(admin) = &admin {
            admin.health.closing();
        }
        shared.work.close();
        shared.work.wait().await;
        let closed = tokio::task::spawn_blocking(move || close(&shared)).await;
        if let Some(partitions) = lost {
            let path = config.data_dir.clone();
            return Err(Error::AllOffline { path, partitions });
        }
        closed.unwrap_or_else(|_| {
            Err(Error::Internal {
                operation: "closing the logs",
            })
        })
    }
}

fn close(shared: &Shared) -> Result<(), Error> {
    let logs = shared.topics.close();
    if shared.config.flush_on_shutdown {
        let closed = shared.topics.dir().shutdown(logs, -1);
        closed.map_err(|source| Error::logs(&shared.config.data_dir, source))?;
        info!("broker stopped, logs flushed");
    } else {
        info!("broker stopped, logs not flushed");
    }
    Ok(())
}

/// Reads certificates and users again when their files have changed.
async fn reloading(shared: Arc<Shared>, stop: CancellationToken) {
    if !shared.security.has_files() {
        return;
    }
    let mut ticks = interval(shared.config.reload_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let this = Arc::clone(&shared);
        if shared.pool.run(move || this.security.refresh()).await == Err(Failed) {
            warn!("reading certificates and users again failed inside the broker");
        }
    }
}
