//! The clients' programs: fetched and built once into the cache, then a command to run.

use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::Python;
use test_support::jars::KAFKA_CLIENTS;

/// A client and its program in `clients/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    Kcat,
    ConfluentKafka,
    Java,
    Franz,
    Sarama,
    Kafkajs,
    KafkaPython,
    Aiokafka,
}

pub(crate) const CLIENTS: [Client; 8] = [
    Client::Kcat,
    Client::ConfluentKafka,
    Client::Java,
    Client::Franz,
    Client::Sarama,
    Client::Kafkajs,
    Client::KafkaPython,
    Client::Aiokafka,
];

/// The package of franz-go whose own suite we run.
pub(crate) const KGO: &str = "github.com/twmb/franz-go/pkg/kgo";

impl Client {
    /// As its lines begin.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kcat => "kcat",
            Self::ConfluentKafka => "confluent-kafka",
            Self::Java => "java",
            Self::Franz => "franz-go",
            Self::Sarama => "sarama",
            Self::Kafkajs => "kafkajs",
            Self::KafkaPython => "kafka-python",
            Self::Aiokafka => "aiokafka",
        }
    }

    /// What the document says of its version, and what a lock file must therefore hold.
    pub(crate) const fn version(self) -> (&'static str, &'static str) {
        match self {
            Self::Kcat => ("Debian's, librdkafka 2.0 or newer", ""),
            Self::ConfluentKafka => ("2.16.1 (librdkafka 2.16)", "confluent-kafka==2.16.1"),
            Self::Java => ("kafka-clients 4.4.0", ""),
            Self::Franz => ("1.22.3", "franz-go v1.22.3"),
            Self::Sarama => ("1.61.1", "sarama v1.61.1"),
            Self::Kafkajs => ("2.2.4", "\"kafkajs\": \"2.2.4\""),
            Self::KafkaPython => ("3.0.12", "kafka-python==3.0.12"),
            Self::Aiokafka => ("0.14.0", "aiokafka==0.14.0"),
        }
    }

    /// Its program, to be given BROKERS and NAME; fetches and builds what is missing.
    pub(crate) fn command(self) -> Command {
        match self {
            Self::Kcat => Command::new(folder().join("kcat.sh")),
            Self::ConfluentKafka => python("confluent_kafka_smoke.py"),
            Self::KafkaPython => python("kafka_python_smoke.py"),
            Self::Aiokafka => python("aiokafka_smoke.py"),
            Self::Kafkajs => {
                let manifest = include_str!("clients/node/package.json");
                let lock = include_str!("clients/node/package-lock.json");
                let modules = test_support::node_modules("kafkajs", manifest, lock).unwrap();
                let mut command = Command::new("node");
                command.env("NODE_PATH", modules);
                command.arg(folder().join("node/kafkajs_smoke.js"));
                command
            }
            Self::Franz => Command::new(go_programs().join("franz")),
            Self::Sarama => Command::new(go_programs().join("sarama")),
            Self::Java => {
                let jars = KAFKA_CLIENTS.fetch().unwrap();
                let source = include_str!("clients/java/JavaSmoke.java");
                let sources = [("JavaSmoke.java", source)];
                let classes = test_support::compile_java("smoke", &sources, &jars).unwrap();
                let class_path = format!("{}:{}/*", classes.display(), jars.display());
                // Not as the helpers: the native codecs are wanted, and they unpack themselves.
                let mut command = test_support::java(256, &class_path);
                command.arg("JavaSmoke");
                command
            }
        }
    }
}

/// The suite's program and the folder it wants to run in.
pub(crate) fn kgo() -> (PathBuf, PathBuf) {
    let program = go_programs().join("kgo.test");
    let sources = test_support::go_package_folder(&folder().join("go"), KGO).unwrap();
    (program, sources)
}

fn go_programs() -> PathBuf {
    let programs = ["./franz", "./sarama"];
    test_support::go_build("go-clients", &folder().join("go"), &programs, &[KGO]).unwrap()
}

fn python(program: &str) -> Command {
    let requirements = include_str!("clients/python/requirements.txt");
    let python = Python::with_requirements("python-clients", requirements).unwrap();
    let mut command = python.command();
    // Nothing is written beside the sources.
    command.arg("-B").arg(folder().join("python").join(program));
    command
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat/clients")
}

#[test]
fn the_versions_that_the_document_names_are_those_of_the_lock_files() {
    let locks = [
        include_str!("clients/python/requirements.txt"),
        include_str!("clients/node/package-lock.json"),
        include_str!("clients/go/go.mod"),
    ];
    for client in CLIENTS {
        let (_, pinned) = client.version();
        let found = locks.iter().any(|lock| lock.contains(pinned));
        assert!(found, "{}: no lock file has {pinned}", client.name());
    }
    assert_eq!(KAFKA_CLIENTS.version(), "4.4.0");
}
