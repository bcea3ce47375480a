//! The command line: one file a subcommand.

mod bench;
mod broker;
mod cat;
mod dataset;
mod demo;
mod load;
mod out;
mod produce;
mod prune;
mod status;
mod topics;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use broker_client::{Client, ClientConfig};
use clap::{Args, Parser, Subcommand};

use crate::config::{self, Security};
use crate::failure::{Failure, Outcome};
use crate::telemetry;

/// A log broker that speaks Kafka's protocol, and a loader that publishes topics to HDFS exactly once.
#[derive(Debug, Parser)]
#[command(
    name = "logferry",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Broker(broker::BrokerCommand),
    Load(Box<load::LoadCommand>),
    Verify(verify::Verify),
    Status(status::StatusCommand),
    Prune(prune::Prune),
    Produce(produce::Produce),
    Cat(cat::Cat),
    Topics(topics::Topics),
    Bench(bench::Bench),
}

/// Runs the command named on the command line.
///
/// # Panics
/// Never knowingly.
#[must_use]
#[expect(clippy::print_stderr, reason = "errors go to the operator")]
pub fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    loader_pipeline::failpoint::arm();
    let cli = Cli::parse();
    raise_open_file_limit();
    if matches!(cli.command, Command::Load(_) | Command::Bench(_)) {
        share_one_arena();
    }
    telemetry::start(if matches!(cli.command, Command::Broker(_)) {
        "info"
    } else {
        "warn"
    });
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime\ncaused by: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(run(cli.command));
    // A call that a hung disk or mount blocks must not keep the process.
    runtime.shutdown_background();
    match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(exit)) => ExitCode::from(exit.code()),
        Err(failure) => {
            eprint!("{}", failure.report());
            ExitCode::from(failure.exit().code())
        }
    }
}

/// Keeps the memory of a load near what is in use (I8): by default glibc gives each thread an arena of its own, and
/// what one thread freed is of no use to the others. A load of a thousand columns took nine times as much.
#[expect(unsafe_code, reason = "no library offers it in safe code")]
fn share_one_arena() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only sets a number of the allocator's, before any other thread was started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Lets the process open as many files as it may: a broker has three a segment, a task one a directory.
fn raise_open_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused only if it is no less than it may be already.
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}

async fn run(command: Command) -> Outcome {
    match command {
        Command::Demo(command) => command.run().await,
        Command::Broker(command) => command.run().await,
        Command::Load(command) => command.run().await,
        Command::Verify(command) => command.run().await,
        Command::Status(command) => command.run().await,
        Command::Prune(command) => command.run().await,
        Command::Produce(command) => command.run().await,
        Command::Cat(command) => command.run().await,
        Command::Topics(command) => command.run().await,
        Command::Bench(command) => command.run().await,
    }
}

/// Which cluster a command talks to.
#[derive(Debug, Args)]
struct Brokers {
    /// Bootstrap brokers, `host:port`, separated by commas.
    #[arg(
        long,
        short,
        env = "LOGFERRY_BROKERS",
        default_value = "127.0.0.1:9092",
        global = true
    )]
    brokers: String,
    /// File with `[tls]` and `[sasl]` tables, for brokers that want them.
    #[arg(
        long,
        env = "LOGFERRY_CLIENT_CONFIG",
        value_name = "FILE",
        global = true
    )]
    client_config: Option<PathBuf>,
}

impl Brokers {
    async fn connect(&self) -> Result<Client, Failure> {
        let Security { tls, sasl } = config::read_client(self.client_config.as_deref())?;
        let config = ClientConfig {
            tls,
            sasl,
            ..ClientConfig::new(&self.brokers)
        };
        Ok(Client::connect(config).await?)
    }
}
