//! `logferry broker`

use std::path::PathBuf;

use broker_server::{Broker, Config, Listeners};
use clap::Args;
use loader_pipeline::error::Exit;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Outcome};
use crate::supervisor::Supervisor;
use crate::{config, shutdown};

/// Run a single-node broker that Kafka clients can use.
#[derive(Debug, Args)]
pub(super) struct BrokerCommand {
    /// Configuration file with a `[broker]` table.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Directory of the logs, instead of `broker.data_dir`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Address to listen on, instead of `broker.listen`.
    #[arg(long)]
    listen: Option<String>,
}

impl BrokerCommand {
    pub(super) async fn run(self) -> Outcome {
        let mut config = config::read(self.config.as_deref())?.broker;
        if let Some(data_dir) = self.data_dir {
            config.data_dir = data_dir;
        }
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Err(problems) = config.validate() {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(problems.join("; ")));
        }
        let stop = shutdown::on_signal()?;
        serve(config, &Supervisor::from_environment()?, stop).await?;
        Ok(None)
    }
}

/// Runs the broker until `stop`, and tells the supervisor when it is ready and when it stops.
async fn serve(
    config: Config,
    supervisor: &Supervisor,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let listeners = Listeners::bind(&config).await.map_err(|error| {
        Failure::new(Exit::Unavailable, error).try_this(
            "choose another address with --listen, in [[broker.listeners]], or in admin_listen",
        )
    })?;
    let broker = Broker::open(config).map_err(broker_failure)?;
    let mut readiness = broker.readiness();
    let telling = async {
        tokio::select! {
            () = stop.cancelled() => {}
            ready = readiness.wait_for(|ready| *ready) => if ready.is_ok() {
                supervisor.tell("READY=1");
            }
        }
        stop.cancelled().await;
        supervisor.tell("STOPPING=1");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = broker.serve(listeners, stop.clone()) => served.map_err(broker_failure),
        () = telling => Ok(()),
    }
}

/// A broker's error as a failure of the command.
pub(super) fn broker_failure(error: broker_server::Error) -> Failure {
    if matches!(error, broker_server::Error::Security { .. }) {
        return Failure::new(Exit::Usage, error).try_this(
            "correct the file, or the key under [broker.tls] or [broker.sasl] that names it",
        );
    }
    match error.kind() {
        broker_server::ErrorKind::Caller => Failure::new(Exit::Usage, error),
        broker_server::ErrorKind::Fatal | broker_server::ErrorKind::Retriable => {
            Failure::new(Exit::Failed, error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UnixDatagram;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn systemd_hears_when_the_broker_is_ready_and_when_it_stops() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::at(path.as_os_str()).unwrap();
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            data_dir: folder.path().join("data"),
            ..Config::default()
        };
        let stop = CancellationToken::new();
        let serving = serve(config, &supervisor, stop.clone());
        let listening = async {
            let mut bytes = [0; 64];
            let ready = socket.recv(&mut bytes).await.unwrap();
            assert_eq!(&bytes[..ready], b"READY=1");
            stop.cancel();
            let stopping = socket.recv(&mut bytes).await.unwrap();
            assert_eq!(&bytes[..stopping], b"STOPPING=1");
        };
        let both = async { tokio::join!(serving, listening) };
        let (served, ()) = timeout(Duration::from_secs(20), both).await.unwrap();
        assert!(served.is_ok());
    }
}
