//! What this store needs to know of the Hadoop configuration, beside what hdfs-native reads itself.
//!
//! hdfs-native takes values given in code over those of the files, so defaults of ours may only be
//! given for what the files leave open. Like hdfs-native, this expands no `${…}` and follows no
//! `xi:include`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{Error, Result, StoreConfig};

/// NEVER, since hdfs-native 0.14.8 fails the write under DEFAULT when a DataNode of three dies.
const REPLACE_POLICY: &str = "dfs.client.block.write.replace-datanode-on-failure.policy";
const REPLACE_BEST_EFFORT: &str = "dfs.client.block.write.replace-datanode-on-failure.best-effort";
const FAILOVER_MAX_ATTEMPTS: &str = "dfs.client.failover.max.attempts";
const FAILOVER_RANDOM_ORDER: &str = "dfs.client.failover.random.order";

/// Hadoop's port of a NameNode that is named without one.
const DEFAULT_PORT: u16 = 8020;

/// The properties of core-site.xml and hdfs-site.xml.
#[derive(Debug, Default)]
pub(crate) struct HadoopConf {
    dir: Option<PathBuf>,
    properties: HashMap<String, String>,
}

/// Whom to talk to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// `host:port`, or the name service.
    pub(crate) authority: String,
    /// For people: the authority, with the addresses of a name service.
    pub(crate) address: String,
    /// The name service, if it is one.
    pub(crate) nameservice: Option<String>,
    namenodes: u32,
}

fn refuse(file: impl std::fmt::Display, reason: impl Into<String>) -> Error {
    Error::HadoopConfig {
        file: file.to_string(),
        reason: reason.into(),
    }
}

impl HadoopConf {
    /// Reads the configuration where `config` or Hadoop's own environment variables say.
    pub(crate) fn load(config: &StoreConfig) -> Result<Self> {
        let from_env = || {
            let home = || std::env::var_os("HADOOP_HOME").map(|h| Path::new(&h).join("etc/hadoop"));
            std::env::var_os("HADOOP_CONF_DIR")
                .map(PathBuf::from)
                .or_else(home)
        };
        match config.hadoop_conf_dir.clone().or_else(from_env) {
            Some(dir) => Self::read(dir),
            None => Ok(Self::default()),
        }
    }

    fn read(dir: PathBuf) -> Result<Self> {
        let mut properties = HashMap::new();
        let mut found = false;
        for file in ["core-site.xml", "hdfs-site.xml"] {
            let path = dir.join(file);
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    found = true;
                    let parsed = parse(&text).map_err(|e| refuse(path.display(), e.to_string()))?;
                    properties.extend(parsed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(refuse(path.display(), error.to_string())),
            }
        }
        if !found {
            return Err(refuse(
                dir.display(),
                "it holds no core-site.xml and no hdfs-site.xml",
            ));
        }
        Ok(Self {
            dir: Some(dir),
            properties,
        })
    }

