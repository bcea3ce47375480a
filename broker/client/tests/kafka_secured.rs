//! The client against an Apache Kafka that wants TLS, certificates, names and passwords.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, outside of #[test] functions"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use broker_client::protocol::TopicName;
use broker_client::{
    Client, ClientConfig, Error, FetchOptions, Mechanism, ProducerConfig, ProducerRecord,
    SaslConfig, Secret, TlsConfig, TlsFault,
};
use test_support::{Authority, Identity, Kafka, KafkaOptions, free_ports, random_topic};

const USER: &str = "alice";
const PASSWORD: &str = "alice-secret";

/// One broker with a listener of each protocol; `SSL` requires certificates of clients.
struct Secured {
    kafka: Kafka,
    ports: Vec<u16>,
    authority: Authority,
    client: Identity,
    _folder: tempfile::TempDir,
}

const PROTOCOLS: [&str; 3] = ["SSL", "SASL_SSL", "SASL_PLAINTEXT"];

impl Secured {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ours").unwrap();
        let host = authority.host("kafka", &["127.0.0.1"]).unwrap();
        let store = folder.path().join("kafka.keystore.pem");
        let key = fs::read_to_string(&host.key_file).unwrap();
        let certificate = fs::read_to_string(&host.certificate_file).unwrap();
        fs::write(&store, key + &certificate).unwrap();
        let ports = free_ports(PROTOCOLS.len()).unwrap();
        let scram = |mechanism| format!("{mechanism}=[name={USER},password={PASSWORD}]");
        let kafka = Kafka::start(&KafkaOptions {
            properties: properties(&store, &authority.ca_file()),
            listeners: PROTOCOLS.into_iter().zip(ports.iter().copied()).collect(),
            format: vec![
                "--add-scram".to_owned(),
                scram("SCRAM-SHA-256"),
                "--add-scram".to_owned(),
                scram("SCRAM-SHA-512"),
            ],
            heap_mb: 384,
            ..KafkaOptions::default()
        });
        Self {
            kafka: kafka.unwrap(),
            ports,
            client: authority.client("client").unwrap(),
            authority,
            _folder: folder,
        }
    }

    fn config(&self, protocol: &str) -> ClientConfig {
        let mut listeners = PROTOCOLS.iter().zip(&self.ports);
        let (_, port) = listeners.find(|(name, _)| **name == protocol).unwrap();
        let address = format!("127.0.0.1:{port}");
        ClientConfig {
            tls: protocol.ends_with("SSL").then(|| self.trusting()),
            connect_timeout: Duration::from_secs(5),
            retry_deadline: Duration::from_secs(20),
            ..ClientConfig::new(&address)
        }
    }

    fn trusting(&self) -> TlsConfig {
        TlsConfig {
            ca_file: Some(self.authority.ca_file()),
            ..TlsConfig::default()
        }
    }

    fn with_certificate(&self) -> TlsConfig {
        TlsConfig {
            certificate_file: Some(self.client.certificate_file.clone()),
            key_file: Some(self.client.key_file.clone()),
            ..self.trusting()
        }
    }
}

