//! Repeating a call: pauses that double, with jitter, until a deadline. The one loop that decides
//! by [`Error::kind`].

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use broker_protocol::ids::TopicName;
use tokio::time::Instant;
use tracing::debug;

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind, Result};

/// When to try again, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    pub(crate) deadline: Duration,
    pub(crate) unknown_topic_grace: Duration,
}

impl RetryPolicy {
    pub(crate) fn of(config: &ClientConfig) -> Self {
        Self {
            first: config.retry_backoff,
            max: config.retry_backoff_max,
            deadline: config.retry_deadline,
            unknown_topic_grace: config.unknown_topic_grace.min(config.retry_deadline),
        }
    }

    /// The pauses between tries, without end.
    pub(crate) fn delays(&self) -> Delays {
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(self.max.max(self.first))
            .with_jitter()
            .without_max_times();
        Delays {
            builder,
            backoff: builder.build(),
            max: self.max,
        }
    }
}

/// Iterator over pauses that can start over after a success.
#[derive(Debug)]
pub(crate) struct Delays {
    builder: ExponentialBuilder,
    backoff: ExponentialBackoff,
    max: Duration,
}

impl Delays {
    pub(crate) fn next(&mut self) -> Duration {
        self.backoff.next().unwrap_or(self.max)
    }

    pub(crate) fn reset(&mut self) {
        self.backoff = self.builder.build();
    }
}

/// What an operation is about, for the error of its deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) operation: &'static str,
    pub(crate) topic: Option<&'a TopicName>,
    pub(crate) partition: Option<i32>,
    pub(crate) offset: Option<i64>,
}

impl Subject<'_> {
    /// The error at the deadline: a partition without leader as it is, anything else as the cause
    /// of a timeout.
    pub(crate) fn timed_out(&self, after: Duration, last: Option<Error>) -> Error {
        match last {
            Some(error @ (Error::NoLeader { .. } | Error::Timeout { .. })) => error,
            last => Error::Timeout {
                operation: self.operation,
                topic: self.topic.cloned(),
                partition: self.partition,
                offset: self.offset,
                after,
                source: last.map(Box::new),
            },
        }
    }
}

/// Whether an error met `elapsed` after the first try is worth another one.
pub(crate) fn worth_retrying(policy: &RetryPolicy, error: &Error, elapsed: Duration) -> bool {
    match error.kind() {
        ErrorKind::Retriable => elapsed < policy.deadline,
        ErrorKind::Caller => error.may_lag() && elapsed < policy.unknown_topic_grace,
        ErrorKind::Fatal => false,
    }
}

/// Calls `attempt` until it succeeds, fails for good, or the deadline has passed. `attempt` is
/// dropped at the deadline, so it must be cancel safe; so is this function.
pub(crate) async fn retry<T, F>(
    policy: &RetryPolicy,
    subject: Subject<'_>,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let started = Instant::now();
    let end = started + policy.deadline;
    let mut delays = policy.delays();
    let mut last = None;
    loop {
        let Ok(outcome) = tokio::time::timeout_at(end, attempt()).await else {
            return Err(subject.timed_out(policy.deadline, last));
        };
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let delay = delays.next();
        if !worth_retrying(policy, &error, started.elapsed()) {
            return Err(match error.kind() {
                ErrorKind::Retriable => subject.timed_out(policy.deadline, Some(error)),
                ErrorKind::Fatal | ErrorKind::Caller => error,
            });
        }
        debug!(operation = subject.operation, %error, ?delay, "call failed, retrying");
        last = Some(error);
        tokio::time::sleep_until(end.min(Instant::now() + delay)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;

    const SUBJECT: Subject<'static> = Subject {
        operation: "Test",
        topic: None,
        partition: None,
        offset: None,
    };

    fn policy() -> RetryPolicy {
        RetryPolicy {
            first: Duration::from_millis(100),
            max: Duration::from_secs(1),
            deadline: Duration::from_secs(10),
            unknown_topic_grace: Duration::from_secs(2),
        }
    }

    fn disconnected() -> Error {
        Error::Disconnected {
            address: Arc::from("a:1"),
            source: None,
        }
    }

    #[test]
    fn delays_double_with_jitter_up_to_the_maximum() {
        let mut delays = policy().delays();
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let expected = Duration::from_millis(expected);
            let delay = delays.next();
            assert!(
                delay >= expected && delay <= expected * 2,
                "{delay:?} for {expected:?}"
            );
        }
        delays.reset();
        assert!(delays.next() <= Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_error_carries_the_last_cause() {
        let tries = Cell::new(0);
        let started = Instant::now();
        let error = retry(&policy(), SUBJECT, async || -> Result<()> {
            tries.set(tries.get() + 1);
            Err(disconnected())
        })
        .await
        .unwrap_err();
        assert!(
            matches!(error.root(), Error::Disconnected { .. }),
            "{error}"
        );
        assert!(
            matches!(
                error,
                Error::Timeout {
                    operation: "Test",
                    ..
                }
            ),
            "{error}"
        );
        assert!(tries.get() >= 6, "{}", tries.get());
        assert!(started.elapsed() <= Duration::from_secs(11));
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_that_hangs_is_cut_at_the_deadline() {
        let started = Instant::now();
        let never = std::future::pending::<Result<()>>;
        let error = retry(&policy(), SUBJECT, never).await.unwrap_err();
        assert!(
            matches!(error, Error::Timeout { source: None, .. }),
            "{error}"
        );
        assert_eq!(started.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_topic_is_doubted_only_for_a_short_time() {
        let started = Instant::now();
        let topic = TopicName::new("t").unwrap();
        let error = retry(&policy(), SUBJECT, async || -> Result<()> {
            Err(Error::UnknownTopic {
                topic: topic.clone(),
            })
        })
        .await
        .unwrap_err();
        assert!(matches!(error, Error::UnknownTopic { .. }), "{error}");
        assert!(started.elapsed() >= Duration::from_secs(2));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn fatal_error_is_not_retried() {
        let tries = Cell::new(0);
        let error = retry(&policy(), SUBJECT, async || -> Result<()> {
            tries.set(tries.get() + 1);
            Err(Error::ResponseTooLarge {
                address: Arc::from("a:1"),
                size: 2,
                cap: 1,
            })
        })
        .await
        .unwrap_err();
        assert!(matches!(error, Error::ResponseTooLarge { .. }));
        assert_eq!(tries.get(), 1);
    }
}