    /// The directory it was read from, for hdfs-native.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(|value| value.trim())
    }

    fn refuse_value(&self, key: &str, value: &str, reason: &str) -> Error {
        let dir = self
            .dir
            .as_deref()
            .unwrap_or_else(|| Path::new("HADOOP_CONF_DIR"));
        refuse(dir.display(), format!("{key} is {value:?}: {reason}"))
    }

    /// The namenodes of `authority`, or of `fs.defaultFS` if there is none.
    pub(crate) fn cluster(&self, location: &str, authority: Option<&str>) -> Result<Cluster> {
        let authority = match authority {
            Some(authority) => authority,
            None => self.default_authority(location)?,
        };
        if let Some(ids) = self.get(&format!("dfs.ha.namenodes.{authority}")) {
            return self.nameservice(authority, ids);
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let authority = match (has_port, authority.contains(':')) {
            (true, _) => authority.to_owned(),
            (false, false) => format!("{authority}:{DEFAULT_PORT}"),
            (false, true) => {
                let reason = format!("{authority:?} is not host:port or a name service");
                return Err(Error::Location {
                    location: location.to_owned(),
                    reason,
                });
            }
        };
        Ok(Cluster {
            address: authority.clone(),
            authority,
            nameservice: None,
            namenodes: 1,
        })
    }

    fn default_authority(&self, location: &str) -> Result<&str> {
        const KEY: &str = "fs.defaultFS";
        let Some(default) = self.get(KEY) else {
            let reason = "it names no namenode, and there is no fs.defaultFS in core-site.xml";
            let (location, reason) = (location.to_owned(), reason.to_owned());
            return Err(Error::Location { location, reason });
        };
        let authority = default
            .strip_prefix("hdfs://")
            .map(|rest| {
                rest.split_once('/')
                    .map_or(rest, |(authority, _)| authority)
            })
            .filter(|authority| !authority.is_empty() && !authority.contains("${"));
        authority.ok_or_else(|| self.refuse_value(KEY, default, "it must be hdfs://namenode:port"))
    }

    fn nameservice(&self, name: &str, ids: &str) -> Result<Cluster> {
        let ids = ids.split(',').map(str::trim).filter(|id| !id.is_empty());
        let key = |id| format!("dfs.namenode.rpc-address.{name}.{id}");
        let addresses: Vec<&str> = ids.filter_map(|id| self.get(&key(id))).collect();
        if addresses.is_empty() {
            let key = format!("dfs.ha.namenodes.{name}");
            return Err(self.refuse_value(
                &key,
                name,
                "no dfs.namenode.rpc-address of its namenodes",
            ));
        }
        Ok(Cluster {
            authority: name.to_owned(),
            address: format!("{name} ({})", addresses.join(", ")),
            nameservice: Some(name.to_owned()),
            namenodes: u32::try_from(addresses.len()).unwrap_or(u32::MAX),
        })
    }

    /// What to tell hdfs-native where the files say nothing. `reconnecting` after a NameNode stopped
    /// answering: begin with any of them, since hdfs-native would begin with the same one again.
    pub(crate) fn overrides(&self, cluster: &Cluster, reconnecting: bool) -> Vec<(String, String)> {
        // One NameNode: tries after 1 s and 2 s, then it is unreachable. Several: some 30 s, which
        // outlasts a failover.
        let attempts = match cluster.namenodes {
            1 => 2,
            several => several.saturating_mul(5),
        };
        let mut overrides: Vec<(String, String)> = [
            (REPLACE_POLICY, "NEVER".to_owned()),
            (REPLACE_BEST_EFFORT, "true".to_owned()),
            (FAILOVER_MAX_ATTEMPTS, attempts.to_string()),
        ]
        .into_iter()
        .filter(|(key, _)| self.get(key).is_none())
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        if let (true, Some(name)) = (reconnecting, &cluster.nameservice) {
            overrides.push((format!("{FAILOVER_RANDOM_ORDER}.{name}"), "true".to_owned()));
        }
        overrides
    }

    /// `fs.permissions.umask-mode`, by default 022 as in Hadoop. hdfs-native knows none.
    pub(crate) fn umask(&self) -> Result<u32> {
        const KEY: &str = "fs.permissions.umask-mode";
        let Some(value) = self.get(KEY) else {
            return Ok(0o022);
        };
        match u32::from_str_radix(value, 8) {
            Ok(umask) if umask <= 0o777 => Ok(umask),
            _ => Err(self.refuse_value(KEY, value, "write it as three octal digits, such as 022")),
        }
    }

    /// `dfs.replication`, if set; else the NameNode's default holds.
    pub(crate) fn replication(&self) -> Result<Option<u32>> {
        const KEY: &str = "dfs.replication";
        let Some(value) = self.get(KEY) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(replication) if replication > 0 => Ok(Some(replication)),
            _ => Err(self.refuse_value(KEY, value, "it is not a positive number")),
        }
    }

    /// `dfs.blocksize` in bytes, if set (with Hadoop's suffixes k, m, g, t); else the NameNode's
    /// default holds.
    pub(crate) fn block_size(&self) -> Result<Option<u64>> {
        const KEY: &str = "dfs.blocksize";
        let Some(value) = self.get(KEY) else {
            return Ok(None);
        };
        let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = value
            .strip_prefix(digits)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let shift = match unit.as_str() {
            "" => Some(0),
            "k" => Some(10),
            "m" => Some(20),
            "g" => Some(30),
            "t" => Some(40),
            _ => None,
        };
        let bytes = shift.zip(digits.parse::<u64>().ok());
        match bytes.and_then(|(shift, number)| number.checked_mul(1 << shift)) {
            Some(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(self.refuse_value(KEY, value, "it is not a size such as 134217728 or 128m")),
        }
    }
}

