//! Open files: what the system allows, and how many connections fit beside the files that are kept open.

use crate::{config::Config, error::Error};

/// Descriptors for everything but connections of clients and files of logs: listeners, metrics and health, the
/// runtime, standard streams, files that are open for a moment (flushes, checkpoints, compaction).
const OTHERS: u64 = 128;
/// Fewer connections than this are no use to anybody.
const FEWEST_CONNECTIONS: u64 = 4;

/// What fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Connections that may be open.
    pub(crate) connections: usize,
    /// Files that the logs keep open.
    pub(crate) files: usize,
}

/// How many files this process may have open.
pub(crate) fn limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

/// How many it has open, if the system tells.
pub(crate) fn open() -> Option<usize> {
    // The directory itself is among them.
    Some(
        std::fs::read_dir("/proc/self/fd")
            .ok()?
            .count()
            .saturating_sub(1),
    )
}

/// Divides `limit` between connections and the logs' files, which would like to keep `files` open and can do with
/// half of that. A warning comes along if `max_connections` do not fit.
///
/// # Errors
/// [`Error::Descriptors`]: not even a few connections fit.
pub(crate) fn plan(
    config: &Config,
    files: usize,
    limit: u64,
) -> Result<(Plan, Option<String>), Error> {
    let wanted = config.max_connections as u64;
    let needed = OTHERS + FEWEST_CONNECTIONS + FEWEST_FILES;
    if limit < needed {
        return Err(Error::Descriptors { limit, needed });
    }
    let room = limit - OTHERS;
    // Connections go first down to the fewest files, which only makes reads slower.
    let most_files = room.saturating_sub(wanted).max(room / 4).max(FEWEST_FILES);
    let files = (files as u64).min(most_files);
    let connections = wanted.min(room - files);
    let warning = (connections < wanted).then(|| {
        format!(
            "max_connections is {wanted}, and the limit of {limit} open files leaves {connections} beside {files} \
             for logs and {OTHERS} for others; raise the limit to {} (LimitNOFILE, ulimit -n) or lower \
             max_connections",
            wanted + files + OTHERS
        )
    });
    let plan = Plan {
        connections: usize::try_from(connections).unwrap_or(usize::MAX),
        files: usize::try_from(files).unwrap_or(usize::MAX),
    };
    Ok((plan, warning))
}

/// Files without which the logs open and close all the time.
const FEWEST_FILES: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(max_connections: usize, limit: u64) -> (Plan, Option<String>) {
        let config = Config {
            max_connections,
            ..Config::default()
        };
        plan(&config, usize::try_from(limit / 2).unwrap(), limit).unwrap()
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let (plan, warning) = planned(1000, 65_536);
        assert_eq!((plan.connections, plan.files), (1000, 32_768));
        assert_eq!(warning, None);
    }

    #[test]
    fn files_give_way_to_connections_first() {
        let (plan, warning) = planned(1000, 1600);
        assert_eq!((plan.connections, plan.files), (1000, 472));
        assert_eq!(warning, None);
    }

    #[test]
    fn connections_that_do_not_fit_are_warned_of_with_figures() {
        let (plan, warning) = planned(5000, 1024);
        assert_eq!((plan.connections, plan.files), (672, 224));
        let warning = warning.unwrap();
        for part in ["5000", "1024", "672", "224", "raise the limit to 5352"] {
            assert!(warning.contains(part), "{part} in {warning}");
        }
    }

    #[test]
    fn a_limit_under_which_nothing_works_is_refused() {
        let refused = plan(&Config::default(), 32, 100).unwrap_err();
        assert!(matches!(
            refused,
            Error::Descriptors {
                limit: 100,
                needed: 148
            }
        ));
        let all = |(plan, _): (Plan, Option<String>)| plan.connections + plan.files + 128;
        for limit in 148..3000 {
            assert!(all(planned(1000, limit)) as u64 <= limit, "{limit}");
        }
    }
}
