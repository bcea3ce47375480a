//! Those who are not let in, byte by byte.

use std::time::Duration;

use broker_client::Client;
use broker_protocol::{
    messages::{
        ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
    },
    sasl::{Mechanism, Secret, plain},
};
use test_support::wait_until_async;
use tokio::io::AsyncWriteExt;

use super::{PASSWORD, Pki, USER, broker_with, client_of, login, round_trip, sasl};
use crate::support::{PATIENCE, TestBroker, Wire, name};

async fn connect(broker: &TestBroker) -> Wire {
    TestBroker::connect_to(broker.listener("SASL_PLAINTEXT")).await
}

async fn handshake(wire: &mut Wire, mechanism: &str, version: i16) -> (&'static str, usize) {
    let request = SaslHandshakeRequest {
        mechanism: mechanism.into(),
    };
    let answer = wire.call(&request, version).await;
    (name(answer.error_code), answer.mechanisms.len())
}

async fn token(wire: &mut Wire, token: &[u8], version: i16) -> &'static str {
    let request = SaslAuthenticateRequest {
        auth_bytes: token.to_vec().into(),
    };
    let answer = wire.call(&request, version).await;
    assert_eq!(answer.session_lifetime_ms, 0);
    name(answer.error_code)
}

#[tokio::test]
async fn nothing_but_the_authentication_is_answered_before_it() {
    let pki = Pki::new();
    // What is closed here is not closed by the deadline.
    let broker = broker_with(&pki, |config| {
        config.authentication_timeout = PATIENCE * 10;
    })
    .await;
    let mut wire = connect(&broker).await;
    wire.send(&MetadataRequest::default(), 9).await;
    wire.assert_closed().await;

    let mut wire = connect(&broker).await;
    wire.call(&ApiVersionsRequest::default(), 0).await;
    assert_eq!(handshake(&mut wire, "PLAIN", 1).await, ("NONE", 3));
    wire.send(&MetadataRequest::default(), 9).await;
    wire.assert_closed().await;

    let mut wire = connect(&broker).await;
    wire.raw(&(16 * 1024 + 1_i32).to_be_bytes()).await;
    wire.assert_closed().await;
}

#[tokio::test]
async fn every_version_authenticates_and_then_serves() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |_| {}).await;
    let message = plain::encode(USER, &Secret::new(PASSWORD));
    for version in 0..=2 {
        let mut wire = connect(&broker).await;
        assert_eq!(handshake(&mut wire, "PLAIN", 1).await, ("NONE", 3));
        assert_eq!(token(&mut wire, &message, version).await, "NONE");
        assert_eq!(
            wire.call(&MetadataRequest::default(), 9)
                .await
                .brokers
                .len(),
            1
        );
        let again = handshake(&mut wire, "PLAIN", 1).await;
        assert_eq!(again.0, "ILLEGAL_SASL_STATE");
        assert_eq!(
            token(&mut wire, &message, version).await,
            "ILLEGAL_SASL_STATE"
        );
        assert_eq!(
            wire.call(&MetadataRequest::default(), 9)
                .await
                .brokers
                .len(),
            1
        );
    }
}

