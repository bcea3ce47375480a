//! What a scenario runs against.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use test_support::{Kafka, KafkaOptions, Process, Scratch};

/// A debug build on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A broker to talk to.
pub(crate) enum Target {
    /// A `logferry broker` of this test's own.
    Ours(OurBroker),
    /// The Apache Kafka that all tests share.
    ApacheKafka,
    /// An Apache Kafka of this test's own, for one that kills it.
    OwnApacheKafka(Box<Kafka>),
}

impl Target {
    pub(crate) fn ours() -> Self {
        Self::Ours(OurBroker::start())
    }

    pub(crate) fn own_apache_kafka() -> Self {
        Self::OwnApacheKafka(Box::new(Kafka::start(&KafkaOptions::default()).unwrap()))
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Ours(broker) => &broker.address,
            Self::ApacheKafka => test_support::kafka().bootstrap(),
            Self::OwnApacheKafka(kafka) => kafka.bootstrap(),
        }
    }

    /// By our own command line, which knows both.
    pub(crate) fn create_topic(&self, topic: &str, partitions: i32) {
        let output = logferry()
            .args(["topics", "--brokers", self.address(), "create", topic])
            .args(["--partitions", &partitions.to_string()])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{topic}: {printed}");
    }

    /// SIGKILL, then the same broker on the same files again.
    pub(crate) fn kill_and_restart(&mut self) {
        match self {
            Self::Ours(broker) => broker.kill_and_restart(),
            Self::OwnApacheKafka(kafka) => {
                kafka.kill(0).unwrap();
                kafka.restart(0).unwrap();
            }
            Self::ApacheKafka => panic!("the shared Kafka is nobody's to kill"),
        }
    }

    /// The end of our broker's log, for a message; Kafka's is not of interest.
    pub(crate) fn log(&self) -> String {
        match self {
            Self::Ours(broker) => {
                let output = broker.process.output().unwrap();
                test_support::process::tail(&output, 15)
            }
            Self::ApacheKafka | Self::OwnApacheKafka(_) => String::new(),
        }
    }
}

/// Below a guard, so that it ends with the test process, and its data with it.
pub(crate) struct OurBroker {
    process: Process,
    address: String,
    // After the process, because it is dropped after it.
    folder: Scratch,
}

impl OurBroker {
    fn start() -> Self {
        let folder = Scratch::new("logferry-broker-").unwrap();
        let port = test_support::free_ports(1).unwrap()[0];
        let address = format!("127.0.0.1:{port}");
        let process = Self::launch(&folder, &address);
        Self {
            process,
            address,
            folder,
        }
    }

    fn launch(folder: &Scratch, address: &str) -> Process {
        let mut command = logferry();
        command.args(["broker", "--listen", address, "--data-dir"]);
        command.arg(folder.path().join("data"));
        let process = Process::start("broker", &command, &folder.path().join("log")).unwrap();
        folder.used_by(&process).unwrap();
        let ready = process.wait_ready(START_PATIENCE, |_| Ok(TcpStream::connect(address).is_ok()));
        ready.unwrap();
        process
    }

    fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process = Self::launch(&self.folder, &self.address);
    }
}

/// The binary under test.
fn logferry() -> Command {
    Command::new(env!("CARGO_BIN_EXE_logferry"))
}
