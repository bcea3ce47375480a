//! A real HDFS: one NameNode and some `DataNodes` on the loopback address.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::java::{Answer, Helper, compile, java};
use crate::process::{Process, Scratch, pause_for, tail};
use crate::service::{LazyHelper, read_note, write_note};
use crate::webhdfs::WebHdfs;
use crate::{jars, net};

/// From the start of the JVMs to all `DataNodes` live and out of safe mode; 4 to 8 s on an idle machine of two
/// cores.
const START_TIMEOUT: Duration = Duration::from_secs(120);

const STOP_PATIENCE: Duration = Duration::from_secs(15);

const REGISTERED_LINE: &str = "successfully registered with NN";

const LOG4J: &str = "\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
";

/// The web interface looks for these on the class path, and no jar has them.
const WEB_APPS: &[&str] = &["static", "hdfs", "datanode"];

/// Where `DataNodes` are looked for.
const KNOWN_HOST: &str = "127.0.0.1";

/// Where `DataNodes` behind proxies listen.
const HIDDEN_HOST: &str = "127.0.0.2";

/// What kind of cluster to start.
#[derive(Debug, Clone)]
pub struct HdfsOptions {
    /// Number of `DataNodes`.
    pub datanodes: usize,
    /// Properties for `hdfs-site.xml` (servers and clients) beside the usual ones.
    pub properties: Vec<(String, String)>,
    /// Lets the `DataNodes` listen on another loopback address than the one they are known under, for a
    /// [`crate::TcpProxy`] before each: see [`Hdfs::datanode_endpoints`]. Until they are there, nothing can be written.
    pub proxied: bool,
}

impl Default for HdfsOptions {
    fn default() -> Self {
        Self {
            datanodes: 3,
            properties: Vec::new(),
            proxied: false,
        }
    }
}

/// One of the cluster's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HdfsNode {
    /// The NameNode.
    NameNode,
    /// A DataNode; they count from 0.
    DataNode(usize),
}

/// A cluster. Dropping it kills its processes and removes their data, unless another process started them.
#[derive(Debug)]
pub struct Hdfs {
    helper: LazyHelper,
    namenode: Option<Process>,
    datanodes: Vec<Option<Process>>,
    rpc_port: u16,
    http_port: u16,
    /// Per DataNode: data, HTTP, IPC.
    datanode_ports: Vec<[u16; 3]>,
    datanode_host: &'static str,
    jars: PathBuf,
    folder: PathBuf,
    /// After the processes, because it is dropped after them.
    _scratch: Option<Scratch>,
}

impl Hdfs {
    /// Starts a cluster of its own and waits until all `DataNodes` are live and safe mode is off.
    ///
    /// # Errors
    /// If the jars cannot be had, or the cluster does not come up within two minutes (with the end of a log).
    pub fn start(options: &HdfsOptions) -> Result<Self> {
        let jars = jars::HADOOP.fetch()?;
        for _ in 0..2 {
            match Self::start_on_free_ports(options, &jars) {
                // Somebody else was quicker to take a port that was free a moment ago.
                Err(error) if format!("{error:#}").contains("Address already in use") => {}
                outcome => return outcome,
            }
        }
        Self::start_on_free_ports(options, &jars)
    }

    /// A cluster that another process started and whose folder this is.
    pub(crate) fn attach(folder: &Path) -> Result<Self> {
        Ok(Self {
            helper: LazyHelper::default(),
            namenode: None,
            datanodes: Vec::new(),
            rpc_port: read_note(folder, "rpc_port")?.parse()?,
            http_port: read_note(folder, "http_port")?.parse()?,
            datanode_ports: Vec::new(),
            datanode_host: KNOWN_HOST,
            jars: PathBuf::from(read_note(folder, "jars")?),
            folder: folder.to_owned(),
            _scratch: None,
        })
    }

