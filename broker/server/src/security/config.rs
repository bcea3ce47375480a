//! What an operator sets about listeners, TLS and SASL.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use broker_protocol::sasl::{Mechanism, Secret};
use jiff::fmt::serde::unsigned_duration::friendly::compact::required as text_duration;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Problem, host_and_port};

/// How clients of a listener speak, and whether they say who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither encrypted nor authenticated. Kafka: `PLAINTEXT`.
    #[default]
    Plaintext,
    /// TLS; the client may show a certificate. Kafka: `SSL`.
    Ssl,
    /// SASL without encryption. Kafka: `SASL_PLAINTEXT`.
    SaslPlaintext,
    /// SASL within TLS. Kafka: `SASL_SSL`.
    SaslSsl,
}

impl SecurityProtocol {
    /// Kafka's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    /// Whether connections begin with a TLS handshake.
    pub const fn has_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// Whether clients authenticate by SASL.
    pub const fn has_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

impl fmt::Display for SecurityProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One entry of `[[broker.listeners]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// Name, unique in this broker, for logs and `DescribeConfigs`.
    pub name: String,
    /// Address to listen on, `host:port`. Kafka: an entry of `listeners`.
    pub listen: String,
    /// Address that clients of this listener are told to connect to. Default: the one that each client's own
    /// connection reached. Kafka: an entry of `advertised.listeners`.
    #[serde(default)]
    pub advertised: Option<String>,
    /// How its clients speak. Default `plaintext`. Kafka: an entry of `listener.security.protocol.map`.
    #[serde(default)]
    pub protocol: SecurityProtocol,
}

/// Whether clients of `ssl` listeners show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    None,
    /// They are asked; one who has none is anonymous, one whose certificate is not good is turned away.
    Requested,
    /// Only those with a good certificate are let in.
    Required,
}

/// The oldest TLS that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3 only.
    #[serde(rename = "1.3")]
    V1_3,
}

/// `[broker.tls]`: for listeners with `ssl` and `sasl_ssl`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Certificate of this broker and those between it and the authority's, PEM. Required.
    /// Kafka: `ssl.keystore.certificate.chain`.
    pub certificate_file: PathBuf,
    /// Its private key, PEM, not encrypted. Required. Kafka: `ssl.keystore.key`.
    pub key_file: PathBuf,
    /// Certificates of the authorities that clients' certificates are checked by, PEM. Default: none.
    /// Kafka: `ssl.truststore.certificates`.
    pub client_ca_file: Option<PathBuf>,
    /// Whether clients of `ssl` listeners show a certificate; those of `sasl_ssl` never need one.
    /// Default `none`. Kafka: `ssl.client.auth`.
    pub client_auth: ClientAuth,
    /// Oldest TLS that is spoken, `1.2` or `1.3`. Default `1.2`. Kafka: `ssl.enabled.protocols`.
    pub min_version: TlsVersion,
}

/// `[broker.sasl]`: for listeners with `sasl_plaintext` and `sasl_ssl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SaslConfig {
    /// Mechanisms on offer. Default `SCRAM-SHA-256` and `SCRAM-SHA-512`. Kafka: `sasl.enabled.mechanisms`.
    pub mechanisms: Vec<Mechanism>,
    /// File of the users, a line each: `user = password`, or `user = SCRAM-SHA-256=[…]` with a credential as
    /// Kafka's tools print it. Default: none. Kafka: `sasl.jaas.config`.
    pub users_file: Option<PathBuf>,
    /// Users beside those of the file, by name; meant for the environment. Default: none.
    pub users: BTreeMap<String, Secret>,
    /// Wait before a client is told that it failed. Default 100 ms.
    /// Kafka: `connection.failed.authentication.delay.ms`.
    #[serde(with = "text_duration")]
    pub failure_delay: Duration,
}

impl Default for SaslConfig {
    fn default() -> Self {
        Self {
            mechanisms: vec![Mechanism::ScramSha256, Mechanism::ScramSha512],
            users_file: None,
            users: BTreeMap::new(),
            failure_delay: Duration::from_millis(100),
        }
    }
}

impl SaslConfig {
    /// Whether passwords come as they are.
    pub(crate) fn offers_plain(&self) -> bool {
        self.mechanisms.contains(&Mechanism::Plain)
    }
}

impl Config {
    /// Every listener, that of `listen` first, under the name of its protocol.
    pub fn all_listeners(&self) -> Vec<ListenerConfig> {
        let first = ListenerConfig {
            name: self.protocol.name().to_owned(),
            listen: self.listen.clone(),
            advertised: self.advertised.clone(),
            protocol: self.protocol,
        };
        std::iter::once(first)
            .chain(self.listeners.iter().cloned())
            .collect()
    }
}

/// What is wrong with listeners, TLS and SASL; addresses of the first listener are checked elsewhere.
pub(crate) fn problems(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut check = |ok: bool, key: &'static str, what: String| {
        if !ok {
            problems.push(Problem { key, what });
        }
    };
    let all = config.all_listeners();
    for (index, listener) in all.iter().enumerate() {
        let ListenerConfig {
            name,
            listen,
            advertised,
            protocol,
        } = listener;
        if index > 0 {
            check(!name.is_empty(), "listeners", "a name is empty".to_owned());
            let twice = all.iter().take(index).any(|other| other.name == *name);
            let what = format!("two have the name `{name}`; the first takes that of its protocol");
            check(!twice, "listeners", what);
            let what = format!("{name}: listen `{listen}` is not host:port");
            check(host_and_port(listen).is_some(), "listeners", what);
            let usable = advertised
                .as_ref()
                .is_none_or(|address| host_and_port(address).is_some_and(|(_, port)| port != 0));
            let what = format!("{name}: advertised is not host:port with a port above 0");
            check(usable, "listeners", what);
        }
        let what = format!("is missing, and listener {name} speaks {protocol}");
        check(
            !protocol.has_tls() || config.tls.is_some(),
            "tls",
            what.clone(),
        );
        check(!protocol.has_sasl() || config.sasl.is_some(), "sasl", what);
    }
    if let Some(tls) = &config.tls {
        for (path, what) in [
            (&tls.certificate_file, "certificate_file"),
            (&tls.key_file, "key_file"),
        ] {
            let named = !path.as_os_str().is_empty();
            check(named, "tls", format!("{what} names no file"));
        }
        check(
            tls.client_auth == ClientAuth::None || tls.client_ca_file.is_some(),
            "tls",
            "client_auth needs client_ca_file".to_owned(),
        );
    }
    if let Some(sasl) = &config.sasl {
        let some = !sasl.mechanisms.is_empty();
        check(some, "sasl", "mechanisms is empty".to_owned());
        let users = sasl.users_file.is_some() || !sasl.users.is_empty();
        let what = "names no users: set users_file or users".to_owned();
        check(users, "sasl", what);
    }
    for (key, duration) in [
        ("authentication_timeout", config.authentication_timeout),
        ("reload_interval", config.reload_interval),
    ] {
        let what = "must be above 0".to_owned();
        check(duration >= Duration::from_millis(1), key, what);
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(name: &str, protocol: SecurityProtocol) -> ListenerConfig {
        ListenerConfig {
            name: name.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            advertised: None,
            protocol,
        }
    }

    #[test]
    fn listeners_need_what_their_protocol_says() {
        let mut bad = listener("SSL", SecurityProtocol::Ssl);
        bad.advertised = Some("host:0".to_owned());
        let config = Config {
            protocol: SecurityProtocol::SaslSsl,
            listeners: vec![bad, listener("SSL", SecurityProtocol::Plaintext)],
            ..Config::default()
        };
        let found: Vec<String> = problems(&config).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "tls: is missing, and listener SASL_SSL speaks SASL_SSL",
                "sasl: is missing, and listener SASL_SSL speaks SASL_SSL",
                "listeners: SSL: advertised is not host:port with a port above 0",
                "tls: is missing, and listener SSL speaks SSL",
                "listeners: two have the name `SSL`; the first takes that of its protocol",
            ]
        );
    }

    #[test]
    fn what_is_half_set_is_refused() {
        let config = Config {
            tls: Some(TlsConfig {
                client_auth: ClientAuth::Required,
                ..TlsConfig::default()
            }),
            sasl: Some(SaslConfig {
                mechanisms: Vec::new(),
                ..SaslConfig::default()
            }),
            ..Config::default()
        };
        let keys: Vec<_> = problems(&config).iter().map(|found| found.key).collect();
        assert_eq!(keys, ["tls", "tls", "tls", "sasl", "sasl"]);
    }

    #[test]
    fn a_secret_is_in_no_output() {
        let text = r#"{"protocol": "sasl_ssl", "sasl": {"mechanisms": ["PLAIN", "SCRAM-SHA-512"],
            "users": {"alice": "hunter2"}}}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
        assert!(
            shown.contains("alice") && !shown.contains("hunter2"),
            "{shown}"
        );
        let wrong = r#"{"sasl": {"users": {"alice": 123456}}}"#;
        let error = serde_json::from_str::<Config>(wrong).unwrap_err();
        assert!(!error.to_string().contains("123456"), "{error}");
    }
}
