//! Fail-points: named places of the commit protocol where a test kills, stops or fails the process.
//!
//! Without the feature `failpoints` (releases) they compile to nothing. With it they obey the
//! environment variable `FAILPOINTS` of the crate `fail`, e.g.
//! `FAILPOINTS='publish.before=return(kill)'`; actions: `kill` (SIGKILL to ourselves), `stop` (SIGSTOP),
//! anything else panics.

/// Marks a step of the commit protocol by name.
#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint {
    ($name:expr) => {
        let _ = $name;
    };
}

/// Marks a step of the commit protocol by name.
#[cfg(feature = "failpoints")]
macro_rules! failpoint {
    ($name:expr) => {
        let _ = fail::eval($name, |action| {
            $crate::failpoint::act($name, action.as_deref());
        });
    };
}
pub(crate) use failpoint;

/// Does what a test asked for at a fail-point.
#[cfg(feature = "failpoints")]
#[expect(
    clippy::panic,
    reason = "a misspelt fail-point action must not pass as a test"
)]
pub(crate) fn act(name: &str, action: Option<&str>) {
    use rustix::process::{Signal, getpid, kill_process};
    let signal = match action {
        Some("kill") => Signal::KILL,
        Some("stop") => Signal::STOP,
        other => panic!("fail-point {name}: unknown action {other:?}"),
    };
    if let Err(error) = kill_process(getpid(), signal) {
        panic!("fail-point {name}: cannot signal ourselves: {error}");
    }
}

/// Arms the fail-points from the environment; call once at start.
#[cfg(feature = "failpoints")]
pub fn arm() {
    // The scenario lives as long as the process.
    std::mem::forget(fail::FailScenario::setup());
}