    fn start_on_free_ports(options: &HdfsOptions, jars: &Path) -> Result<Self> {
        let scratch = Scratch::new("logferry-hdfs-")?;
        let ports = net::free_ports(2 + 3 * options.datanodes)?;
        let [rpc_port, http_port, rest @ ..] = ports.as_slice() else {
            bail!("asked for ports and got {ports:?}");
        };
        let mut hdfs = Self {
            helper: LazyHelper::default(),
            namenode: None,
            datanodes: (0..options.datanodes).map(|_| None).collect(),
            rpc_port: *rpc_port,
            http_port: *http_port,
            datanode_ports: rest.as_chunks().0.to_vec(),
            datanode_host: if options.proxied {
                HIDDEN_HOST
            } else {
                KNOWN_HOST
            },
            jars: jars.to_owned(),
            folder: scratch.path().to_owned(),
            _scratch: Some(scratch),
        };
        hdfs.write_configuration(options)?;
        hdfs.format()?;
        hdfs.launch(HdfsNode::NameNode)?;
        for datanode in 0..options.datanodes {
            hdfs.launch(HdfsNode::DataNode(datanode))?;
        }
        hdfs.wait_ready(options.datanodes)?;
        let note = json!({
            "rpc_port": hdfs.rpc_port.to_string(),
            "http_port": hdfs.http_port.to_string(),
            "jars": hdfs.jars,
        });
        write_note(&hdfs.folder, &note)?;
        Ok(hdfs)
    }

    fn write_configuration(&self, options: &HdfsOptions) -> Result<()> {
        let conf = self.folder.join("conf");
        for web_app in WEB_APPS {
            fs::create_dir_all(conf.join("webapps").join(web_app))?;
        }
        fs::write(conf.join("log4j.properties"), LOG4J)?;
        fs::write(conf.join("core-site.xml"), self.core_site(&self.uri()))?;
        let mut site = hdfs_site(
            &self.folder,
            self.rpc_port,
            self.http_port,
            options.datanodes,
        );
        site.extend(options.properties.iter().cloned());
        fs::write(conf.join("hdfs-site.xml"), configuration(&site))?;
        Ok(())
    }

    fn core_site(&self, default_fs: &str) -> String {
        let temporary = self.folder.join("tmp").display().to_string();
        configuration(&[
            ("fs.defaultFS".to_owned(), default_fs.to_owned()),
            ("hadoop.tmp.dir".to_owned(), temporary),
            ("ipc.client.connect.max.retries".to_owned(), "3".to_owned()),
            ("hadoop.http.staticuser.user".to_owned(), "root".to_owned()),
        ])
    }

    fn class_path(&self) -> String {
        format!("{}:{}/*", self.conf_dir().display(), self.jars.display())
    }

    fn format(&self) -> Result<()> {
        let output = java(256, &self.class_path())
            .arg("org.apache.hadoop.hdfs.server.namenode.NameNode")
            .args(["-format", "-nonInteractive"])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .context("cannot run java; install a JRE")?;
        ensure!(
            output.status.success(),
            "NameNode -format: {}; it printed:\n{}",
            output.status,
            tail(&String::from_utf8_lossy(&output.stderr), 25)
        );
        Ok(())
    }

    /// Starts one process; it is not ready yet.
    fn launch(&mut self, node: HdfsNode) -> Result<()> {
        let mut command = java(
            if node == HdfsNode::NameNode { 512 } else { 384 },
            &self.class_path(),
        );
        command.current_dir(&self.folder);
        let name = match node {
            HdfsNode::NameNode => {
                command
                    // Its web interface for files needs this since Java 16.
                    .args(["--add-opens", "java.base/java.lang=ALL-UNNAMED"])
                    .arg("org.apache.hadoop.hdfs.server.namenode.NameNode");
                "namenode".to_owned()
            }
            HdfsNode::DataNode(index) => {
                let [data, http, ipc] =
                    self.datanode_ports.get(index).context("no such DataNode")?;
                command
                    .arg("org.apache.hadoop.hdfs.server.datanode.DataNode")
                    .arg(format!(
                        "-Ddfs.datanode.data.dir=file://{}/datanode{index}",
                        self.folder.display()
                    ))
                    .arg(format!(
                        "-Ddfs.datanode.address={}:{data}",
                        self.datanode_host
                    ))
                    .arg(format!("-Ddfs.datanode.http.address=127.0.0.1:{http}"))
                    .arg(format!("-Ddfs.datanode.ipc.address=127.0.0.1:{ipc}"));
                format!("datanode{index}")
            }
        };
        let log = self.folder.join(format!("{name}.log"));
        let process = Process::start(&name, &command, &log)?;
        if let Some(scratch) = &self._scratch {
            scratch.used_by(&process)?;
        }
        *self.slot(node)? = Some(process);
        Ok(())
    }

