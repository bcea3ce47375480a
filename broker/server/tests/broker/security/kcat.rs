//! kcat, so librdkafka and OpenSSL, against each kind of listener.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use broker_protocol::sasl::Mechanism;
use broker_server::{ClientAuth, SecurityProtocol};

use super::{PASSWORD, Pki, USER, broker_with};

/// Runs kcat with settings; `input` goes to it.
fn kcat(arguments: &[&str], settings: &[String], input: &str) -> Output {
    let mut command = Command::new("kcat");
    command.args(arguments);
    for setting in settings {
        command.args(["-X", setting]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kcat is installed");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_is_let_in_by_every_protocol_and_mechanism() {
    let pki = Pki::new();
    let client = pki.authority.client("kcat").unwrap();
    let broker = broker_with(&pki, |config| {
        let mut tls = pki.tls();
        tls.client_ca_file = Some(pki.authority.ca_file());
        tls.client_auth = ClientAuth::Required;
        config.tls = Some(tls);
    })
    .await;
    for protocol in [
        SecurityProtocol::Ssl,
        SecurityProtocol::SaslPlaintext,
        SecurityProtocol::SaslSsl,
    ] {
        let mechanisms: &[Option<Mechanism>] = if protocol.has_sasl() {
            &Mechanism::ALL.map(Some)
        } else {
            &[None]
        };
        for mechanism in mechanisms {
            let mut settings = vec![
                format!("security.protocol={protocol}"),
                // The broker of the test listens on this one only; kcat ends at the first refusal.
                "broker.address.family=v4".to_owned(),
            ];
            if protocol.has_tls() {
                settings.push(format!(
                    "ssl.ca.location={}",
                    pki.authority.ca_file().display()
                ));
            }
            if protocol == SecurityProtocol::Ssl {
                let (certificate, key) = (&client.certificate_file, &client.key_file);
                settings.push(format!(
                    "ssl.certificate.location={}",
                    certificate.display()
                ));
                settings.push(format!("ssl.key.location={}", key.display()));
            }
            if let Some(mechanism) = mechanism {
                settings.push(format!("sasl.mechanism={mechanism}"));
                settings.push(format!("sasl.username={USER}"));
                settings.push(format!("sasl.password={PASSWORD}"));
            }
            let address = format!("localhost:{}", broker.listener(protocol.name()).port());
            let name = mechanism.map_or("none", Mechanism::name);
            let topic = format!("{protocol}-{name}");
            let common = ["-q", "-b", &address, "-t", &topic];
            let text = "first\nsecond\n";
            let produced = kcat(&[&["-P"], &common[..]].concat(), &settings, text);
            assert!(produced.status.success(), "{topic}: {produced:?}");
            let read = ["-C", "-e", "-o", "beginning"];
            let read = kcat(&[&read[..], &common].concat(), &settings, "");
            assert_eq!(
                String::from_utf8_lossy(&read.stdout),
                text,
                "{topic}: {read:?}"
            );
            if mechanism.is_some() {
                let wrong = settings.iter().map(|setting| {
                    let is_password = setting.starts_with("sasl.password");
                    if is_password {
                        "sasl.password=guess".to_owned()
                    } else {
                        setting.clone()
                    }
                });
                let wrong: Vec<String> = wrong.collect();
                let refused = kcat(&["-L", "-m", "3", "-b", &address], &wrong, "");
                let said = String::from_utf8_lossy(&refused.stderr);
                assert!(!refused.status.success());
                assert!(said.contains("invalid credentials"), "{topic}: {said}");
            }
        }
    }
}