/// The properties of one file; of a name given twice the last holds, as in Hadoop.
fn parse(text: &str) -> Result<Vec<(String, String)>, roxmltree::Error> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(text, options)?;
    let properties = document
        .root_element()
        .children()
        .filter(|n| n.has_tag_name("property"));
    let text_of = |property: &roxmltree::Node<'_, '_>, tag: &str| {
        property
            .children()
            .find(|n| n.has_tag_name(tag))
            .and_then(|n| n.text().map(str::to_owned))
    };
    Ok(properties
        .filter_map(|p| text_of(&p, "name").zip(text_of(&p, "value")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(properties: &[(&str, &str)]) -> HadoopConf {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        HadoopConf {
            dir: None,
            properties: properties.iter().map(own).collect(),
        }
    }

    const HA: &[(&str, &str)] = &[
        ("fs.defaultFS", "hdfs://ns1"),
        ("dfs.ha.namenodes.ns1", "a, b"),
        ("dfs.namenode.rpc-address.ns1.a", "h1:9000"),
        ("dfs.namenode.rpc-address.ns1.b", "h2:9000"),
    ];

    #[test]
    fn reads_the_two_files_and_the_second_wins() {
        let temp = tempfile::tempdir().unwrap();
        let write = |file: &str, value: &str| {
            let xml = format!(
                "<?xml version=\"1.0\"?>\n<configuration><!-- c --><property><name>dfs.replication\
                 </name><value>{value}</value><final>true</final></property></configuration>"
            );
            std::fs::write(temp.path().join(file), xml).unwrap();
        };
        write("core-site.xml", "1");
        let config = StoreConfig {
            hadoop_conf_dir: Some(temp.path().into()),
            ..Default::default()
        };
        assert_eq!(
            HadoopConf::load(&config).unwrap().replication().unwrap(),
            Some(1)
        );
        write("hdfs-site.xml", "2");
        assert_eq!(
            HadoopConf::load(&config).unwrap().replication().unwrap(),
            Some(2)
        );
        std::fs::write(temp.path().join("hdfs-site.xml"), "<configuration>").unwrap();
        let error = HadoopConf::load(&config).unwrap_err();
        assert!(error.to_string().contains("hdfs-site.xml"), "{error}");
    }

    #[test]
    fn a_directory_without_configuration_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let error = HadoopConf::read(temp.path().join("typo")).unwrap_err();
        assert!(matches!(error, Error::HadoopConfig { .. }), "{error:?}");
    }

    #[test]
    fn finds_the_namenodes() {
        let of = |conf: &HadoopConf, authority| conf.cluster("test", authority).unwrap();
        let single = of(&conf(&[]), Some("nn"));
        assert_eq!(
            (single.authority.as_str(), single.nameservice),
            ("nn:8020", None)
        );
        assert_eq!(of(&conf(&[]), Some("nn:9")).address, "nn:9");
        assert_eq!(
            of(&conf(&[("fs.defaultFS", "hdfs://d:1/x")]), None).authority,
            "d:1"
        );
        let ha = of(&conf(HA), None);
        assert_eq!(ha.address, "ns1 (h1:9000, h2:9000)");
        assert_eq!(ha.nameservice.as_deref(), Some("ns1"));
        for default in [
            None,
            Some("file:///"),
            Some("hdfs://"),
            Some("hdfs://${nn}:1"),
        ] {
            let properties: Vec<_> = default.map(|d| ("fs.defaultFS", d)).into_iter().collect();
            assert!(
                conf(&properties).cluster("test", None).is_err(),
                "{default:?}"
            );
        }
        assert!(conf(&[]).cluster("test", Some("nn:port")).is_err());
        assert!(
            conf(&[("dfs.ha.namenodes.x", "a")])
                .cluster("test", Some("x"))
                .is_err()
        );
    }

    #[test]
    fn overrides_only_what_the_files_leave_open() {
        let get = |conf: &HadoopConf, again| -> HashMap<String, String> {
            let cluster = conf.cluster("test", Some("ns1")).unwrap();
            conf.overrides(&cluster, again).into_iter().collect()
        };
        let open = get(&conf(&[]), false);
        assert_eq!(open[REPLACE_POLICY], "NEVER");
        assert_eq!(open[FAILOVER_MAX_ATTEMPTS], "2");
        let set = conf(&[(REPLACE_POLICY, "ALWAYS"), (FAILOVER_MAX_ATTEMPTS, "9")]);
        assert_eq!(
            get(&set, false).into_keys().collect::<Vec<_>>(),
            [REPLACE_BEST_EFFORT]
        );
        assert_eq!(get(&conf(HA), true)[FAILOVER_MAX_ATTEMPTS], "10");
        assert_eq!(
            get(&conf(HA), true)["dfs.client.failover.random.order.ns1"],
            "true"
        );
        assert!(!get(&conf(HA), false).contains_key("dfs.client.failover.random.order.ns1"));
    }

    #[test]
    fn file_settings_follow_hadoop() {
        assert_eq!(conf(&[]).umask().unwrap(), 0o022);
        assert_eq!(
            conf(&[("fs.permissions.umask-mode", "027")])
                .umask()
                .unwrap(),
            0o027
        );
        assert!(
            conf(&[("fs.permissions.umask-mode", "u=rwx")])
                .umask()
                .is_err()
        );
        for (text, bytes) in [("134217728", 1 << 27), ("128m", 1 << 27), ("1G", 1 << 30)] {
            let conf = conf(&[("dfs.blocksize", text)]);
            assert_eq!(conf.block_size().unwrap(), Some(bytes), "{text}");
        }
        for bad in ["", "m", "0", "1x", "-1", "99999999999t"] {
            assert!(
                conf(&[("dfs.blocksize", bad)]).block_size().is_err(),
                "{bad}"
            );
        }
        assert!(conf(&[("dfs.replication", "0")]).replication().is_err());
        assert_eq!(conf(&[]).replication().unwrap(), None);
    }
}
