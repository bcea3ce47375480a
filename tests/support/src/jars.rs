//! Java libraries from Maven's central repository, through the ordinary `mvn`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::process::tail;

/// Pinned, because without a version Maven asks for the newest plug-in.
const COPY_DEPENDENCIES: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";

/// How often a fetch is tried: registries drop connections now and then.
const ATTEMPTS: u32 = 3;

/// One distribution: a version and the artifacts that together run it.
#[derive(Debug, Clone, Copy)]
pub struct Jars {
    name: &'static str,
    version: &'static str,
    /// `group:artifact:version`; `$` stands for the distribution's own version.
    artifacts: &'static [&'static str],
}

/// Apache Kafka's broker and command line tools.
pub const KAFKA: Jars = Jars {
    name: "kafka",
    version: "4.3.1",
    artifacts: &[
        "org.apache.kafka:kafka_2.13:$",
        "org.apache.kafka:kafka-tools:$",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
        "org.apache.logging.log4j:log4j-core:2.25.3",
        "org.apache.logging.log4j:log4j-1.2-api:2.25.3",
    ],
};

/// Apache Kafka's Java client, newer than the broker.
pub const KAFKA_CLIENTS: Jars = Jars {
    name: "kafka-clients",
    version: "4.4.0",
    artifacts: &[
        "org.apache.kafka:kafka-clients:$",
        "org.slf4j:slf4j-nop:1.7.36",
    ],
};

/// Apache Hadoop's HDFS: NameNode, DataNode, shell.
pub const HADOOP: Jars = Jars {
    name: "hadoop",
    version: "3.4.2",
    artifacts: &[
        "org.apache.hadoop:hadoop-common:$",
        "org.apache.hadoop:hadoop-hdfs:$",
        "org.apache.hadoop:hadoop-hdfs-client:$",
    ],
};

impl Jars {
    /// Its version.
    pub const fn version(&self) -> &'static str {
        self.version
    }

    /// The folder with the jars, fetched if it is not in the cache (10 to 40 s, 55 to 65 MB).
    ///
    /// # Errors
    /// If `mvn` is missing or fails three times; the end of its output is in the error.
    pub fn fetch(&self) -> Result<PathBuf> {
        let pom = self.pom();
        cache::once(&format!("{}-{}", self.name, self.version), &pom, |folder| {
            // Two Mavens must not write one local repository at the same time.
            let _lock = cache::lock("maven")?;
            let project = tempfile::tempdir()?;
            let pom_file = project.path().join("pom.xml");
            std::fs::write(&pom_file, &pom)?;
            copy_dependencies(&pom_file, folder)
        })
    }

    fn pom(&self) -> String {
        let mut dependencies = String::new();
        for artifact in self.artifacts {
            let mut parts = artifact.split(':');
            for tag in ["groupId", "artifactId", "version"] {
                let part = match parts.next().unwrap_or_default() {
                    "$" => self.version,
                    part => part,
                };
                let open = if tag == "groupId" { "<dependency>" } else { "" };
                let close = if tag == "version" {
                    "</dependency>\n"
                } else {
                    ""
                };
                dependencies.push_str(&format!("{open}<{tag}>{part}</{tag}>{close}"));
            }
        }
        format!(
            "<project>\n<modelVersion>4.0.0</modelVersion>\n<groupId>logferry.tests</groupId>\
             <artifactId>{}</artifactId><version>1</version><packaging>pom</packaging>\n\
             <dependencies>\n{dependencies}</dependencies>\n</project>\n",
            self.name
        )
    }
}

fn copy_dependencies(pom: &Path, folder: &Path) -> Result<()> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let output = Command::new("mvn")
            .args(["-q", "-B", "-f"])
            .arg(pom)
            .arg(COPY_DEPENDENCIES)
            .arg(format!("-DoutputDirectory={}", folder.display()))
            .stdin(Stdio::null())
            .output()
            .context("cannot run mvn; install Maven (Debian: apt-get install maven)")?;
        if output.status.success() {
            return Ok(());
        }
        last = tail(&String::from_utf8_lossy(&output.stdout), 15);
    }
    bail!("mvn copy-dependencies failed {ATTEMPTS} times; its last output:\n{last}")
}
