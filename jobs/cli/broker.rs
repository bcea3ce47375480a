//! `logferry broker`

use std::path::PathBuf;

use broker_server::{Broker, Listeners};
use clap::Args;
use loader_pipeline::error::Exit;

use crate::failure::{Failure, Outcome};
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
        let listeners = Listeners::bind(&config).await.map_err(|error| {
            Failure::new(Exit::Unavailable, error)
                .try_this("choose another address with --listen, or in [[broker.listeners]]")
        })?;
        let broker = Broker::open(config).map_err(broker_failure)?;
        broker
            .serve(listeners, stop)
            .await
            .map_err(broker_failure)?;
        Ok(None)
    }
}

/// A broker's error as a failure of the command.
pub(super) fn broker_failure(error: broker_server::Error) -> Failure {
    if matches!(error, broker_server::Error::Security { .. }) {
        return Failure::new(Exit::Usage, error).try_this(
            "correct the file, or the key under [broker.tls] or [broker.sasl] that names it",
        );
    }
    Failure::new(Exit::Failed, error)
}
