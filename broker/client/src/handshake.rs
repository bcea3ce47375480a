//! The first exchange of a connection: `ApiVersions`.
//!
//! Version 3 is tried first. A broker that does not know it answers in the form of version 0, with
//! error 35 (KIP-511); then version 0 is asked. The answer's header never has tagged fields.

use std::sync::Arc;
use std::time::Duration;

use broker_protocol::ByteString;
use broker_protocol::error_code::ErrorCode;
use broker_protocol::messages::{ApiVersionsRequest, Message};

use crate::client::Answer;
use crate::connection::Connection;
use crate::error::Result;
use crate::versions::Versions;

/// First version of `ApiVersions` that names the client.
const NAMED: i16 = 3;

/// Asks a fresh connection what it offers.
pub(crate) async fn versions(connection: &Connection, limit: Duration) -> Result<Versions> {
    let request = ApiVersionsRequest {
        client_software_name: ByteString::from_static("logferry"),
        client_software_version: ByteString::from_static(env!("CARGO_PKG_VERSION")),
    };
    let mut answer = connection.exchange(NAMED, limit, &request).await?;
    let refused = ErrorCode::UnsupportedVersion.code().to_be_bytes();
    let mut version = NAMED;
    // The code follows the correlation id.
    if answer.get(4..6) == Some(&refused) {
        version = 0;
        answer = connection
            .exchange(version, limit, &ApiVersionsRequest::default())
            .await?;
    }
    let response = connection.decode::<ApiVersionsRequest>(version, answer)?;
    let (operation, code) = (ApiVersionsRequest::NAME, response.error_code);
    Answer {
        operation,
        code,
        topic: None,
        partition: None,
        message: None,
    }
    .check()?;
    Ok(Versions::new(
        Arc::clone(connection.address()),
        &response.api_keys,
    ))
}
