//! The proxy passes bytes on, and its faults do what they say.

use std::io::ErrorKind;
use std::time::Duration;

use test_support::{Fault, TcpProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Long enough for any answer on the loopback address of a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Short, because it is waited for in vain.
const SILENCE: Duration = Duration::from_millis(200);

/// A server that sends back what it gets, and the proxy before it.
async fn echo() -> anyhow::Result<(TcpProxy, AbortHandle)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let mut tasks = tokio::task::JoinSet::new();
    let server = tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut from, mut to) = stream.split();
            // A client that goes away is no failure of the test.
            tokio::io::copy(&mut from, &mut to).await.ok();
        }
    });
    tasks.detach_all();
    Ok((TcpProxy::start(&address).await?, server))
}

async fn receive<const N: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await??;
    Ok(bytes)
}

#[tokio::test]
async fn without_a_fault_bytes_pass_both_ways() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(&receive::<5>(&mut stream).await.unwrap(), b"hello");
    assert_eq!(
        (
            proxy.connections(),
            proxy.request_bytes(),
            proxy.answer_bytes()
        ),
        (1, 5, 5)
    );
}

#[tokio::test]
async fn a_client_that_has_sent_all_still_gets_the_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let proxy = TcpProxy::start(&address).await.unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        stream.write_all(&all).await.unwrap();
    };
    let client = async {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"all").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let both = async { tokio::join!(server, client) };
    assert_eq!(timeout(PATIENCE, both).await.unwrap().1, b"all");
}

#[tokio::test]
async fn cut_answers_end_the_connection_after_exactly_so_many_bytes() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::CutAnswersAfter(3));
    stream.write_all(b"hello").await.unwrap();
    assert_eq!(&receive::<3>(&mut stream).await.unwrap(), b"hel");
    let end = receive::<1>(&mut stream).await.unwrap_err();
    assert!(
        matches!(
            end.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        ),
        "{end}"
    );
    assert_eq!(proxy.request_bytes(), 5);
}

#[tokio::test]
async fn cut_requests_keep_the_rest_from_the_server() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::CutRequestsAfter(2));
    stream.write_all(b"hello").await.unwrap();
    let end = receive::<3>(&mut stream).await.unwrap_err();
    assert!(
        matches!(
            end.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        ),
        "{end}"
    );
    assert_eq!(proxy.request_bytes(), 2);
}

#[tokio::test]
async fn dropped_answers_reach_nobody_though_the_server_sent_them() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::DropAnswers);
    stream.write_all(b"lost").await.unwrap();
    test_support::wait_until_async(PATIENCE, || async { proxy.answer_bytes() == 4 })
        .await
        .unwrap();
    assert!(
        timeout(SILENCE, stream.read_u8()).await.is_err(),
        "an answer or an end came through"
    );
    proxy.set(Fault::None);
    stream.write_all(b"seen").await.unwrap();
    assert_eq!(&receive::<4>(&mut stream).await.unwrap(), b"seen");
}

#[tokio::test]
async fn stalled_bytes_arrive_when_the_stall_ends() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::Stall);
    stream.write_all(b"late").await.unwrap();
    assert!(timeout(SILENCE, stream.read_u8()).await.is_err());
    assert_eq!(proxy.answer_bytes(), 0);
    proxy.set(Fault::None);
    assert_eq!(&receive::<4>(&mut stream).await.unwrap(), b"late");
}

#[tokio::test]
async fn delayed_answers_come_late() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.set(Fault::DelayAnswers(SILENCE));
    let begin = std::time::Instant::now();
    stream.write_all(b"slow").await.unwrap();
    assert_eq!(&receive::<4>(&mut stream).await.unwrap(), b"slow");
    assert!(begin.elapsed() >= SILENCE, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn refusing_closes_connections_and_accepts_again_afterwards() {
    let (proxy, _server) = echo().await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    receive::<1>(&mut stream).await.unwrap();
    proxy.set(Fault::Refuse);
    let end = receive::<1>(&mut stream).await.unwrap_err();
    assert!(
        matches!(
            end.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        ),
        "{end}"
    );
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.set(Fault::None);
    let connected = async || TcpStream::connect(proxy.address()).await.is_ok();
    test_support::wait_until_async(PATIENCE, connected)
        .await
        .unwrap();
}
