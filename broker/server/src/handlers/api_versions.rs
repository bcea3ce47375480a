//! `ApiVersions` 0–4: the table of [`super::SERVED`].
//!
//! A version that is too new is answered in the form of version 0 with error 35 and the range, so that the
//! client can ask again. Deviation from Apache Kafka: no features are reported.

use broker_protocol::{
    ErrorCode,
    messages::{ApiVersionsRequest, ApiVersionsResponse, api_versions::ApiVersion},
};

/// First version in which clients name their software.
const NAMED_SOFTWARE: i16 = 3;

pub(super) fn handle(version: i16, request: ApiVersionsRequest) -> ApiVersionsResponse {
    let ApiVersionsRequest {
        client_software_name,
        client_software_version,
    } = request;
    let named =
        is_software_word(&client_software_name) && is_software_word(&client_software_version);
    if version >= NAMED_SOFTWARE && !named {
        let error_code = ErrorCode::InvalidRequest.code();
        return ApiVersionsResponse {
            error_code,
            ..ApiVersionsResponse::default()
        };
    }
    ApiVersionsResponse {
        api_keys: rows(),
        ..ApiVersionsResponse::default()
    }
}

/// The answer to a version above the table, to be encoded as version 0.
pub(super) fn too_new() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: rows(),
        ..ApiVersionsResponse::default()
    }
}

fn rows() -> Vec<ApiVersion> {
    let row = |row: &super::Served| ApiVersion {
        api_key: row.api.code(),
        min_version: row.min,
        max_version: row.max,
    };
    super::SERVED.iter().map(row).collect()
}

/// Kafka's rule (KIP-511): letters and digits, inside also `-` and `.`.
fn is_software_word(word: &str) -> bool {
    let inside = word
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    let ends = [word.chars().next(), word.chars().next_back()];
    inside
        && ends
            .iter()
            .all(|end| end.is_some_and(|c| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_words_follow_kafkas_rule() {
        for good in ["librdkafka", "apache-kafka-java", "4.3.1", "a"] {
            assert!(is_software_word(good), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "ä"] {
            assert!(!is_software_word(bad), "{bad}");
        }
    }
}
