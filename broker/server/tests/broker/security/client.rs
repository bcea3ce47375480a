//! Our client: what lets it in, and what it says when it is not let in.

use std::{fs, time::Duration};

use broker_client::{Client, ClientConfig, Error, ErrorKind, TlsFault};
use broker_protocol::sasl::Mechanism;
use broker_server::{ClientAuth, SecurityProtocol, TlsVersion};
use test_support::{Authority, wait_until_async};

use super::{
    HOSTS, PASSWORD, Pki, USER, broker_with, client_of, login, refused, round_trip, sasl, tls,
};
use crate::support::{PATIENCE, TestBroker};

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_and_mechanism_lets_the_client_in() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |_| {}).await;
    for protocol in [
        SecurityProtocol::Plaintext,
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
            let mut config = client_of(&broker, protocol.name());
            config.tls = pki.trusting().filter(|_| protocol.has_tls());
            config.sasl = mechanism.map(|mechanism| login(mechanism, USER, PASSWORD));
            let name = mechanism.map_or("none", Mechanism::name);
            let client = round_trip(config, &format!("{protocol}-{name}")).await;
            let cluster = client.cluster().await.unwrap();
            let reached = broker.listener(protocol.name());
            assert_eq!(
                *cluster.brokers[0].address,
                *reached.to_string(),
                "{protocol}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_tells_its_own_advertised_address() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        config.advertised = Some("inside.example.com:1".to_owned());
        config.listeners[0].advertised = Some("outside.example.com:2".to_owned());
    })
    .await;
    for (name, told) in [
        ("PLAINTEXT", "inside.example.com:1"),
        ("SSL", "outside.example.com:2"),
    ] {
        let mut config = client_of(&broker, name);
        config.tls = pki.trusting().filter(|_| name == "SSL");
        let client = Client::connect(config).await.unwrap();
        let brokers = client.cluster().await.unwrap().brokers;
        assert_eq!(*brokers[0].address, *told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_an_unknown_user_are_told_the_same() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |_| {}).await;
    for mechanism in Mechanism::ALL {
        let mut messages = Vec::new();
        for (username, password) in [(USER, "guess"), ("bob", PASSWORD), ("bob", "guess")] {
            let mut config = client_of(&broker, "SASL_SSL");
            config.tls = pki.trusting();
            config.sasl = Some(login(mechanism, username, password));
            let error = refused(config).await;
            let shown = format!("{error} {error:?} {}", error.remedy());
            assert!(
                !shown.contains("guess") && !shown.contains(PASSWORD),
                "{shown}"
            );
            assert_eq!(error.kind(), ErrorKind::Caller);
            let Error::NotAuthenticated { message, .. } = error else {
                panic!("{error:?}")
            };
            messages.push(message);
        }
        assert_eq!(*messages[0], *"authentication failed: invalid credentials");
        assert!(messages.iter().all(|message| *message == messages[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mechanism_that_is_not_on_offer_is_told_with_those_that_are() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        let mut sasl = sasl();
        sasl.mechanisms.remove(0);
        config.sasl = Some(sasl);
    })
    .await;
    let mut config = client_of(&broker, "SASL_PLAINTEXT");
    config.sasl = Some(login(Mechanism::Plain, USER, PASSWORD));
    let error = refused(config).await;
    assert!(
        error
            .to_string()
            .ends_with("does not offer PLAIN (offered: SCRAM-SHA-256, SCRAM-SHA-512)"),
        "{error}"
    );
    let mut config = client_of(&broker, "PLAINTEXT");
    config.sasl = Some(login(Mechanism::ScramSha256, USER, PASSWORD));
    let error = refused(config).await;
    assert!(
        matches!(&error, Error::NotAuthenticated { message, .. } if message.contains("ILLEGAL_SASL_STATE")),
        "a listener without SASL: {error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_no_proof_is_refused_for_its_reason() {
    let pki = Pki::new();
    let other = Authority::new(pki.path(), "other").unwrap();
    for (host, expected) in [
        (pki.authority.expired_host("old", HOSTS), TlsFault::Expired),
        (other.host("other", HOSTS), TlsFault::Untrusted),
        (
            pki.authority.host("elsewhere", &["elsewhere.example.com"]),
            TlsFault::WrongName,
        ),
    ] {
        let broker = broker_with(&pki, |config| config.tls = Some(tls(&host.unwrap()))).await;
        let mut config = client_of(&broker, "SSL");
        config.tls = pki.trusting();
        let error = refused(config).await;
        assert_eq!(error.kind(), ErrorKind::Caller, "{error:?}");
        let Error::Tls { fault, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fault, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_good_certificate_stay_out_where_one_is_required() {
    let pki = Pki::new();
    let other = Authority::new(pki.path(), "other").unwrap();
    let good = pki.authority.client("loader").unwrap();
    let bad = other.client("loader").unwrap();
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        for wanted in [ClientAuth::Requested, ClientAuth::Required] {
            let broker = broker_with(&pki, |config| {
                let mut tls = pki.tls();
                tls.client_ca_file = Some(pki.authority.ca_file());
                tls.client_auth = wanted;
                tls.min_version = version;
                config.tls = Some(tls);
            })
            .await;
            let with = |identity: Option<&test_support::Identity>| {
                let mut config = client_of(&broker, "SSL");
                let mut tls = pki.trusting().unwrap();
                tls.certificate_file = identity.map(|id| id.certificate_file.clone());
                tls.key_file = identity.map(|id| id.key_file.clone());
                config.tls = Some(tls);
                config
            };
            round_trip(with(Some(&good)), "good").await;
            let mut turned_away = vec![with(Some(&bad))];
            if wanted == ClientAuth::Required {
                turned_away.push(with(None));
            } else {
                round_trip(with(None), "none").await;
            }
            for config in turned_away {
                let error = refused(config).await;
                assert!(
                    matches!(
                        error,
                        Error::Tls {
                            fault: TlsFault::ClientCertificate,
                            ..
                        }
                    ),
                    "{wanted:?}: {error:?}"
                );
            }
            // SASL says who they are there.
            let mut config = client_of(&broker, "SASL_SSL");
            config.tls = pki.trusting();
            config.sasl = Some(login(Mechanism::ScramSha512, USER, PASSWORD));
            Client::connect(config).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_kind_of_listener_is_told_apart_from_a_dead_broker() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |_| {}).await;
    let soon = |name: &str| ClientConfig {
        connect_timeout: Duration::from_millis(500),
        ..client_of(&broker, name)
    };
    for name in ["SSL", "SASL_SSL"] {
        let error = refused(soon(name)).await;
        assert!(matches!(error, Error::WantsTls { .. }), "{error:?}");
    }
    for name in ["PLAINTEXT", "SASL_PLAINTEXT"] {
        let mut config = soon(name);
        config.tls = pki.trusting();
        let error = refused(config).await;
        assert!(
            matches!(
                error,
                Error::Tls {
                    fault: TlsFault::Closed,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.remedy().contains("leave out tls"));
    }
    for name in ["SASL_PLAINTEXT", "SASL_SSL"] {
        let mut config = soon(name);
        config.tls = pki.trusting().filter(|_| name == "SASL_SSL");
        let error = refused(config).await;
        assert!(matches!(error, Error::Unwelcome { .. }), "{error:?}");
        assert!(error.remedy().contains("SASL"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_users_are_read_again_when_their_files_change() {
    let pki = Pki::new();
    let users_file = pki.path().join("users");
    fs::write(&users_file, "alice = first\n").unwrap();
    let broker = broker_with(&pki, |config| {
        let mut sasl = sasl();
        sasl.users.clear();
        sasl.users_file = Some(users_file.clone());
        config.sasl = Some(sasl);
        config.reload_interval = Duration::from_millis(20);
    })
    .await;
    let with = |authority: &Authority, password: &str| {
        let mut config = client_of(&broker, "SASL_SSL");
        config.tls = Some(broker_client::TlsConfig {
            ca_file: Some(authority.ca_file()),
            ..broker_client::TlsConfig::default()
        });
        config.sasl = Some(login(Mechanism::ScramSha256, "alice", password));
        config
    };
    let old = round_trip(with(&pki.authority, "first"), "before").await;
    let next = Authority::new(pki.path(), "next").unwrap();
    let host = next.host("broker", HOSTS).unwrap();
    // Between the two copies certificate and key do not fit: the broker keeps what it has.
    fs::copy(&host.certificate_file, &pki.host.certificate_file).unwrap();
    fs::copy(&host.key_file, &pki.host.key_file).unwrap();
    fs::write(&users_file, "alice = second\n").unwrap();
    let let_in = || async { Client::connect(with(&next, "second")).await.is_ok() };
    wait_until_async(PATIENCE, let_in).await.unwrap();
    let error = refused(with(&next, "first")).await;
    assert!(matches!(error, Error::NotAuthenticated { .. }), "{error:?}");
    assert!(matches!(
        refused(with(&pki.authority, "second")).await,
        Error::Tls {
            fault: TlsFault::Untrusted,
            ..
        }
    ));
    old.cluster().await.expect("who is connected stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tls_client_that_leaves_frees_its_place_while_its_answer_is_awaited() {
    use broker_client::{FetchOptions, protocol::TopicName};

    let pki = Pki::new();
    let broker = broker_with(&pki, |config| config.max_connections = 2).await;
    let mut config = client_of(&broker, "SSL");
    config.tls = pki.trusting();
    config.fetch_max_wait = PATIENCE * 10;
    let client = Client::connect(config.clone()).await.unwrap();
    let topic = TopicName::new("orders").unwrap();
    client.create_topic(&topic, 1, 1, &[]).await.unwrap();
    // Holds the second place with a fetch that has nothing to return.
    let mut range = client.fetch_range(topic, 0, 0..1, FetchOptions::default());
    let waiting = tokio::time::timeout(Duration::from_millis(500), range.next()).await;
    assert!(waiting.is_err());
    drop(range);
    client.close().await;
    let both = || async {
        let first = TestBroker::connect_to(broker.address).await;
        let second = TestBroker::connect_to(broker.address).await;
        let mut open = true;
        for mut wire in [first, second] {
            wire.send(&broker_protocol::messages::MetadataRequest::default(), 9)
                .await;
            open &= wire.try_frame().await;
        }
        open
    };
    wait_until_async(PATIENCE, both).await.unwrap();
}
