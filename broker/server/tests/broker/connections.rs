//! How many connections there may be: from one address, and beside the files of the logs.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, sync::Arc};

use broker_protocol::messages::ApiVersionsRequest;
use broker_server::Broker;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    net::{TcpSocket, TcpStream},
    process::{Child, ChildStdout, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    operators::{get, sample},
    support::{PATIENCE, TestBroker, Wire, batch, config, values_of},
};

/// Whether the broker answers on a connection; else it has closed it.
async fn is_served(wire: &mut Wire) -> bool {
    let request = ApiVersionsRequest::default();
    wire.try_send(&request, 0).await && wire.try_frame().await
}

#[tokio::test]
async fn one_address_has_its_limit_and_others_have_theirs() {
    let broker = TestBroker::start_with(|config| {
        config.max_connections_per_address = Some(2);
    })
    .await;
    let mut first = broker.connect().await;
    let mut second = broker.connect().await;
    assert!(is_served(&mut first).await && is_served(&mut second).await);
    assert!(!is_served(&mut broker.connect().await).await);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let stream = socket.connect(broker.address).await.unwrap();
    assert!(is_served(&mut Wire::new(stream)).await);
    drop(first);
    let again = async { while !is_served(&mut broker.connect().await).await {} };
    timeout(PATIENCE, again)
        .await
        .expect("a free place in time");
    assert!(is_served(&mut second).await);
}

/// Connections that are tried.
const TRIED: usize = 5000;
/// What the broker may open, and how many connections that leaves: see `descriptors` in the broker.
const FILES: usize = 1024;
const PLACES: usize = 672;
/// Names the child's directory.
const DIRECTORY: &str = "LOGFERRY_TEST_BROKER_DIRECTORY";
/// Before the child's addresses.
const ADDRESSES: &str = "addresses ";

/// A broker in a process of its own, under a limit of open files; it ends with its standard input.
struct Limited {
    process: Child,
    /// Open as long as it may print.
    _output: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Limited {
    async fn start(folder: &std::path::Path) -> Self {
        let limited = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
        let mut process = Command::new("sh")
            .args(["-c", &limited])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture"])
            .arg("connections::broker_under_a_limit")
            .env(DIRECTORY, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let addresses = async {
            loop {
                let line = lines.next_line().await.unwrap();
                let line = line.expect("the addresses of the broker");
                if let Some((_, addresses)) = line.split_once(ADDRESSES) {
                    return addresses.to_owned();
                }
            }
        };
        let addresses = timeout(PATIENCE, addresses)
            .await
            .expect("a broker in time");
        let (address, admin) = addresses.split_once(' ').unwrap();
        Self {
            process,
            _output: lines,
            address: address.parse().unwrap(),
            admin: admin.parse().unwrap(),
        }
    }
}

#[test]
#[ignore = "is the broker of connections_beyond_what_the_descriptors_allow_are_turned_away, which starts it"]
fn broker_under_a_limit() {
    let folder = std::env::var_os(DIRECTORY).expect("only the test that needs this broker runs it");
    let config = config(&PathBuf::from(folder), |config| {
        config.max_connections = TRIED;
        config.admin_listen = Some("127.0.0.1:0".to_owned());
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let broker = Broker::open(config).unwrap();
        let warnings = broker.warnings().join("\n");
        assert!(warnings.contains("max_connections is 5000"), "{warnings}");
        let listeners = broker.bind().await.unwrap();
        let admin = listeners.admin_addr().unwrap();
        println!("{ADDRESSES}{} {admin}", listeners.local_addr().unwrap());
        let stop = CancellationToken::new();
        let serving = broker.serve(listeners, stop.clone());
        let ending = async {
            let mut nothing = Vec::new();
            tokio::io::stdin().read_to_end(&mut nothing).await.unwrap();
            stop.cancel();
        };
        let (served, ()) = tokio::join!(serving, ending);
        served.unwrap();
    });
    // The parent is gone or about to go: nobody waits for what still reads.
    runtime.shutdown_background();
}

#[tokio::test]
async fn connections_beyond_what_the_descriptors_allow_are_turned_away() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut broker = Limited::start(folder.path()).await;
    let mut witness = TestBroker::connect_to(broker.address).await;
    witness.create_topic("orders", 1).await;
    witness.append("orders", 0, batch(&["a"])).await;
    let mut taken = Vec::new();
    for _ in 0..TRIED {
        let stream = TcpStream::connect(broker.address).await.unwrap();
        let mut wire = Wire::new(stream);
        if is_served(&mut wire).await {
            taken.push(wire);
        }
    }
    assert_eq!(taken.len(), PLACES - 1);
    // The others are served, and there are descriptors for more logs.
    witness.append("orders", 0, batch(&["b"])).await;
    witness.create_topic("more", 200).await;
    for partition in 0..200 {
        witness.append("more", partition, batch(&["c"])).await;
    }
    let fetched = values_of(&witness.fetch("orders", 0, 0).await);
    assert_eq!(fetched, [(0, "a".to_owned()), (1, "b".to_owned())]);
    let (status, metrics) = get(broker.admin, "/metrics").await;
    assert_eq!(status, 200);
    let rejected = "broker_connections_rejected_total{reason=\"max_connections\"}";
    let turned_away = TRIED - (PLACES - 1);
    assert_eq!(
        sample(&metrics, rejected).to_string(),
        turned_away.to_string()
    );
    assert!(sample(&metrics, "process_open_fds") <= sample(&metrics, "process_max_fds"));
    assert_eq!(
        sample(&metrics, "process_max_fds").to_string(),
        FILES.to_string()
    );
    // A place that is given back can be had.
    taken.truncate(PLACES / 2);
    let again =
        async { while !is_served(&mut TestBroker::connect_to(broker.address).await).await {} };
    timeout(PATIENCE, again)
        .await
        .expect("a free place in time");
    drop((taken, witness, broker.process.stdin.take()));
    let ended = timeout(PATIENCE, broker.process.wait()).await;
    assert!(ended.expect("the end in time").unwrap().success());
}
