//! A broker on an address and a directory: `serve 127.0.0.1:9092 /tmp/data`. Ends at Ctrl-C.

use std::{error::Error, path::PathBuf};

use broker_server::{Broker, Config};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut config = Config::default();
    if let Some(listen) = arguments.next() {
        config.listen = listen;
    }
    if let Some(data_dir) = arguments.next() {
        config.data_dir = PathBuf::from(data_dir);
    }
    let broker = tokio::task::spawn_blocking(move || Broker::open(config)).await??;
    let listener = broker.bind().await?;
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    let signal = async move {
        let waited = tokio::signal::ctrl_c().await;
        on_signal.cancel();
        waited
    };
    let (served, waited) = tokio::join!(broker.serve(listener, stop), signal);
    waited?;
    Ok(served?)
}