    /// Waits until `datanodes` `DataNodes` are live and safe mode is off.
    ///
    /// # Errors
    /// After two minutes, or if one of the processes has ended; with the end of its log.
    pub fn wait_ready(&self, datanodes: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            // While it starts, the NameNode refuses connections or lacks the beans.
            let status = self.status();
            if status.as_ref().is_ok_and(|status| {
                status.live_datanodes == datanodes && status.safe_mode.is_none()
            }) && self.have_registered()?
            {
                return Ok(());
            }
            let processes = self.datanodes.iter().flatten().chain(&self.namenode);
            for process in processes {
                // A DataNode that the caller killed on purpose is not waited for.
                let wanted = process.name() == "namenode" || datanodes == self.datanodes.len();
                if wanted && !process.is_running() {
                    bail!(
                        "{} has ended:\n{}",
                        process.name(),
                        tail(&process.output()?, 25)
                    );
                }
            }
            if Instant::now() > deadline {
                let log = self.namenode.as_ref().map(Process::output).transpose()?;
                bail!(
                    "HDFS is not ready after {START_TIMEOUT:?} ({status:?}); the end of the NameNode's log:\n{}",
                    tail(&log.unwrap_or_default(), 25)
                );
            }
            pause_for(Duration::from_millis(100));
        }
    }

    /// Whether every DataNode that runs has registered since it was started: for some seconds, the NameNode
    /// takes one that was killed for live.
    fn have_registered(&self) -> Result<bool> {
        for process in self.datanodes.iter().flatten().filter(|p| p.is_running()) {
            if !process.output()?.contains(REGISTERED_LINE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What the NameNode says of itself (`/jmx`); answers within milliseconds.
    ///
    /// # Errors
    /// If it does not answer within 5 s.
    pub fn status(&self) -> Result<HdfsStatus> {
        let bean = |name: &str| -> Result<Value> {
            let path = format!("/jmx?qry=Hadoop:service=NameNode,name={name}");
            let answer: Value = serde_json::from_str(&net::http_get(self.http_port, &path)?)?;
            let bean = answer.pointer("/beans/0").cloned();
            bean.with_context(|| format!("the NameNode has no bean {name} yet"))
        };
        let state = bean("FSNamesystemState")?;
        let info = bean("NameNodeInfo")?;
        let told = |field: &str| info.get(field).and_then(Value::as_str);
        let safe_mode = told("Safemode").context("no Safemode")?.to_owned();
        let nodes: Value = serde_json::from_str(told("LiveNodes").context("no LiveNodes")?)?;
        let has_room = |node: &&Value| node["remaining"].as_u64() > Some(0);
        let live_datanodes = nodes
            .as_object()
            .map_or(0, |nodes| nodes.values().filter(has_room).count());
        let count = |field: &str| -> Result<usize> {
            let count = state.get(field).and_then(Value::as_u64);
            Ok(usize::try_from(
                count.with_context(|| format!("no {field}"))?,
            )?)
        };
        Ok(HdfsStatus {
            live_datanodes,
            dead_datanodes: count("NumDeadDataNodes")?,
            under_replicated_blocks: count("UnderReplicatedBlocks")?,
            safe_mode: (!safe_mode.is_empty()).then_some(safe_mode),
        })
    }

    /// The configuration folder, for `HADOOP_CONF_DIR`.
    pub fn conf_dir(&self) -> PathBuf {
        self.folder.join("conf")
    }

    /// A configuration folder whose default file system is at another address (`host:port`), say a proxy's in
    /// front of the NameNode.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn conf_dir_for(&self, address: &str) -> Result<PathBuf> {
        let folder = self
            .folder
            .join(format!("conf-{}", address.replace(':', "-")));
        fs::create_dir_all(&folder)?;
        fs::copy(
            self.conf_dir().join("hdfs-site.xml"),
            folder.join("hdfs-site.xml"),
        )?;
        let default_fs = format!("hdfs://{address}");
        fs::write(folder.join("core-site.xml"), self.core_site(&default_fs))?;
        Ok(folder)
    }

    /// How many `DataNodes` it was started with; 0 on a shared cluster that another process started.
    pub fn datanodes(&self) -> usize {
        self.datanodes.len()
    }

    /// Per DataNode: the port where its proxy should listen (on 127.0.0.1), and the address to pass on to. The
    /// NameNode knows a DataNode by the address it registers from and the port it listens on.
    pub fn datanode_endpoints(&self) -> Vec<(u16, String)> {
        let ports = self.datanode_ports.iter();
        ports
            .map(|[data, ..]| (*data, format!("{}:{data}", self.datanode_host)))
            .collect()
    }

    /// Its files by HTTP, beside all proxies; may be used from another thread.
    pub fn web(&self) -> WebHdfs {
        WebHdfs::new(self.http_port)
    }

    /// The file system's address, `hdfs://host:port`, without a trailing slash.
    pub fn uri(&self) -> String {
        format!("hdfs://127.0.0.1:{}", self.rpc_port)
    }

    /// `host:port` of the NameNode's RPC server.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.rpc_port)
    }

    /// The folder with the cluster's configuration, data and logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs `hdfs dfs` with these arguments (`["-ls", "/"]`) as the superuser, in a JVM that stays up: the first
    /// call takes 1 to 3 s, each further one milliseconds. Returns what it printed.
    ///
    /// # Errors
    /// If it fails; with what it printed.
    pub fn dfs(&self, arguments: &[&str]) -> Result<String> {
        self.call("dfs", arguments)?
            .success()
            .with_context(|| format!("hdfs dfs {}", arguments.join(" ")))
    }

    /// As [`Self::dfs`] for `hdfs dfsadmin`, such as `["-safemode", "enter"]` or `["-setQuota", "5", "/a"]`.
    ///
    /// # Errors
    /// If it fails; with what it printed.
    pub fn dfsadmin(&self, arguments: &[&str]) -> Result<String> {
        self.call("dfsadmin", arguments)?
            .success()
            .with_context(|| format!("hdfs dfsadmin {}", arguments.join(" ")))
    }

    fn call(&self, tool: &str, arguments: &[&str]) -> Result<Answer> {
        let mut command = vec![tool];
        command.extend(arguments);
        let answer = self.call_once(&command)?;
        // The helper's connection was to a NameNode that has been killed since; the one there now has not been asked.
        if answer.code != 0 && answer.stderr.contains("End of File Exception") {
            return self.call_once(&command);
        }
        Ok(answer)
    }

    fn call_once(&self, command: &[&str]) -> Result<Answer> {
        self.helper.call(command, || {
            let sources = [
                ("CommandLoop.java", include_str!("../java/CommandLoop.java")),
                ("HdfsHelper.java", include_str!("../java/HdfsHelper.java")),
            ];
            let classes = compile("hdfs-helper", &sources, &self.jars)?;
            let mut command = java(256, &format!("{}:{}", classes.display(), self.class_path()));
            command.arg("HdfsHelper");
            let log = self.folder.join(format!("helper-{}.log", net::random()));
            Helper::start(command, &log)
        })
    }

    /// The pid of a process of the cluster.
    ///
    /// # Errors
    /// If there is none of ours (for instance, on a shared cluster that another process started).
    pub fn pid(&self, node: HdfsNode) -> Result<u32> {
        let process = match node {
            HdfsNode::NameNode => self.namenode.as_ref(),
            HdfsNode::DataNode(index) => self.datanodes.get(index).and_then(Option::as_ref),
        };
        Ok(process
            .with_context(|| format!("no {node:?} of ours"))?
            .pid())
    }

    /// Kills a process (SIGKILL).
    ///
    /// # Errors
    /// If there is none of ours.
    pub fn kill(&mut self, node: HdfsNode) -> Result<()> {
        self.process(node)?.kill()
    }

    /// Stops a process where it stands (SIGSTOP).
    ///
    /// # Errors
    /// If there is none of ours or it does not run.
    pub fn pause(&mut self, node: HdfsNode) -> Result<()> {
        self.process(node)?.pause()
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    /// If there is none of ours or it does not run.
    pub fn resume(&mut self, node: HdfsNode) -> Result<()> {
        self.process(node)?.resume()
    }

    /// Starts a process again, after ending it (SIGTERM) if it still runs, on the same ports and data. Does not
    /// wait until it serves: see [`Self::wait_ready`].
    ///
    /// # Errors
    /// If there is none of ours.
    pub fn restart(&mut self, node: HdfsNode) -> Result<()> {
        self.process(node)?.terminate(STOP_PATIENCE)?;
        self.launch(node)
    }

    fn process(&mut self, node: HdfsNode) -> Result<&mut Process> {
        let slot = self.slot(node)?.as_mut();
        slot.with_context(|| format!("no {node:?} of ours"))
    }

    fn slot(&mut self, node: HdfsNode) -> Result<&mut Option<Process>> {
        match node {
            HdfsNode::NameNode => Ok(&mut self.namenode),
            HdfsNode::DataNode(index) => {
                let slot = self.datanodes.get_mut(index);
                slot.with_context(|| format!("no {node:?} of ours"))
            }
        }
    }
}

/// The NameNode's view of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HdfsStatus {
    /// `DataNodes` whose heartbeat is recent and told of room: one that has only registered gets no blocks yet.
    pub live_datanodes: usize,
    /// `DataNodes` given up: about 12 s after their last heartbeat.
    pub dead_datanodes: usize,
    /// Blocks with fewer replicas than wanted.
    pub under_replicated_blocks: usize,
    /// Why the cluster is read-only; none when it is not.
    pub safe_mode: Option<String>,
}

