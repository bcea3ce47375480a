//! Both sides against the vectors of the RFCs, against each other, and against tokens that are none.

use base64::{Engine, prelude::BASE64_STANDARD};
use proptest::prelude::*;

use super::{Client, ClientFirst, Credential, Hash, Server, xor};
use crate::sasl::{Fault, Secret};

/// RFC 7677, section 3; and the same exchange with SHA-512 as other implementations compute it.
const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SALT: [u8; 16] = [
    0x5b, 0x6d, 0x99, 0x68, 0x9d, 0x12, 0x35, 0x8e, 0xec, 0xa0, 0x4b, 0x14, 0x12, 0x36, 0xfa, 0x81,
];

#[test]
fn the_exchange_of_rfc_7677_is_reproduced_on_both_sides() {
    let hash = Hash::Sha256;
    let (client, first) = Client::begin_with(hash, "user", CLIENT_NONCE.to_owned());
    assert_eq!(first, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
    let credential = Credential::derive(hash, "pencil", &SALT, 4096);
    let parsed = ClientFirst::parse(&first).unwrap();
    assert_eq!(parsed.username(), "user");
    let (server, challenge) = Server::challenge_with(parsed, credential, SERVER_NONCE);
    assert_eq!(
        challenge,
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    );
    let (proven, last) = client.prove(&Secret::new("pencil"), &challenge).unwrap();
    assert_eq!(
        last,
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
          p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    let answer = server.finish(&last).unwrap();
    assert_eq!(answer, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    proven.check(&answer).unwrap();
}

/// How an exchange ends: at the server, then at the client.
fn exchange(hash: Hash, username: &str, given: &str, stored: Credential) -> Result<(), Fault> {
    let (client, first) = Client::begin(hash, username)?;
    let first = ClientFirst::parse(&first)?;
    assert_eq!(first.username(), username);
    let (server, challenge) = Server::challenge(first, stored)?;
    let (proven, last) = client.prove(&Secret::new(given), &challenge)?;
    proven.check(&server.finish(&last)?)
}

#[test]
fn the_right_password_passes_and_no_other_does() {
    for hash in [Hash::Sha256, Hash::Sha512] {
        let stored = Credential::new(hash, "pass,wörd=").unwrap();
        let name = "a=b,c =2C";
        assert_eq!(exchange(hash, name, "pass,wörd=", stored.clone()), Ok(()));
        assert_eq!(exchange(hash, name, "pass,wörd", stored), Err(Fault::Proof));
        let seed = [7; 32];
        let nobody = Credential::impossible(hash, &seed, name);
        assert_eq!(nobody, Credential::impossible(hash, &seed, name));
        assert_eq!(
            exchange(hash, name, "pass,wörd=", nobody),
            Err(Fault::Proof)
        );
    }
}

/// What librdkafka 2.0 sends, and Apache Kafka takes.
#[test]
fn a_client_may_say_its_own_nonce_once_more() {
    let hash = Hash::Sha256;
    let stored = Credential::derive(hash, "pencil", &SALT, 4096);
    let challenged = || {
        let (client, first) = Client::begin_with(hash, "user", "mine".to_owned());
        let first = ClientFirst::parse(&first).unwrap();
        let (server, challenge) = Server::challenge_with(first, stored.clone(), "yours");
        (client, server, challenge)
    };
    let last = |nonce: &str, challenge: &[u8]| {
        let challenge = std::str::from_utf8(challenge).unwrap();
        let without_proof = format!("c=biws,r={nonce}");
        let signed = ["n=user,r=mine", challenge, &without_proof].join(",");
        let salted = hash.salted("pencil", &SALT, 4096.try_into().unwrap());
        let key = ring::hmac::sign(&salted, b"Client Key");
        let signature = hash.sign(&hash.digest(key.as_ref()), signed.as_bytes());
        let proof = BASE64_STANDARD.encode(xor(key.as_ref(), signature.as_ref()));
        format!("{without_proof},p={proof}").into_bytes()
    };
    for (nonce, expected) in [
        ("mineyours", None),
        ("minemineyours", None),
        ("mineyour", Some(Fault::Nonce)),
        ("mineyoursmine", Some(Fault::Nonce)),
        ("yours", Some(Fault::Nonce)),
    ] {
        let (_, server, challenge) = challenged();
        let ended = server.finish(&last(nonce, &challenge));
        assert_eq!(ended.err(), expected, "{nonce}");
    }
}

#[test]
fn a_server_that_does_not_know_the_password_is_found_out() {
    let (client, first) = Client::begin(Hash::Sha256, "alice").unwrap();
    let stored = Credential::new(Hash::Sha256, "password").unwrap();
    let parsed = ClientFirst::parse(&first).unwrap();
    let (_, challenge) = Server::challenge(parsed, stored).unwrap();
    let (proven, _) = client.prove(&Secret::new("password"), &challenge).unwrap();
    let forged = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
    assert_eq!(proven.check(forged), Err(Fault::ServerProof));
}

#[test]
fn a_challenge_that_weakens_or_burdens_the_client_is_refused() {
    for (challenge, fault) in [
        ("r=other,s=AAAA,i=4096", Fault::Nonce),
        ("r=mine,s=AAAA,i=4096", Fault::Nonce),
        ("r=mineX,s=AAAA,i=4095", Fault::Iterations { found: 4095 }),
        ("r=mineX,s=AAAA,i=0", Fault::Iterations { found: 0 }),
        (
            "r=mineX,s=AAAA,i=4294967295",
            Fault::Iterations { found: u32::MAX },
        ),
        (
            "r=mineX,s=,i=4096",
            Fault::Malformed("first message of the server"),
        ),
        (
            "r=mineX,i=4096",
            Fault::Malformed("first message of the server"),
        ),
        ("", Fault::Malformed("first message of the server")),
    ] {
        let (client, _) = Client::begin_with(Hash::Sha256, "alice", "mine".to_owned());
        let refused = client.prove(&Secret::new("x"), challenge.as_bytes());
        assert_eq!(refused.unwrap_err(), fault, "{challenge}");
    }
}

#[test]
fn first_messages_that_ask_for_more_are_refused() {
    let parse =
        |text: &str| ClientFirst::parse(text.as_bytes()).map(|first| first.username().to_owned());
    assert_eq!(parse("n,,n=a,r=x"), Ok("a".to_owned()));
    assert_eq!(parse("y,,n=a,r=x,tokenauth=true"), Ok("a".to_owned()));
    assert_eq!(parse("n,a=a,n=a,r=x"), Ok("a".to_owned()));
    assert_eq!(parse("n,a=root,n=a,r=x"), Err(Fault::OtherIdentity));
    assert_eq!(parse("p=tls-unique,,n=a,r=x"), Err(Fault::ChannelBinding));
    for bad in [
        "",
        "n",
        "n,,",
        "n,,m=ext,n=a,r=x",
        "n,,n=,r=x",
        "n,,n=a,r=",
        "n,,n=a=,r=x",
        "n,,n=a,r=\u{e9}",
    ] {
        assert!(matches!(parse(bad), Err(Fault::Malformed(_))), "{bad}");
    }
}

#[test]
fn kafkas_form_of_a_credential_is_read() {
    let derived = Credential::derive(Hash::Sha256, "pencil", &SALT, 4096);
    let text = "[salt=W22ZaJ0SNY7soEsUEjb6gQ==,\
        stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,\
        server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=,iterations=4096]";
    assert_eq!(Credential::parse(Hash::Sha256, text), Ok(derived));
    assert!(
        Credential::parse(Hash::Sha512, text).is_err(),
        "of another hash"
    );
    for (from, to) in [
        ("4096", "100"),
        ("[", ""),
        ("salt=", "pepper="),
        ("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        ("stored_key=WG5d", "stored_key=%"),
    ] {
        let bad = text.replace(from, to);
        let error = Credential::parse(Hash::Sha256, &bad).unwrap_err();
        assert!(!error.to_string().contains("WG5d"), "{error}");
    }
    let shown = format!(
        "{:?}",
        Credential::derive(Hash::Sha256, "pencil", &SALT, 4096)
    );
    assert!(!shown.contains("stored_key"), "{shown}");
}

proptest! {
    #[test]
    fn tokens_that_are_none_never_panic(token in prop::collection::vec(any::<u8>(), 0..200), text in "[a-z=,0-9]{0,60}") {
        for token in [token.as_slice(), text.as_bytes()] {
            let _refused = ClientFirst::parse(token);
            let (client, first) = Client::begin(Hash::Sha256, "alice").unwrap();
            let parsed = ClientFirst::parse(&first).unwrap();
            let seed = [7; 32];
            let stored = Credential::impossible(Hash::Sha256, &seed, "alice");
            let (server, _) = Server::challenge(parsed, stored).unwrap();
            prop_assert!(server.finish(token).is_err());
            prop_assert!(client.prove(&Secret::new("x"), token).is_err());
            prop_assert!(Credential::parse(Hash::Sha256, &String::from_utf8_lossy(token)).is_err());
        }
    }
}