#[tokio::test]
async fn a_step_that_does_not_fit_is_the_last() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |_| {}).await;

    let mut wire = connect(&broker).await;
    assert_eq!(token(&mut wire, b"\0a\0b", 2).await, "ILLEGAL_SASL_STATE");
    wire.assert_closed().await;

    let mut wire = connect(&broker).await;
    assert_eq!(
        handshake(&mut wire, "PLAIN", 0).await.0,
        "UNSUPPORTED_VERSION"
    );
    wire.assert_closed().await;

    let mut wire = connect(&broker).await;
    let gssapi = handshake(&mut wire, "GSSAPI", 1).await;
    assert_eq!(gssapi, ("UNSUPPORTED_SASL_MECHANISM", 3));
    wire.assert_closed().await;

    let mut wire = connect(&broker).await;
    handshake(&mut wire, "PLAIN", 1).await;
    assert_eq!(
        handshake(&mut wire, "PLAIN", 1).await.0,
        "ILLEGAL_SASL_STATE"
    );
    wire.assert_closed().await;

    for bad in [&b""[..], b"\0alice", b"n,,n=alice,r=x", &[0xff; 100]] {
        let mut wire = connect(&broker).await;
        handshake(&mut wire, "PLAIN", 1).await;
        assert_eq!(token(&mut wire, bad, 1).await, "SASL_AUTHENTICATION_FAILED");
        wire.assert_closed().await;
    }
    for bad in [
        &b""[..],
        b"n,,n=alice",
        b"p=tls-unique,,n=alice,r=x",
        &[0xff; 100],
    ] {
        let mut wire = connect(&broker).await;
        handshake(&mut wire, "SCRAM-SHA-256", 1).await;
        assert_eq!(token(&mut wire, bad, 1).await, "SASL_AUTHENTICATION_FAILED");
        wire.assert_closed().await;
    }
}

#[tokio::test]
async fn a_failure_is_told_after_the_delay() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        let mut sasl = sasl();
        sasl.failure_delay = Duration::from_millis(300);
        config.sasl = Some(sasl);
    })
    .await;
    let mut wire = connect(&broker).await;
    handshake(&mut wire, "PLAIN", 1).await;
    let request = SaslAuthenticateRequest {
        auth_bytes: b"\0alice\0guess"[..].into(),
    };
    wire.send(&request, 1).await;
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(100), wire.stream.peek(&mut byte)).await;
    assert!(early.is_err(), "told at once");
    let (_, answer) = wire.receive::<SaslAuthenticateRequest>(1).await;
    assert_eq!(name(answer.error_code), "SASL_AUTHENTICATION_FAILED");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_do_not_authenticate_hold_up_nobody_and_are_closed() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        config.authentication_timeout = Duration::from_secs(2);
    })
    .await;
    let mut idle = Vec::new();
    for protocol in ["SSL", "SASL_SSL", "SASL_PLAINTEXT"] {
        for sent in [
            &b""[..],
            &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc],
        ] {
            for _ in 0..20 {
                let mut wire = TestBroker::connect_to(broker.listener(protocol)).await;
                if protocol != "SASL_PLAINTEXT" {
                    wire.stream.write_all(sent).await.unwrap();
                }
                idle.push(wire);
            }
        }
    }
    let mut config = client_of(&broker, "SASL_SSL");
    config.tls = pki.trusting();
    config.sasl = Some(login(Mechanism::ScramSha256, USER, PASSWORD));
    round_trip(config, "orders").await;
    for mut wire in idle {
        wire.assert_closed().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_that_takes_every_place_gives_them_back() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        config.max_connections = 10;
        config.authentication_timeout = Duration::from_millis(500);
    })
    .await;
    let mut flood = Vec::new();
    for _ in 0..10 {
        flood.push(connect(&broker).await);
    }
    let let_in = || async {
        let mut config = client_of(&broker, "SASL_PLAINTEXT");
        config.connect_timeout = Duration::from_millis(200);
        config.sasl = Some(login(Mechanism::ScramSha512, USER, PASSWORD));
        Client::connect(config).await.is_ok()
    };
    wait_until_async(PATIENCE, let_in).await.unwrap();
}

#[tokio::test]
async fn a_stopping_broker_does_not_wait_for_handshakes() {
    let pki = Pki::new();
    let broker = broker_with(&pki, |config| {
        config.authentication_timeout = PATIENCE * 10;
        config.drain_timeout = PATIENCE * 10;
    })
    .await;
    let mut idle = Vec::new();
    for name in ["SSL", "SASL_SSL", "SASL_PLAINTEXT"] {
        idle.push(TestBroker::connect_to(broker.listener(name)).await);
    }
    let mut wire = connect(&broker).await;
    handshake(&mut wire, "PLAIN", 1).await;
    broker.stop().await;
}