fn hdfs_site(
    folder: &Path,
    rpc_port: u16,
    http_port: u16,
    datanodes: usize,
) -> Vec<(String, String)> {
    let names = format!("file://{}/namenode", folder.display());
    let replication = datanodes.clamp(1, 3).to_string();
    let (rpc, http) = (
        format!("127.0.0.1:{rpc_port}"),
        format!("127.0.0.1:{http_port}"),
    );
    let properties = [
        ("dfs.namenode.name.dir", names.as_str()),
        ("dfs.namenode.rpc-address", &rpc),
        ("dfs.namenode.http-address", &http),
        ("dfs.replication", &replication),
        // So that a test can have a file of many blocks.
        ("dfs.namenode.fs-limits.min-block-size", "4096"),
        ("dfs.permissions.enabled", "true"),
        ("dfs.permissions.superusergroup", "supergroup"),
        (
            "dfs.namenode.datanode.registration.ip-hostname-check",
            "false",
        ),
        ("dfs.datanode.hostname", "127.0.0.1"),
        // A dead DataNode is noticed after 2 × recheck + 10 × heartbeat = 12 s.
        ("dfs.heartbeat.interval", "1"),
        ("dfs.namenode.heartbeat.recheck-interval", "1000"),
        ("dfs.namenode.redundancy.interval.seconds", "1s"),
        ("dfs.namenode.safemode.extension", "0"),
        ("dfs.namenode.safemode.min.datanodes", "1"),
        // Survives a killed process, not a lost machine, and that is all a test asks for.
        ("dfs.namenode.edits.noeditlogchannelflush", "true"),
        ("dfs.datanode.directoryscan.interval", "-1"),
        ("dfs.block.scanner.volume.bytes.per.second", "0"),
    ];
    let owned = properties.map(|(key, value)| (key.to_owned(), value.to_owned()));
    owned.into()
}

fn configuration(properties: &[(String, String)]) -> String {
    let mut xml = String::from("<?xml version=\"1.0\"?>\n<configuration>\n");
    for (key, value) in properties {
        let value = value.replace('&', "&amp;").replace('<', "&lt;");
        xml.push_str(&format!(
            "<property><name>{key}</name><value>{value}</value></property>\n"
        ));
    }
    xml.push_str("</configuration>\n");
    xml
}
