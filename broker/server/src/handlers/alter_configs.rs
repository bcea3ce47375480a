//! `AlterConfigs` 0–2: all settings of a topic at once; what is not named goes back to its default.
//!
//! A change is durable before it shows, and holds for what is appended afterwards. Deviations from Apache Kafka:
//! settings of a broker are not changed on the wire but in its configuration file, and say so; loggers, groups and
//! client metrics have none; `__consumer_offsets` gets none that would lose groups (`INVALID_CONFIG`).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use broker_protocol::{
    ByteString, ErrorCode, TopicName,
    messages::{
        AlterConfigsRequest, AlterConfigsResponse,
        alter_configs::{AlterConfigsResourceResponse, AlterableConfig},
    },
};

use super::{
    Context,
    describe_configs::{BROKER, TOPIC},
};
use crate::{
    config::Config,
    pool::Failed,
    topic_config::{self, Overrides},
    topics::ChangeError,
};

/// A code and its sentence.
pub(super) type Refusal = (ErrorCode, String);

pub(super) async fn handle(
    context: &Context<'_>,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
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
                let configs = resource.configs;
                change(context, &target, move |_, _| replace(&configs)).await
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
    AlterConfigsResponse {
        responses,
        ..AlterConfigsResponse::default()
    }
}

/// The resource of a change.
pub(super) struct Target {
    /// Kafka's number of its kind.
    pub(super) kind: i8,
    /// Its name.
    pub(super) name: ByteString,
    /// Whether nothing shall be changed.
    pub(super) validate_only: bool,
}

/// The name of a setting and whether it has a value or needs none: what both requests are checked for.
pub(super) trait Setting {
    fn name(&self) -> &ByteString;
    fn lacks_value(&self) -> bool;
}

impl Setting for AlterableConfig {
    fn name(&self) -> &ByteString {
        &self.name
    }

    fn lacks_value(&self) -> bool {
        self.value.is_none()
    }
}

/// The resources that a request names more than once.
pub(super) fn doubled<'a>(
    named: impl Iterator<Item = (i8, &'a ByteString)>,
) -> HashSet<(i8, ByteString)> {
    let mut times: HashMap<(i8, &ByteString), usize> = HashMap::new();
    for resource in named {
        *times.entry(resource).or_default() += 1;
    }
    let several = times.into_iter().filter(|(_, times)| *times > 1);
    several
        .map(|((kind, name), _)| (kind, name.clone()))
        .collect()
}

/// Refuses what no order of the changes would make sense of.
pub(super) fn check_names(
    target: &Target,
    doubled: &HashSet<(i8, ByteString)>,
    settings: &[impl Setting],
) -> Result<(), Refusal> {
    let refuse = |message: String| Err((ErrorCode::InvalidRequest, message));
    if doubled.contains(&(target.kind, target.name.clone())) {
        return refuse("each resource must appear at most once in a request".to_owned());
    }
    let mut seen = HashSet::new();
    for setting in settings {
        if !seen.insert(setting.name()) {
            return refuse(format!("{} is named more than once", setting.name()));
        }
        if setting.lacks_value() {
            return refuse(format!("null value not supported for {}", setting.name()));
        }
    }
    Ok(())
}

/// Changes the settings of a resource to what `edit` makes of the broker's and the topic's.
pub(super) async fn change(
    context: &Context<'_>,
    target: &Target,
    edit: impl FnOnce(&Config, &Overrides) -> Result<Overrides, Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    match target.kind {
        TOPIC => {}
        BROKER => {
            let message = "settings of this broker cannot be changed while it runs; change its \
                           configuration file and restart it";
            return Err((ErrorCode::InvalidRequest, message.to_owned()));
        }
        other => {
            let message = format!("resources of type {other} have no settings here");
            return Err((ErrorCode::InvalidRequest, message));
        }
    }
    let name = TopicName::try_from(target.name.clone())
        .map_err(|error| (ErrorCode::InvalidTopicException, error.to_string()))?;
    let (broker, validate_only) = (Arc::clone(context.broker), target.validate_only);
    let change = move || {
        let edit = |overrides: &Overrides| {
            let edited = edit(&broker.config, overrides).and_then(|edited| {
                topic_config::check_all(&broker.config, name.as_str(), &edited)
                    .map_err(|message| (ErrorCode::InvalidConfig, message))?;
                Ok(edited)
            });
            edited.map_err(|(code, message)| ChangeError::Setting { code, message })
        };
        broker.topics.configure(&name, validate_only, edit)
    };
    match context.broker.pool.run(change).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err((error.error_code(), error.to_string())),
        Err(Failed) => Err((
            ErrorCode::KafkaStorageError,
            "the change failed inside the broker".to_owned(),
        )),
    }
}

/// Code and message as both responses have them.
pub(super) fn outcome(changed: Result<(), Refusal>) -> (i16, Option<ByteString>) {
    match changed {
        Ok(()) => (ErrorCode::None.code(), None),
        Err((code, message)) => (code.code(), Some(message.into())),
    }
}

fn replace(configs: &[AlterableConfig]) -> Result<Overrides, Refusal> {
    let mut overrides = Overrides::new();
    for config in configs {
        topic_config::check(&config.name, config.value.as_deref())
            .map_err(|message| (ErrorCode::InvalidConfig, message))?;
        let value = config.value.as_deref().unwrap_or_default();
        overrides.insert(config.name.to_string(), value.to_owned());
    }
    Ok(overrides)
}