fn properties(store: &Path, ca_file: &Path) -> Vec<(String, String)> {
    let jaas = "org.apache.kafka.common.security";
    let scram = format!("{jaas}.scram.ScramLoginModule required;");
    let plain = format!("{jaas}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";");
    let mut properties = vec![
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", store.display().to_string()),
        ("ssl.truststore.type", "PEM".to_owned()),
        ("ssl.truststore.location", ca_file.display().to_string()),
        ("listener.name.ssl.ssl.client.auth", "required".to_owned()),
        (
            "sasl.enabled.mechanisms",
            "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512".to_owned(),
        ),
        (
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms",
            "SCRAM-SHA-512".to_owned(),
        ),
    ];
    for (key, module) in [
        ("listener.name.sasl_ssl.plain.sasl.jaas.config", &plain),
        (
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config",
            &scram,
        ),
        (
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config",
            &scram,
        ),
        (
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config",
            &scram,
        ),
    ] {
        properties.push((key, module.clone()));
    }
    let owned = properties
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    owned.collect()
}

fn login(mechanism: Mechanism, password: &str) -> Option<SaslConfig> {
    Some(SaslConfig {
        mechanism,
        username: USER.to_owned(),
        password: Some(Secret::new(password)),
        password_file: None,
        password_env: None,
    })
}

async fn refused(config: ClientConfig) -> Error {
    match Client::connect(config).await {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

async fn round_trip(config: ClientConfig) {
    let client = Client::connect(config).await.unwrap();
    let topic = TopicName::new(random_topic("secured")).unwrap();
    client.create_topic(&topic, 1, 1, &[]).await.unwrap();
    let producer = client.producer(ProducerConfig::default()).unwrap();
    let value = "x".repeat(300_000);
    let record = ProducerRecord::new(topic.clone(), value.clone());
    producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
    let mut range = client.fetch_range(topic, 0, 0..1, FetchOptions::default());
    let batch = range.next().await.unwrap().unwrap();
    let records = batch.batch.records(1 << 20).unwrap();
    let read = records.iter().next().unwrap().unwrap();
    assert_eq!(read.value.unwrap(), value.as_bytes());
}

/// One test, since a broker of its own is some seconds and some hundred megabytes.
#[tokio::test(flavor = "multi_thread")]
async fn apache_kafka_lets_the_client_in_and_its_refusals_are_understood() {
    let secured = tokio::task::spawn_blocking(Secured::start).await.unwrap();

    // --- let in
    for (protocol, mechanism) in [
        ("SASL_SSL", Mechanism::Plain),
        ("SASL_SSL", Mechanism::ScramSha256),
        ("SASL_SSL", Mechanism::ScramSha512),
        ("SASL_PLAINTEXT", Mechanism::ScramSha512),
    ] {
        let mut config = secured.config(protocol);
        config.sasl = login(mechanism, PASSWORD);
        round_trip(config).await;
    }
    let mut config = secured.config("SSL");
    config.tls = Some(secured.with_certificate());
    round_trip(config).await;

    // --- not let in
    for mechanism in Mechanism::ALL {
        let mut config = secured.config("SASL_SSL");
        config.sasl = login(mechanism, "guess");
        let error = refused(config).await;
        assert!(matches!(error, Error::NotAuthenticated { .. }), "{error:?}");
    }
    let mut config = secured.config("SASL_PLAINTEXT");
    config.sasl = login(Mechanism::Plain, PASSWORD);
    let error = refused(config).await.to_string();
    assert!(
        error.ends_with("does not offer PLAIN (offered: SCRAM-SHA-512)"),
        "{error}"
    );
    let error = refused(secured.config("SASL_SSL")).await;
    assert!(
        matches!(error, Error::Unwelcome { .. }),
        "no SASL: {error:?}"
    );

    let error = refused(secured.config("SSL")).await;
    let fault = |error: &Error| {
        if let Error::Tls { fault, .. } = error {
            Some(*fault)
        } else {
            None
        }
    };
    assert_eq!(
        fault(&error),
        Some(TlsFault::ClientCertificate),
        "{error:?}"
    );
    let stranger = Authority::new(secured.kafka.folder(), "stranger").unwrap();
    let mut config = secured.config("SASL_SSL");
    config.tls.as_mut().unwrap().ca_file = Some(stranger.ca_file());
    let error = refused(config).await;
    assert_eq!(fault(&error), Some(TlsFault::Untrusted), "{error:?}");
    let mut config = secured.config("SASL_SSL");
    config.bootstrap = vec![config.bootstrap[0].replace("127.0.0.1", "localhost")];
    let error = refused(config).await;
    assert_eq!(fault(&error), Some(TlsFault::WrongName), "{error:?}");

    // --- the wrong kind of listener
    let mut config = ClientConfig::new(secured.kafka.bootstrap());
    config.connect_timeout = Duration::from_secs(2);
    config.tls = Some(secured.trusting());
    let error = refused(config).await;
    assert_eq!(fault(&error), Some(TlsFault::Closed), "{error:?}");
    let mut config = secured.config("SSL");
    config.tls = None;
    config.connect_timeout = Duration::from_secs(2);
    let error = refused(config).await;
    assert!(
        matches!(error, Error::WantsTls { .. } | Error::Unwelcome { .. }),
        "{error:?}"
    );
}
