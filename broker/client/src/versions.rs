//! Which version of each API a broker offers, and the choice among them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use broker_protocol::messages::Message;
use broker_protocol::messages::api_versions::ApiVersion;

use crate::error::{Error, Result};

/// Every version this client's codec knows.
pub(crate) const ANY: RangeInclusive<i16> = 0..=i16::MAX;

/// The answer to the handshake of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Versions {
    address: Arc<str>,
    offered: BTreeMap<i16, (i16, i16)>,
}

impl Versions {
    pub(crate) fn new(address: Arc<str>, offered: &[ApiVersion]) -> Self {
        let offered = offered
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect();
        Self { address, offered }
    }

    /// The highest version that the broker, the codec and the caller's `wanted` have in common.
    pub(crate) fn choose<M: Message>(&self, wanted: &RangeInclusive<i16>) -> Result<i16> {
        let usable = (
            M::MIN_VERSION.max(*wanted.start()),
            M::MAX_VERSION.min(*wanted.end()),
        );
        let offered = self.offered.get(&M::API_KEY).copied();
        if let Some((min, max)) = offered {
            let (low, high) = (usable.0.max(min), usable.1.min(max));
            if low <= high {
                return Ok(high);
            }
        }
        Err(Error::UnsupportedApi {
            address: Arc::clone(&self.address),
            api: M::NAME,
            offered,
            usable,
        })
    }
}

#[cfg(test)]
mod tests {
    use broker_protocol::messages::{FetchRequest, MetadataRequest};

    use super::*;

    fn versions(api_key: i16, min: i16, max: i16) -> Versions {
        let api = ApiVersion {
            api_key,
            min_version: min,
            max_version: max,
        };
        Versions::new(Arc::from("a:1"), &[api])
    }

    #[test]
    fn highest_common_version_is_chosen() {
        assert_eq!(
            versions(1, 4, 99)
                .choose::<FetchRequest>(&(4..=12))
                .unwrap(),
            12
        );
        assert_eq!(
            versions(1, 0, 11)
                .choose::<FetchRequest>(&(4..=12))
                .unwrap(),
            11
        );
    }

    #[test]
    fn api_without_common_version_is_named_with_both_ranges() {
        let error = versions(1, 13, 18)
            .choose::<FetchRequest>(&(4..=12))
            .unwrap_err();
        let Error::UnsupportedApi {
            offered, usable, ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((offered, usable), (Some((13, 18)), (4, 12)));
        let error = versions(1, 4, 12)
            .choose::<MetadataRequest>(&ANY)
            .unwrap_err();
        assert!(
            matches!(error, Error::UnsupportedApi { offered: None, .. }),
            "{error}"
        );
    }
}
