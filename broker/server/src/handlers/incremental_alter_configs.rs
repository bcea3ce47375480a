//! `IncrementalAlterConfigs` 0–1: sets and deletes settings of a topic, appends to lists and subtracts from them.
//!
//! As in Apache Kafka an append to a list that the topic does not set begins with the default, words that are
//! there are not added twice, and deleting what is not set succeeds. Deviations: see `alter_configs`.

use broker_protocol::{
    ByteString, ErrorCode,
    messages::{
        IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
        incremental_alter_configs::{AlterConfigsResourceResponse, AlterableConfig},
    },
};

use super::{
    Context,
    alter_configs::{Refusal, Setting, Target, change, check_names, doubled, outcome},
};
use crate::{
    config::Config,
    topic_config::{self, Kind, Overrides},
};

/// Kafka's numbers of what to do with a setting.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(super) async fn handle(
    context: &Context<'_>,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let named = request
        .resources
        .iter()
        .map(|resource| (resource.resource_type, &resource.resource_name));
    let doubled = doubled(named);
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let target = Target {
            kind: resource.resource_type,
            name: resource.resource_name,
            validate_only: request.validate_only,
        };
        let changed = match check_names(&target, &doubled, &resource.configs) {
            Ok(()) => {
                let changes = resource.configs;
                let edit = move |config: &Config, old: &Overrides| apply_all(config, old, &changes);
                change(context, &target, edit).await
            }
            Err(refusal) => Err(refusal),
        };
        let (error_code, error_message) = outcome(changed);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: target.kind,
            resource_name: target.name,
        });
    }
    IncrementalAlterConfigsResponse {
        responses,
        ..IncrementalAlterConfigsResponse::default()
    }
}

impl Setting for AlterableConfig {
    fn name(&self) -> &ByteString {
        &self.name
    }

    fn lacks_value(&self) -> bool {
        self.value.is_none() && self.config_operation != DELETE
    }
}

fn apply_all(
    config: &Config,
    old: &Overrides,
    changes: &[AlterableConfig],
) -> Result<Overrides, Refusal> {
    let mut overrides = old.clone();
    for change in changes {
        apply(config, &mut overrides, change)?;
    }
    Ok(overrides)
}

fn apply(
    config: &Config,
    overrides: &mut Overrides,
    change: &AlterableConfig,
) -> Result<(), Refusal> {
    let name = &*change.name;
    let given = change.value.as_deref().unwrap_or_default();
    let value = match change.config_operation {
        SET => given.to_owned(),
        DELETE => {
            overrides.remove(name);
            return Ok(());
        }
        APPEND | SUBTRACT => {
            let key = topic_config::key(name).filter(|key| key.kind == Kind::List);
            let key = key.ok_or_else(|| {
                let message = format!("cannot append to or subtract from {name}: it is not a list");
                (ErrorCode::InvalidConfig, message)
            })?;
            let current = overrides.get(name).cloned();
            let current = current.unwrap_or_else(|| key.default(config));
            combine(&current, given, change.config_operation == APPEND)
        }
        other => {
            let message = format!("operation {other} of {name} is none of 0 to 3");
            return Err((ErrorCode::InvalidRequest, message));
        }
    };
    topic_config::check(name, Some(&value))
        .map_err(|message| (ErrorCode::InvalidConfig, message))?;
    overrides.insert(name.to_owned(), value);
    Ok(())
}

/// A list with words added that it lacks, or taken away.
fn combine(current: &str, given: &str, append: bool) -> String {
    let words = |list| str::split(list, ',').map(str::trim);
    let mut combined: Vec<&str> = words(current).filter(|word| !word.is_empty()).collect();
    for word in words(given) {
        if !append {
            combined.retain(|have| *have != word);
        } else if !combined.contains(&word) {
            combined.push(word);
        }
    }
    combined.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &'static str, operation: i8, value: Option<&'static str>) -> AlterableConfig {
        AlterableConfig {
            name: name.into(),
            config_operation: operation,
            value: value.map(Into::into),
        }
    }

    fn changed(old: &[(&str, &str)], change: AlterableConfig) -> Result<Overrides, Refusal> {
        let old = old
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        apply_all(&Config::default(), &old.collect(), &[change])
    }

    fn policy(old: &[(&str, &str)], operation: i8, value: &'static str) -> String {
        changed(old, change("cleanup.policy", operation, Some(value))).unwrap()["cleanup.policy"]
            .clone()
    }

    #[test]
    fn lists_are_appended_to_and_subtracted_from() {
        assert_eq!(policy(&[], APPEND, "compact"), "delete,compact");
        assert_eq!(policy(&[], APPEND, "delete"), "delete");
        let both = [("cleanup.policy", "compact, delete")];
        assert_eq!(policy(&both, SUBTRACT, "delete"), "compact");
        assert_eq!(policy(&both, SUBTRACT, "nothing"), "compact,delete");
    }

    #[test]
    fn what_would_leave_no_right_value_is_refused() {
        for (refused, code) in [
            (change("cleanup.policy", SUBTRACT, Some("delete")), 40),
            (change("cleanup.policy", APPEND, Some("shred")), 40),
            (change("retention.ms", APPEND, Some("5")), 40),
            (change("nonsense", APPEND, Some("5")), 40),
            (change("nonsense", SET, Some("5")), 40),
            (change("retention.ms", SET, Some("soon")), 40),
            (change("retention.ms", 7, Some("5")), 42),
        ] {
            let (got, message) = changed(&[], refused.clone()).unwrap_err();
            assert_eq!(got.code(), code, "{refused:?}: {message}");
        }
    }

    #[test]
    fn deleting_needs_no_value_and_nothing_to_delete() {
        let old = [("retention.ms", "5"), ("segment.bytes", "2000")];
        let left = changed(&old, change("retention.ms", DELETE, None)).unwrap();
        assert_eq!(left.into_keys().collect::<Vec<_>>(), ["segment.bytes"]);
        assert!(changed(&[], change("nonsense", DELETE, None)).is_ok());
    }
}
