//! TLS and SASL: our client and others against the broker, and those who should not get in.

mod client;
mod kcat;
mod wire;

use std::{path::Path, sync::Arc, time::Duration};

use broker_client::{
    Client, ClientConfig, Error, FetchOptions, ProducerConfig, ProducerRecord, Secret,
    protocol::TopicName,
};
use broker_protocol::sasl::Mechanism;
use broker_server::{Config, ListenerConfig, SaslConfig, SecurityProtocol, SystemClock, TlsConfig};
use tempfile::TempDir;
use test_support::{Authority, Identity};

use crate::support::TestBroker;

/// What the broker of a test is called.
const HOSTS: &[&str] = &["localhost", "127.0.0.1"];
const USER: &str = "alice";
const PASSWORD: &str = "a password, with = and ,";

/// An authority and what it signed, in a folder of their own.
struct Pki {
    folder: TempDir,
    authority: Authority,
    host: Identity,
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ours").unwrap();
        Self {
            host: authority.host("broker", HOSTS).unwrap(),
            authority,
            folder,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn tls(&self) -> TlsConfig {
        tls(&self.host)
    }

    fn trusting(&self) -> Option<broker_client::TlsConfig> {
        Some(broker_client::TlsConfig {
            ca_file: Some(self.authority.ca_file()),
            ..broker_client::TlsConfig::default()
        })
    }
}

fn tls(host: &Identity) -> TlsConfig {
    TlsConfig {
        certificate_file: host.certificate_file.clone(),
        key_file: host.key_file.clone(),
        ..TlsConfig::default()
    }
}

/// All mechanisms, for one user.
fn sasl() -> SaslConfig {
    SaslConfig {
        mechanisms: Mechanism::ALL.to_vec(),
        users: [(USER.to_owned(), Secret::new(PASSWORD))].into(),
        failure_delay: Duration::from_millis(1),
        ..SaslConfig::default()
    }
}

fn listener(protocol: SecurityProtocol) -> ListenerConfig {
    ListenerConfig {
        name: protocol.name().to_owned(),
        listen: "127.0.0.1:0".to_owned(),
        advertised: None,
        protocol,
    }
}

/// A listener of each protocol; the clock is the machine's, since other clients stamp by it.
async fn broker_with(pki: &Pki, edit: impl FnOnce(&mut Config)) -> TestBroker {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let edit = |config: &mut Config| {
        config.listeners = vec![
            listener(SecurityProtocol::Ssl),
            listener(SecurityProtocol::SaslPlaintext),
            listener(SecurityProtocol::SaslSsl),
        ];
        config.tls = Some(pki.tls());
        config.sasl = Some(sasl());
        edit(config);
    };
    TestBroker::start_clocked(folder, edit, Arc::new(SystemClock)).await
}

fn login(mechanism: Mechanism, username: &str, password: &str) -> broker_client::SaslConfig {
    broker_client::SaslConfig {
        mechanism,
        username: username.to_owned(),
        password: Some(Secret::new(password)),
        password_file: None,
        password_env: None,
    }
}

/// Settings of a client that gives up soon.
fn client_of(broker: &TestBroker, name: &str) -> ClientConfig {
    ClientConfig {
        connect_timeout: Duration::from_secs(10),
        retry_deadline: Duration::from_secs(10),
        ..ClientConfig::new(&broker.listener(name).to_string())
    }
}

async fn refused(config: ClientConfig) -> Error {
    match Client::connect(config).await {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

/// Produces a record to a topic of this name and reads it back.
async fn round_trip(config: ClientConfig, topic: &str) -> Client {
    let client = Client::connect(config).await.unwrap();
    let topic = TopicName::new(topic).unwrap();
    client.create_topic(&topic, 1, 1, &[]).await.unwrap();
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let value = "x".repeat(300_000);
    let record = ProducerRecord::new(topic.clone(), value.clone());
    let delivery = producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, 0);
    let mut range = client.fetch_range(topic, 0, 0..1, FetchOptions::default());
    let batch = range.next().await.unwrap().unwrap();
    let records = batch.batch.records(1 << 20).unwrap();
    let read = records.iter().next().unwrap().unwrap();
    assert_eq!(read.value.unwrap(), value.as_bytes());
    client
}
